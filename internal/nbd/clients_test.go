package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// dial connects to the socket of a server.
func dial(t testing.TB, uri string) (c net.Conn) {
	t.Helper()
	disktest.WaitFor(t, "room in the queue of the socket", func() bool {
		var err error
		c, err = net.Dial("unix", strings.TrimPrefix(uri, "nbd+unix:///?socket="))
		return err == nil
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// enter negotiates in the shortest way.
func enter(c net.Conn) error {
	if _, err := c.Write(append(hello(3), option(optExportName)...)); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 18+10)) // greeting, size and flags
	return err
}

// read requests bytes with a simple reply.
func read(c net.Conn, off uint64, n uint32) ([]byte, error) {
	if _, err := c.Write(ask(cmdRead, 0, off, n)); err != nil {
		return nil, err
	}
	b := make([]byte, simpleHead+n)
	_, err := io.ReadFull(c, b)
	return b[simpleHead:], err
}

// A client that sends requests but does not read, and one that stops in the middle of its handshake, only block
// themselves.
func TestStuckClients(t *testing.T) {
	t.Parallel()
	d, want := odd()
	uri, _ := serve(t, &Server{Disk: d})
	for range maxClients/2 - 1 {
		stuck := dial(t, uri)
		require.NoError(t, enter(stuck))
		for range 64 {
			_, err := stuck.Write(ask(cmdRead, 0, 0, 5<<20))
			require.NoError(t, err)
		}
		_, err := dial(t, uri).Write([]byte{0, 0})
		require.NoError(t, err)
	}
	c := dial(t, uri)
	require.NoError(t, enter(c))
	got, err := read(c, 7, 1<<20)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want[7:7+1<<20], got))
}

// Ten thousand silent connections neither exhaust the server nor keep others out.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	d, want := odd()
	uri, end := serve(t, &Server{Disk: d})
	steady := dial(t, uri)
	require.NoError(t, enter(steady))
	const many, open = 10_000, 400
	var conns []net.Conn
	for i := range many {
		c := dial(t, uri)
		if conns = append(conns, c); len(conns) > open {
			conns[0].Close()
			conns = conns[1:]
		}
		if i%1000 == 0 {
			other := dial(t, uri)
			require.NoError(t, enter(other))
			got, err := read(other, 0, 100)
			require.NoError(t, err)
			require.Equal(t, want[:100], got)
		}
	}
	got, err := read(steady, 1000, 100)
	require.NoError(t, err, "a client in transmission stays")
	require.Equal(t, want[1000:1100], got)
	require.ErrorIs(t, end(), context.Canceled)
	for _, c := range conns {
		c.Close()
	}
}

// pipes is a listener with clients in this process.
type pipes struct {
	conns chan net.Conn
	gone  chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.gone:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "pipe"} }

func (p *pipes) Close() error {
	select {
	case <-p.gone:
	default:
		close(p.gone)
	}
	return nil
}

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

// A handshake has a time limit. If all slots are taken, the oldest handshake gives up its slot, and no client in
// transmission.
func TestPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := odd()
		l := newPipes()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- (&Server{Disk: d}).Serve(ctx, l) }()

		entered := func() net.Conn {
			c := l.dial()
			greeting := make([]byte, 18)
			_, err := io.ReadFull(c, greeting)
			require.NoError(t, err)
			_, err = c.Write(append(hello(3), option(optExportName)...))
			require.NoError(t, err)
			_, err = io.ReadFull(c, make([]byte, 10))
			require.NoError(t, err)
			synctest.Wait() // until the server has noted it
			return c
		}
		half, start := l.dial(), time.Now()
		_, err := io.Copy(io.Discard, half)
		require.NoError(t, err)
		require.Equal(t, handshakeTime, time.Since(start))

		all := []net.Conn{}
		for range maxClients {
			all = append(all, entered())
		}
		refused := l.dial()
		_, err = refused.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "all places are taken by clients in transmission")
		require.NoError(t, all[0].Close())
		synctest.Wait()
		silent := l.dial()
		_, err = io.ReadFull(silent, make([]byte, 18))
		require.NoError(t, err)
		time.Sleep(time.Second)
		more := entered()
		_, err = silent.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "the one in its handshake has made room")
		for _, c := range append(all[1:], more) {
			_, err := read(c, 0, 1)
			require.NoError(t, err)
		}
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
}

// A server that serves once ends when the last client has left; one that only sent a list continues.
func TestOnce(t *testing.T) {
	t.Parallel()
	d, _ := odd()
	l, err := ListenPrivate()
	require.NoError(t, err)
	left := Leftovers(l)
	require.Len(t, left, 2)
	done := make(chan error, 1)
	go func() { done <- (&Server{Disk: d, Once: true}).Serve(context.Background(), l) }()
	uri := URI(l.Addr())
	disktest.Run(t, "nbdinfo", "--list", uri)
	a, b := dial(t, uri), dial(t, uri)
	require.NoError(t, enter(a))
	require.NoError(t, enter(b))
	require.NoError(t, a.Close())
	_, err = read(b, 0, 10)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, <-done)
	for _, path := range left {
		_, err := os.Lstat(path)
		require.ErrorIs(t, err, os.ErrNotExist)
	}
}

// A disk that has changed since it was opened ends the server, with clients and without.
func TestDiskThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var changed atomic.Bool
		errOther := errors.New("another disk")
		d, _ := odd()
		l, done := newPipes(), make(chan error)
		go func() {
			done <- (&Server{Disk: d, Unchanged: func() error {
				if changed.Load() {
					return errOther
				}
				return nil
			}}).Serve(t.Context(), l)
		}()
		c := l.dial()
		_, err := io.ReadFull(c, make([]byte, 18))
		require.NoError(t, err)
		changed.Store(true)
		require.ErrorIs(t, <-done, errOther)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// Only the first failing read is reported.
func TestWarnsOnce(t *testing.T) {
	t.Parallel()
	d, _ := odd()
	var warned atomic.Int32
	uri, _ := serve(t, &Server{Disk: &bad{Disk: d, from: 1 << 20}, Warn: func(err error) {
		require.ErrorIs(t, err, errMedium)
		warned.Add(1)
	}})
	for range 3 {
		c := dial(t, uri)
		require.NoError(t, enter(c))
		_, err := c.Write(ask(cmdRead, 0, 1<<20, 512))
		require.NoError(t, err)
		head := make([]byte, simpleHead)
		_, err = io.ReadFull(c, head)
		require.NoError(t, err)
		require.EqualValues(t, errIO, be.Uint32(head[4:]))
	}
	require.EqualValues(t, 1, warned.Load())
}

func TestListeners(t *testing.T) {
	t.Parallel()
	l, err := ListenPrivate()
	require.NoError(t, err)
	path := l.Addr().String()
	for path, mode := range map[string]os.FileMode{
		path:               os.ModeSocket | 0o600,
		filepath.Dir(path): os.ModeDir | 0o700,
	} {
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode())
	}
	_, err = ListenUnix(path)
	require.ErrorIs(t, err, ondisk.ErrUsage)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	require.NoDirExists(t, filepath.Dir(path))
	_, err = ListenUnix(filepath.Join(t.TempDir(), strings.Repeat("long", 30)))
	require.ErrorContains(t, err, "must have at most 103")

	for address, ok := range map[string]bool{
		"127.0.0.1:0": true, "[::1]:0": true, "0.0.0.0:0": false, ":0": false,
		"10809": false, "127.0.0.1:nowhere": false,
	} {
		l, err := listenTCP(address, false)
		if !ok {
			require.ErrorIs(t, err, ondisk.ErrUsage, address)
			continue
		}
		if err != nil && strings.HasPrefix(address, "[") {
			continue // a machine without IPv6
		}
		require.NoError(t, err, address)
		require.Equal(t, "nbd://"+l.Addr().String()+"/", URI(l.Addr()))
		require.Empty(t, Leftovers(l))
		require.NoError(t, l.Close())
	}
	l, err = listenTCP("0.0.0.0:0", true)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.Equal(t, "nbd+unix:///?socket=/tmp/a%20b%26c", URI(&net.UnixAddr{Net: "unix", Name: "/tmp/a b&c"}))
}

// Only a socket that was passed to this process is used.
func TestActivated(t *testing.T) {
	l, err := Activated()
	require.NoError(t, err)
	require.Nil(t, l)
	t.Setenv("LISTEN_FDS", "2")
	t.Setenv("LISTEN_PID", "1")
	l, err = Activated()
	require.NoError(t, err)
	require.Nil(t, l)
	t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	_, err = Activated()
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// flaky is a listener for which every second Accept fails, and the last for good.
type flaky struct{ calls int }

func (f *flaky) Accept() (net.Conn, error) {
	const most = 300 // 150 failures, not consecutive
	switch f.calls++; {
	case f.calls > most:
		return nil, net.ErrClosed
	case f.calls%2 == 1:
		return nil, errors.New("too many open files")
	}
	here, there := net.Pipe()
	return here, there.Close()
}

func (*flaky) Close() error   { return nil }
func (*flaky) Addr() net.Addr { return &net.UnixAddr{} }

// TestServerOutlivesFailures requires that a server with occasional failures never gives up.
func TestServerOutlivesFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, _ := odd()
		l := &flaky{}
		require.ErrorIs(t, (&Server{Disk: d}).Serve(t.Context(), l), net.ErrClosed)
		require.Equal(t, 301, l.calls)
	})
}

// TestSocketIsAFile requires that a name that Linux would use for an abstract socket, which every user can open,
// becomes a file.
func TestSocketIsAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := ListenUnix("@socket")
	require.NoError(t, err)
	info, err := os.Lstat("@socket")
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077)
	require.NoError(t, l.Close())
	require.NoFileExists(t, "@socket")
}

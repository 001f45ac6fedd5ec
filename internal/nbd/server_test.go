package nbd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// odd is a disk with holes of many lengths, whose size is not a multiple of a sector, and its bytes.
func odd() (disk.Disk, []byte) {
	const size = 5<<20 + 77
	data := make([]byte, size)
	var pieces []disk.Piece
	for off, n := int64(0), int64(1); off+n < size; off, n = off+3*n, n*2 {
		for i := range n {
			data[off+i] = byte(1 + (off+i*7+i/251)%255)
		}
		pieces = append(pieces, disk.Piece{Range: disk.Range{Off: off, Len: n}, Src: bytes.NewReader(data), At: off})
	}
	return disk.New(size, 512, disk.Pieces(size, pieces, nil)), data
}

// serve runs a server until the test ends, or end is called, which returns the error of Serve.
func serve(t testing.TB, s *Server) (uri string, end func() error) {
	t.Helper()
	l, err := ListenPrivate()
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = s.Serve(ctx, l)
	}()
	end = func() error {
		cancel()
		disktest.WaitClosed(t, "the end of the server", done)
		return err
	}
	t.Cleanup(func() { _ = end() })
	return URI(l.Addr()), end
}

// state is an entry of nbdinfo --map --json.
type state struct {
	Offset, Length int64
	Type           int
}

// Common clients read every byte and every hole, over one connection and over many.
func TestClients(t *testing.T) {
	t.Parallel()
	d, want := odd()
	uri, end := serve(t, &Server{Disk: d})
	dir := t.TempDir()
	for i, flags := range [][]string{
		{},
		{"--synchronous"},
		{"--connections=8", "--threads=8"},
		{"--request-size=65536"},
		{"--request-size=33554432"},
		{"--no-extents"},
	} {
		copied := filepath.Join(dir, fmt.Sprint(i))
		disktest.Run(t, "nbdcopy", append(flags, uri, copied)...)
		got := disktest.ReadFile(t, copied)
		require.True(t, bytes.Equal(want, got), flags)
	}
	var info struct {
		Exports []struct {
			Size      int64 `json:"export-size"`
			Contexts  []string
			ReadOnly  bool `json:"is_read_only"`
			MultiConn bool `json:"can_multi_conn"`
			Min       int  `json:"block_size_minimum"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "nbdinfo", "--list", "--json", uri)), &info))
	require.Len(t, info.Exports, 1)
	e := info.Exports[0]
	require.EqualValues(t, len(want), e.Size)
	require.Equal(t, []string{allocation}, e.Contexts)
	require.True(t, e.ReadOnly)
	require.True(t, e.MultiConn)
	require.Equal(t, 1, e.Min, "any byte can be read")

	var states []state
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "nbdinfo", "--map", "--json", uri)), &states))
	for e, err := range disk.Extents(d, disk.Range{Len: d.Size()}) {
		require.NoError(t, err)
		s := state{e.Off, e.Len, 0}
		if e.Zero {
			s.Type = stateHole | stateZero
		}
		require.Equal(t, s, states[0])
		states = states[1:]
	}
	require.Empty(t, states)

	raw := filepath.Join(dir, "whole")
	require.NoError(t, os.WriteFile(raw, want, 0o600))
	disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", uri, raw)
	require.ErrorIs(t, end(), context.Canceled)
}

// memory is a client in memory: what it sends, and what it gets.
type memory struct {
	io.Reader
	bytes.Buffer
}

func (m *memory) Read(p []byte) (int, error) { return m.Reader.Read(p) }

// Bytes that a client sends.
func hello(flags uint32) []byte { return be.AppendUint32(nil, flags) }

func option(number uint32, data ...byte) []byte {
	b := be.AppendUint32(be.AppendUint64(nil, magicOption), number)
	return append(be.AppendUint32(b, uint32(len(data))), data...)
}

func ask(kind, flags uint16, off uint64, n uint32) []byte {
	b := be.AppendUint16(be.AppendUint16(be.AppendUint32(nil, magicRequest), flags), kind)
	return be.AppendUint32(be.AppendUint64(be.AppendUint64(b, 0x1122334455667788), off), n)
}

var (
	named = []byte("\x00\x00\x00\x00")       // the name "", with its length
	plain = append(bytes.Clone(named), 0, 0) // and no kind of information
	query = append(append(bytes.Clone(named), 0, 0, 0, 1, 0, 0, 0, 15), allocation...)
)

// Clients learn an unusual sector size of the disk, and may read any byte anyway.
func TestSectorsOfAnExport(t *testing.T) {
	t.Parallel()
	for sector, least := range map[int64]int{512: 1, 4096: 4096} {
		b := make([]byte, 64<<10)
		b[777] = 7
		uri, end := serve(t, &Server{Disk: disk.InSectors(disktest.Memory(b), sector)})
		var info struct {
			Exports []struct {
				Min int `json:"block_size_minimum"`
			}
		}
		out := disktest.Output(t, "nbdinfo", "--json", uri)
		require.NoError(t, json.Unmarshal([]byte(out), &info))
		require.Equal(t, least, info.Exports[0].Min, out)
		c := dial(t, uri)
		require.NoError(t, enter(c))
		got, err := read(c, 777, 1)
		require.NoError(t, err)
		require.Equal(t, []byte{7}, got)
		require.NoError(t, c.Close())
		copied := filepath.Join(t.TempDir(), "copied")
		disktest.Run(t, "nbdcopy", uri, copied)
		require.True(t, bytes.Equal(b, disktest.ReadFile(t, copied)))
		require.ErrorIs(t, end(), context.Canceled)
	}
}

// FuzzSession lets a client send anything. Replies are well-formed, and data match the disk.
func FuzzSession(f *testing.F) {
	structured := bytes.Join([][]byte{hello(3), option(optStructuredReply), option(optSetMetaContext, query...)}, nil)
	for _, opts := range [][]byte{
		append(hello(3), option(optGo, plain...)...), append(structured, option(optGo, plain...)...),
		append(hello(1), option(optExportName)...),
	} {
		f.Add(opts)
		f.Add(bytes.Join([][]byte{
			opts, ask(cmdRead, 0, 10, 70<<10), ask(cmdRead, cmdFlagDF, 1, 512), ask(cmdBlockStatus, 0, 0, 5<<20),
			ask(cmdBlockStatus, cmdFlagReqOne, 0, 5<<20), ask(5, 0, 0, 1<<20), ask(cmdFlush, 0, 0, 0),
			ask(cmdWrite, 0, 0, 3), []byte("abc"), ask(cmdTrim, 0, 0, 1), ask(cmdRead, 0, 6<<20, 1), ask(99, 0, 0, 0),
			ask(cmdDisconnect, 0, 0, 0),
		}, nil))
	}
	f.Add(bytes.Join([][]byte{
		hello(3), option(optList), option(optInfo, append(bytes.Clone(named), 0, 3, 0, 1, 0, 2, 0, 3)...),
		option(77, 1, 2), option(optListMetaContext, query...), option(optStructuredReply),
		option(optListMetaContext, query...), option(optAbort),
	}, nil))
	d, want := odd()
	f.Fuzz(func(t *testing.T, sent []byte) {
		if len(sent) > 1<<10 {
			return // hundreds of requests of 32 MiB each
		}
		m := &memory{Reader: bytes.NewReader(sent)}
		s := newSession(d, m, func(err error) { t.Fatal(err) })
		err := s.handshake()
		checkOptions(t, m.Next(m.Len()), s)
		if err != nil {
			return
		}
		s.buf = make([]byte, bufferSize)
		_ = s.transmit()
		checkReplies(t, m.Bytes(), s.structured, want)
	})
}

// errTorn is the error of truncated replies.
var errTorn = errors.New("an answer is torn")

// checkOptions requires that the replies in a handshake are well-formed.
func checkOptions(t *testing.T, b []byte, s *session) {
	t.Helper()
	const greeting = 18
	require.GreaterOrEqual(t, len(b), greeting)
	for b = b[greeting:]; len(b) > 0; {
		if len(b) < 20 || be.Uint64(b) != magicAnswer { // the answer to NBD_OPT_EXPORT_NAME
			require.Contains(t, []int{10, 134}, len(b))
			require.EqualValues(t, s.Disk.Size(), be.Uint64(b))
			return
		}
		n := int(be.Uint32(b[16:]))
		require.LessOrEqual(t, 20+n, len(b), errTorn)
		b = b[20+n:]
	}
}

// checkReplies requires that replies are well-formed. Structured ones state the range of their bytes.
func checkReplies(t *testing.T, b []byte, structured bool, want []byte) {
	t.Helper()
	if !structured {
		return // their lengths follow from the requests
	}
	for len(b) > 0 {
		require.GreaterOrEqual(t, len(b), chunkHead, errTorn)
		require.EqualValues(t, magicStructured, be.Uint32(b))
		kind, n := be.Uint16(b[6:]), int(be.Uint32(b[16:]))
		require.LessOrEqual(t, chunkHead+n, len(b), errTorn)
		body := b[chunkHead : chunkHead+n]
		b = b[chunkHead+n:]
		switch kind {
		case replyData:
			off := be.Uint64(body)
			require.True(t, bytes.Equal(want[off:off+uint64(n)-8], body[8:]))
		case replyHole:
			off := be.Uint64(body)
			require.Empty(t, bytes.Trim(want[off:off+uint64(be.Uint32(body[8:]))], "\x00"))
		case replyBlockStatus:
			require.Positive(t, n-4)
			require.Zero(t, (n-4)%8)
		case replyError:
			require.NotZero(t, be.Uint32(body))
			require.LessOrEqual(t, 6+int(be.Uint16(body[4:])), n)
		default:
			require.EqualValues(t, replyNone, kind)
		}
	}
}

package nbd

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// shown makes a disk of an export, like the raw format.
func shown(c *Client) disk.Disk {
	return disk.New(c.Size(), 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: c.Size() - off, Src: c, Off: off}, nil
	})
}

func dialed(t testing.TB, uri string) *Client {
	t.Helper()
	c, err := Dial(t.Context(), uri)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A client reads all bytes and holes of a served disk, for any requests.
func TestClientReadsTheServer(t *testing.T) {
	t.Parallel()
	d, want := odd()
	uri, _ := serve(t, &Server{Disk: d})
	c := dialed(t, uri)
	require.True(t, c.structured)
	require.True(t, c.status)
	disktest.CheckBytes(t, shown(c), want)
	stored, err := disk.Stored(d)
	require.NoError(t, err)
	got, err := disk.Stored(shown(c))
	require.NoError(t, err)
	require.Equal(t, stored, got, "the map of holes is that of the disk")
	require.NoError(t, c.Close())
	_, err = c.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, net.ErrClosed)

	_, err = Dial(t.Context(), strings.Replace(uri, "?", "b?", 1))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, `the server has no such export ("there is no such export")`)
	absent := filepath.Join(t.TempDir(), "absent")
	_, err = Dial(t.Context(), "nbd+unix:///?socket="+absent)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "the server cannot be reached: dial unix")
}

// broken returns the error that ended a connection, or nil.
func broken(c *Client) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// filling is a disk of holes until data are written.
type filling struct {
	disk.Disk
	filled atomic.Bool
}

func (f *filling) Extent(off, limit int64) (disk.Extent, error) {
	const most = 64 << 10 // the server remembers the last one
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, most, f.Size()-off)}, Zero: !f.filled.Load()}, nil
}

// After Forget, the client requests zero extents again.
func TestClientForgets(t *testing.T) {
	t.Parallel()
	d, _ := odd()
	f := &filling{Disk: d}
	uri, _ := serve(t, &Server{Disk: f})
	c := dialed(t, uri)
	for _, zero := range []bool{true, false} {
		c.known = nil
		for range 2 {
			e, err := c.Extent(0, 1<<20)
			require.NoError(t, err)
			require.Equal(t, zero, e.Zero)
			f.filled.Store(true) // unknown to the cached reply
		}
	}
}

// An error of the disk affects one read, and includes the server's reason.
func TestClientReportsErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	d, want := odd()
	uri, _ := serve(t, &Server{Disk: &bad{Disk: d, from: 1 << 20}})
	c := dialed(t, uri)
	_, err := c.ReadAt(make([]byte, 2<<20), 0)
	require.ErrorIs(t, err, errServer)
	require.ErrorContains(t, err, "input/output error (error 5, \"read ")
	require.ErrorContains(t, err, errMedium.Error())
	got := make([]byte, 1<<20)
	_, err = c.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want[:1<<20], got))
}

// run starts an NBD server on a socket, and returns the address of its export "".
func run(t testing.TB, program, socketFlag string, args ...string) (uri string) {
	t.Helper()
	folder := t.TempDir()
	socket := filepath.Join(folder, "socket")
	cmd := exec.Command(disktest.Tool(t, program), append([]string{socketFlag, socket}, args...)...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	disktest.WaitFor(t, program+" to listen", func() bool {
		probe, err := net.Dial("unix", socket)
		return err == nil && probe.Close() == nil
	})
	return "nbd+unix:///?socket=" + socket
}

// The client reads disks of other servers: with holes, with blocks of 4 KiB, without block status, with an error in the
// middle.
func TestClientReadsOtherServers(t *testing.T) {
	t.Parallel()
	_, want := odd()
	want = want[:5<<20]
	file := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(file, want, 0o600))
	qcow2 := file + ".qcow2"
	out, err := exec.Command(disktest.Tool(t, "qemu-img"), "convert", "-f", "raw", "-O", "qcow2", file, qcow2).
		CombinedOutput()
	require.NoError(t, err, string(out))
	c := dialed(t, run(t, "qemu-nbd", "-k", "--persistent", "--read-only", "--format=qcow2", qcow2))
	disktest.CheckBytes(t, shown(c), want)
	stored, err := disk.Stored(shown(c))
	require.NoError(t, err)
	require.Less(t, stored, int64(len(want)), "qemu-nbd has said where the holes are")

	kit := func(args ...string) *Client {
		return dialed(t, run(t, "nbdkit", "-U", append([]string{"-f", "-r"}, args...)...))
	}
	c = kit("--filter=blocksize-policy", "file", file, "blocksize-minimum=4096", "blocksize-preferred=4096",
		"blocksize-maximum=64k", "blocksize-error-policy=error")
	require.Equal(t, []int64{4 << 10, 64 << 10}, []int64{c.block, c.most})
	disktest.CheckBytes(t, shown(c), want)
	c = kit("--no-sr", "file", file)
	require.False(t, c.structured || c.status)
	disktest.CheckBytes(t, shown(c), want)
	c = kit("--filter=error", "file", file, "error-pread=EIO", "error-pread-rate=100%")
	_, err = c.ReadAt(make([]byte, 512), 0)
	require.ErrorIs(t, err, errServer)
	require.ErrorContains(t, err, "input/output error")
	require.NoError(t, os.Truncate(file, 5<<20-100))
	_, err = Dial(t.Context(), run(t, "nbdkit", "-U", "-f", "-r", "--filter=blocksize-policy", "file", file,
		"blocksize-minimum=512", "blocksize-preferred=4096"))
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "the export has 5242780 bytes, and the server reads blocks of 512 bytes")
	c = kit("file", file)
	disktest.CheckBytes(t, shown(c), want[:5<<20-100])
}

// Messages of servers.
func greets() []byte {
	return be.AppendUint16(be.AppendUint64(be.AppendUint64(nil, magicServer), magicOption), 3)
}

func replies(option, kind uint32, data ...byte) []byte {
	b := be.AppendUint32(be.AppendUint32(be.AppendUint64(nil, magicAnswer), option), kind)
	return append(be.AppendUint32(b, uint32(len(data))), data...)
}

func exports(size uint64) []byte {
	b := be.AppendUint64(be.AppendUint16(nil, infoExport), size)
	return replies(optGo, repInfo, be.AppendUint16(b, flagHasFlags)...)
}

func blockSizes(least, preferred, most uint32) []byte {
	b := be.AppendUint32(be.AppendUint16(nil, infoBlockSize), least)
	return replies(optGo, repInfo, be.AppendUint32(be.AppendUint32(b, preferred), most)...)
}

// chunkOf is a chunk in reply to the first request.
func chunkOf(flags, kind uint16, data ...byte) []byte {
	b := be.AppendUint16(be.AppendUint16(be.AppendUint32(nil, magicStructured), flags), kind)
	return append(be.AppendUint32(be.AppendUint64(b, 1), uint32(len(data))), data...)
}

func dataAt(flags uint16, off uint64, n int) []byte {
	return chunkOf(flags, replyData, at(off, make([]byte, n)...)...)
}

func at(off uint64, data ...byte) []byte { return append(be.AppendUint64(nil, off), data...) }

// negotiated is everything that a server sends before the transmission, with structured replies and block status.
func negotiated() []byte {
	return slices.Concat(greets(), replies(optStructuredReply, repAck),
		replies(optSetMetaContext, repMetaContext, append([]byte{0, 0, 0, 9}, allocation...)...),
		replies(optSetMetaContext, repAck), exports(1<<20), replies(optGo, repAck))
}

// script is a connection whose server sends prepared bytes: first to the options, whatever they are, and then to the
// first request.
type script struct {
	net.Conn
	options, answers io.Reader
	asked            chan struct{}
	once             sync.Once
}

func (s *script) Read(p []byte) (int, error) {
	n, err := s.options.Read(p)
	if n > 0 || s.answers == nil {
		return n, err
	}
	<-s.asked
	return s.answers.Read(p)
}

func (s *script) Write(p []byte) (int, error) {
	if be.Uint32(p) == magicRequest {
		s.once.Do(func() { close(s.asked) })
	}
	return len(p), nil
}

func (*script) SetDeadline(time.Time) error      { return nil }
func (*script) SetReadDeadline(time.Time) error  { return nil }
func (*script) SetWriteDeadline(time.Time) error { return nil }
func (*script) Close() error                     { return nil }

// answered returns a client of an export of 1 MiB whose server sends these replies to its first request.
func answered(t testing.TB, answers []byte) *Client {
	t.Helper()
	c, err := NewClient(t.Context(), &script{
		options: bytes.NewReader(negotiated()), answers: bytes.NewReader(answers), asked: make(chan struct{}),
	}, "")
	require.NoError(t, err)
	return c
}

// Messages of a server that violate the protocol or are unknown end the handshake.
func TestClientRefusesHandshakes(t *testing.T) {
	t.Parallel()
	taken := replies(optStructuredReply, repAck)
	refused := replies(optStructuredReply, repUnsupported)
	done := replies(optGo, repAck)
	greeted := func(then ...[]byte) []byte { return append(greets(), slices.Concat(then...)...) }
	old := func(then ...[]byte) []byte { return greeted(refused, slices.Concat(then...)) }
	blocks := func(least, preferred, most uint32) []byte {
		return old(blockSizes(least, preferred, most), exports(1<<20), done)
	}
	for name, c := range map[string]struct {
		want string
		sent []byte
	}{
		"nothing":              {"the server closed the connection", nil},
		"a web server":         {"this is no NBD server", []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		"oldstyle":             {"oldstyle", slices.Concat(greets()[:8], be.AppendUint64(nil, magicOldstyle))},
		"another magic":        {"option magic 0x1", slices.Concat(greets()[:8], be.AppendUint64(nil, 1))},
		"no fixed newstyle":    {"fixed newstyle", append(greets()[:16], 0, 0)},
		"its end in an answer": {"closed the connection", greeted(taken[:19])},
		"TLS":                  {"requires TLS", greeted(replies(optStructuredReply, repTLSRequired))},
		"an answer's magic":    {"answer magic", greeted(make([]byte, 20))},
		"another option":       {"an answer to option 7, want 8", greeted(replies(optGo, repAck))},
		"a huge answer":        {"an answer of 40000 bytes", greeted(replies(8, repAck, make([]byte, 40000)...))},
		"another context": {
			"answer 4 to the selection", greeted(taken, replies(optSetMetaContext, repMetaContext, 0, 0, 0, 1, 'x')),
		},
		"an unknown export": {`no such export ("none")`, old(replies(optGo, repUnknown, []byte("none")...))},
		"an unknown error":  {"error 77", old(replies(optGo, repFails+77))},
		"no size":           {"the export has no size", old(done)},
		"a short size":      {"8 bytes about the export", old(replies(optGo, repInfo, make([]byte, 10)...))},
		"a huge size":       {"an export of 9223372036854775807 bytes", old(exports(1<<63 - 1))},
		"no flags":          {"flags 0x0", old(replies(optGo, repInfo, make([]byte, 12)...))},
		"a part of an info": {"answer 3 of 1 bytes", old(replies(optGo, repInfo, 0))},
		"short block sizes": {
			"4 bytes about block sizes", old(replies(optGo, repInfo, 0, 3, 0, 0, 0, 0), exports(1<<20), done),
		},
		"no smallest block":  {"block sizes 0, 512 and 1024", blocks(0, 512, 1024)},
		"odd blocks":         {"block sizes 3, 512 and 1024", blocks(3, 512, 1024)},
		"too large blocks":   {"block sizes 131072", blocks(128<<10, 128<<10, 128<<10)},
		"less is preferred":  {"block sizes 512, 256 ", blocks(512, 256, 1024)},
		"less is the most":   {"block sizes 1, 512 and 256", old(exports(1<<20), blockSizes(1, 512, 256), done)},
		"a part of a block":  {"block sizes 512, 512 and 700", blocks(512, 512, 700)},
		"reads of nothing":   {"block sizes 1, 1 and 0", blocks(1, 1, 0)},
		"reads of a byte":    {"reads of 1 bytes at most", blocks(1, 1, 1)},
		"answers for ever":   {"more than 64 answers", old(bytes.Repeat(exports(1), 70))},
		"a size off a block": {"reads blocks of 512 bytes", old(exports(5131), blockSizes(512, 512, 4096), done)},
	} {
		got, err := NewClient(t.Context(), &script{options: bytes.NewReader(c.sent)}, "")
		require.Nil(t, got, name)
		require.ErrorContains(t, err, c.want, name)
	}
}

// Replies that violate the protocol end the connection, with all requests.
func TestClientRefusesAnswers(t *testing.T) {
	t.Parallel()
	simpleReply := func(code uint32) []byte {
		return be.AppendUint64(be.AppendUint32(be.AppendUint32(nil, magicSimple), code), 1)
	}
	for name, c := range map[string]struct {
		want string
		sent []byte
	}{
		"the end":            {"the server closed the connection", nil},
		"the end in a chunk": {"the server closed the connection", dataAt(1, 0, 1024)[:500]},
		"another magic":      {"reply magic 0x0", make([]byte, 4)},
		"another request": {
			"request 0x0, which is not open", append(be.AppendUint32(nil, magicStructured), make([]byte, 16)...),
		},
		"a simple reply":      {"a simple reply to command 0", slices.Concat(simpleReply(0), make([]byte, 1024))},
		"more than was asked": {"a chunk of 1033 bytes", dataAt(1, 0, 1025)},
		"no data":             {"a chunk of 8 bytes", dataAt(1, 0, 0)},
		"data from elsewhere": {"a chunk of 512 bytes at 0x201", dataAt(1, 513, 512)},
		"data from far away":  {"at 0xffffffffffffffff", dataAt(1, 1<<64-1, 2)},
		"data twice":          {"bytes at 0x1ff twice", slices.Concat(dataAt(0, 0, 512), dataAt(0, 511, 1))},
		"data around others":  {"bytes at 0x0 twice", slices.Concat(dataAt(0, 10, 1), dataAt(0, 0, 1024))},
		"a hole over data": {
			"bytes at 0x0 twice", slices.Concat(dataAt(0, 0, 1), chunkOf(0, replyHole, at(0, 0, 0, 4, 0)...)),
		},
		"an empty hole":         {"a chunk of 0 bytes at 0x0", chunkOf(0, replyHole, at(0, 0, 0, 0, 0)...)},
		"a hole without length": {"a hole in 8 bytes", chunkOf(0, replyHole, at(0)...)},
		"a part":                {"512 bytes of 1024 at 0x0", dataAt(1, 0, 512)},
		"nothing":               {"0 bytes of 1024 at 0x0", chunkOf(1, replyNone)},
		"nothing, and no end":   {"chunk 0 of 0 bytes, flags 0x0", chunkOf(0, replyNone)},
		"states of a read":      {"chunk 5 of 12 bytes", chunkOf(1, replyBlockStatus, make([]byte, 12)...)},
		"an unknown chunk":      {"chunk 77 of 0 bytes", chunkOf(1, 77)},
		"crumbs": {
			"more than 4 chunks to a read of 1024 bytes",
			slices.Concat(dataAt(0, 0, 1), dataAt(0, 2, 1), dataAt(0, 4, 1), dataAt(0, 6, 1), dataAt(0, 8, 1)),
		},
		"an error without text": {"an error in 4 bytes", chunkOf(1, replyError, 0, 0, 0, 5)},
		"no error":              {"error 0 with", chunkOf(1, replyError, 0, 0, 0, 0, 0, 0)},
		"a text that is longer": {"a text of 9 bytes in 7", chunkOf(1, replyError, 0, 0, 0, 5, 0, 9, 'x')},
	} {
		client := answered(t, c.sent)
		n, err := client.ReadAt(make([]byte, 1024), 0)
		require.Zero(t, n, name)
		require.ErrorContains(t, err, c.want, name)
		require.NotErrorIs(t, err, errServer, name)
		_, err = client.ReadAt(make([]byte, 1), 0)
		require.ErrorContains(t, err, c.want, name)
		require.ErrorContains(t, broken(client), c.want, name)
	}
	state := func(id uint32, lengths ...uint32) []byte {
		b := be.AppendUint32(nil, id)
		for i, n := range lengths {
			b = be.AppendUint32(be.AppendUint32(b, n), uint32(i%2)*stateZero)
		}
		return b
	}
	for name, c := range map[string]struct {
		want string
		sent []byte
	}{
		"another context":    {"context 7, want 9", chunkOf(1, replyBlockStatus, state(7, 512)...)},
		"no state":           {"states in 4 bytes", chunkOf(1, replyBlockStatus, state(9)...)},
		"half a state":       {"states in 14 bytes", chunkOf(1, replyBlockStatus, append(state(9, 512), 0, 0)...)},
		"an empty state":     {"0 bytes of one state at 0x0", chunkOf(1, replyBlockStatus, state(9, 0)...)},
		"states behind all":  {"a request up to 0x100000", chunkOf(1, replyBlockStatus, state(9, 1<<20, 512)...)},
		"states twice":       {"states in 12 bytes", bytes.Repeat(chunkOf(0, replyBlockStatus, state(9, 512)...), 2)},
		"an end, no states":  {"no state of the bytes at 0x0", chunkOf(1, replyNone)},
		"data":               {"chunk 1 of 9 bytes", dataAt(1, 0, 1)},
		"a success, no more": {"a simple reply to command 7", simpleReply(0)},
		"an error":           {"bytes at 0x0: the server reports: not supported", simpleReply(errNotSup)},
	} {
		client := answered(t, c.sent)
		_, err := client.Extent(0, 512)
		require.ErrorContains(t, err, c.want, name)
	}
	client := answered(t, chunkOf(1, replyBlockStatus, state(9, 512, 1<<31)...))
	for _, want := range []disk.Extent{
		{Range: disk.Range{Off: 0, Len: 512}},
		{Range: disk.Range{Off: 700, Len: 1<<20 - 700}, Zero: true},
	} {
		e, err := client.Extent(want.Off, 1<<30)
		require.NoError(t, err)
		require.Equal(t, want, e, "the last state is cut at the end of the export, and remembered")
	}
}

// A read that waits for a reply of the server ends when the client is aborted.
func TestClientIsAborted(t *testing.T) {
	t.Parallel()
	here, there := net.Pipe()
	defer there.Close()
	clients := make(chan *Client, 1)
	go func() {
		_, err := there.Write(negotiated())
		assert.NoError(t, err)
	}()
	go func() {
		p := make([]byte, maxOption)
		for n, err := 0, error(nil); err == nil; n, err = there.Read(p) {
			if n >= 4 && be.Uint32(p) == magicRequest {
				(<-clients).Abort(context.Canceled)
			}
		}
	}()
	c, err := NewClient(t.Context(), here, "")
	require.NoError(t, err)
	clients <- c
	_, err = c.ReadAt(make([]byte, 512), 0)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, broken(c), context.Canceled)
	require.NoError(t, c.Close())
}

// A client gives up on a silent server after a time limit, in the handshake and later.
func TestClientDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer there.Close()
		start := time.Now()
		_, err := NewClient(t.Context(), here, "")
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, handshakeTime, time.Since(start))

		ctx, cancel := context.WithCancel(t.Context())
		here, there = net.Pipe()
		defer there.Close()
		time.AfterFunc(time.Second, cancel)
		_, err = NewClient(ctx, here, "")
		require.ErrorIs(t, err, context.Canceled)

		here, there = net.Pipe()
		defer there.Close()
		go func() {
			_, err := there.Write(negotiated())
			assert.NoError(t, err)
		}()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		c, err := NewClient(t.Context(), here, "")
		require.NoError(t, err)
		time.Sleep(10 * answerTime) // without a request, there is nothing to wait for
		require.NoError(t, broken(c))
		start = time.Now()
		_, err = c.ReadAt(make([]byte, 5), 0)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.ErrorContains(t, err, "the server did not answer in time")
		require.Equal(t, answerTime, time.Since(start))
	})
}

func TestURIs(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string][3]string{
		"nbd://host/":                            {"tcp", "host:10809", ""},
		"nbd://host":                             {"tcp", "host:10809", ""},
		"nbd://[::1]:99/a/b%20c":                 {"tcp", "[::1]:99", "a/b c"},
		"nbd://127.0.0.1:1//x":                   {"tcp", "127.0.0.1:1", "/x"},
		"nbd+unix:///?socket=/run/x.sock":        {"unix", "/run/x.sock", ""},
		"nbd+unix:///disk?socket=relative%20one": {"unix", "relative one", "disk"},
		"nbd+unix:///?socket=/run/vm+1.sock":     {"unix", "/run/vm+1.sock", ""},
		"NBD+UNIX:///?socket=x=y":                {"unix", "x=y", ""},
	} {
		network, address, export, err := parseURI(uri)
		require.NoError(t, err, uri)
		require.Equal(t, want, [3]string{network, address, export}, uri)
		require.True(t, IsURI(uri))
	}
	for uri, class := range map[string]error{
		"nbds://host/": ondisk.ErrUnsupported, "nbds+unix:///?socket=x": ondisk.ErrUnsupported,
		"nbd://user@host/": ondisk.ErrUsage, "nbd://host/?socket=x": ondisk.ErrUsage, "nbd:///x": ondisk.ErrUsage,
		"nbd+unix:///": ondisk.ErrUsage, "nbd+unix://host/?socket=x": ondisk.ErrUsage, "nbd://h/#x": ondisk.ErrUsage,
		"nbd+unix:///?sock=x": ondisk.ErrUsage, "nbd+unix:///?socket=%": ondisk.ErrUsage,
		"nbd+unix:///?socket=x&tls-certificates=y": ondisk.ErrUsage, "nbd+vsock://2/": ondisk.ErrUsage,
		"nbd://host:port/": ondisk.ErrUsage, "nbd+unix:///?socket=x&socket=y": ondisk.ErrUsage,
		"nbd://h/" + strings.Repeat("x", 5000): ondisk.ErrUsage,
	} {
		_, _, _, err := parseURI(uri)
		require.ErrorIs(t, err, class, uri)
		require.True(t, IsURI(uri))
	}
	for _, word := range []string{"disk.vmdk", "./nbd://x", "http://x", "nbd:x", "nbd/x://y"} {
		require.False(t, IsURI(word), word)
	}
}

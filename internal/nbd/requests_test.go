package nbd

import (
	"bytes"
	"errors"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// bad is a disk that cannot be read from one offset on, and which counts requests for its map.
type bad struct {
	disk.Disk
	from  int64
	asked int
}

var errMedium = errors.New("the medium has a fault")

func (b *bad) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > b.from {
		return 0, errMedium
	}
	return b.Disk.ReadAt(p, off)
}

func (b *bad) Extent(off, limit int64) (disk.Extent, error) {
	b.asked++
	return b.Disk.Extent(off, limit)
}

// converse runs a session with a client's bytes. It returns the replies.
func converse(t *testing.T, d disk.Disk, sent ...[]byte) (answers []byte, failures int) {
	t.Helper()
	m := &memory{Reader: bytes.NewReader(bytes.Join(sent, nil))}
	s := newSession(d, m, func(error) { failures++ })
	require.NoError(t, s.handshake())
	m.Next(m.Len())
	s.buf = make([]byte, bufferSize)
	require.ErrorIs(t, s.transmit(), io.EOF)
	return m.Bytes(), failures
}

// Handshakes up to the transmission, with structured replies and without.
func structured() []byte {
	return bytes.Join([][]byte{
		hello(3), option(optStructuredReply), option(optSetMetaContext, query...), option(optGo, plain...),
	}, nil)
}

func simple() []byte { return append(hello(3), option(optGo, plain...)...) }

// Every refused request has the error of the specification, and the session continues.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	d, _ := odd()
	size := uint64(d.Size())
	for name, c := range map[string]struct {
		sent []byte
		code uint32
	}{
		"a write":                                {append(ask(cmdWrite, 0, 0, 5), "datum"...), errPerm},
		"a trim":                                 {ask(cmdTrim, 0, 0, 5), errPerm},
		"zeroes":                                 {ask(cmdWriteZeroes, 0, 0, 5), errPerm},
		"an unknown command":                     {ask(77, 0, 0, 0), errInvalid},
		"an unknown flag":                        {ask(cmdRead, 1<<9, 0, 1), errInvalid},
		"FUA, which was not offered":             {ask(cmdRead, 1, 0, 1), errInvalid},
		"a read behind the end":                  {ask(cmdRead, 0, size, 1), errInvalid},
		"a read across the end":                  {ask(cmdRead, 0, size-1, 2), errInvalid},
		"an offset that wraps":                   {ask(cmdRead, 0, 1<<64-1, 2), errInvalid},
		"a negative offset":                      {ask(cmdRead, 0, 1<<63, 2), errInvalid},
		"a status behind the end":                {ask(cmdBlockStatus, 0, size, 1), errInvalid},
		"a flush with a length":                  {ask(cmdFlush, 0, 0, 1), errInvalid},
		"REQ_ONE on a read":                      {ask(cmdRead, cmdFlagReqOne, 0, 1), errInvalid},
		"a cache request, which was not offered": {ask(5, 0, 0, 1), errInvalid},
	} {
		after := ask(cmdFlush, 0, 0, 0) // which is harmless
		got, _ := converse(t, d, simple(), c.sent, after)
		require.Len(t, got, 2*simpleHead, name)
		require.Equal(t, c.code, be.Uint32(got[4:]), name)
		require.Zero(t, be.Uint32(got[simpleHead+4:]), name)

		got, _ = converse(t, d, structured(), c.sent, after)
		require.EqualValues(t, replyError, be.Uint16(got[6:]), name)
		require.Equal(t, c.code, be.Uint32(got[chunkHead:]), name)
		require.NotZero(t, be.Uint16(got[chunkHead+4:]), name)
		checkReplies(t, got, true, nil)
	}
	big := disk.New(1<<40, 512, func(int64) (disk.Run, error) { return disk.Run{Len: 1 << 40}, nil })
	for sent, code := range map[*[]byte]uint32{
		new(ask(cmdRead, 0, 0, blockMax+1)):                errInvalid,
		new(ask(cmdRead, cmdFlagDF, 0, bufferSize)):        errOverflow,
		new(ask(cmdBlockStatus, cmdFlagReqOne|1<<4, 0, 8)): errInvalid,
	} {
		got, _ := converse(t, big, structured(), *sent)
		require.Equal(t, code, be.Uint32(got[chunkHead:]))
	}
	got, _ := converse(t, big, simple(), ask(cmdBlockStatus, 0, 0, 512))
	require.EqualValues(t, errInvalid, be.Uint32(got[4:]), "no context was selected")
	for name, failing := range map[string][]byte{
		"no data": nil, "another export": append([]byte{0, 0, 0, 1, 'x'}, query[4:]...), "a query too few": query[:8],
		"an unknown context": append(slices.Clone(query[:8]), 0, 0, 0, 1, 'x'),
	} {
		sent := slices.Concat(hello(3), option(optStructuredReply), option(optSetMetaContext, query...),
			option(optSetMetaContext, failing...), option(optGo, plain...))
		got, _ = converse(t, big, sent, ask(cmdBlockStatus, 0, 0, 512))
		require.EqualValues(t, replyError, be.Uint16(got[6:]), name)
		require.EqualValues(t, errInvalid, be.Uint32(got[chunkHead:]), "%s: an earlier selection has ended", name)
	}
	got, _ = converse(t, big, structured(), ask(cmdBlockStatus, cmdFlagReqOne, 0, 1<<32-1))
	require.Equal(t, "\xff\xff\xff\xff\x00\x00\x00\x03", string(got[chunkHead+4:]))
	got, _ = converse(t, big, structured(), ask(cmdRead, 0, 1<<39, blockMax))
	require.EqualValues(t, replyHole, be.Uint16(got[6:]), "zeros are sent as holes")
}

// A chunk that may not be divided contains holes as zeros, and the minimum length that every server must support.
func TestUndividedRead(t *testing.T) {
	t.Parallel()
	d, want := odd()
	const n = 65536 // NBD_CMD_FLAG_DF
	got, _ := converse(t, d, structured(), ask(cmdRead, cmdFlagDF, 99, n))
	require.Len(t, got, headRoom+n)
	require.True(t, bytes.Equal(want[99:99+n], got[headRoom:]))
}

// A failing read is an error of that request, after the data before it.
func TestFailingReads(t *testing.T) {
	t.Parallel()
	d, want := odd()
	const from = 3 << 20
	b := &bad{Disk: d, from: from}
	got, failures := converse(t, b, structured(), ask(cmdRead, 0, 0, 4<<20), ask(cmdRead, 0, 0, 512))
	require.Equal(t, 1, failures)
	require.Contains(t, string(got), errMedium.Error())
	checkReplies(t, got, true, want)

	got, failures = converse(t, b, simple(), ask(cmdRead, 0, from, 512), ask(cmdFlush, 0, 0, 0))
	require.Equal(t, 1, failures)
	require.Len(t, got, 2*simpleHead)
	require.EqualValues(t, errIO, be.Uint32(got[4:]))

	// A simple reply that has begun can only be aborted.
	m := &memory{Reader: bytes.NewReader(append(simple(), ask(cmdRead, 0, 0, 4<<20)...))}
	s := newSession(b, m, func(error) {})
	require.NoError(t, s.handshake())
	s.buf = make([]byte, bufferSize)
	require.ErrorIs(t, s.transmit(), errMedium)
}

// Sequential reads request the map of their range once.
func TestMapIsAskedOnce(t *testing.T) {
	t.Parallel()
	const size, each = 64 << 20, 256 << 10
	data := bytes.NewReader(bytes.Repeat([]byte{1}, size))
	b := &bad{Disk: disk.New(size, 512, disk.Whole(data, size)), from: size}
	sent := [][]byte{structured()}
	for off := uint64(0); off < size; off += each {
		sent = append(sent, ask(cmdRead, 0, off, each))
	}
	got, _ := converse(t, b, sent...)
	require.Len(t, got, size/each*(headRoom+each))
	require.LessOrEqual(t, b.asked, size/ahead)
	asked := b.asked
	got, _ = converse(t, b, structured(), ask(cmdRead, 0, 9<<20, 4096))
	require.Len(t, got, headRoom+4096)
	require.Equal(t, asked, b.asked, "small reads need no map")
}

// Unknown or malformed options get a reply, and the handshake continues.
func TestOptions(t *testing.T) {
	t.Parallel()
	d, _ := odd()
	other := append([]byte("\x00\x00\x00\x01x"), 0, 0)
	for name, c := range map[string]struct {
		sent []byte
		want []uint32
	}{
		"unknown":          {option(4711, 1, 2, 3), []uint32{repUnsupported}},
		"TLS":              {option(5), []uint32{repUnsupported}},
		"extended headers": {option(11), []uint32{repUnsupported}},
		"list":             {option(optList), []uint32{repServer, repAck}},
		"list with data":   {option(optList, 0), []uint32{repInvalid}},
		"info":             {option(optInfo, plain...), []uint32{repInfo, repAck}},
		"info on all": {
			option(optInfo, 0, 0, 0, 0, 0, 3, 0, 1, 0, 2, 0, 3),
			[]uint32{repInfo, repInfo, repAck},
		},
		"info on another export":           {option(optInfo, other...), []uint32{repUnknown}},
		"go to another export":             {option(optGo, other...), []uint32{repUnknown}},
		"go without a length":              {option(optGo, 0, 0), []uint32{repInvalid}},
		"go with a name that is too long":  {option(optGo, 255, 255, 255, 255, 0, 0), []uint32{repInvalid}},
		"structured replies with data":     {option(optStructuredReply, 1), []uint32{repInvalid}},
		"contexts without structured ones": {option(optSetMetaContext, query...), []uint32{repInvalid}},
		"contexts": {
			append(option(optStructuredReply), option(optSetMetaContext, query...)...),
			[]uint32{repAck, repMetaContext, repAck},
		},
		"a context that is not known": {
			append(option(optStructuredReply), option(optSetMetaContext, bytes.Replace(query, []byte("base"),
				[]byte("bass"), 1)...)...),
			[]uint32{repAck, repAck},
		},
		"a list of contexts without a query": {
			append(option(optStructuredReply), option(optListMetaContext, 0, 0, 0, 0, 0, 0, 0, 0)...),
			[]uint32{repAck, repMetaContext, repAck},
		},
		"more queries than data": {
			append(option(optStructuredReply), option(optListMetaContext, 0, 0, 0, 0, 255, 255, 255, 255)...),
			[]uint32{repAck, repInvalid},
		},
	} {
		m := &memory{Reader: bytes.NewReader(bytes.Join([][]byte{hello(3), c.sent, option(optAbort)}, nil))}
		s := newSession(d, m, nil)
		require.ErrorIs(t, s.handshake(), errEnd, name)
		var kinds []uint32
		for b := m.Bytes()[18:]; len(b) > 0; b = b[20+be.Uint32(b[16:]):] {
			kinds = append(kinds, be.Uint32(b[12:]))
		}
		require.Equal(t, append(c.want, repAck), kinds, name)
	}
}

// Protocol violations end the session.
func TestViolations(t *testing.T) {
	t.Parallel()
	d, _ := odd()
	for name, sent := range map[string][]byte{
		"unknown client flags":     hello(4),
		"another option magic":     append(hello(3), make([]byte, 16)...),
		"an option of 4 GiB":       append(hello(3), option(optList)[:12]...),
		"another export":           append(hello(1), option(optExportName, 'x')...),
		"an option without fixed":  append(hello(0), option(optList)...),
		"another request magic":    append(simple(), make([]byte, 28)...),
		"a write of more than 32M": append(simple(), ask(cmdWrite, 0, 0, 1<<31)...),
	} {
		if name == "an option of 4 GiB" {
			sent = append(sent, 255, 255, 255, 255)
		}
		s := newSession(d, &memory{Reader: bytes.NewReader(sent)}, nil)
		err := s.handshake()
		if err == nil {
			s.buf = make([]byte, bufferSize)
			err = s.transmit()
		}
		require.ErrorContains(t, err, "protocol: ", name)
	}
}

// An independent client library sends unusual requests.
func TestShellOfNBD(t *testing.T) {
	t.Parallel()
	d, _ := odd()
	uri, _ := serve(t, &Server{Disk: d})
	disktest.Tool(t, "nbdsh")
	// The module belongs to the python3 of the system.
	disktest.Run(t, "env", "PATH=/usr/bin:/bin", "nbdsh", "-c", `
import errno
h.set_strict_mode(0)
h.set_request_structured_replies(False)
h.connect_uri("`+uri+`")
assert h.get_structured_replies_negotiated() is False
def fails(code, f):
    try:
        f()
    except nbd.Error as e:
        assert e.errnum == code, e
    else:
        raise AssertionError("no error")
size = h.get_size()
assert len(h.pread(1 << 20, 17)) == 1 << 20
fails(errno.EPERM, lambda: h.pwrite(b"x" * 4096, 0))
fails(errno.EPERM, lambda: h.trim(4096, 0))
fails(errno.EPERM, lambda: h.zero(4096, 0))
fails(errno.EINVAL, lambda: h.pread(2, size - 1))
h.flush()
assert len(h.pread(77, size - 77)) == 77
h.shutdown()
`)
}

// asked counts reads and their bytes.
type asked struct {
	io.ReaderAt
	reads, bytes int
	err          error
}

func (a *asked) ReadAt(p []byte, off int64) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	a.reads++
	a.bytes += len(p)
	return a.ReaderAt.ReadAt(p, off)
}

// Small reads return the right bytes, and request each page once until the cache is dropped.
func TestPages(t *testing.T) {
	t.Parallel()
	const size = 3*pageBytes + 77
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	of := &asked{ReaderAt: bytes.NewReader(want)}
	c := &pages{of: of, size: size}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		off := rnd.Int64N(size)
		p := make([]byte, rnd.IntN(pageBytes))
		n, err := c.ReadAt(p, off)
		require.Equal(t, min(len(p), int(size-off)), n)
		require.Equal(t, want[off:off+int64(n)], p[:n])
		if n < len(p) {
			require.ErrorIs(t, err, io.EOF)
		} else {
			require.NoError(t, err)
		}
	}
	require.Equal(t, 4, of.reads)
	require.Equal(t, size, of.bytes)
	c.forget()
	_, err := c.ReadAt(make([]byte, 1), 0)
	require.NoError(t, err)
	require.Equal(t, 5, of.reads)
	_, err = c.ReadAt(make([]byte, pageBytes), 0)
	require.NoError(t, err)
	require.Equal(t, 6, of.reads, "a large read goes to the server")
	_, err = c.ReadAt(make([]byte, 1), size)
	require.ErrorIs(t, err, io.EOF)

	of.err = errors.New("broken")
	n, err := c.ReadAt(make([]byte, 20), pageBytes-10)
	require.ErrorIs(t, err, of.err)
	require.Equal(t, 10, n)
	require.Empty(t, c.kept[1])
}

// What is kept is bounded.
func TestPagesAreFew(t *testing.T) {
	t.Parallel()
	of := &asked{ReaderAt: bytes.NewReader(make([]byte, 200*pageBytes))}
	c := &pages{of: of, size: 200 * pageBytes}
	for i := range int64(200) {
		_, err := c.ReadAt(make([]byte, 1), i*pageBytes)
		require.NoError(t, err)
		require.LessOrEqual(t, len(c.kept), maxPages)
	}
	require.Equal(t, 200, of.reads)
}

// FuzzHandshake connects to a server that sends anything: an accepted export can be used.
func FuzzHandshake(f *testing.F) {
	f.Add(negotiated())
	f.Add(slices.Concat(greets(), replies(optStructuredReply, repUnsupported), exports(5), blockSizes(1, 512, 4096),
		replies(optGo, repAck)))
	f.Fuzz(func(t *testing.T, said []byte) {
		var c *Client
		var err error
		server := &script{options: bytes.NewReader(said)}
		took := disktest.Allocated(func() { c, err = NewClient(t.Context(), server, "") })
		require.Less(t, took, int64(1<<20)+2*int64(len(said)))
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, c.Size(), int64(0))
		require.Equal(t, 1, bits.OnesCount64(uint64(c.block)))
		require.Zero(t, c.most%c.block)
		require.Positive(t, c.most)
		from, to := c.blocksAround(c.Size()-1, 1)
		require.True(t, c.Size() == 0 || from >= 0 && to == c.Size(), "%d to %d", from, to)
	})
}

// FuzzAnswers sends any reply to one request: a successful read must be complete, and an extent must start at the
// requested offset and end on the disk.
func FuzzAnswers(f *testing.F) {
	f.Add(dataAt(replyFlagDone, 0, 4096), false)
	f.Add(slices.Concat(dataAt(0, 512, 3584), chunkOf(replyFlagDone, replyHole, at(0, 0, 0, 2, 0)...)), false)
	f.Add(chunkOf(1, replyFails|1, 0, 0, 0, 5, 0, 1, 'x'), false)
	f.Add(chunkOf(1, replyBlockStatus, 0, 0, 0, 9, 0, 0, 2, 0, 0, 0, 0, 2, 0, 16, 0, 0, 0, 0, 0, 0), true)
	f.Fuzz(func(t *testing.T, said []byte, status bool) {
		c := answered(t, said)
		if status {
			e, err := c.Extent(512, 1<<20)
			require.True(t, err != nil || e.Off == 512 && e.Len > 0 && e.End() <= c.Size(), "%v", e)
			return
		}
		one, other := make([]byte, 4096), bytes.Repeat([]byte{1}, 4096)
		_, err := c.ReadAt(one, 0)
		_, again := answered(t, said).ReadAt(other, 0)
		require.Equal(t, err == nil, again == nil)
		require.True(t, err != nil || bytes.Equal(one, other), "bytes that did not come")
	})
}

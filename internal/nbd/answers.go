package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/disk"
)

// pending is a request without a complete reply.
type pending struct {
	command uint16
	disk.Range
	p       []byte        // of a read: as long as the range
	covered []disk.Range  // of a read: received ranges, in order
	chunks  int64         // of a read
	states  []disk.Extent // of a block status request
	err     error
	done    chan struct{}
}

const (
	// maxChunk limits chunks without data: error messages and block states.
	maxChunk = 1 << 20
	// statusAhead is the range of one block status request, in bytes.
	statusAhead = 256 << 20
)

// write sends a request.
func (c *Client) write(command uint16, cookie uint64, r disk.Range) error {
	b := be.AppendUint16(be.AppendUint32(nil, magicRequest), 0)
	b = be.AppendUint64(be.AppendUint16(b, command), cookie)
	b = be.AppendUint64(b, uint64(r.Off))                      //nolint:gosec // never negative
	b = be.AppendUint32(b, uint32(min(r.Len, math.MaxUint32))) //nolint:gosec // see the callers
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	return err
}

// begin sends a request. receive handles its reply.
func (c *Client) begin(q *pending) {
	q.done = make(chan struct{})
	c.mu.Lock()
	if c.broken != nil {
		q.err = c.broken
		close(q.done)
		c.mu.Unlock()
		return
	}
	c.last++
	cookie := c.last
	c.open[cookie] = q
	if len(c.open) == 1 {
		_ = c.conn.SetReadDeadline(time.Now().Add(answerTime)) // a closed connection reports that itself
	}
	c.mu.Unlock()
	if err := c.write(q.command, cookie, q.Range); err != nil {
		c.breaks(explain(err))
	}
}

// receive processes replies until the connection ends, and then fails all open requests.
func (c *Client) receive() {
	var err error
	for err == nil {
		err = c.answer()
	}
	c.breaks(explain(err))
	c.mu.Lock()
	defer c.mu.Unlock()
	for cookie, q := range c.open {
		q.err = c.broken
		close(q.done)
		delete(c.open, cookie)
	}
}

// breaks closes the connection. Only receive ends the requests, since it may be writing to their memory.
func (c *Client) breaks(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
		_ = c.conn.Close() // nothing is written
	}
}

// lookup returns the open request with a cookie.
func (c *Client) lookup(cookie uint64) (*pending, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q := c.open[cookie]; q != nil {
		return q, nil
	}
	return nil, violation("an answer to request %#x, which is not open", cookie)
}

// end completes a request. The next one has the full time from now on.
func (c *Client) end(cookie uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.open[cookie]
	delete(c.open, cookie)
	next := time.Time{}
	if len(c.open) > 0 {
		next = time.Now().Add(answerTime)
	}
	_ = c.conn.SetReadDeadline(next)
	close(q.done)
}

// answer reads one simple reply, or one chunk.
func (c *Client) answer() error {
	var magic uint32
	if err := binary.Read(c.r, be, &magic); err != nil {
		return err
	}
	switch magic {
	case magicSimple:
		return c.simpleReply()
	case magicStructured:
		return c.chunk()
	}
	return violation("reply magic %#x", magic)
}

// simpleReply reads a reply without chunks. Spec: "Simple reply message".
func (c *Client) simpleReply() error {
	var head struct {
		Code   uint32
		Cookie uint64
	}
	if err := binary.Read(c.r, be, &head); err != nil {
		return err
	}
	q, err := c.lookup(head.Cookie)
	switch {
	case err != nil:
		return err
	case head.Code != 0:
		q.err = serverError(head.Code, "")
	case q.command != cmdRead || c.structured:
		return violation("a simple reply to command %d, want chunks", q.command)
	default:
		if _, err := io.ReadFull(c.r, q.p); err != nil {
			return err
		}
	}
	c.end(head.Cookie)
	return nil
}

// chunkHeader is the header of a chunk behind the magic number. Spec: "Structured reply chunk message".
type chunkHeader struct {
	Flags, Kind uint16
	Cookie      uint64
	Size        uint32
}

// chunk reads a chunk.
func (c *Client) chunk() error {
	var head chunkHeader
	if err := binary.Read(c.r, be, &head); err != nil {
		return err
	}
	q, err := c.lookup(head.Cookie)
	switch {
	case err != nil:
		return err
	case !c.structured:
		return violation("a chunk, which was not negotiated")
	}
	if err := c.payload(q, &head); err != nil || head.Flags&replyFlagDone == 0 {
		return err
	}
	if err := q.whole(); err != nil {
		return err
	}
	c.end(head.Cookie)
	return nil
}

// payload reads the rest of a chunk.
func (c *Client) payload(q *pending, head *chunkHeader) error {
	size := int64(head.Size)
	switch {
	case head.Kind == replyData && q.command == cmdRead:
		return c.data(q, size)
	case head.Kind == replyHole && q.command == cmdRead:
		return c.hole(q, size)
	case head.Kind == replyBlockStatus && q.command == cmdBlockStatus:
		return c.states(q, size)
	case head.Kind == replyNone && size == 0 && head.Flags&replyFlagDone != 0:
		return nil
	case head.Kind&replyFails != 0:
		return c.failure(q, size)
	}
	return violation("chunk %d of %d bytes, flags %#x, to command %d", head.Kind, size, head.Flags, q.command)
}

// whole returns an error if a reply ended before it was complete.
func (q *pending) whole() error {
	var n int64
	for _, r := range q.covered {
		n += r.Len
	}
	switch {
	case q.err != nil:
		return nil //nolint:nilerr // the request's own error counts
	case q.command == cmdRead && n != q.Len:
		return violation("%d bytes of %d at %#x", n, q.Len, q.Off)
	case q.command == cmdBlockStatus && len(q.states) == 0:
		return violation("no state of the bytes at %#x", q.Off)
	}
	return nil
}

// data reads a chunk of data into the request's buffer.
func (c *Client) data(q *pending, size int64) error {
	var off uint64
	if size <= 8 || size-8 > q.Len {
		return violation("a chunk of %d bytes to a read of %d", size, q.Len)
	}
	if err := binary.Read(c.r, be, &off); err != nil {
		return err
	}
	p, err := q.cover(off, size-8)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(c.r, p)
	return err
}

// hole reads a chunk for a range of zeros.
func (c *Client) hole(q *pending, size int64) error {
	var at struct {
		Off uint64
		Len uint32
	}
	if size != int64(binary.Size(at)) {
		return violation("a hole in %d bytes", size)
	}
	if err := binary.Read(c.r, be, &at); err != nil {
		return err
	}
	p, err := q.cover(at.Off, int64(at.Len))
	clear(p)
	return err
}

// cover returns the buffer for n bytes, which must lie in the request and not have been received yet.
func (q *pending) cover(off uint64, n int64) ([]byte, error) {
	const least = 512 // average bytes of a chunk: smaller ones would use more memory than their data
	if off > math.MaxInt64-maxRead || n < 1 {
		return nil, violation("a chunk of %d bytes at %#x", n, off)
	}
	r := disk.Range{Off: int64(off), Len: n}
	i := disk.Behind(q.covered, r.Off)
	q.chunks++
	switch {
	case !q.Contains(r):
		return nil, violation("a chunk of %d bytes at %#x, want a part of %d bytes at %#x", n, off, q.Len, q.Off)
	case i < len(q.covered) && q.covered[i].Overlaps(r):
		return nil, violation("bytes at %#x twice", off)
	case q.chunks > 2+q.Len/least:
		return nil, violation("more than %d chunks to a read of %d bytes", q.chunks-1, q.Len)
	case i > 0 && q.covered[i-1].End() == r.Off:
		q.covered[i-1].Len += n
	default:
		q.covered = slices.Insert(q.covered, i, r)
	}
	return q.p[r.Off-q.Off:][:n], nil
}

// states reads block states. Only the last one may extend past the request.
func (c *Client) states(q *pending, size int64) error {
	if size < 12 || size > maxChunk || size%8 != 4 || q.states != nil {
		return violation("states in %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return err
	}
	if id := be.Uint32(b); id != c.context {
		return violation("states of context %d, want %d", id, c.context)
	}
	off := q.Off
	for b = b[4:]; len(b) > 0; b = b[8:] {
		n, state := int64(be.Uint32(b)), be.Uint32(b[4:])
		if n == 0 || off >= q.End() {
			return violation("%d bytes of one state at %#x, behind a request up to %#x", n, off, q.End())
		}
		n = min(n, c.size-off)
		e := disk.Extent{Range: disk.Range{Off: off, Len: n}, Zero: state&stateZero != 0}
		if k := len(q.states) - 1; k >= 0 && q.states[k].Zero == e.Zero {
			q.states[k].Len += n
		} else {
			q.states = append(q.states, e)
		}
		off += n
	}
	return nil
}

// failure reads an error chunk. Only the first one of a request counts.
func (c *Client) failure(q *pending, size int64) error {
	if size < 6 || size > maxChunk {
		return violation("an error in %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c.r, b); err != nil {
		return err
	}
	code, n := be.Uint32(b), int64(be.Uint16(b[4:]))
	if code == 0 || n > size-6 {
		return violation("error %d with a text of %d bytes in %d", code, n, size)
	}
	if q.err == nil {
		q.err = serverError(code, strings.ToValidUTF8(string(b[6:6+n]), "?"))
	}
	return nil
}

// errServer marks an error reported by the server.
var errServer = errors.New("the server reports")

// serverError returns the error for a request that failed on the server.
func serverError(code uint32, text string) error {
	why := map[uint32]string{
		errPerm: "not permitted", errIO: "input/output error", errMemory: "out of memory",
		errInvalid: "invalid request", errOverflow: "too large",
		errNotSup: "not supported", errShutdown: "the server is shutting down",
	}[code]
	if why == "" {
		why = "unknown reason"
	}
	if text != "" {
		return fmt.Errorf("%w: %s (error %d, %.256q)", errServer, why, code, text)
	}
	return fmt.Errorf("%w: %s (error %d)", errServer, why, code)
}

// ReadAt implements io.ReaderAt.
func (c *Client) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= c.size {
		return 0, io.EOF
	}
	if int64(len(p)) > c.size-off {
		p, err = p[:c.size-off], io.EOF
	}
	if len(p) == 0 {
		return 0, err
	}
	from, to := c.blocksAround(off, int64(len(p)))
	whole := p
	if to-from != int64(len(p)) {
		whole = make([]byte, to-from)
	}
	if bad := c.read(whole, from); bad != nil {
		return 0, bad
	}
	if to-from != int64(len(p)) {
		copy(p, whole[off-from:])
	}
	return len(p), err
}

// blocksAround returns the whole blocks around n bytes, up to the end of the export.
func (c *Client) blocksAround(off, n int64) (from, to int64) {
	return off &^ (c.block - 1), min((off+n+c.block-1)&^(c.block-1), c.size)
}

// read reads whole blocks, with as many parallel requests as needed.
func (c *Client) read(p []byte, off int64) error {
	var all []*pending
	for len(p) > 0 {
		n := min(int64(len(p)), c.most)
		q := &pending{command: cmdRead, Range: disk.Range{Off: off, Len: n}, p: p[:n]}
		c.begin(q)
		all, p, off = append(all, q), p[n:], off+n
	}
	var err error
	for _, q := range all {
		if <-q.done; q.err != nil && err == nil {
			err = fmt.Errorf("read %d bytes at %#x: %w", q.Len, q.Off, q.err)
		}
	}
	return err
}

// Extent returns the state of a range by a block status request. If the server does not support that, all is data.
func (c *Client) Extent(off, limit int64) (disk.Extent, error) {
	limit = min(limit, c.size-off)
	if !c.status {
		return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
	}
	if e, ok := c.remembered(off, limit); ok {
		return e, nil
	}
	from, to := c.blocksAround(off, min(max(limit, statusAhead), c.size-off, math.MaxInt32))
	q := &pending{command: cmdBlockStatus, Range: disk.Range{Off: from, Len: to - from}}
	c.begin(q)
	if <-q.done; q.err != nil {
		return disk.Extent{}, fmt.Errorf("map of %d bytes at %#x: %w", q.Len, from, q.err)
	}
	c.mu.Lock()
	c.known = q.states
	c.mu.Unlock()
	for _, e := range q.states {
		if off < e.End() {
			return part(e, off, limit), nil
		}
	}
	// The server may know the state of less than one block. The rest is data.
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

// remembered returns the state of the bytes from off on in the last block status reply.
func (c *Client) remembered(off, limit int64) (disk.Extent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := disk.Behind(c.known, off)
	if i == len(c.known) || off < c.known[i].Off {
		return disk.Extent{}, false
	}
	return part(c.known[i], off, limit), true
}

// part returns at most limit bytes of an extent, from off on.
func part(e disk.Extent, off, limit int64) disk.Extent {
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, e.End()-off)}, Zero: e.Zero}
}

package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/trueup/trueup/internal/disk"
)

// request is a client's request in the transmission phase.
type request struct {
	Magic  uint32
	Flags  uint16
	Type   uint16
	Cookie uint64 // of the client, for the reply
	Offset uint64
	Length uint32
}

// Space for the header of a reply before its data: 20 bytes of a chunk and 8 of an offset.
const (
	chunkHead  = 20
	simpleHead = 16
	headRoom   = chunkHead + 8
)

const (
	// sparse is the shortest run of zeros to send as a hole, in bytes. Shorter requests read no map of the disk.
	sparse = 64 << 10
	// ahead is the range of one extent query, in bytes.
	ahead = 8 << 20
	// maxStates limits the states in one reply, and maxExtents the extents joined to them.
	maxStates  = 1024
	maxExtents = 1 << 16
	// maxText limits the message of an error in bytes.
	maxText = 512
)

// transmit answers requests until the client ends the session. The data of a request never exceed the buffer.
func (s *session) transmit() error {
	for {
		var q request
		if err := binary.Read(s.r, be, &q); err != nil {
			return err
		}
		if q.Magic != magicRequest {
			return violation("request magic %#x, want %#x", q.Magic, magicRequest)
		}
		if q.Type == cmdDisconnect {
			return errEnd
		}
		if err := s.serve(&q); err != nil {
			return err
		}
	}
}

// serve answers one request. An error ends the session.
func (s *session) serve(q *request) error {
	switch q.Type {
	case cmdWrite:
		return s.write(q)
	case cmdTrim, cmdWriteZeroes:
		return s.fail(q, errPerm, "the export is read-only")
	}
	if why := s.invalid(q); why != "" {
		return s.fail(q, errInvalid, why)
	}
	r := disk.Range{Off: int64(q.Offset), Len: int64(q.Length)} //nolint:gosec // on the disk
	switch {
	case q.Type == cmdFlush: // nothing is ever written
		return s.done(q)
	case q.Type == cmdBlockStatus:
		return s.blockStatus(q, r)
	case s.structured:
		return s.readChunks(q, r)
	}
	return s.readSimple(q, r)
}

// invalid returns why a request that writes nothing is invalid, or an empty string.
func (s *session) invalid(q *request) string {
	flags := q.Flags
	switch {
	case q.Type == cmdRead && s.structured:
		flags &^= cmdFlagDF
	case q.Type == cmdRead, q.Type == cmdFlush:
	case q.Type != cmdBlockStatus:
		return fmt.Sprintf("command %d is not supported", q.Type)
	case !s.status:
		return "no metadata context was selected"
	default:
		flags &^= cmdFlagReqOne
	}
	size := uint64(s.Disk.Size()) //nolint:gosec // never negative
	switch {
	case flags != 0:
		return fmt.Sprintf("command flags %#x are not supported", flags)
	case q.Type == cmdFlush && (q.Offset != 0 || q.Length != 0):
		return "a flush has neither offset nor length"
	case q.Offset > size || uint64(q.Length) > size-q.Offset:
		return fmt.Sprintf("%d bytes at %#x end behind the disk of %d bytes", q.Length, q.Offset, size)
	case q.Type != cmdBlockStatus && q.Length > blockMax:
		return fmt.Sprintf("%d bytes at once, want %d at most", q.Length, blockMax)
	}
	return ""
}

// write rejects a write after discarding its data.
func (s *session) write(q *request) error {
	if q.Length > blockMax {
		return violation("%d bytes to write, want %d at most", q.Length, blockMax)
	}
	if _, err := s.r.Discard(int(q.Length)); err != nil {
		return err
	}
	return s.fail(q, errPerm, "the export is read-only")
}

// load reads bytes of the disk.
func (s *session) load(p []byte, off int64) error {
	n, err := s.Disk.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	err = fmt.Errorf("read %d bytes at %#x of the disk: %w", len(p), off, err)
	s.failed(err)
	return err
}

// readSimple sends the data of a read after one header. A later error ends the session.
func (s *session) readSimple(q *request, r disk.Range) error {
	head := s.simple(q, 0)
	for begun := false; !begun || r.Len > 0; begun = true {
		p := s.buf[len(head):]
		p = p[:min(int64(len(p)), r.Len)]
		if err := s.load(p, r.Off); err != nil {
			if begun {
				return err
			}
			return s.fail(q, errIO, err.Error())
		}
		if _, err := s.w.Write(s.buf[:len(head)+len(p)]); err != nil {
			return err
		}
		head, r.Off, r.Len = nil, r.Off+int64(len(p)), r.Len-int64(len(p))
	}
	return nil
}

// readChunks sends the data of a read as chunks of data and holes. It reads each chunk before sending its header.
func (s *session) readChunks(q *request, r disk.Range) error {
	whole := q.Flags&cmdFlagDF != 0
	switch {
	case r.Len == 0:
		return s.done(q)
	case whole && r.Len > int64(len(s.buf)-headRoom):
		return s.fail(q, errOverflow, fmt.Sprintf("%d bytes in one chunk, want %d at most", r.Len, len(s.buf)-headRoom))
	}
	for r.Len > 0 {
		n, zero := min(r.Len, int64(len(s.buf)-headRoom)), false
		var err error
		if !whole && (r.Len >= sparse || s.known.Contains(r)) {
			n, zero, err = s.stretch(r, n)
		}
		if err == nil && !zero {
			err = s.load(s.buf[headRoom:headRoom+n], r.Off)
		}
		if err != nil {
			return s.fail(q, errIO, err.Error())
		}
		done := uint16(0)
		if n == r.Len {
			done = replyFlagDone
		}
		kind, size := uint16(replyData), headRoom+n
		if zero {
			kind, size = replyHole, headRoom+4
			be.PutUint32(s.buf[headRoom:], uint32(n)) //nolint:gosec // blockMax at most
		}
		s.chunk(q, done, kind, int(size)-chunkHead)
		be.PutUint64(s.buf[chunkHead:], uint64(r.Off)) //nolint:gosec // never negative
		if _, err := s.w.Write(s.buf[:size]); err != nil {
			return err
		}
		r.Off, r.Len = r.Off+n, r.Len-n
	}
	return nil
}

// stretch returns the length of the next chunk from the start of r: a hole, or at most limit bytes of data with short
// runs of zeros.
func (s *session) stretch(r disk.Range, limit int64) (n int64, zero bool, err error) {
	for n < limit {
		e, err := s.extent(r.Off+n, min(r.Len-n, max(limit-n, sparse)))
		switch {
		case err != nil:
			return 0, false, err
		case e.Zero && n == 0 && (e.Len >= sparse || e.Len == r.Len):
			e, err = s.extent(r.Off, r.Len) // all of it
			return e.Len, true, err
		case e.Zero && e.Len >= sparse:
			return n, false, nil
		}
		n += e.Len
	}
	return min(n, limit), false, nil
}

// extent returns the state of the bytes from off on. It caches the last one: requests often follow each other, and a
// file system may query all pages up to the next hole.
func (s *session) extent(off, limit int64) (disk.Extent, error) {
	if off < s.known.Off || off >= s.known.End() {
		e, err := s.Disk.Extent(off, min(max(limit, ahead), s.Disk.Size()-off))
		if err != nil {
			err = fmt.Errorf("map of the disk at %#x: %w", off, err)
			s.failed(err)
			return e, err
		}
		s.known = e
	}
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, s.known.End()-off)}, Zero: s.known.Zero}, nil
}

// blockStatus sends the states of a range, or of its beginning.
func (s *session) blockStatus(q *request, r disk.Range) error {
	if r.Len == 0 {
		return s.fail(q, errInvalid, "the status of nothing")
	}
	most := min(maxStates, (len(s.buf)-headRoom)/8)
	if q.Flags&cmdFlagReqOne != 0 {
		most = 1
	}
	b := be.AppendUint32(s.buf[:chunkHead], allocationID)
	var last disk.Extent
	put := func() {
		state := uint32(0)
		if last.Zero {
			state = stateHole | stateZero
		}
		b = be.AppendUint32(be.AppendUint32(b, uint32(last.Len)), state) //nolint:gosec // as long as the request
		last.Len = 0
	}
	for count, walked := 0, 0; r.Len > 0 && walked < maxExtents; walked++ {
		e, err := s.extent(r.Off, r.Len)
		if err != nil {
			return s.fail(q, errIO, err.Error())
		}
		if last.Len > 0 && last.Zero != e.Zero {
			put()
			if count++; count == most {
				break
			}
		}
		last.Zero, last.Len = e.Zero, last.Len+e.Len
		r.Off, r.Len = e.End(), r.Len-e.Len
	}
	if last.Len > 0 {
		put()
	}
	s.chunk(q, replyFlagDone, replyBlockStatus, len(b)-chunkHead)
	_, err := s.w.Write(s.buf[:len(b)])
	return err
}

// chunk writes the header of a chunk to the start of the buffer.
func (s *session) chunk(q *request, flags, kind uint16, size int) {
	b := be.AppendUint32(s.buf[:0], magicStructured)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint16(b, kind)
	b = be.AppendUint64(b, q.Cookie)
	be.AppendUint32(b, uint32(size)) //nolint:gosec // of the buffer
}

// simple writes the header of a simple reply to the start of the buffer.
func (s *session) simple(q *request, code uint32) []byte {
	b := be.AppendUint32(s.buf[:0], magicSimple)
	b = be.AppendUint32(b, code)
	return be.AppendUint64(b, q.Cookie)
}

// done sends the success of a request without data.
func (s *session) done(q *request) error {
	b := s.simple(q, 0)
	if s.structured {
		s.chunk(q, replyFlagDone, replyNone, 0)
		b = s.buf[:chunkHead]
	}
	_, err := s.w.Write(b)
	return err
}

// fail sends the error of a request.
func (s *session) fail(q *request, code uint32, why string) error {
	if !s.structured {
		_, err := s.w.Write(s.simple(q, code))
		return err
	}
	why = strings.ToValidUTF8(strings.ReplaceAll(why[:min(len(why), maxText)], "\x00", ""), "")
	b := be.AppendUint32(s.buf[:chunkHead], code)
	b = append(be.AppendUint16(b, uint16(len(why))), why...) //nolint:gosec // maxText at most
	s.chunk(q, replyFlagDone, replyError, len(b)-chunkHead)
	_, err := s.w.Write(s.buf[:len(b)])
	return err
}

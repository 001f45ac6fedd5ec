package sandbox

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// Handle answers one request. When it panics the worker dies, since its state is no longer reliable.
type Handle func(request []byte) []byte

// Serve runs a worker over its standard input and output: it restricts the whole process as the parent asked, calls
// start with the parent's hello, and answers requests until its input ends. Nothing else may use out. It ends the
// process when the input ends during a request, and when a request computes for too long.
func Serve(in io.Reader, out io.Writer, start func(hello []byte) (Handle, error)) error {
	first, err := readFrame(in, 0, mostRequest)
	if err != nil {
		return fmt.Errorf("first request of a worker: %w", err)
	}
	var s setup
	if err := json.Unmarshal(first, &s); err != nil {
		return fmt.Errorf("first request of a worker: %w", err)
	}
	handle, err := begin(out, s, start)
	if err != nil {
		return err
	}
	return serve(in, out, s.Limits, handle)
}

// begin restricts the worker and answers the first request.
func begin(out io.Writer, s setup, start func(hello []byte) (Handle, error)) (Handle, error) {
	r := ready{Isolation: restrict(s)}
	watchCPU()
	handle, failed := start(s.Hello)
	if failed != nil {
		r.Error = line(failed.Error())
	}
	answer, err := json.Marshal(r)
	if err == nil {
		err = writeFrame(out, 0, answer)
	}
	return handle, errors.Join(failed, err)
}

// serve answers requests. They are read beside the work, so that the end of the input is seen at once.
func serve(in io.Reader, out io.Writer, limits Limits, handle Handle) error {
	var busy atomic.Bool
	requests := make(chan []byte)
	go listen(in, requests, &busy)
	for number := uint32(1); ; number++ {
		request, more := <-requests
		if !more {
			return nil
		}
		if err := renewCPU(limits.CPU); err != nil {
			return err
		}
		answer := handle(request)
		if int64(len(answer)) > limits.Answer {
			panic(fmt.Sprintf("answer of %d bytes, at most %d", len(answer), limits.Answer))
		}
		busy.Store(false)
		if err := writeFrame(out, number, answer); err != nil {
			return err
		}
	}
}

// listen passes requests on. When the input ends the parent is gone or wants no more: the request under way is not
// waited for.
func listen(in io.Reader, requests chan<- []byte, busy *atomic.Bool) {
	for number := uint32(1); ; number++ {
		request, err := readFrame(in, number, mostRequest)
		if err != nil {
			if busy.Load() {
				os.Exit(1)
			}
			close(requests)
			return
		}
		busy.Store(true)
		requests <- request
	}
}

// A frame is a header and its payload. Header, big endian: magic u32, number of the request u32, bytes of the payload
// u32.
const (
	frameMagic  = 0x1e74750a // RS "tu" LF: no text begins so
	frameHeader = 12
)

// mostRequest bounds the requests of the parent, which a worker trusts: the longest is the list of its roots.
const mostRequest = 1 << 30

// errFrame marks bytes on a pipe that are not the frame that was due.
var errFrame = errors.New("not a frame")

func writeFrame(w io.Writer, number uint32, payload []byte) error {
	if int64(len(payload)) > mostRequest {
		return fmt.Errorf("frame of %d bytes, at most %d", len(payload), mostRequest)
	}
	// One write, since each one wakes the other side.
	frame := make([]byte, frameHeader, frameHeader+len(payload))
	binary.BigEndian.PutUint32(frame, frameMagic)
	binary.BigEndian.PutUint32(frame[4:], number)
	binary.BigEndian.PutUint32(frame[8:], uint32(len(payload))) //nolint:gosec // see above
	_, err := w.Write(append(frame, payload...))
	return err
}

// readFrame reads the frame of one request. The error is io.EOF when there is nothing, wraps errFrame for anything but
// that frame with at most so many bytes, and is the pipe's own otherwise. Memory is allocated for bytes that have come,
// not for those announced.
func readFrame(r io.Reader, number uint32, most int64) ([]byte, error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	if magic := binary.BigEndian.Uint32(header[:]); magic != frameMagic {
		return nil, fmt.Errorf("%w: begins with 0x%08x, want 0x%08x", errFrame, magic, uint32(frameMagic))
	}
	if got := binary.BigEndian.Uint32(header[4:]); got != number {
		return nil, fmt.Errorf("%w: number %d, want %d", errFrame, got, number)
	}
	size := int64(binary.BigEndian.Uint32(header[8:]))
	if size > most {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errFrame, size, most)
	}
	var payload bytes.Buffer
	_, err := io.CopyN(&payload, r, size)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return payload.Bytes(), err
}

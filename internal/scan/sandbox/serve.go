package sandbox

import (
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

package remote

import (
	"context"
	"io"
	"sync"
)

const (
	stretchBytes = 4 << 20 // of one request of those who read all
	inFlight     = 4       // requests at once
	maxStretches = 2 * inFlight
	// steady is how many bytes have to be read one behind the other before more is asked for.
	steady = 1 << 20
)

// ahead reads an object. To those who read it from front to back, it has the next stretches asked for, several at once.
// Safe for concurrent use.
type ahead struct {
	*Object
	ctx context.Context //nolint:containedctx // of the process

	mu    sync.Mutex
	next  int64 // where a read goes on
	run   int64 // bytes read so, one behind the other
	parts map[int64]*stretch
	order []int64 // of parts, the oldest first
}

// stretch is a part of the object that is there, or comes.
type stretch struct {
	done chan struct{}
	data []byte
	err  error
}

// ReadAt follows the contract of io.ReaderAt.
func (a *ahead) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= a.size {
		return 0, io.EOF
	}
	if int64(len(p)) > a.size-off {
		p, err = p[:a.size-off], io.EOF
	}
	for n < len(p) {
		s, at := a.find(off+int64(n), int64(len(p)-n))
		if s == nil {
			m, bad := a.readAt(a.ctx, p[n:], at)
			return n + m, orEnd(bad, err)
		}
		<-s.done
		if s.err != nil {
			return n, s.err
		}
		n += copy(p[n:], s.data[at%stretchBytes:])
	}
	return n, err
}

// orEnd returns the error of a read, or the end of the object.
func orEnd(bad, end error) error {
	if bad != nil {
		return bad
	}
	return end
}

// find returns the stretch in which an offset lies, nil if what is there is to be asked for by itself.
func (a *ahead) find(off, n int64) (s *stretch, at int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	number := off / stretchBytes
	// Requests of several readers overtake each other.
	near := a.parts[number] != nil || off >= a.next && off-a.next < steady
	if near {
		a.run += n
	} else {
		a.run = n
	}
	a.next = off + n
	if a.run < steady {
		return a.parts[number], off
	}
	for i := number; i < number+inFlight && i*stretchBytes < a.size; i++ {
		a.ask(i)
	}
	return a.parts[number], off
}

// ask has a stretch read, unless it is there.
func (a *ahead) ask(number int64) {
	if a.parts[number] != nil {
		return
	}
	if a.parts == nil {
		a.parts = map[int64]*stretch{}
	}
	if len(a.order) == maxStretches {
		delete(a.parts, a.order[0])
		a.order = a.order[1:]
	}
	s := &stretch{done: make(chan struct{})}
	a.parts[number], a.order = s, append(a.order, number)
	go func() {
		defer close(s.done)
		s.data = make([]byte, min(stretchBytes, a.size-number*stretchBytes))
		_, s.err = a.readAt(a.ctx, s.data, number*stretchBytes)
	}()
}

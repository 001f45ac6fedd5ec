package driver

import (
	"fmt"
	"io"
	"sync"
)

// Slots remembers where reserved ranges of the disk go in the file until they are written. Workers hold a few megabytes
// between them, so the list stays short whatever the size of the image. The zero value is empty.
type Slots struct {
	mu   sync.Mutex
	open map[int64]slot // by offset on the disk
}

type slot struct{ size, place int64 }

// Add gives the range [off, off+n) of the disk the place in the file where it goes.
func (s *Slots) Add(off, n, place int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[int64]slot{}
	}
	s.open[off] = slot{n, place}
}

// WriteAt writes p, which begins at off of the disk and covers whole slots, to the places of these and forgets them.
func (s *Slots) WriteAt(f io.WriterAt, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		place, n, ok := s.take(at, int64(len(p)-done))
		if !ok {
			panic(fmt.Sprintf("driver: write of %d bytes at %#x, which was not reserved", len(p)-done, at))
		}
		m, err := f.WriteAt(p[done:done+int(n)], place)
		done += m
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *Slots) take(off, most int64) (place, n int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.open[off]
	if !ok || o.size > most {
		return 0, 0, false
	}
	delete(s.open, off)
	return o.place, o.size, true
}

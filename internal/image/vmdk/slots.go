package vmdk

import "sync"

// slots remembers where reserved grains go until they are written. Workers hold a few megabytes between them, so the
// list stays short whatever the size of the image.
type slots struct {
	grain int64 // bytes

	mu   sync.Mutex
	open []slot
}

// slot is a stretch of grains that follow each other on the disk and in the file.
type slot struct{ first, grains, sector int64 }

func (s *slots) add(first, grains, sector int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = append(s.open, slot{first, grains, sector})
}

// take gives the file sector for a write of n bytes that starts at grain first, and forgets the stretch. A write covers
// exactly one reservation.
func (s *slots) take(first, n int64) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range s.open {
		if o.first == first && (n+s.grain-1)/s.grain == o.grains {
			s.open[i] = s.open[len(s.open)-1]
			s.open = s.open[:len(s.open)-1]
			return o.sector, true
		}
	}
	return 0, false
}

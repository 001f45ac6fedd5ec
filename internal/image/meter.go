package image

import (
	"fmt"
	"sync/atomic"

	"github.com/trueup/trueup/internal/ondisk"
)

// Meter counts what is read from the files of one image, in bytes, and ends it. Files that have one are read in whole pages, each of which
// is read once as long as it is remembered. The zero value only counts. Safe for concurrent use.
type Meter struct {
	Limit int64 // of what is asked for; 0: none

	asked, read atomic.Int64
}

// Read is how much was read. It is less than what was asked for where that was known already.
func (m *Meter) Read() int64 {
	if m == nil {
		return 0
	}
	return m.read.Load()
}

// ask counts what is wanted.
func (m *Meter) ask(n int) error {
	if m == nil {
		return nil
	}
	if sum := m.asked.Add(int64(n)); m.Limit > 0 && sum > m.Limit {
		return fmt.Errorf("reading: %w of %d bytes for one image", ondisk.ErrLimit, m.Limit)
	}
	return nil
}

// count counts a read that is about to happen.
func (m *Meter) count(n int) {
	if m != nil {
		m.read.Add(int64(n))
	}
}

package image

import (
	"fmt"
	"sync/atomic"

	"github.com/trueup/trueup/internal/ondisk"
)

// Meter counts what is read from the files of one image, in bytes, and ends it. The zero value only counts. Safe for concurrent use.
type Meter struct {
	Limit int64 // 0: none
	n     atomic.Int64
}

// Read is how much was read.
func (m *Meter) Read() int64 {
	if m == nil {
		return 0
	}
	return m.n.Load()
}

// add counts a read that is about to happen.
func (m *Meter) add(n int) error {
	if m == nil {
		return nil
	}
	if sum := m.n.Add(int64(n)); m.Limit > 0 && sum > m.Limit {
		return fmt.Errorf("reading: %w of %d bytes for one image", ondisk.ErrLimit, m.Limit)
	}
	return nil
}

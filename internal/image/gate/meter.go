package gate

import (
	"sync/atomic"

	"github.com/trueup/trueup/internal/ondisk"
)

// Meter counts what is read from the files of one image, in bytes, and limits it. Files that have one are read in whole
// pages, each of which is read once as long as it is remembered. The zero value only counts. Safe for concurrent use.
type Meter struct {
	asked ondisk.Budget
	read  atomic.Int64
}

// NewMeter ends reading where more than limit is asked for.
func NewMeter(limit int64) *Meter {
	return &Meter{asked: ondisk.Budget{What: "reading", Unit: "bytes for one image", Limit: limit}}
}

// Read returns how much was read. It is less than what was asked for where that was known already.
func (m *Meter) Read() int64 {
	if m == nil {
		return 0
	}
	return m.read.Load()
}

// ask spends n bytes of the limit.
func (m *Meter) ask(n int) error {
	if m == nil {
		return nil
	}
	return m.asked.Spend(int64(n))
}

// count counts a read that is about to happen.
func (m *Meter) count(n int) {
	if m != nil {
		m.read.Add(int64(n))
	}
}

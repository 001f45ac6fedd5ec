package ondisk

import (
	"fmt"
	"sync/atomic"

	"github.com/trueup/trueup/internal/disk"
)

// Budget bounds what untrusted structures may cost: bytes that are read, or steps. Safe for concurrent use.
type Budget struct {
	What, Unit string // for the error: "registry hive", "steps"
	Limit      int64  // 0: unlimited

	spent atomic.Int64
}

// Spend adds a cost. ErrLimit when all of them are more than the limit.
func (b *Budget) Spend(n int64) error {
	if sum := b.spent.Add(n); b.Limit > 0 && sum > b.Limit {
		return fmt.Errorf("%s: %w of %d %s", b.What, ErrLimit, b.Limit, b.Unit)
	}
	return nil
}

// Spent returns the sum of the costs so far.
func (b *Budget) Spent() int64 { return b.spent.Load() }

// Metered is a source whose reads a budget pays for.
type Metered struct {
	Source
	Budget *Budget
}

// ReadAt follows the contract of io.ReaderAt.
func (m *Metered) ReadAt(p []byte, off int64) (int, error) {
	if err := m.Budget.Spend(int64(len(p))); err != nil {
		return 0, err
	}
	return m.Source.ReadAt(p, off)
}

// Extent returns the extent of the source, which costs nothing. A source that does not know its holes has none.
func (m *Metered) Extent(off, limit int64) (disk.Extent, error) {
	if s, ok := m.Source.(disk.Sparse); ok {
		return s.Extent(off, limit)
	}
	return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
}

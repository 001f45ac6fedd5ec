package guestfile

import (
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of what the structures of all file systems of a disk may cost together. Finding the files of a boot takes a few MiB in each; a hostile
// image that reaches the bound has cost about a second.
const (
	budget     = 512 << 20 // bytes that are read or gone through
	budgetRuns = 1 << 17   // stretches of the tables that stay in memory
	budgetPage = 4 << 20   // bytes of the cache
	runCost    = 128       // of a stretch of a file, which is sorted among others
)

// Budget is what is left of them. The file systems that share one share a cache too: of one at a time.
type Budget struct {
	left  int64
	runs  int
	owner *metered
	cache *ondisk.Pages
}

// NewBudget is that of a disk.
func NewBudget() *Budget { return &Budget{left: budget, runs: budgetRuns} }

// spend counts work that needed no read.
func (b *Budget) spend(n int64) error {
	if b.left -= n; b.left < 0 {
		return fmt.Errorf("structures of the file systems: %w of %d bytes in all", ondisk.ErrLimit, budget)
	}
	return nil
}

// keep counts stretches that stay in memory as long as their file system does.
func (b *Budget) keep(runs int) error {
	if b.runs -= runs; b.runs < 0 {
		return fmt.Errorf("tables of the file systems: %w of %d runs in all", ondisk.ErrLimit, budgetRuns)
	}
	return nil
}

// metered is a volume whose structures are read: it gives up where they cost more than any real ones.
type metered struct {
	disk.Disk
	*Budget
}

// pages is the cache, of this volume.
func (m *metered) pages() *ondisk.Pages {
	if m.owner != m {
		m.owner, m.cache = m, ondisk.NewPages(m, budgetPage)
	}
	return m.cache
}

// ReadAt follows the contract of io.ReaderAt.
func (m *metered) ReadAt(p []byte, off int64) (int, error) {
	if err := m.spend(int64(len(p))); err != nil {
		return 0, err
	}
	return m.Disk.ReadAt(p, off)
}

// elements parts a path; "" is the root, which has none.
func elements(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

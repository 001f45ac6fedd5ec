package guestfile

import (
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

// Budget is what they cost so far. The file systems that share one share a cache too: of one at a time.
type Budget struct {
	work, runs *ondisk.Budget
	owner      *ondisk.Metered
	cache      *ondisk.Pages
}

// NewBudget is that of a disk.
func NewBudget() *Budget {
	return &Budget{
		work: &ondisk.Budget{What: "structures of the file systems", Unit: "bytes in all", Limit: budget},
		runs: &ondisk.Budget{What: "tables of the file systems", Unit: "runs in all", Limit: budgetRuns},
	}
}

// of is a volume whose structures are read: it gives up where they cost more than any real ones.
func (b *Budget) of(volume disk.Disk) metered {
	return metered{&ondisk.Metered{Source: volume, Budget: b.work}, b}
}

type metered struct {
	*ondisk.Metered
	all *Budget
}

// spend counts work that needed no read.
func (m metered) spend(n int64) error { return m.Budget.Spend(n) }

// pages is the cache, of this volume.
func (m metered) pages() *ondisk.Pages {
	if m.all.owner != m.Metered {
		m.all.owner, m.all.cache = m.Metered, ondisk.NewPages(m, budgetPage)
	}
	return m.all.cache
}

// elements parts a path; "" is the root, which has none.
func elements(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

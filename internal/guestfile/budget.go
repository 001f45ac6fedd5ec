package guestfile

import (
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of what the structures of all file systems of a disk may cost together. Finding the files of a boot takes a
// few MiB in each. A malicious image that reaches the limit has cost about a second.
const (
	budget     = 512 << 20 // bytes that are read or searched
	budgetRuns = 1 << 17   // runs of the tables that stay in memory
	budgetPage = 4 << 20   // bytes of the cache

	budgetJournals = 1 << 30 // bytes of journals that are read: mke2fs makes none that is longer
)

// RunCost is the cost of a run of a file, since it is sorted among others.
const RunCost = 128

// Budget counts what the file systems of a disk have cost. Those that share it also share a cache.
type Budget struct {
	Work, Runs *ondisk.Budget
	Journals   *ondisk.Budget // apart from Work, since those of a busy server are long
	cache      *ondisk.PageCache
}

// NewBudget returns the budget of a disk.
func NewBudget() *Budget {
	return &Budget{
		Work: &ondisk.Budget{What: "structures of the file systems", Unit: "bytes in all", Limit: budget},
		Runs: &ondisk.Budget{What: "tables of the file systems", Unit: "runs in all", Limit: budgetRuns},

		Journals: &ondisk.Budget{What: "journals of the file systems", Unit: "bytes in all", Limit: budgetJournals},
		cache:    ondisk.NewPageCache(budgetPage),
	}
}

// Of returns a volume whose reads count against the budget.
func (b *Budget) Of(volume disk.Disk) Metered {
	m := &ondisk.Metered{Source: volume, Budget: b.Work}
	return Metered{m, b.cache.Of(m)}
}

// Metered is a volume whose reads count against a budget.
type Metered struct {
	*ondisk.Metered
	Pages *ondisk.Pages
}

// Elements divides a path. "" is the root, which has no elements.
func Elements(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

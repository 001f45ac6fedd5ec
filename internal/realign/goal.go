package realign

import (
	"strconv"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
)

// Goal selects the partitions that move, and where to.
type Goal struct {
	Copy            bool  // nothing moves: the disk is copied as it is
	Boundary        int64 // bytes; 0 chooses by the boot code
	Only            []int // numbers of the partitions that move; empty: all that are misaligned
	DataOnly        bool  // only partitions that the boot does not need
	AllowUnbootable bool  // go on although a finding warns that the copy may not boot
	Flatten         bool  // take a snapshot together with its parents
	SkipFree        bool  // the free space of volumes becomes zeros
	RepairTable     bool  // damaged copies of a GPT are written anew

	// To is the format of the copy; empty: that of the source.
	To string
}

// Consistent refuses what contradicts itself.
func (g Goal) Consistent() error {
	if g.DataOnly && len(g.Only) > 0 {
		return ondisk.In(ondisk.ErrUsage,
			"--data-only and --partition both choose the partitions that move; give one of them")
	}
	return nil
}

// Flags returns the flags of a command line that moves the same.
func (g Goal) Flags() (out []string) {
	if g.Boundary != 0 {
		out = append(out, "--boundary", (*align.Boundary)(&g.Boundary).String())
	}
	for _, n := range g.Only {
		out = append(out, "--partition", strconv.Itoa(n))
	}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{g.DataOnly, "--data-only"},
		{g.AllowUnbootable, "--allow-unbootable"},
		{g.Flatten, "--flatten"},
		{g.SkipFree, "--skip-free"},
		{g.RepairTable, "--repair-table"},
	} {
		if f.on {
			out = append(out, f.name)
		}
	}
	return out
}

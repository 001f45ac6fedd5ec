package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// maxGPTEntries is the largest table that is read.
const maxGPTEntries = 16_384

// giantGPT is a disk whose table has as many partitions as are read, 4 KiB apart, from one LBA on, with names of the
// full length. Each holds what fill puts into its 7 sectors.
func giantGPT(first uint64, fill func(disk forge.Bytes, lba int64)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		var entries []tableforge.GPTEntry
		for i := range uint64(maxGPTEntries) {
			start := first + 8*i
			entries = append(entries, tableforge.GPTEntry{
				First: start, Last: start + 6,
				Name: strings.Repeat("é", 31) + fmt.Sprintf("%05d", i),
			})
		}
		const array = maxGPTEntries * 128 / 512
		disk := tableforge.NewGPT(512, int64(first)+8*maxGPTEntries+array+1, maxGPTEntries, entries...)
		for _, e := range entries {
			fill(disk, int64(e.First))
		}
		path := filepath.Join(dir, "disk.raw")
		disk.Write(t, path)
		return path
	}
}

// TestLargestGPT holds inspect and plan to the budget on the largest table: of partitions that lie well, that lie
// badly, and that hold file systems, good ones and broken ones. make test has the dearest of these.
func TestLargestGPT(t *testing.T) {
	t.Parallel()
	empty := func(forge.Bytes, int64) {}
	ext := func(disk forge.Bytes, lba int64) { fsforge.PutExt(disk, lba, 7) }
	fat := func(disk forge.Bytes, lba int64) {
		fsforge.PutFAT16(disk, lba, 7)
		disk.U8(lba*512+fsforge.BootFATs, 5)
	}
	for name, c := range map[string]struct {
		image         func(testing.TB, string) string
		inspect, plan int
		findings      int // at least
	}{
		"aligned":             {giantGPT(8192, empty), 0, 0, 0},
		"misaligned":          {giantGPT(8191, empty), 3, 0, maxGPTEntries},
		"misaligned, ext":     {giantGPT(8191, ext), 1, 1, maxGPTEntries}, // more that hold data than are looked at
		"misaligned, bad FAT": {giantGPT(8191, fat), 1, 1, maxGPTEntries + 1024},
	} {
		if name != "misaligned, bad FAT" && !disktest.Exhaustive {
			continue
		}
		t.Run(name, func(t *testing.T) {
			path := c.image(t, t.TempDir())
			// One launcher each: it keeps what it read, and what it has would count to the next run.
			measured := func(args ...string) result { return measure(t, append(args, "--boundary", "4K", path))[0] }
			inspect, plan := measured("inspect", "--json"), measured("plan", "--json")
			require.Equal(t, c.inspect, inspect.code, inspect.stderr)
			var report jsonInspect
			unmarshal(t, inspect, &report)
			require.Len(t, report.Partitions, maxGPTEntries)
			require.GreaterOrEqual(t, len(report.Findings), c.findings)
			require.Equal(t, c.plan, plan.code, plan.stderr)
			if name == "misaligned" { // the longest texts
				require.Equal(t, c.inspect, measured("inspect").code)
				require.Equal(t, c.plan, measured("plan").code)
			}
		})
	}
}

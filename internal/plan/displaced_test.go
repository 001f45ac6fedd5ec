package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/boottest"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
)

// What the boot needs in its place is refused where a partition, a patch or the growth of the disk takes that place.
func TestPlacesThatTheBootNeeds(t *testing.T) {
	const sectors = 8192
	last := int64(sectors - 34)
	mbr := tableforge.NewMBR(sectors, tableforge.Slot{Type: 6, Start: 63, Sectors: 3000})
	roomy := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: 3062})
	tight := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: uint64(last)})
	for name, tc := range map[string]struct {
		image   []byte
		at, n   int64 // sectors
		refused bool
	}{
		"in front":                           {mbr, 1, 62, false},
		"over the table":                     {mbr, 0, 1, true},
		"where the partition goes":           {mbr, 4000, 1, true},
		"behind the partition, then and now": {mbr, 6000, 2, false},
		"behind the entries":                 {roomy, 30, 4, false},
		"over the header":                    {roomy, 1, 1, true},
		"behind the entries of the backup":   {roomy, sectors - 3, 2, false},
		"the same, on a disk that grows":     {tight, sectors - 3, 2, true},
		"in front, on a disk that grows":     {tight, 30, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := read(t, boottest.Disk(tc.image))
			issue := ondisk.Issue{Code: "needed", Effect: ondisk.Unbootable, Text: "it is needed"}
			l.Boot.Fixed = []boot.Fixed{{Range: disk.Range{Off: tc.at * 512, Len: tc.n * 512}, Issue: issue}}
			p := newPlan(t, l, align.Goal{Must: 64 * units.KiB, Want: units.MiB})
			require.NotEmpty(t, p.Moves)
			var codes []string
			for _, n := range p.Refusals(false) {
				codes = append(codes, n.Code)
			}
			if tc.refused {
				require.Equal(t, []string{"needed"}, codes)
			} else {
				require.Empty(t, codes)
			}
			require.Empty(t, p.Refusals(true))
		})
	}
}

// A copy that moves nothing and grows refuses likewise, once.
func TestGrowthOverAPlaceThatTheBootNeeds(t *testing.T) {
	l := read(t, boottest.Disk(tableforge.NewGPT(512, 8192, 128, tableforge.GPTEntry{First: 2048, Last: 4095})))
	l.Boot.Fixed = []boot.Fixed{{
		Range: disk.Range{Off: 8190 * 512, Len: 512}, Issue: ondisk.Issue{Code: "needed", Effect: ondisk.Unbootable},
	}}
	p := plan.Copy(l.Size)
	p.Grow(l, l.Size)
	require.Empty(t, p.Refusals(false))
	p.Grow(l, l.Size+units.MiB)
	require.Len(t, p.Refusals(false), 1)
	p.Grow(l, l.Size+2*units.MiB)
	require.Len(t, p.Refusals(false), 1)
}

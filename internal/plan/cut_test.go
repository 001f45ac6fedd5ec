package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

// A GPT disk that was cut short anywhere behind its entries is read, and no plan is made of it.
func TestGPTDiskThatWasCutShort(t *testing.T) {
	const sectors = 8000
	disk := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: 2000, Name: "first"},
		tableforge.GPTEntry{First: 3000, Last: 7900, Name: "last"})
	for _, left := range []int64{34, 35, 63, 64, 65, 100, 1000, 2001, 2999, 3001, 7000, 7900, 7966} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			l := read(t, disktest.Memory(disk[:left*512]))
			require.Len(t, l.Partitions, 2)
			require.Equal(t, "cut-short", l.Issues[0].Code)
			for _, goal := range []align.Goal{
				align.GoalFor(l, align.Boundary{}), {Must: align.DefaultBoundary, Want: align.Kept},
			} {
				_, err := plan.New(l, goal)
				require.ErrorIs(t, err, ondisk.ErrFormat)
				require.ErrorContains(t, err, fmt.Sprintf("the image has %d of the %d bytes", left*512, sectors*512))
			}
			grown := plan.Copy(l.Size)
			grown.Grow(l, l.Size+mib)
			require.NotEmpty(t, grown.Refusals(false), "a new backup could overwrite a partition")
		})
	}
}

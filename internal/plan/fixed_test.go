package plan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// A table of another machine is judged by its slices and never aligned. If its partitions are not read, it is refused.
func TestFixedTables(t *testing.T) {
	const listed = volume.Disklabel
	for name, c := range map[string]struct {
		kind    volume.Kind
		parts   []volume.Part
		verdict align.Verdict
		content align.Content
		refused bool
	}{
		"aligned": {listed, []volume.Part{{Name: "1", Start: units.MiB, Size: units.MiB}}, align.Aligned, "", false},
		"below": {
			listed, []volume.Part{{Name: "1", Start: 4 * units.KiB, Size: units.MiB}}, align.BelowBoundary, "", true,
		},
		"misaligned": {listed, []volume.Part{
			{Name: "1", Start: units.MiB, Size: units.MiB},
			{Name: "2", Start: 512, Size: 512},
		}, align.Misaligned, "", true},
		"behind the disk": {
			listed,
			[]volume.Part{{Name: "1", Start: -1, Size: 512}},
			align.NothingToJudge, align.NoPartitions, false,
		},
		"not read": {"rdb", nil, align.NothingToJudge, align.UnknownContent, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &layout.Layout{
				Size: 8 * units.MiB, SectorSize: units.SectorSize, Boot: &boot.Result{Code: boot.Empty},
				Volume: &volume.Volume{Kind: c.kind, Size: 8 * units.MiB, Parts: c.parts},
			}
			require.Equal(t, c.verdict, align.Overall(l, align.DefaultBoundary))
			require.Equal(t, c.content, align.ContentOf(l))
			p, err := New(l, align.Goal{Must: align.DefaultBoundary, Want: align.Kept})
			require.NoError(t, err)
			require.Empty(t, p.Moves)
			require.Equal(t, c.refused, len(p.Refusals(false)) == 1 && p.Refusals(false)[0].Code == "fixed-table")
			require.Equal(t, c.refused, len(p.Refusals(false)) > 0)
			require.Equal(t, l.Size, p.Size)
		})
	}
}

package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// An aligned dynamic disk is copied as it is, and no other is moved, whatever the user accepts.
func TestDynamicDisks(t *testing.T) {
	t.Parallel()
	const sectors = 16384
	for name, c := range map[string]struct {
		start, ntfs int64
		verdict     align.Verdict
		action      align.Action
	}{
		"aligned":                {2048, 0, align.Aligned, align.Nothing},
		"Windows Server 2008":    {63, 2048, align.Aligned, align.Nothing},
		"Windows 2000":           {63, 63, align.Misaligned, align.Refused},
		"volumes without a sign": {63, 0, align.Misaligned, align.Refused},
	} {
		f := tableforge.NewMBR(sectors, slot(0x42, uint32(c.start), 9000))
		if c.ntfs > 0 {
			fsforge.PutNTFS(f, c.ntfs, 4000)
		}
		l := read(t, disktest.Memory(f))
		require.Equal(t, c.verdict, align.Overall(l, align.DefaultBoundary), name)
		p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary})
		a := align.For(l, align.Case{
			Boundary: align.DefaultBoundary, Storage: align.Generic(), Refusals: p.Refusals(false),
		})
		require.Equal(t, c.action, a.Action, name)
		if c.action == align.Refused {
			p.Grow(l, 2*l.Size)
			require.Equal(t, []string{"ldm"}, codes(p.Refusals(true)), name)
			continue
		}
		require.True(t, p.Idle() && len(p.Refusals(false)) == 0, name)
		require.Equal(t, []byte(f), disktest.Head(t, p.View(disktest.Memory(f)), p.Size), name)
	}
}

package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/plan"
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
			require.Equal(t, []string{"ldm"}, codes(p.Refusals(true)), name)
			continue
		}
		require.True(t, p.Idle() && len(p.Refusals(false)) == 0, name)
		require.Equal(t, []byte(f), disktest.Head(t, p.View(disktest.Memory(f)), p.Size), name)
	}
}

// The private header in the last sector has to stay there on a disk with an MBR. On a GPT it lies in a partition.
func TestDynamicDisksThatGrow(t *testing.T) {
	t.Parallel()
	const sectors = 16384
	gpt := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 8191})
	data := []byte{0xa0, 0x60, 0x9b, 0xaf, 0x31, 0x14, 0x62, 0x4f, 0xbc, 0x68, 0x33, 0x11, 0x71, 0x4a, 0x69, 0xad}
	for header, array := range map[int64]int64{1: 2, sectors - 1: sectors - 33} {
		gpt.Put(array*512, data)
		tableforge.SealGPT(gpt, header*512, 512)
	}
	for _, c := range []struct {
		f    forge.Bytes
		want []string
	}{
		{tableforge.NewMBR(sectors, slot(0x42, 2048, 9000)), []string{"ldm-grows"}},
		{gpt, nil},
	} {
		l := read(t, disktest.Memory(c.f))
		require.True(t, l.Dynamic())
		goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
		for _, p := range []*plan.Plan{newPlan(t, l, goal), plan.Copy(l.Size)} {
			p.Grow(l, 2*l.Size)
			require.Equal(t, c.want, codes(p.Refusals(true)))
		}
	}
}

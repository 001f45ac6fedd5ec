package linux_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// FuzzGrub2 has a boot sector and a core image, which lies where the boot sector says if that is on the disk.
func FuzzGrub2(f *testing.F) {
	const sectors = 512
	blank := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 200},
		tableforge.Slot{Type: 0x83, Start: 300, Sectors: 100})
	tab, err := table.Read(boottest.Disk(blank))
	require.NoError(f, err)
	var parts []boot.Partition
	for _, p := range tab.Partitions {
		parts = append(parts, boot.Partition{Partition: p, Volume: &volume.Volume{Kind: volume.Unknown}})
	}
	for _, first := range []uint64{1, 100, 310, 280, endless} {
		for place := range byte(2) {
			seed := tableforge.NewMBR(2)
			grubforge.PutBoot(seed, 0, first)
			grubforge.PutCore(seed, 1, list(first+1, 5, 110, 7)...)
			f.Add(place, []byte(seed[:440]), []byte(seed[512:]))
		}
	}
	f.Fuzz(func(t *testing.T, place byte, code, core []byte) {
		image := bytes.Clone(blank)
		at := []int{0, 63 * 512, 300 * 512}[place%3]
		copy(image[at:at+440], code)
		first := binary.LittleEndian.Uint64(image[at+grubforge.KernelSector:])
		if first > 0 && first < sectors {
			copy(image[first*512:][:512], core)
		}
		d := boottest.Disk(image)
		g := &boot.Guest{Disk: d, Sector0: image[:440], Scheme: table.MBR, Partitions: parts}
		r, err := layout.ReadBoot(g)
		require.NoError(t, err)
		checkGrubRefs(t, g, r)
	})
}

// checkGrubRefs holds references to what they promise: the bytes are there, they mean the place, and it lies in the
// target.
func checkGrubRefs(t *testing.T, g *boot.Guest, r *boot.Result) {
	t.Helper()
	require.LessOrEqual(t, len(r.Refs), 64)
	for _, x := range r.Refs {
		raw, err := g.Read(x.At)
		require.NoError(t, err)
		require.Equal(t, raw, x.Raw)
		if x.Encode == nil || x.Target == 0 {
			continue
		}
		p, ok := g.Holding(x.Points, 512)
		require.True(t, ok)
		require.Equal(t, p.Number, x.Target)
		same, err := x.Encode(x.Raw, x.Points)
		require.NoError(t, err)
		require.Equal(t, x.Raw, same)
	}
}

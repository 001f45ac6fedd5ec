package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/volume"
)

// showInside prints what a volume at byte 1 MiB holds.
func showInside(v *volume.Volume) string {
	var b strings.Builder
	shown := newVolume(v, 1<<20)
	(&Text{W: &b}).insides(Disk{
		Boundary: align.DefaultBoundary, Verdict: align.Aligned, Table: Table{SectorSize: 512},
		Partitions: []Partition{{Number: 2, Volume: shown}},
	})
	return b.String()
}

func TestInside(t *testing.T) {
	require.Empty(t, showInside(&volume.Volume{Kind: volume.NTFS, Label: "plain"}), "nothing to say")
	require.Equal(t, `
  Inside partition 2: LVM2 "vg0", extent size 4 MiB, data from 192 KiB on

      name    kind    start LBA   size  on 64K
      root    linear       2432  8 MiB  yes
      odd     linear       2433  1 MiB  no
      [wide]  raid1           -  2 MiB  -
`, showInside(&volume.Volume{
		Kind: volume.LVM2, Label: "vg0", DataStart: 192 << 10,
		Details: []volume.Detail{{Name: "volume group", Value: "vg0"}, {Name: "extent size", Value: "4 MiB"}},
		Parts: []volume.Part{
			{Name: "root", Kind: "linear", Start: 192 << 10, Size: 8 << 20},
			{Name: "odd", Kind: "linear", Start: 192<<10 + 512, Size: 1 << 20},
			{Name: "[wide]", Kind: "raid1", Start: -1, Size: 2 << 20},
		},
	}))
}

// What an image says can neither reach the terminal nor fill it.
func TestInsideIsSafeAndShort(t *testing.T) {
	v := &volume.Volume{Kind: volume.LVM2, Details: []volume.Detail{{Name: "group", Value: "\x1b[31m"}}}
	for i := range 300 {
		v.Parts = append(v.Parts, volume.Part{Name: fmt.Sprintf("\x1b]0;%d\a", i), Kind: "\u202e", Start: -1})
	}
	got := showInside(v)
	require.NotContains(t, got, "\x1b")
	require.NotContains(t, got, "\u202e")
	require.Contains(t, got, "... and 236 more\n")
	require.Equal(t, 2+2+64+1, strings.Count(got, "\n"))
}

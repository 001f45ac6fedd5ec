package align_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
)

// A survey and a complete reading judge the volume in a container alike, and leave it on its blocks: its first cluster
// is at LBA 63 + 161 = 224, a multiple of 4 KiB.
func TestContentsOnTheirBlocksStay(t *testing.T) {
	const start, sectors, inner, data = 63, 20000, 16384, 161
	for name, put := range map[string]func(p forge.Bytes){
		"FAT": func(p forge.Bytes) { fsforge.PutFAT16(p, 0, inner) },
		"FAT on a mirror": func(p forge.Bytes) {
			fsforge.PutFAT16(p, 0, inner)
			poolforge.PutMD0(p, binary.LittleEndian)
		},
		"FAT in a slice": func(p forge.Bytes) {
			fsforge.PutFAT16(p, 64, inner)
			tableforge.PutDisklabel(p, 512, tableforge.Slice{Start: 64, Sectors: inner, Type: 8})
		},
		"FAT in a slice that counts from the disk": func(p forge.Bytes) {
			fsforge.PutFAT16(p, 64, inner)
			tableforge.PutDisklabel(p, 512, tableforge.Slice{Start: start + 64, Sectors: inner, Type: 8},
				tableforge.Slice{}, tableforge.Slice{Sectors: start + sectors + 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(start+sectors+1, tableforge.Slot{Type: 0xfd, Start: start, Sectors: sectors})
			put(f[start*512:][:sectors*512])
			for _, read := range []func(disk.Disk, table.Geometry) (*layout.Layout, error){layout.Read, layout.Survey} {
				l, err := read(disktest.Memory(f), table.Geometry{})
				require.NoError(t, err)
				j := align.Judge(l.Partitions[0], align.DefaultBoundary)
				require.Zero(t, (j.Data-(start+data)*512)%(64*512), "a slice of a whole number of 32 KiB")
				require.Equal(t, align.BelowBoundary, j.Verdict)
				require.False(t, align.GoalFor(l, align.Boundary{}).Moves(l.Partitions[0]))
			}
		})
	}
}

package layout_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// requireBad requires that a layout is not read without a sector.
func requireBad(t *testing.T, f forge.Bytes, lba int64) {
	t.Helper()
	_, err := layout.Read(disktest.NewBadDisk(disktest.Memory(f), lba*512), table.Geometry{})
	require.ErrorIs(t, err, disktest.ErrFault, lba)
}

// Both sizes of sectors are looked at, and what cannot be read there speaks for neither.
func TestBadSectorsOfEvidence(t *testing.T) {
	t.Parallel()
	primary := slot(0x83, 63, 4000)
	data := tableforge.NewMBR(36000, primary)
	data.U8(63*4096, 1)
	for _, lba := range []int64{63 * 8, 63*8 + 6*8, (63 + 3999) * 8, 63*8 + 8193*2, 63 + 6, 63 + 3999} {
		requireBad(t, data, lba)
	}
	l := read(t, data)
	var effects []ondisk.Effect
	for _, i := range l.Issues {
		if i.Code == "sector-size" || i.Code == "sector-size-unsure" {
			effects = append(effects, i.Effect)
		}
	}
	require.Equal(t, []ondisk.Effect{ondisk.Note, ondisk.Refuse}, effects)

	sure := tableforge.NewMBR(36000, slot(7, 63, 2400), slot(0x83, 2500, 100))
	fsforge.PutNTFS(sure, 63*8, 2400)
	require.True(t, refusesSectors(read(t, sure)))
	requireBad(t, sure, 2500*8)

	lost := tableforge.NewMBR(8000, slot(0x05, 2048, 4000))
	lost.U8(3000*512, 1)
	requireBad(t, lost, 2900)
}

// A gap of more pieces than are counted is kept as a whole.
func TestGapOfManyPieces(t *testing.T) {
	t.Parallel()
	const pieces, end = 65536 + 2, 2 * (65536 + 100)
	head := tableforge.NewMBR(100, slot(0x83, 63, 37))
	head.U8(99*512, 1)
	stored := bytes.NewReader(make([]byte, 512))
	for n, all := range map[int64]bool{100: false, pieces: true} {
		d := disk.New(end*512, 512, func(off int64) (disk.Run, error) {
			lba := off / 512
			switch {
			case lba < 100:
				return disk.Run{Len: 100*512 - off, Src: bytes.NewReader(head), Off: off}, nil
			case lba >= 100+n:
				return disk.Run{Len: end*512 - off}, nil
			case lba == 101: // the data
				return disk.Run{Len: 512 - off%512, Src: bytes.NewReader(bytes.Repeat([]byte{1}, 512)), Off: off % 512},
					nil
			case lba%2 == 1:
				return disk.Run{Len: 512 - off%512, Src: stored, Off: off % 512}, nil
			}
			return disk.Run{Len: 512 - off%512}, nil
		})
		l := readDisk(t, d, table.Geometry{})
		require.NoError(t, l.ReadGaps(d))
		want := disk.Range{Off: 101 * 512, Len: 512}
		if all {
			want.Len = (end - 101) * 512
		}
		require.Equal(t, want, l.Gaps[len(l.Gaps)-1].Data)
	}
}

// Without an end in CHS bytes the geometry is that of a boot sector, then the 255 heads that entries beyond CHS mean,
// then
// that of the container.
func TestHintsOfGeometry(t *testing.T) {
	t.Parallel()
	container := table.Geometry{Heads: 7, Sectors: 9}
	f := tableforge.NewMBR(20000, slot(7, 63, 16000))
	clear(f[446+1 : 446+4])
	clear(f[446+5 : 446+8])
	geometry := func() table.Geometry {
		l := readDisk(t, disktest.Memory(f), container)
		return l.Geometry
	}
	require.Equal(t, container, geometry())
	f.Put(446+5, []byte{0xfe, 0xff, 0xff})
	require.Equal(t, table.Geometry{Heads: 255, Sectors: 63}, geometry())
	fsforge.PutNTFS(f, 63, 16000)
	f.U16(63*512+fsforge.BootHeads, 16)
	f.U16(63*512+fsforge.BootSectorsPerTrack, 32)
	require.Equal(t, table.Geometry{Heads: 16, Sectors: 32}, geometry())
}

// dosChain is a disk of 255 heads and 63 sectors with a FAT16 in a chain that begins so many sectors behind cylinder 1.
func dosChain(t *testing.T, off int64) *layout.Layout {
	t.Helper()
	const cylinder = 255 * 63
	start := cylinder + off
	f := tableforge.NewMBR(int(start)+17000, slot(0x05, uint32(start), 16500))
	tableforge.PutEBR(f, start, slot(0x06, 63, 16000), tableforge.Slot{})
	fsforge.PutFAT16(f, start+63, 16000)
	l := read(t, f)
	require.Equal(t, table.Geometry{Heads: 255, Sectors: 63}, l.Geometry)
	return l
}

// A chain off the cylinders is one that DOS never read: that is said when something moves, since the move does not mend
// it.
func TestChainThatDOSCannotRead(t *testing.T) {
	for off, said := range map[int64]bool{0: false, 1: true} {
		l := dosChain(t, off)
		require.Equal(t, said,
			slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "dos-chain" && i.OnMove }))
		record := l.Items()[0]
		require.Equal(t, layout.RecordItem, record.Kind)
		require.Equal(t, !said, record.Step > 0)
	}
}

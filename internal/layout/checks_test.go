package layout_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/ldmforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
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

// oddSector is a disk of which one sector is read from another.
type oddSector struct {
	disk.Disk
	at  int64
	odd disk.Disk
}

func (d oddSector) ReadAt(p []byte, off int64) (int, error) {
	if (disk.Range{Off: off, Len: int64(len(p))}).Overlaps(disk.Range{Off: d.at, Len: 512}) {
		return d.odd.ReadAt(p, off)
	}
	return d.Disk.ReadAt(p, off)
}

// Boot sectors of volumes that begin within a partition are read for what they store, and so are the copies of them.
func TestBadSectorsOfDynamicVolumes(t *testing.T) {
	t.Parallel()
	const between = 63 + 5048
	f := dynamic(nil, simple("First", 0, 2048), simple("Between", between-63, 3000))
	fsforge.PutNTFS(f, 63, 2048)
	fsforge.PutNTFS(f, between, 3000)
	require.NotNil(t, read(t, f).Dynamic)
	for _, lba := range []int64{between, between + 2999} {
		disktest.EveryBadRead(t, disktest.Memory(f), func(bad disk.Disk) (string, error) {
			l, err := layout.Read(oddSector{disktest.Memory(f), lba * 512, bad}, table.Geometry{})
			if err != nil {
				return "", err
			}
			return known(l), nil
		})
	}
}

// The halves of a mirror lie on two disks, and their user learns of the other one.
func TestMirrorOnADynamicDisk(t *testing.T) {
	t.Parallel()
	disks := []forge.Bytes{
		tableforge.NewMBR(dynamicTotal, tableforge.Slot{Type: 0x42, Start: 63, Sectors: dynamicSpace}),
		tableforge.NewMBR(dynamicTotal, tableforge.Slot{Type: 0x42, Start: 63, Sectors: dynamicSpace}),
	}
	ldmforge.PutGroup(disks, 63, dynamicSpace, simple("Alone", 5000, 100), ldmforge.Volume{
		Name: "Mirror", Kind: ldmforge.Spanned,
		Copies: [][]ldmforge.Piece{{{Disk: 0, Sectors: 3000}}, {{Disk: 1, Sectors: 3000}}},
	})
	issues := read(t, disks[0]).MovesDynamic()
	i := slices.IndexFunc(issues, func(i ondisk.Issue) bool { return i.Code == "ldm-mirror" })
	require.GreaterOrEqual(t, i, 0)
	require.Equal(t, 1, strings.Count(issues[i].Text, `"Disk1-`), issues[i].Text)
}

// A partition of another kind may lie in the space that the private headers name, and then nothing is moved.
func TestPartitionInTheSpaceOfVolumes(t *testing.T) {
	t.Parallel()
	l := read(t, dynamic([]tableforge.Slot{
		{Type: 0x42, Start: 63, Sectors: 6000}, {Type: 7, Start: 7000, Sectors: 1000},
	}, simple("Volume1", 0, 5000)))
	require.Nil(t, l.Dynamic)
	i := slices.IndexFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == layout.CodeDynamic })
	require.Contains(t, l.Issues[i].Text, "partition 2 lies in the space of the volumes")
}

// Both sizes of sectors are looked at, and what cannot be read there speaks for neither.
func TestBadSectorsOfEvidence(t *testing.T) {
	t.Parallel()
	primary := tableforge.Slot{Type: 0x83, Start: 63, Sectors: 4000}
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

	sure := tableforge.NewMBR(36000, tableforge.Slot{Type: 7, Start: 63, Sectors: 2400},
		tableforge.Slot{Type: 0x83, Start: 2500, Sectors: 100})
	fsforge.PutNTFS(sure, 63*8, 2400)
	require.True(t, refusesSectors(read(t, sure)))
	requireBad(t, sure, 2500*8)

	lost := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x05, Start: 2048, Sectors: 4000})
	lost.U8(3000*512, 1)
	requireBad(t, lost, 2900)
}

// A gap of more pieces than are counted is kept as a whole.
func TestGapOfManyPieces(t *testing.T) {
	t.Parallel()
	const pieces, end = 65536 + 2, 2 * (65536 + 100)
	head := tableforge.NewMBR(100, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 37})
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
	f := tableforge.NewMBR(20000, tableforge.Slot{Type: 7, Start: 63, Sectors: 16000})
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

// A GPT can hold the database of a dynamic disk without a partition for its volumes.
func TestDatabaseWithoutVolumes(t *testing.T) {
	t.Parallel()
	const at, sectors = 2048, 16384
	f := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: at, Last: at + 2047})
	metadata := []byte{0xaa, 0xc8, 0x08, 0x58, 0x8f, 0x7e, 0xe0, 0x42, 0x85, 0xd2, 0xe1, 0xe9, 0x04, 0x34, 0xcf, 0xb3}
	for header, array := range map[int64]int64{1: 2, sectors - 1: sectors - 33} {
		f.Put(array*512, metadata)
		tableforge.SealGPT(f, header*512, 512)
	}
	ldmforge.PutDatabase(f, at*512, 1)
	for _, lba := range []int64{at + 1856, at + 2047} {
		f.Put(lba*512, ldmforge.PrivateHead(ldmforge.DiskID(0), 4096, 8000, at, 2048))
	}
	l := read(t, f)
	require.Nil(t, l.Dynamic)
	require.Len(t, l.Partitions, 1)
	require.Contains(t, fmt.Sprint(l.Issues), "no partition lies over the volumes")
}

// What is read of the volumes of a dynamic disk is bounded as for partitions: each of these has a header of 4 MiB.
func TestVolumesOfADynamicDiskAreBounded(t *testing.T) {
	t.Parallel()
	const size, count = 4 << 20, 20
	const sectors = 2 * size / 512
	luks := make(forge.Bytes, 2*size)
	poolforge.PutLUKS2(luks, poolforge.LUKS2Text("16777216", "4"), size)
	f := tableforge.NewMBR(63+sectors*count+4096, tableforge.Slot{Type: 0x42, Start: 63, Sectors: sectors * count})
	var volumes []ldmforge.Volume
	for i := range int64(count) {
		volumes = append(volumes, simple(fmt.Sprint("Volume", i), i*sectors, sectors))
	}
	ldmforge.PutGroup([]forge.Bytes{f}, 63, sectors*count, volumes...)
	space := disk.Range{Off: 63 * 512, Len: 2 * size * count}
	d := disk.New(int64(len(f)), 512, func(off int64) (disk.Run, error) {
		if in := off - space.Off; in >= 0 && off < space.End() {
			return disk.Run{Len: 2*size - in%(2*size), Src: bytes.NewReader(luks), Off: in % (2 * size)}, nil
		}
		return disk.Run{Len: 512 - off%512, Src: bytes.NewReader(f), Off: off}, nil
	})
	l := readDisk(t, d, table.Geometry{})
	require.NotNil(t, l.Dynamic)
	requireLimit(t, l)
}

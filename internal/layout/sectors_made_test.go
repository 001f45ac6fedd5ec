package layout_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
	"github.com/trueup/trueup/internal/volume"
)

// sizedDisk is a disk with all counts in sectors of one size, with volumes made by outside tools.
type sizedDisk struct {
	sector int64
	bytes  forge.Bytes
	starts []int64 // of the volumes, in sectors
}

// sizedVolume makes a volume of 20 MiB with sectors of a size with its own tool.
func sizedVolume(t *testing.T, kind volume.Kind, sector int64) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	size := int64(20 << 20)
	if kind == volume.XFS {
		size = 300 << 20 // the minimum of mkfs.xfs
	}
	disktest.MakeBlank(t, path, size)
	n := strconv.FormatInt(sector, 10)
	switch kind {
	case volume.FAT16:
		disktest.Run(t, "mkfs.fat", "-F", "16", "-S", n, "-s", "1", path)
	case volume.FAT32:
		disktest.Run(t, "mkfs.fat", "-F", "32", "-S", n, "-s", "1", path)
	case volume.NTFS:
		disktest.Run(t, "mkfs.ntfs", "-qFf", "-s", n, path)
	case volume.ExFAT: // it uses the sector size of its device
		disktest.Run(t, "mkfs.exfat", disktest.LoopDevice(t, path, "-b", n))
	case volume.XFS:
		disktest.Run(t, "mkfs.xfs", "-qf", "-s", "size="+n, path)
	default:
		disktest.Run(t, "mkfs.ext4", "-qF", "-b", strconv.FormatInt(max(sector, 1024), 10), path)
	}
	b := disktest.ReadFile(t, path)
	return b
}

// room is the space around a volume in sizedTables, in bytes.
const room = 8 << 20

// sizedTables are tables with a volume for each sector size.
var sizedTables = map[string]func(sector int64, v []byte) sizedDisk{
	"MBR": func(sector int64, v []byte) sizedDisk {
		n := int64(len(v)) / sector
		d := sizedDisk{sector, make(forge.Bytes, room+int64(len(v))), []int64{63}}
		tableforge.PutSlot(d.bytes, 0, 0, slot(0x07, 63, uint32(n)))
		return d
	},
	"MBR with a logical partition": func(sector int64, v []byte) sizedDisk {
		n := int64(len(v)) / sector
		d := sizedDisk{sector, make(forge.Bytes, room+int64(len(v))), []int64{100 + 63}}
		tableforge.PutSlot(d.bytes, 0, 1, slot(0x0f, 100, uint32(n+63)))
		tableforge.PutEBR(d.bytes, 100*sector/512, slot(0x07, 63, uint32(n)), tableforge.Slot{})
		return d
	},
	"GPT": func(sector int64, v []byte) sizedDisk {
		n := int64(len(v)) / sector
		e := tableforge.GPTEntry{First: 63, Last: uint64(62 + n)}
		return sizedDisk{sector, tableforge.NewGPT(sector, (room+int64(len(v)))/sector, 128, e), []int64{63}}
	},
}

// Each sector size is found from the content of a disk, in each kind of table and with each kind of volume, whatever
// size it is read with. Partitions are read at their places, and move only with a certain and usual size.
func TestEvidenceForEachSectorSize(t *testing.T) {
	for _, kind := range []volume.Kind{volume.FAT16, volume.FAT32, volume.NTFS, volume.ExFAT, volume.Ext4} {
		for _, sector := range disk.SectorSizes {
			t.Run(fmt.Sprintf("%s of %d", kind, sector), func(t *testing.T) {
				v := sizedVolume(t, kind, sector)
				for name, make := range sizedTables {
					d := make(sector, v)
					d.bytes.U16(tableforge.MBRMagic, 0xaa55)
					d.bytes.Put(d.starts[0]*sector, v)
					for _, shown := range []int64{512, 4096} {
						l := readDisk(t, disk.InSectors(disktest.Memory(d.bytes), shown), table.Geometry{})
						d.require(t, l, kind, fmt.Sprintf("%s shown with %d", name, shown))
						d.requireVerdict(t, l, shown, name == "GPT")
					}
				}
			})
		}
	}
}

// require compares a layout with the made disk.
func (d sizedDisk) require(t *testing.T, l *layout.Layout, kind volume.Kind, name string) {
	t.Helper()
	require.NotNil(t, l.Table, name)
	require.Equal(t, d.sector, l.Table.SectorSize, name)
	require.Equal(t, d.sector, l.SectorSize, name)
	require.Equal(t, d.sector, l.Sectors.Size(), name)
	last := l.Partitions[len(l.Partitions)-1]
	require.Equal(t, d.starts[0]*d.sector, last.Off, name)
	require.Equal(t, kind, last.Volume.Kind, name)
	require.NotContains(t, disktest.Codes(l.Issues), "volume-sector-size", name)
	broken := slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.Broken })
	require.False(t, broken, name)
}

// requireVerdict requires refusals: of an MBR in another sector size than the disk's, and of any table in sectors that
// no image has.
func (d sizedDisk) requireVerdict(t *testing.T, l *layout.Layout, shown int64, gpt bool) {
	t.Helper()
	by := layout.NoEvidence
	switch {
	case d.sector == shown:
	case gpt:
		by = layout.GPTHeader
	default:
		by = layout.BootRecords
	}
	require.Equal(t, layout.Sectors{Shown: shown, Counted: d.sector, By: by}, l.Sectors)
	usual := d.sector == 512 || d.sector == 4096
	require.Equal(t, d.sector != shown && (!gpt || !usual), refusesSectors(l))
}

// Few systems mount a volume with another sector size than the disk; the table is not in doubt.
func TestVolumeOfOtherSectors(t *testing.T) {
	for _, c := range []struct {
		kind          volume.Kind
		disk, volume  int64
		strange, none bool
	}{
		{kind: volume.NTFS, disk: 512, volume: 512},
		{kind: volume.NTFS, disk: 512, volume: 4096, strange: true},
		{kind: volume.NTFS, disk: 4096, volume: 512, strange: true, none: true},
		{kind: volume.FAT32, disk: 512, volume: 2048, strange: true},
		{kind: volume.ExFAT, disk: 512, volume: 4096, strange: true},
		{kind: volume.ExFAT, disk: 4096, volume: 512, strange: true, none: true},
		{kind: volume.Ext4, disk: 512, volume: 4096},
		{kind: volume.Ext4, disk: 4096, volume: 1024, strange: true},
		{kind: volume.XFS, disk: 512, volume: 4096},
		{kind: volume.XFS, disk: 4096, volume: 512, strange: true},
	} {
		t.Run(fmt.Sprintf("%s of %d on %d", c.kind, c.volume, c.disk), func(t *testing.T) {
			v := sizedVolume(t, c.kind, c.volume)
			for name, make := range sizedTables {
				if c.kind == volume.XFS && name != "MBR" {
					continue // it is large
				}
				d := make(c.disk, v)
				d.bytes.U16(tableforge.MBRMagic, 0xaa55)
				d.bytes.Put(d.starts[0]*c.disk, v)
				l := readDisk(t, disk.InSectors(disktest.Memory(d.bytes), c.disk), table.Geometry{})
				require.Equal(t, layout.Sectors{Shown: c.disk, Counted: c.disk}, l.Sectors, name)
				require.False(t, refusesSectors(l), name)
				found := coded(l.Issues, "volume-sector-size")
				require.Equal(t, c.strange, len(found) > 0, name)
				if c.strange {
					require.Equal(t, ondisk.Warn, found[0].Effect)
					require.Contains(t, found[0].Text, fmt.Sprintf("s of %d bytes, but the disk", c.volume))
					require.True(t, !c.none || strings.Contains(found[0].Text, "neither Windows nor Linux"), name)
				}
			}
		})
	}
}

// An extended partition without a boot record needs no cylinder, for any sector size.
func TestAnEmptyExtendedPartitionInEachSectorSize(t *testing.T) {
	for _, sector := range disk.SectorSizes {
		f := make(forge.Bytes, 8<<20)
		tableforge.PutSlot(f, 0, 0, slot(0x05, 63, 1000))
		l := readDisk(t, disk.InSectors(disktest.Memory(f), sector), table.Geometry{Heads: 255, Sectors: 63})
		require.Len(t, l.Partitions, 1)
		require.Empty(t, l.Issues, sector)
	}
}

const eight = 4096 / 512

// recordOf4096 writes a boot record of a disk whose sectors have 4096 bytes.
func recordOf4096(f forge.Bytes, lba int64, entries ...tableforge.Slot) {
	for i, e := range entries {
		tableforge.PutSlot(f, lba*eight, i, e)
	}
}

// noise fills n bytes with data of no known kind.
func noise(f forge.Bytes, at, n int64) {
	for i := range n {
		f.U8(at+i, byte(i%251)|1)
	}
}

func refusesSectors(l *layout.Layout) bool {
	return slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool {
		return strings.HasPrefix(i.Code, "sector-size") && i.Effect == ondisk.Refuse
	})
}

// Nothing in a raw file states its sector size, but structures at the positions in the table show it.
func TestEvidenceForSectorsOf4096(t *testing.T) {
	const data = 0xa5
	primary := slot(0x83, 63, 100)
	for name, c := range map[string]struct {
		entries []tableforge.Slot
		fill    func(f forge.Bytes)
		refused bool
	}{
		"boot records at 4096, and no volume that is known": {
			[]tableforge.Slot{primary, {Type: 0x05, Start: 200, Sectors: 400}},
			func(f forge.Bytes) {
				recordOf4096(f, 200, slot(0x83, 63, 100), slot(0x05, 200, 163))
				recordOf4096(f, 400, slot(0x83, 63, 100))
			}, true,
		},
		"boot records at 512": {
			[]tableforge.Slot{primary, {Type: 0x05, Start: 200, Sectors: 400}},
			func(f forge.Bytes) {
				tableforge.PutEBR(f, 200, slot(0x83, 63, 100), tableforge.Slot{})
			}, false,
		},
		"the copy of an NTFS boot sector at 4096": {
			[]tableforge.Slot{{Type: 7, Start: 63, Sectors: 100}},
			func(f forge.Bytes) {
				at := int64(162) * 4096
				f.Text(at+3, "NTFS    ")
				f.U16(at+fsforge.BootBytesPerSector, 4096)
				f.U16(at+tableforge.MBRMagic, 0xaa55)
			}, true,
		},
		"the copy of a FAT32 boot sector at 4096": {
			[]tableforge.Slot{{Type: 0x0c, Start: 63, Sectors: 100}},
			func(f forge.Bytes) {
				at := int64(63+6) * 4096
				f.Text(at+0x52, "FAT32   ")
				f.U16(at+fsforge.BootBytesPerSector, 4096)
				f.U16(at+tableforge.MBRMagic, 0xaa55)
			}, true,
		},
		"the copy of an ext superblock at 4096": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 4000}},
			func(f forge.Bytes) {
				at := int64(63)*4096 + 8193<<10
				f.U16(at+0x38, 0xef53)
				f.U16(at+0x5a, 1)
				f.U8(63*512, data)
			}, true,
		},
		"unknown data where 4096 leads, and zeros where 512 does": {
			[]tableforge.Slot{primary}, func(f forge.Bytes) { f.U8(63*4096, data) }, true,
		},
		"unknown data where both lead": {
			[]tableforge.Slot{primary}, func(f forge.Bytes) { f.U8(63*4096, data); f.U8(63*512, data) }, false,
		},
		"a volume at 512, data where 4096 leads": {
			[]tableforge.Slot{{Type: 7, Start: 63, Sectors: 300}}, func(f forge.Bytes) {
				fsforge.PutNTFS(f, 63, 300)
				f.U8(63*4096, data)
			}, false,
		},
		"a table that has no room at 4096": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 5000}}, func(f forge.Bytes) {
				f.U8(63*4096, data)
			}, false,
		},
		"two of unknown data by 4096, of which 512 meets one by chance": {
			[]tableforge.Slot{{Type: 0x83, Start: 256, Sectors: 1500}, {Type: 0x83, Start: 2100, Sectors: 2000}},
			func(f forge.Bytes) { noise(f, 256*4096, 5<<20); noise(f, 2100*4096, 1<<20) }, true,
		},
		"two by 4096, one of them empty where 4096 leads": {
			[]tableforge.Slot{{Type: 0x83, Start: 256, Sectors: 1500}, {Type: 0x83, Start: 2100, Sectors: 2000}},
			func(f forge.Bytes) { noise(f, 256*4096, 5<<20) }, true,
		},
		"two by 512, both met by chance where 4096 leads": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 200}, {Type: 0x83, Start: 300, Sectors: 3000}},
			func(f forge.Bytes) { noise(f, 63*512, 200*512); noise(f, 300*512, 3000*512) }, false,
		},
		"two by 512, one of them empty": {
			[]tableforge.Slot{{Type: 0x83, Start: 63, Sectors: 4000}, {Type: 0x83, Start: 4070, Sectors: 100}},
			func(f forge.Bytes) { noise(f, 63*512, 4000*512) }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(36000, c.entries...)
			c.fill(f)
			require.Equal(t, c.refused, refusesSectors(read(t, f)))
		})
	}
}

// An option decides if only data indicate the other size; a boot record or volume overrides it.
func TestSectorsAreAsOrdered(t *testing.T) {
	unsure := tableforge.NewMBR(36000, slot(0x83, 63, 100))
	unsure.U8(63*4096, 1)
	l := read(t, unsure)
	require.True(t, refusesSectors(l))
	l.AcceptSectorSize()
	require.False(t, refusesSectors(l))
	require.Contains(t, disktest.Codes(l.Issues), "sector-size-unsure")

	sure := tableforge.NewMBR(36000, slot(7, 63, 2400))
	fsforge.PutNTFS(sure, 63*8, 2400)
	l = read(t, sure)
	require.True(t, refusesSectors(l))
	l.AcceptSectorSize()
	require.True(t, refusesSectors(l))
}

// An extended partition without a boot record has no logical partitions for any system, and data in it are reported.
func TestAnEmptyBootRecord(t *testing.T) {
	f := tableforge.NewMBR(8000, slot(0x05, 2048, 4000))
	require.NotContains(t, disktest.Codes(read(t, f).Issues), "empty-boot-record", "never formatted")
	f.U8(3000*512, 1)
	require.Contains(t, disktest.Codes(read(t, f).Issues), "empty-boot-record")
}

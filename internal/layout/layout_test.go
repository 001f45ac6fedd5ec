package layout_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

func read(t *testing.T, f forge.Bytes) *layout.Layout {
	t.Helper()
	return readDisk(t, disktest.Memory(f), table.Geometry{})
}

// slot is an entry of an MBR or of a boot record.
func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

// coded returns the issues with a code.
func coded(issues []ondisk.Issue, code string) []ondisk.Issue {
	return slices.DeleteFunc(slices.Clone(issues), func(i ondisk.Issue) bool { return i.Code != code })
}

func readDisk(t testing.TB, d disk.Disk, hint table.Geometry) *layout.Layout {
	t.Helper()
	l, err := layout.Read(d, hint)
	require.NoError(t, err)
	return l
}

// Sector 0 of a bare volume ends in the same signature as an MBR, with text or code in place of the entries.
func TestSectorZero(t *testing.T) {
	fat := make(forge.Bytes, 16000*512)
	fsforge.PutFAT16(fat, 0, 16000)
	fat.Text(0x1be, "Remove disks or other media. Press any key to restart")
	l := read(t, fat)
	require.Nil(t, l.Table)
	require.Equal(t, volume.FAT16, l.Volume.Kind)
	require.Empty(t, l.Partitions)

	blank := make(forge.Bytes, 16000*512)
	fsforge.PutFAT16(blank, 0, 16000)
	require.Nil(t, read(t, blank).Table, "no entry is no table")

	hpfs := make(forge.Bytes, 8000*512)
	volumeforge.PutHPFS(hpfs, 0, 8000)
	hpfs.Put(0x1be, bytes.Repeat([]byte{0xfa, 0x8b, 0x5e, 0xeb}, 16))
	l = read(t, hpfs)
	require.Nil(t, l.Table)
	require.Equal(t, volume.HPFS, l.Volume.Kind)

	both := tableforge.NewMBR(20000, slot(6, 64, 19000))
	copy(both[:446], blank[:446])
	l = read(t, both)
	require.NotNil(t, l.Table, "a valid table is used")
	require.Contains(t, disktest.Codes(l.Issues), "ambiguous-sector-0")
}

// The first sectors of a disk give the starts of its partitions if they contain the whole table.
func TestHead(t *testing.T) {
	const sectors, size = 8192, 8192 * units.SectorSize
	chain := tableforge.NewMBR(sectors, slot(0x83, 63, 1000), slot(5, 2048, 4096))
	tableforge.PutEBR(chain, 2048, slot(7, 63, 500), slot(5, 2000, 600))
	tableforge.PutEBR(chain, 4048, slot(7, 63, 500), tableforge.Slot{})
	overlap := tableforge.NewMBR(sectors, slot(7, 63, 99), slot(7, 64, 99))
	gpt := tableforge.NewGPT(units.SectorSize, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
	beyond, bad := errors.New("not unpacked"), errors.New("bad sector")
	for name, c := range map[string]struct {
		bytes   forge.Bytes
		sectors int64 // at the start of the disk
		failure error // of all others
		starts  []int64
		want    error
	}{
		"no table":             {make(forge.Bytes, size), 64, beyond, nil, ondisk.ErrUnsupported},
		"overlapping":          {overlap, 64, beyond, nil, ondisk.ErrUnsupported},
		"GPT":                  {gpt, 64, beyond, []int64{2048}, nil},
		"GPT, unreadable":      {gpt, 64, bad, nil, bad},
		"whole chain":          {chain, 4049, beyond, []int64{63, 2048, 2111, 4111}, nil},
		"no record of a chain": {chain, 2048, beyond, nil, beyond},
	} {
		d := disk.New(size, units.SectorSize, func(off int64) (disk.Run, error) {
			if off >= c.sectors*units.SectorSize {
				return disk.Run{}, c.failure
			}
			return disk.Run{Len: c.sectors*units.SectorSize - off, Src: bytes.NewReader(c.bytes), Off: off}, nil
		})
		l, err := layout.Head(d, table.Geometry{}, beyond)
		require.ErrorIs(t, err, c.want, name)
		for i, lba := range c.starts {
			require.Equal(t, lba*units.SectorSize, l.Partitions[i].Off, name)
			require.LessOrEqual(t, l.Partitions[i].End(), l.Size, name)
		}
	}
}

// dftt's images begin at the partition, but their boot sector states 63 sectors before them.
func TestImageOfAPartition(t *testing.T) {
	f := make(forge.Bytes, 16000*512)
	fsforge.PutFAT16(f, 0, 16000)
	f.U32(fsforge.BootHidden, 63)
	require.Contains(t, disktest.Codes(read(t, f).Issues), "image-of-partition")
}

// Old value first: a stored position that does not match the old layout is reported and unchanged.
func TestStaleHiddenSectors(t *testing.T) {
	ntfs := func(hidden uint32) forge.Bytes {
		f := tableforge.NewMBR(4096, slot(7, 63, 3000))
		fsforge.PutNTFS(f, 63, 3000)
		f.U32(63*512+fsforge.BootHidden, hidden)
		return f
	}
	require.Equal(t, []string{"files-unread", "known-elsewhere"}, disktest.Codes(read(t, ntfs(63)).Issues),
		"the volume has nothing but its boot sector")
	l := read(t, ntfs(2048))
	require.Equal(t, []string{"files-unread", "ntfs-inconsistent", "stale-reference", "known-elsewhere"},
		disktest.Codes(l.Issues))
	require.Equal(t, ondisk.Unbootable, l.Issues[1].Effect, "its boot code would look in the wrong place")
	require.True(t, l.Issues[1].OnMove)
	require.Equal(t, ondisk.Warn, l.Issues[2].Effect, "worth knowing of a disk that does not move, too")
	l = read(t, ntfs(0))
	require.Equal(t, []string{"files-unread", "stale-reference", "known-elsewhere"}, disktest.Codes(l.Issues))
	require.Equal(t, ondisk.Note, l.Issues[1].Effect, "0 is what formatters write that see only the partition")
}

func TestRefusedTypes(t *testing.T) {
	for typ, want := range map[byte]string{
		0x3c: "partitionmagic", 0x42: "ldm", 0x54: "disk-manager", 0x55: "disk-manager", 0x63: "unixware",
		0x81: "minix", 0x86: "nt-volume-set", 0x87: "nt-volume-set", 0x9f: "bsdos", 0xb7: "bsdos", 0xa6: "openbsd",
		0xa9: "netbsd", 0xbe: "solaris", 0xbf: "solaris", 0xfb: "vmfs",
	} {
		l := read(t, tableforge.NewMBR(4096, slot(typ, 63, 3000)))
		require.Equal(t, []string{want}, disktest.Codes(l.Issues))
		require.Equal(t, ondisk.Refuse, l.Issues[0].Effect)
		require.True(t, l.Issues[0].OnMove)
	}
}

// One broken partition does not hide the others.
func TestABrokenVolumeIsAnIssue(t *testing.T) {
	f := tableforge.NewMBR(8192, slot(7, 63, 3000), slot(7, 4096, 3000))
	fsforge.PutNTFS(f, 63, 3000)
	fsforge.PutNTFS(f, 4096, 3000)
	f.U16(63*512+fsforge.BootBytesPerSector, 3)
	l := read(t, f)
	require.Equal(t, []string{"volume", "files-unread", "known-elsewhere"}, disktest.Codes(l.Issues))
	require.Equal(t, 1, l.Issues[0].Partition)
	require.Equal(t, 2, l.Issues[1].Partition)
	require.ErrorContains(t, l.Issues[0].Err, "0x7e0b", "the place is that of the disk: 63 * 512 + 0xb")
	require.Equal(t, volume.NTFS, l.Partitions[1].Volume.Kind)
	require.NotNil(t, l.Partitions[1].Volume.Boot)
}

// An issue of a volume that concerns the whole disk has no partition: it matters if another one moves, too.
func TestVolumeThatKeepsAllPartitions(t *testing.T) {
	f := tableforge.NewMBR(8192, slot(0x82, 2048, 2000), slot(0x83, 4099, 3000))
	f.Text(2048*512+4086, "S1SUSPEND")
	found := coded(read(t, f).Issues, "hibernated-linux")
	require.Len(t, found, 1)
	require.Zero(t, found[0].Partition)
	require.Contains(t, found[0].Text, "partition 1: ")
}

// The data to keep in a gap extend from the first nonzero sector to the last.
func TestGaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := tableforge.NewMBR(1500, slot(0x83, 600, 100), slot(0x83, 63, 37))
		gaps := []disk.Range{{Off: 100 * 512, Len: 500 * 512}, {Off: 700 * 512, Len: 800 * 512}}
		var want []disk.Range
		for _, g := range gaps {
			first, last := g.End(), g.End()
			for range rapid.IntRange(0, 3).Draw(t, "data") {
				at := g.Off + rapid.Int64Range(0, g.Len-1).Draw(t, "at")
				f[at] = 1
				sector := at / 512 * 512
				if first == g.End() {
					last = 0
				}
				first, last = min(first, sector), max(last, sector+512)
			}
			want = append(want, disk.Range{Off: first, Len: last - first})
		}
		l, err := layout.Read(disktest.Memory(f), table.Geometry{})
		require.NoError(t, err)
		require.NoError(t, l.ReadGaps(disktest.Memory(f)))
		for i, g := range l.Gaps {
			require.Equal(t, gaps[i], g.Range, "in disk order")
			require.Equal(t, want[i], g.Data)
		}
	})
}

// Holes need no reading: the gap after the last partition of this disk exceeds the read limit.
func TestGapsOfHoles(t *testing.T) {
	d := disktest.Fixture(t, disktest.Fixtures(t)["two-tib-mbr"])
	l := readDisk(t, d, table.Geometry{})
	require.NoError(t, l.ReadGaps(d))
	require.Len(t, l.Gaps, 2)
	require.Zero(t, l.Gaps[0].Data.Len)
	require.Greater(t, l.Gaps[0].Len, int64(2<<40-1<<30))
}

// Stored zeros are read up to a limit; the rest is kept like data.
func TestGapsThatAreTooLongToRead(t *testing.T) {
	const size = 1 << 30
	f := tableforge.NewMBR(64, slot(0x83, 63, 1))
	d := disk.New(size, 512, func(off int64) (disk.Run, error) {
		if off < int64(len(f)) {
			return disk.Run{Len: int64(len(f)) - off, Src: bytes.NewReader(f), Off: off}, nil
		}
		return disk.Run{Len: size - off, Src: storedZeros{}}, nil
	})
	l := readDisk(t, d, table.Geometry{})
	require.NoError(t, l.ReadGaps(d))
	require.Equal(t, disk.Range{Off: 64*512 + 64<<20, Len: size - 64*512 - 128<<20}, l.Gaps[0].Data,
		"64 MiB at each end are free")
}

type storedZeros struct{}

func (storedZeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// putSwap writes the header of a swap area, whose first KiB is that of the boot sectors.
func putSwap(f forge.Bytes) {
	f.U32(1024, 1)
	f.U32(1028, uint32(len(f)/4096-1))
	f.Text(4086, "SWAPSPACE2")
}

// A disk reused for one volume can still end in the backup of a GPT. No system uses that, and neither do we: rewriting
// the primary would destroy the volume.
func TestRemnantOfAGPT(t *testing.T) {
	const sectors = 20_000
	start := func(put func(forge.Bytes)) forge.Bytes {
		f := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
		clear(f[:34*512])
		put(f)
		return f
	}
	for name, c := range map[string]struct {
		disk forge.Bytes
		kind volume.Kind
	}{
		"ext":               {start(func(f forge.Bytes) { fsforge.PutExt(f, 0, sectors) }), volume.Ext2},
		"swap":              {start(putSwap), volume.Swap},
		"something unknown": {start(func(f forge.Bytes) { f.U8(33*512, 1) }), volume.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			l := read(t, c.disk)
			require.Nil(t, l.Table)
			require.False(t, l.Damaged())
			require.Equal(t, c.kind, l.Volume.Kind)
			require.Contains(t, disktest.Codes(l.Issues), "gpt-remnant")
		})
	}
	l := read(t, start(func(forge.Bytes) {}))
	require.NotNil(t, l.Table, "nothing but zeros is a start that was wiped")
	require.True(t, l.Damaged())
}

// mkswap leaves a partition table in sector 0, and overwrites the entries of a GPT.
func TestVolumeOverAGPT(t *testing.T) {
	f := tableforge.NewGPT(512, 20_000, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
	putSwap(f)
	l := read(t, f)
	require.NotNil(t, l.Table)
	require.Contains(t, disktest.Codes(l.Issues), "gpt-overwritten")
	require.True(t, l.Table.Blocked(), "the swap area is no remainder of the entries")
	for _, i := range l.Issues {
		require.True(t, i.OnMove || i.Effect == ondisk.Warn, "what stays as it is is copied: %s", i.Code)
	}
}

// The members of an array with its superblock at the end show the array's own GPT, whose backup ends before the
// superblock.
func TestBackupInFrontOfASuperblock(t *testing.T) {
	const sectors = 20_000
	for name, put := range map[string]func(forge.Bytes){
		"an array":          func(f forge.Bytes) { poolforge.PutMD1(f, "1.0", sectors) },
		"something unknown": func(f forge.Bytes) { f.U8(int64(len(f))-33*512, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			f := append(tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 4095}),
				make([]byte, 64<<10)...)
			put(f)
			l := read(t, f)
			require.NotNil(t, l.Table)
			require.Contains(t, disktest.Codes(l.Issues), "gpt-backup")
			require.False(t, l.Damaged(), "the backup is where the primary says")
			require.False(t, l.Table.Blocked())
			require.Equal(t, int64(sectors-33)*512, l.Usable(l.Size), "nothing goes to where something else stands")
		})
	}
}

// Linux checks the size of an entry and not its type, so data in the range of such an entry must not be moved away.
func TestEntriesOfTypeZero(t *testing.T) {
	chain := tableforge.NewMBR(4096, slot(0x05, 63, 4000))
	tableforge.PutEBR(chain, 63, slot(0, 1, 100), tableforge.Slot{})
	for name, c := range map[string]struct {
		disk forge.Bytes
		want bool
	}{
		"a place":                {tableforge.NewMBR(4096, slot(0x83, 63, 100), slot(0, 200, 100)), true},
		"in a record":            {chain, true},
		"a place outside":        {tableforge.NewMBR(4096, slot(0x83, 63, 100), slot(0, 200, 5000)), false},
		"a size without a place": {tableforge.NewMBR(4096, slot(0x83, 63, 100), slot(0, 0, 100)), false},
	} {
		t.Run(name, func(t *testing.T) {
			l := read(t, c.disk)
			require.NotNil(t, l.Table)
			if !c.want {
				require.Empty(t, l.Issues)
				return
			}
			require.Equal(t, []string{"type-0"}, disktest.Codes(l.Issues))
			require.Equal(t, ondisk.Refuse, l.Issues[0].Effect)
			require.True(t, l.Issues[0].OnMove)
		})
	}
}

// Linux skips a link without sectors, whatever its type: block/partitions/msdos.c, parse_extended. libfdisk follows it.
func TestLinkWithoutSectors(t *testing.T) {
	chain := tableforge.NewMBR(4096, slot(0x05, 63, 4000))
	tableforge.PutEBR(chain, 63, slot(0x83, 1, 100), tableforge.Slot{Type: 0x05, Start: 200})
	l := read(t, chain)
	require.Equal(t, []string{"ebr-link"}, disktest.Codes(l.Issues))
	require.Equal(t, ondisk.Refuse, l.Issues[0].Effect)
	require.True(t, l.Issues[0].OnMove)
	require.Contains(t, l.Issues[0].Text, "LBA 263")
	require.Len(t, l.Partitions, 2)
}

// Firmware and Linux use the protective entry that begins at LBA 1; a second one belongs to a hybrid MBR.
func TestTwoProtectiveEntries(t *testing.T) {
	const sectors = 20_000
	f := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
	tableforge.PutSlot(f, 0, 3, slot(0xee, 5000, 100))
	l := read(t, f)
	require.Equal(t, []string{"hybrid-mbr"}, disktest.Codes(l.Issues))
	require.Contains(t, l.Issues[0].Text, "slot 4")
	require.Equal(t, ondisk.Refuse, l.Issues[0].Effect)
	for _, p := range l.Table.Relocate(table.Places{Size: 2 * sectors * 512}, table.Geometry{}) {
		require.False(t, p.Off >= 446+3*16 && p.Off < 510, "%s at %d", p.Reason, p.Off)
	}
}

// A type that does not move does not move in a slot of a hybrid MBR, either.
func TestTypesOfAHybridMBR(t *testing.T) {
	f := tableforge.NewGPT(512, 20_000, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
	tableforge.PutSlot(f, 0, 0, slot(0xee, 1, 2047))
	tableforge.PutSlot(f, 0, 1, slot(0x07, 2048, 2048))
	f.U32(tableforge.MBRSignature, 0x1b2c3d4e)
	l := read(t, f)
	require.Equal(t, []string{"hybrid-mbr"}, disktest.Codes(l.Issues))
	require.Equal(t, ondisk.Note, l.Issues[0].Effect)
	require.True(t, l.Geometry.Valid())
	require.Equal(t, uint32(0x1b2c3d4e), l.Signature())
	tableforge.PutSlot(f, 0, 1, slot(0xa6, 2048, 2048))
	l = read(t, f)
	require.Equal(t, []string{"hybrid-mbr", "openbsd"}, disktest.Codes(l.Issues))
	require.Contains(t, l.Issues[1].Text, "type 0xa6")
}

// Linux reads a GPT only if the protective entry starts at LBA 1: block/partitions/efi.c, pmbr_part_valid.
func TestProtectiveEntryElsewhere(t *testing.T) {
	f := tableforge.NewGPT(512, 4000, 128, tableforge.GPTEntry{First: 63, Last: 1062})
	require.NotContains(t, disktest.Codes(read(t, f).Issues), "gpt-shield")
	f.U32(tableforge.MBREntries+8, 2)
	require.Contains(t, disktest.Codes(read(t, f).Issues), "gpt-shield")
}

// A machine has to report the heads and sectors of a DOS that a loader starts, in an active partition or not.
func TestGeometryOfABIOS(t *testing.T) {
	const start, altmbrNumber = 63, 439
	syslinux := func(t *testing.T, name string) []byte {
		t.Helper()
		return disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/"+name))
	}
	dos := table.Geometry{Heads: 255, Sectors: 63}
	for name, tc := range map[string]struct {
		mbr    string // code in sector 0; empty: none
		number byte   // of the partition that altmbr starts
		flag   byte
		mark   string // in the boot sector
		want   table.Geometry
	}{
		"an active partition":                 {"mbr.bin", 0, 0x80, "", dos},
		"a number in altmbr":                  {"altmbr.bin", 1, 0, "", dos},
		"another number in altmbr":            {"altmbr.bin", 2, 0, "", table.Geometry{}},
		"MS-DOS from the menu of a loader":    {"altmbr.bin", 2, 0, "IO      SYSMSDOS   SYS", dos},
		"FreeDOS from the menu of a loader":   {"mbr.bin", 0, 0, "KERNEL  SYS", dos},
		"Windows Vista or later, not active":  {"mbr.bin", 0, 0, "BOOTMGR", table.Geometry{}},
		"MS-DOS without any code in sector 0": {"", 0, 0x80, "IO      SYSMSDOS   SYS", table.Geometry{}},
		"a file system without a loader":      {"mbr.bin", 0, 0, "This is not a bootable disk.", table.Geometry{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(40000, tableforge.Slot{Type: 6, Flag: tc.flag, Start: start, Sectors: 16000},
				slot(0x83, 20000, 16000))
			fsforge.PutFAT16(f, start, 16000)
			fsforge.PutExt(f, 20000, 16000)
			if tc.mbr != "" {
				f.Put(0, syslinux(t, tc.mbr))
			}
			if tc.number > 0 {
				f.U8(altmbrNumber, tc.number)
			}
			f.Text(start*512+0x1a0, tc.mark)
			require.Equal(t, tc.want, read(t, f).BIOS())
		})
	}
}

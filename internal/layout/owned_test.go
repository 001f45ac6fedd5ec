package layout_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// requireRefused requires an issue that no flag overrides, when something moves.
func requireRefused(t *testing.T, f forge.Bytes, code string) {
	t.Helper()
	found := coded(read(t, f).Issues, code)
	require.NotEmpty(t, found)
	require.Equal(t, ondisk.Refuse, found[0].Effect)
	require.True(t, found[0].OnMove)
	require.NotEmpty(t, found[0].Remedy)
}

func TestMemberOfAFirmwareRAID(t *testing.T) {
	f := tableforge.NewMBR(8000, slot(0x83, 63, 7000))
	require.NotContains(t, disktest.Codes(read(t, f).Issues), "firmware-raid")
	f.Text(7998*512, "Intel Raid ISM Cfg Sig. 1.1.00")
	requireRefused(t, f, "firmware-raid")
}

// A member whose array has its table on another disk is identified. Spec: SNIA DDF 2.0, 5.5: the anchor header in the
// last sector.
func TestMemberWithoutATable(t *testing.T) {
	f := make(forge.Bytes, 8192*512)
	f.Text(2<<20, "data of the array")
	f.Put(8191*512, []byte{0xde, 0x11, 0xde, 0x11})
	f.Text(8191*512+8, "GUID of the disk array..01.02.00")
	l := read(t, f)
	require.Nil(t, l.Table)
	found := coded(l.Issues, "unknown-content")
	require.Contains(t, found[0].Text, "byte 4193792 holds the metadata of a ddf_raid_member")
	require.Contains(t, found[0].Remedy, "an image of the whole array")
}

// OS/2 adds the hidden sectors of the parameter block to each sector number, like DOS, so they are updated. Positions
// in its LVM are not.
func TestOS2(t *testing.T) {
	f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0x07, Flag: 0x80, Start: 63, Sectors: 7000})
	volumeforge.PutHPFS(f, 63, 7000)
	f.Put(0, []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}) // mov si,07beh; mov ah,42h; int 13h
	f.Put(63*512+0x5a, []byte{0xfa, 0x33, 0xdb})
	l := read(t, f)
	require.Equal(t, volume.HPFS, l.Partitions[0].Volume.Kind)
	require.Empty(t, l.Issues)
	require.Len(t, l.Boot.Refs, 1)
	require.Equal(t, "hpfs hidden sectors", l.Boot.Refs[0].Kind)
	require.True(t, l.Boot.Refs[0].Follows())
	volumeforge.PutDLA(f, 62)
	requireRefused(t, f, "os2-lvm")
}

// A dynamic disk is identified by the types in its table, and refused as a whole with the reason.
func TestDynamicDisksAreRefused(t *testing.T) {
	for name, l := range map[string]forge.Bytes{
		"forged":              tableforge.NewMBR(8192, slot(0x42, 2048, 6000)),
		"Windows Server 2003": load(t, disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz")),
	} {
		l := read(t, l)
		require.Equal(t, []string{"ldm"}, disktest.Codes(l.Issues), name)
		require.True(t, l.Dynamic() && l.Issues[0].DiskWide && l.Issues[0].OnMove, name)
		require.Contains(t, l.Issues[0].Text, "partition 1 has type 0x42, Windows dynamic disk (LDM)", name)
		require.Contains(t, l.Issues[0].Text, "Windows 2000 to 2003", name)
		require.Contains(t, l.Issues[0].Remedy, "convert it to a basic disk in the guest", name)
		require.Equal(t, volume.LDM, l.Partitions[0].Volume.Kind, name)
	}
}

// A partition of a dynamic disk can begin with part of a volume, which is not read as a whole one.
func TestAPartOfADynamicVolumeIsNoVolume(t *testing.T) {
	f := tableforge.NewMBR(8192, slot(0x42, 63, 6000))
	fsforge.PutNTFS(f, 63, 6000)
	f[63*512:].U64(fsforge.NTFSTotal, 12000)
	l := read(t, f)
	require.Equal(t, []string{"ldm"}, disktest.Codes(l.Issues))
	require.Equal(t, &volume.Volume{Kind: volume.LDM, Size: 6000 * 512}, l.Partitions[0].Volume)
}

// The boot sector of the first volume of a dynamic disk shows that it begins at 1 MiB, after the start of the
// partition.
func TestFirstVolumeOfADynamicDisk(t *testing.T) {
	const mib = 2048
	for name, c := range map[string]struct {
		start, sectors uint32
		hidden         int64
		want           int64 // sectors
	}{
		"of Windows Server 2008":           {63, 7000, mib, mib - 63},
		"at the start of the partition":    {mib, 5000, mib, 0},
		"with the place of another volume": {63, 7000, 63, 0},
		"behind the partition":             {63, 1000, mib, 0},
	} {
		f := tableforge.NewMBR(8192, slot(0x42, c.start, c.sectors))
		fsforge.PutNTFS(f, mib, 4000)
		f[mib*512:].U32(fsforge.BootHidden, uint32(c.hidden))
		require.Equal(t, c.want*512, read(t, f).Partitions[0].Volume.DataStart, name)
	}
	f := tableforge.NewMBR(8192, slot(0x42, 63, 7000))
	requireBad(t, f, mib)
}

func readForged(t *testing.T, f forge.Bytes) *layout.Layout {
	t.Helper()
	l := readDisk(t, disktest.ShortDisk(f, int64(len(f))), table.Geometry{})
	return l
}

// A superblock of md 0.90 near the end of the disk can belong to the disk or to the last partition, if both would have
// it at the same place.
func TestArraysOfDisksAndOfPartitions(t *testing.T) {
	const sectors, size = 16384, 8 << 20
	whole := tableforge.NewMBR(sectors, slot(0x83, 63, 4000))
	poolforge.PutMD0(whole, binary.LittleEndian)
	l := readForged(t, whole)
	require.NotNil(t, l.Table, "an array of disks shows the table that lies in it")
	require.Equal(t, volume.Unknown, l.Partitions[0].Volume.Kind)
	require.Len(t, l.Issues, 1)
	require.Equal(t, []any{"array-of-disks", ondisk.Refuse, true},
		[]any{l.Issues[0].Code, l.Issues[0].Effect, l.Issues[0].OnMove})

	last := tableforge.NewMBR(sectors, slot(0xfd, 128, sectors-128))
	poolforge.PutMD0(last[128*512:], binary.LittleEndian)
	require.Equal(t, int64(size-64<<10), 128*512+poolforge.MD0At(last[128*512:]), "where the disk's would be")
	l = readForged(t, last)
	require.Equal(t, volume.MDRaid, l.Partitions[0].Volume.Kind)
	require.Empty(t, l.Issues)
}

// VMFS is refused by its content and by the type of its partition, once.
func TestVMFSIsRefusedOnce(t *testing.T) {
	const sectors = 20 << 11
	for _, kind := range []byte{0xfb, 0x83} {
		f := tableforge.NewMBR(sectors+2048, slot(kind, 63, sectors))
		poolforge.PutVMFS(f[63*512:], 5, 14, 61)
		l := readForged(t, f)
		require.Equal(t, volume.VMFS, l.Partitions[0].Volume.Kind)
		require.Len(t, l.Issues, 1)
		require.Equal(t, []any{"vmfs", 1}, []any{l.Issues[0].Code, l.Issues[0].Partition})
	}
	f := tableforge.NewMBR(4096, slot(0xfb, 63, 1000))
	require.Equal(t, "vmfs", readForged(t, f).Issues[0].Code, "by its type, where the content is not known")
}

// A FAT over a whole array has a boot sector where a table would be.
func TestArrayOfDisksWithoutATable(t *testing.T) {
	f := make(forge.Bytes, 8<<20)
	fsforge.PutFAT16(f, 0, 16000)
	f.Text(446, "no table, but a text of this boot sector")
	poolforge.PutMD1(f, "1.0", 0)
	l := readForged(t, f)
	require.Nil(t, l.Table)
	require.Equal(t, volume.MDRaid, l.Volume.Kind)
	require.Empty(t, l.Issues)
}

// A BitLocker volume that does not state whether it has a system counts as a data volume only on a disk without boot
// code, or beside a readable Windows.
func TestBitLockerByItsDisk(t *testing.T) {
	const start, sectors = 2048, 8192
	code := func(b ...byte) func(forge.Bytes) { return func(f forge.Bytes) { f.Put(0, b) } }
	beside := func(s tableforge.Slot) func(forge.Bytes) {
		return func(f forge.Bytes) { tableforge.PutSlot(f, 0, 1, s) }
	}
	for name, c := range map[string]struct {
		change func(forge.Bytes)
		says   string // empty: a volume of data
	}{
		"a disk of data":                 {func(forge.Bytes) {}, ""},
		"with the code that Windows put": {code(0xbe, 0xbe, 0x07, 0xb8, 0x01, 0x02, 0xcd, 0x13), ""},
		"active": {
			func(f forge.Bytes) { f.U8(tableforge.MBREntries, 0x80) },
			"partition 1 is active",
		},
		"beside an active partition": {
			beside(tableforge.Slot{Flag: 0x80, Type: 7, Start: 63, Sectors: 1000}), "partition 2 is active",
		},
		"beside an EFI system partition": {
			beside(slot(0xef, 63, 1000)), "partition 2 is an EFI system partition",
		},
		"behind unknown code": {code(0xeb, 0x10, 0x33, 0x44), "code in sector 0 is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tableforge.NewMBR(start+sectors, slot(7, start, sectors))
			inside := make(forge.Bytes, sectors*512)
			poolforge.PutBitLocker(inside, "PC D: 01/02/2020")
			f.Put(start*512, inside)
			c.change(f)
			found := coded(boottest.Read(t, f).Issues, "bitlocker")
			require.Len(t, found, 1)
			require.Equal(t, 1, found[0].Partition)
			require.True(t, found[0].OnMove)
			if c.says == "" {
				require.Equal(t, ondisk.Note, found[0].Effect)
				return
			}
			require.Equal(t, ondisk.Unbootable, found[0].Effect)
			require.Contains(t, found[0].Text, c.says)
		})
	}
}

// rawFile is an image of so many sectors that a tool can fill.
func rawFile(t *testing.T, sectors int64) string {
	t.Helper()
	path := disktest.Blank(t, "disk.img", sectors*512)
	return path
}

func load(t *testing.T, path string) forge.Bytes {
	t.Helper()
	b := disktest.ReadFile(t, path)
	return b
}

// extent is a place in sectors of the disk.
type extent struct{ start, sectors int64 }

// partxSlices are the slices that libblkid finds inside of the partitions of an MBR: it numbers them from 5.
func partxSlices(t *testing.T, path string) []extent {
	t.Helper()
	var out []extent
	for line := range strings.Lines(disktest.Output(t, "partx", "-rgo", "NR,START,SECTORS", path)) {
		f := strings.Fields(line)
		require.Len(t, f, 3)
		start, err := strconv.ParseInt(f[1], 10, 64)
		require.NoError(t, err)
		sectors, err := strconv.ParseInt(f[2], 10, 64)
		require.NoError(t, err)
		if n, err := strconv.Atoi(f[0]); err == nil && n > 4 {
			out = append(out, extent{start, sectors})
		}
	}
	return out
}

// slicesOf are the used slices of a volume that begins at a byte of the disk.
func slicesOf(v *volume.Volume, at int64) []extent {
	var out []extent
	for _, p := range v.Parts {
		if p.Kind != "unused" && p.Kind != "Unassigned" && p.Start >= 0 {
			out = append(out, extent{(at + p.Start) / 512, p.Size / 512})
		}
	}
	return out
}

// fdisk makes labels in slices of all three BSDs, with offsets that count from the start of the disk.
func TestDisklabelsOfFdisk(t *testing.T) {
	for typ, want := range map[string][]string{
		"a5": {"disklabel-offsets", "slice-misaligned"}, "a6": {"disklabel-offsets", "slice-misaligned", "openbsd"},
		"a9": {"disklabel-offsets", "slice-misaligned", "netbsd"},
	} {
		t.Run(typ, func(t *testing.T) {
			path := rawFile(t, 80000)
			disktest.RunInput(t, "63,70000,"+typ+"\n", "sfdisk", "-q", path)
			listed := disktest.RunInput(t,
				"b\ny\nn\na\n79\n20078\nn\nb\n20079\n30000\nn\ne\n40000\n50000\n"+
					"t\na\n7\nt\nb\n1\nt\ne\nb\np\nw\nr\nq\n",
				"fdisk", path)
			l := read(t, load(t, path))
			v := l.Partitions[0].Volume
			require.Equal(t, volume.Disklabel, v.Kind)
			require.Equal(t, []extent{{79, 20000}, {20079, 9922}, {40000, 10001}}, slicesOf(v, 63*512))
			require.Equal(t, partxSlices(t, path), slicesOf(v, 63*512))
			for i, kind := range []string{"4.2BSD", "swap", "HPFS"} {
				require.Equal(t, kind, v.Parts[i].Kind)
				require.Regexp(t, fmt.Sprintf(`(?m)^%s +%d .* %s `, v.Parts[i].Name, v.Parts[i].Start/512+63, kind),
					listed)
			}
			require.Equal(t, want, disktest.Codes(l.Issues), "a lies 16 sectors into the partition, e 39937")
			require.Contains(t, l.Issues[1].Text, "e at byte 20447744 of the partition")
			require.NotContains(t, l.Issues[1].Text, "a at")
		})
	}
}

// FreeBSD counts from the start of the slice since version 10, as its raw slice shows; libblkid agrees.
func TestRelativeDisklabel(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0xa5, 63, 70000))
	tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 16, Sectors: 20000, Type: 7},
		tableforge.Slice{Start: 20016, Sectors: 10000, Type: 1}, tableforge.Slice{Sectors: 70000})
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	l := read(t, f)
	require.Equal(t, []extent{{79, 20000}, {20079, 10000}}, slicesOf(l.Partitions[0].Volume, 63*512))
	require.Equal(t, partxSlices(t, path), slicesOf(l.Partitions[0].Volume, 63*512))
	require.Empty(t, l.Issues, "it moves")
}

// OpenBSD's raw slice is the disk, and its label lists what lies in other partitions. Its version 1 has offsets of 48
// bits.
func TestOpenBSDDisklabel(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0xa6, 64, 70000), slot(6, 70064, 9000))
	slices := make([]tableforge.Slice, 16)
	slices[0] = tableforge.Slice{Start: 64, Sectors: 20000, Type: 7}
	slices[1] = tableforge.Slice{Start: 20064, Sectors: 10000, Type: 1}
	slices[2] = tableforge.Slice{Sectors: 80000}
	slices[8] = tableforge.Slice{Start: 70064, Sectors: 9000, Type: 8}
	tableforge.PutDisklabel(f, 65*512, slices...)
	f.Put(65*512+64, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.U16(65*512+tableforge.BSDVersion, 1)
	tableforge.SealDisklabel(f[65*512:])
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	l := read(t, f)
	v := l.Partitions[0].Volume
	require.Equal(t, "0102030405060708", v.UUID)
	require.Equal(t, []extent{{64, 20000}, {20064, 10000}}, slicesOf(v, 64*512))
	require.Equal(t, partxSlices(t, path)[:2], slicesOf(v, 64*512))
	require.Equal(t, volume.Part{Name: "i", Kind: "MS-DOS", Start: -1, Size: 9000 * 512}, v.Parts[2])
	require.Equal(t, []string{"openbsd"}, disktest.Codes(l.Issues))
}

// The type of a partition can say less than the label in it.
func TestLabelsOfOtherTypes(t *testing.T) {
	relative := func(f forge.Bytes) { tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Sectors: 64, Type: 7}) }
	absolute := func(f forge.Bytes) {
		tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 63, Sectors: 64, Type: 7}, tableforge.Slice{},
			tableforge.Slice{Sectors: 8192})
	}
	outside := func(f forge.Bytes) {
		tableforge.PutDisklabel(f, 64*512, tableforge.Slice{Start: 7000, Sectors: 64, Type: 7})
	}
	vtoc := func(f forge.Bytes) { tableforge.PutVTOC(f, 63, tableforge.Slice{Start: 8, Sectors: 64, Type: 2}) }
	for name, c := range map[string]struct {
		typ  byte
		put  func(forge.Bytes)
		want []string
	}{
		"a FreeBSD":                             {0xa5, relative, nil},
		"a label in a partition of Linux":       {0x83, relative, []string{"disklabel"}},
		"FreeBSD's type with OpenBSD's label":   {0xa5, absolute, []string{"disklabel"}},
		"a slice outside of the partition":      {0xa5, outside, []string{"slice-outside"}},
		"Solaris in its old type, that of swap": {0x82, vtoc, []string{"solaris"}},
		"Solaris":                               {0xbf, vtoc, []string{"solaris"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8192, slot(c.typ, 63, 6000))
			c.put(f)
			l := read(t, f)
			require.Equal(t, c.want, disktest.Codes(l.Issues))
			for _, i := range l.Issues {
				require.Equal(t, ondisk.Refuse, i.Effect)
				require.True(t, i.OnMove)
			}
		})
	}
}

// libblkid reads the label of Solaris on a PC too, in partitions of its old type.
func TestSolarisVTOC(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0x82, 63, 70000))
	tableforge.PutVTOC(f, 63, tableforge.Slice{Start: 16065, Sectors: 20000, Type: 2},
		tableforge.Slice{Start: 4096, Sectors: 8000, Type: 3}, tableforge.Slice{Sectors: 70000, Type: 5})
	path := filepath.Join(t.TempDir(), "disk.img")
	f.Write(t, path)
	v := read(t, f).Partitions[0].Volume
	require.Equal(t, volume.VTOC, v.Kind)
	got := slicesOf(v, 63*512)
	require.Equal(t, []extent{{16128, 20000}, {4159, 8000}}, got)
	require.Equal(t, got, partxSlices(t, path)[:2], "it lists the whole disk as well")
	require.Equal(t, "SunOS root", v.Parts[0].Kind)
}

// partedSlices are the partitions that parted prints, in sectors.
func partedSlices(t *testing.T, path, label string) []extent {
	t.Helper()
	var out []extent
	for i, line := range strings.Split(strings.TrimSpace(disktest.Output(t, "parted", "-ms", path, "unit", "s",
		"print")),
		"\n") {
		f := strings.Split(line, ":")
		if i < 2 {
			require.True(t, i == 0 || f[5] == label, line)
			continue
		}
		start, err := strconv.ParseInt(strings.TrimSuffix(f[1], "s"), 10, 64)
		require.NoError(t, err)
		sectors, err := strconv.ParseInt(strings.TrimSuffix(f[3], "s"), 10, 64)
		require.NoError(t, err)
		out = append(out, extent{start, sectors})
	}
	return out
}

// A disk of a BSD without a partition table is reported as such. parted does not renew the checksum of its label.
func TestLabelOnly(t *testing.T) {
	path := rawFile(t, 81920)
	disktest.Run(t, "parted", "-s", path, "mklabel", "bsd", "unit", "s", "mkpart", "ext2", "64", "20000",
		"mkpart", "linux-swap", "30000", "40000")
	l := read(t, load(t, path))
	require.Nil(t, l.Table)
	require.Equal(t, volume.Disklabel, l.Volume.Kind)
	require.Equal(t, partedSlices(t, path, "bsd"), slicesOf(l.Volume, 0))
	require.Subset(t, disktest.Codes(l.Issues), []string{"volume", "label-only"})
}

// FreeBSD's "dangerously dedicated" disks have boot code with an entry in sector 0 that is not a partition: it starts
// with the table. Source: FreeBSD, stand/i386/boot2/boot1.S.
func TestDedicatedDisk(t *testing.T) {
	f := tableforge.NewMBR(80000)
	tableforge.PutSlot(f, 0, 3, tableforge.Slot{Flag: 0x80, Type: 0xa5, Start: 0, Sectors: 50000})
	tableforge.PutDisklabel(f, 512, tableforge.Slice{Start: 16, Sectors: 60000, Type: 7}, tableforge.Slice{},
		tableforge.Slice{Sectors: 80000})
	l := read(t, f)
	require.Nil(t, l.Table)
	require.Equal(t, volume.Disklabel, l.Volume.Kind)
	require.Equal(t, []extent{{16, 60000}}, slicesOf(l.Volume, 0))
	require.Equal(t, []string{"label-only"}, disktest.Codes(l.Issues))
}

// The magic number of a Sun label stands where the fourth entry of an MBR has half of its count.
func TestCountThatLooksLikeASunLabel(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0x83, 64, 8))
	tableforge.PutSlot(f, 0, 3, slot(0x83, 128, 0xbeda0000))
	l := read(t, f)
	require.NotNil(t, l.Table)
	require.NotContains(t, disktest.Codes(l.Issues), "ambiguous-sector-0")
}

// sgdisk sets the types of partitions by its own codes, so that a wrong GUID would show.
func TestRefusedGUIDs(t *testing.T) {
	want := map[string]string{
		"4200": "ldm", "4201": "ldm", "4202": "storage-spaces", "a600": "openbsd", "a902": "netbsd", "a903": "netbsd",
		"a904": "netbsd", "a905": "netbsd", "a906": "netbsd", "be00": "solaris", "bf00": "solaris", "bf01": "solaris",
		"bf02": "solaris", "bf03": "solaris", "bf04": "solaris", "bf05": "solaris", "bf06": "solaris", "fb00": "vmfs",
		"eb00": "beos", "a901": "", "a500": "", "a501": "", "a502": "", "a503": "", "a504": "", "a580": "", "0700": "",
		"8300": "", "fb01": "",
	}
	path := rawFile(t, 8192)
	var args, order []string
	for code := range want {
		order = append(order, code)
		n := len(order)
		args = append(args, "-n", fmt.Sprintf("%d:%d:+10", n, 34+20*n), "-t", fmt.Sprintf("%d:%s", n, code))
	}
	disktest.Run(t, "sgdisk", append(append([]string{"-a", "1"}, args...), path)...)
	l := read(t, load(t, path))
	for n, code := range order {
		require.NotEmpty(t, l.Partitions[n].TypeName(), code)
		var got string
		for _, i := range l.Issues {
			own := i.Partition == n+1 && strings.HasPrefix(i.Text, "it has type")
			// what is wide names its partition
			if own || strings.HasPrefix(i.Text, fmt.Sprintf("partition %d has type", n+1)) {
				got = i.Code
			}
		}
		require.Equal(t, want[code], got, code)
	}
}

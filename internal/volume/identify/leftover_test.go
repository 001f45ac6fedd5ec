package identify

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

const leftoverSize = 24 << 20

// puts write what lies on a disk, one over the other.
type puts []func(forge.Bytes)

func (p puts) disk() forge.Bytes {
	f := make(forge.Bytes, leftoverSize)
	for _, put := range p {
		put(f)
	}
	return f
}

// putWhole makes a volume of all there is.
func putWhole(put func(f forge.Bytes, lba, sectors int64)) func(forge.Bytes) {
	return func(f forge.Bytes) { put(f, 0, leftoverSize/512) }
}

var (
	leftoverMD   = func(f forge.Bytes) { poolforge.PutMD1(f, "1.2", 2048) }
	leftoverLVM  = func(f forge.Bytes) { poolforge.PutLVM(f, poolforge.LVMText, 512) }
	leftoverVMFS = func(f forge.Bytes) { poolforge.PutVMFS(f, 5, 14, 61) }
	hibernated   = asleep(0)
	mirror0      = func(f forge.Bytes) { poolforge.PutMD0(f, binary.LittleEndian) }
)

// asleep is a hibernated Linux in swap at a byte.
func asleep(at int64) func(forge.Bytes) { return func(f forge.Bytes) { f.Text(at+4086, "S1SUSPEND") } }

func putSwap(last uint32) func(forge.Bytes) {
	return func(f forge.Bytes) {
		f.Text(4086, "SWAPSPACE2")
		f.U32(1024, 1)
		f.U32(1028, last)
	}
}

// Who formats a volume does not always wipe what was there. blkid: what libblkid takes it for, empty where it does not
// say.
func TestLeftovers(t *testing.T) {
	ext, ntfs, btrfs := putWhole(fsforge.PutExt), putWhole(fsforge.PutNTFS), putWhole(volumeforge.PutBtrfs)
	halfBtrfs := func(f forge.Bytes) { f.U8(volumeforge.BtrfsAt+4000, 1) }
	brokenNTFS := func(f forge.Bytes) { f.U8(0x0d, 3) }
	type effects map[string]ondisk.Effect
	doubt, ruin := effects{"ambiguous-volume": ondisk.Warn}, effects{"leftover": ondisk.Note}
	graver := func(code string, e ondisk.Effect) effects {
		out := effects{"ambiguous-volume": ondisk.Unbootable}
		out[code] = e
		return out
	}
	for name, tc := range map[string]struct {
		put    puts
		want   volume.Kind
		issues effects
		blkid  string
	}{
		"RAID over ext":  {puts{ext, leftoverMD}, volume.MDRaid, doubt, "linux_raid_member"},
		"RAID over NTFS": {puts{ntfs, leftoverMD}, volume.MDRaid, doubt, "linux_raid_member"},
		"RAID over LVM":  {puts{leftoverLVM, leftoverMD}, volume.MDRaid, doubt, "linux_raid_member"},
		"LVM over btrfs": {puts{btrfs, leftoverLVM}, volume.LVM2, doubt, "LVM2_member"},
		"UFS over FAT": {
			puts{putWhole(fsforge.PutFAT16), putWhole(volumeforge.PutUFS2)},
			volume.FAT16,
			doubt, "",
		},
		"NTFS over VMFS": {
			puts{leftoverVMFS, ntfs},
			volume.NTFS,
			graver("ambiguous-volume", ondisk.Unbootable), "",
		},
		"hibernation under ext":    {puts{hibernated, ext}, volume.Ext2, graver("hibernated-linux", ondisk.Refuse), ""},
		"swap over exFAT":          {puts{putWhole(fsforge.PutExFAT), putSwap(100)}, volume.Swap, ruin, ""},
		"ext over a half of btrfs": {puts{btrfs, halfBtrfs, ext}, volume.Ext2, ruin, ""},
		"ext beside a broken NTFS": {puts{ntfs, brokenNTFS, ext}, volume.NTFS, graver("volume", ondisk.BadVolume), ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.put.disk()
			v := probeForged(t, f)
			require.Equal(t, tc.want, v.Kind)
			got := effects{}
			for _, i := range v.Issues {
				got[i.Code] = i.Effect
			}
			require.Equal(t, tc.issues, got)
			if tc.blkid != "" {
				require.Equal(t, tc.blkid, blkid(t, written(t, f))["TYPE"])
			}
		})
	}
}

// A BIOS runs a boot sector regardless of the data after it, so the position stored in it counts under a RAID, too.
func TestBootSectorUnderARaid(t *testing.T) {
	for name, tc := range map[string]struct {
		put    func(forge.Bytes)
		backup int64 // with data of the array before it, it is not one of the partition
	}{
		"superblock at the end":   {mirror0, leftoverSize - 257*512},
		"superblock at the start": {leftoverMD, 0},
	} {
		f := make(forge.Bytes, leftoverSize)
		fsforge.PutNTFS(f, 0, leftoverSize/512-256)
		tc.put(f)
		v := probeForged(t, f)
		require.Equal(t, volume.MDRaid, v.Kind, name)
		require.NotNil(t, v.Boot, name)
		require.Equal(t, tc.backup, v.Boot.Backup, name)
		require.Equal(t, volume.NTFS, v.Boot.Kind, name)
	}
}

// Encrypted data begin with anything. Marks of two bytes are there by chance in one of 65536 volumes, and stand in all
// of these.
func TestNoiseIsUnknown(t *testing.T) {
	marks := []struct {
		at   int
		text string
	}{{508, "\xda\xbe"}, {510, "\x55\xaa"}, {1024, "BD"}, {1024, "H+"}, {1024, "HX"}, {1080, "\x53\xef"}}
	for seed := range uint64(3000) {
		b := make([]byte, 8<<10)
		_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
		m := marks[seed%uint64(len(marks))]
		copy(b[m.at:], m.text)
		v, err := Probe(disktest.ShortDisk(b, 512<<10), 0)
		require.NoError(t, err)
		require.Equal(t, &volume.Volume{Kind: volume.Unknown}, v, "seed %d", seed)
	}
}

// What a glance believes, and where it looks as far as Probe does.
func TestGlance(t *testing.T) {
	xfs := func(f forge.Bytes) { volumeforge.PutXFS(f, 0, 1024*8) } // one group, which is sound
	for name, c := range map[string]struct {
		put           puts
		glance, probe volume.Kind
		deepest       int64 // what a glance reads no farther than; 0: anywhere
	}{
		"a sound volume":                       {puts{xfs}, volume.XFS, volume.XFS, frontSize},
		"an array that keeps its place behind": {puts{xfs, mirror0}, volume.XFS, volume.MDRaid, frontSize},
		"an array around nothing":              {puts{mirror0}, volume.MDRaid, volume.MDRaid, 0},
		"a superblock farther in":              {puts{putWhole(volumeforge.PutBtrfs)}, volume.Btrfs, volume.Btrfs, 0},
		"a ruin in front of an array": {
			puts{putWhole(volumeforge.PutXFS), mirror0},
			volume.MDRaid,
			volume.MDRaid, 0,
		},
		"nothing": {nil, volume.Unknown, volume.Unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := c.put.disk()
			d := &reach{Disk: disktest.ShortDisk(f, int64(len(f)))}
			v, err := Glance(d, 0)
			require.NoError(t, err)
			require.Equal(t, c.glance, v.Kind)
			if c.deepest > 0 {
				require.LessOrEqual(t, d.end, c.deepest)
			}
			v, err = Probe(disktest.ShortDisk(f, int64(len(f))), 0)
			require.NoError(t, err)
			require.Equal(t, c.probe, v.Kind)
		})
	}
}

// reach is a disk that remembers how far it was read.
type reach struct {
	disk.Disk
	end int64
}

func (r *reach) ReadAt(p []byte, off int64) (int, error) {
	r.end = max(r.end, off+int64(len(p)))
	return r.Disk.ReadAt(p, off)
}

// The label of a FAT is found wherever in its root directory it stands.
func TestLabelBehindManyFiles(t *testing.T) {
	f := make(forge.Bytes, 16000*512)
	fsforge.PutFAT16(f, 0, 16000)
	le := binary.LittleEndian // Spec: Microsoft FAT specification 1.03, "Boot Sector and BPB"
	root := 512 * (int64(le.Uint16(f[0x0e:])) + int64(f[0x10])*int64(le.Uint16(f[0x16:])))
	const slot = 32
	last := int64(le.Uint16(f[0x11:])) - 1
	for i := range last {
		f.Text(root+i*slot, "A FILE  TXT ")
	}
	f.Text(root+last*slot, "BEHIND ALL \x08")
	v, err := Glance(disktest.ShortDisk(f, int64(len(f))), 0)
	require.NoError(t, err)
	require.Equal(t, "BEHIND ALL", v.Label)
}

// One rule reports a volume that is larger than its partition, whichever prober found it.
func TestVolumeLargerThanItsPartition(t *testing.T) {
	const size = 16 << 20
	md := func(f forge.Bytes, version string, data uint64) {
		poolforge.PutMD1(f, version, data)
		f.U64(poolforge.MD1At(f, version)+poolforge.MD1DataSize, size/512-data)
		poolforge.SealMD1(f, version)
	}
	for name, put := range map[string]func(f forge.Bytes){
		"FAT16":                       func(f forge.Bytes) { fsforge.PutFAT16(f, 0, size/512) },
		"md, superblock at the start": func(f forge.Bytes) { md(f, "1.1", 264) },
		"md, superblock at 4 KiB":     func(f forge.Bytes) { md(f, "1.2", 272) },
		"swap":                        putSwap(size/4096 - 1),
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, size)
			put(f)
			v, err := Probe(disktest.Memory(f), 0)
			require.NoError(t, err)
			require.NotEqual(t, volume.Unknown, v.Kind)
			require.NotContains(t, disktest.Codes(v.Issues), volume.CodeSize)
			v, err = Probe(disktest.Memory(f[:size*3/4]), 0)
			require.NoError(t, err)
			require.Equal(t, int64(size), v.Size)
			require.Contains(t, disktest.Codes(v.Issues), volume.CodeSize)
			bad := slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.BadVolume })
			require.Equal(t, v.Kind != volume.Swap, bad)
		})
	}
}

// TestRecordOfNTFS reads records of $Volume that leave themselves, or do not advance. The label is
// not known then, and the volume is what its boot sector says.
func TestRecordOfNTFS(t *testing.T) {
	const firstAttribute = 0x38
	for name, tc := range map[string]struct {
		change func(r forge.Bytes)
		label  string
		codes  []string
	}{
		"sound": {func(forge.Bytes) {}, "a label", nil},
		"dirty (T59)": {
			func(r forge.Bytes) { r.U8(firstAttribute+0x28+0x18+10, 1) }, "a label",
			[]string{"ntfs-dirty"},
		},
		"fix-up offset 65535":               {func(r forge.Bytes) { r.U16(4, 65535) }, "", []string{"ntfs-volume"}},
		"fix-up offset 0":                   {func(r forge.Bytes) { r.U16(4, 0) }, "", []string{"ntfs-volume"}},
		"fix-up count 0":                    {func(r forge.Bytes) { r.U16(6, 0) }, "", []string{"ntfs-volume"}},
		"fix-up count 65535":                {func(r forge.Bytes) { r.U16(6, 65535) }, "", []string{"ntfs-volume"}},
		"fix-ups in their own sector's end": {func(r forge.Bytes) { r.U16(4, 506) }, "", []string{"ntfs-volume"}},
		"another number at a sector's end":  {func(r forge.Bytes) { r.U16(510, 2) }, "", []string{"ntfs-volume"}},
		"no record":                         {func(r forge.Bytes) { r.Text(0, "BAAD") }, "", []string{"ntfs-volume"}},
		"attributes from 65535 on":          {func(r forge.Bytes) { r.U16(0x14, 65535) }, "", nil},
		"attributes from the end on":        {func(r forge.Bytes) { r.U16(0x14, 1023) }, "", nil},
		"attribute of length 0":             {func(r forge.Bytes) { r.U32(firstAttribute+4, 0) }, "", nil},
		"attribute of length 4":             {func(r forge.Bytes) { r.U32(firstAttribute+4, 4) }, "", nil},
		"attribute of length 2^32-1":        {func(r forge.Bytes) { r.U32(firstAttribute+4, 1<<32-1) }, "", nil},
		"value of 2^32-1 bytes":             {func(r forge.Bytes) { r.U32(firstAttribute+0x10, 1<<32-1) }, "", nil},
		"value behind its attribute":        {func(r forge.Bytes) { r.U16(firstAttribute+0x14, 65535) }, "", nil},
		"value that is not in the record":   {func(r forge.Bytes) { r.U8(firstAttribute+8, 1) }, "", nil},
		"version and flags in a short value": {
			func(r forge.Bytes) { r.U32(firstAttribute+0x28+0x10, 4) }, "a label",
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, leftoverSize)
			fsforge.PutNTFS(f, 0, leftoverSize/512)
			f.U64(fsforge.NTFSMFT, 1)
			f.U64(leftoverSize-512+fsforge.NTFSMFT, 1)
			r := fsforge.NTFSVolumeRecord("a label")
			tc.change(r)
			f.Put(4096+3<<10, r)
			v := probeForged(t, f)
			require.Equal(t, volume.NTFS, v.Kind)
			require.Equal(t, tc.label, v.Label)
			require.Equal(t, tc.codes, disktest.Codes(v.Issues))
		})
	}
}

// ntfs-3g reads a volume whose boot sector does not end in 0xaa55, and so must be seen what it is.
func TestNTFSWithoutSignature(t *testing.T) {
	path := blank(t, 4<<20)
	disktest.Run(t, "mkntfs", "--quiet", "--fast", "--force", path)
	want := probe(t, path)
	disktest.WriteAt(t, path, 510, []byte{0, 0})
	disktest.Run(t, "ntfsinfo", "--mft", path)
	v := probe(t, path)
	require.Equal(t, want.Kind, v.Kind)
	require.Equal(t, want.UUID, v.UUID)
	require.Equal(t, want.Boot, v.Boot)
	require.Len(t, v.Issues, len(want.Issues)+1)
	require.Equal(t, "ntfs-signature", v.Issues[0].Code)
	require.Equal(t, ondisk.Warn, v.Issues[0].Effect)
}

// ntfsinfo reads the version of a volume from the same record.
func TestNTFSVersion(t *testing.T) {
	raw := disktest.Materialize(t, disk.New(4<<20, 512,
		func(int64) (disk.Run, error) { return disk.Run{Len: 4 << 20}, nil }))
	disktest.Run(t, "mkntfs", "--quiet", "--fast", "--force", "--label", "version", raw)
	info := disktest.Output(t, "ntfsinfo", "--mft", "--force", raw)
	want := regexp.MustCompile(`Volume Version: (\S+)`).FindStringSubmatch(info)
	require.Len(t, want, 2)
	b := disktest.ReadFile(t, raw)
	v, err := Probe(disktest.ShortDisk(b, int64(len(b))), 0)
	require.NoError(t, err)
	require.Equal(t, "version", v.Label)
	require.Contains(t, v.Details, volume.Detail{Name: "version", Value: want[1]})
}

// Windows NT and Linux keep the flag in the boot sector; DOS and Windows 95 in the second entry of the table.
func TestDirtyFAT(t *testing.T) {
	for name, tc := range map[string]struct {
		bits     string
		size     int64
		state    int64 // place of the flag in the boot sector
		reserved int64 // sectors before the table
		clean    int64 // place of the byte with the bit in the table; 0 if absent
	}{"FAT12": {"12", 2 << 20, 0x25, 1, 0}, "FAT16": {"16", 16 << 20, 0x25, 1, 3}, "FAT32": {
		"32", 40 << 20, 0x41, 32, 7,
	}} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, tc.size)
			disktest.Run(t, "mkfs.fat", "-a", "-F", tc.bits, "-R", fmt.Sprint(tc.reserved), path)
			require.Empty(t, probe(t, path).Issues)
			dirty := func() {
				v := probe(t, path)
				require.Equal(t, []string{"fat-dirty"}, disktest.Codes(v.Issues))
				require.Equal(t, ondisk.Note, v.Issues[0].Effect)
			}
			disktest.WriteAt(t, path, tc.state, []byte{1})
			dirty()
			disktest.WriteAt(t, path, tc.state, []byte{0})
			require.Empty(t, probe(t, path).Issues)
			if tc.clean > 0 {
				disktest.WriteAt(t, path, tc.reserved*512+tc.clean, []byte{0x07})
				dirty()
			}
		})
	}
}

package freespace_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

const mib = 1 << 20

// noise is the content of a disk that was in use before.
var noise = sync.OnceValue(func() []byte { return filetest.Noise(7, 40*mib) })

// made is a volume made by tools over noise, with files of noise of which every second was removed. A volume of NTFS
// has one file, since ntfscp cannot remove files.
type made struct {
	t    testing.TB
	kind string
	path string
}

func make32(t testing.TB, kind string, options ...string) *made {
	t.Helper()
	dir := t.TempDir()
	v := &made{t, kind, filepath.Join(dir, "volume")}
	noise := noise()
	require.NoError(t, os.WriteFile(v.path, noise, 0o600))
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, noise[:mib], 0o600))
	switch kind {
	case "ntfs":
		disktest.Run(t, "mkntfs", append([]string{"-q", "-Q", "-F", "-p", "0", "-H", "255", "-S", "63"},
			append(options, v.path)...)...)
		disktest.Run(t, "ntfscp", "-q", v.path, file, "big")
	case "fat", "fat12":
		disktest.Run(t, "mkfs.fat", append(options, v.path)...)
		for i := range 6 {
			disktest.Run(t, "mcopy", "-i", v.path, file, fmt.Sprintf("::f%d", i))
		}
		disktest.Run(t, "mdel", "-i", v.path, "::f1", "::f3", "::f4")
	default:
		disktest.Run(t, "mke2fs", append([]string{"-q", "-F", "-t", kind, "-E", "nodiscard"},
			append(options, v.path)...)...)
		var script strings.Builder
		for i := range 6 {
			fmt.Fprintf(&script, "write %s f%d\n", file, i)
		}
		v.debugfs(script.String() + "rm f1\nrm f3\nrm f4\n")
	}
	return v
}

func (v *made) debugfs(commands string) {
	v.t.Helper()
	script := filepath.Join(filepath.Dir(v.path), "script")
	require.NoError(v.t, os.WriteFile(script, []byte(commands), 0o600))
	disktest.Output(v.t, "debugfs", "-w", "-f", script, v.path)
}

// edit changes bytes of the volume.
func (v *made) edit(off int64, change func(b []byte)) {
	v.t.Helper()
	f, err := os.OpenFile(v.path, os.O_RDWR, 0)
	require.NoError(v.t, err)
	defer f.Close()
	b := make([]byte, 4096)
	n, _ := f.ReadAt(b, off)
	change(b[:n])
	_, err = f.WriteAt(b[:n], off)
	require.NoError(v.t, err)
}

// place returns where a byte of a file lies, by the reader of files.
func (v *made) place(path string, off int64) int64 {
	v.t.Helper()
	d := filetest.RawImage(v.t, v.path)
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(v.t, err)
	fs, err := boot.Readers[l.Volume.Kind](guestfile.NewBudget(), d)
	require.NoError(v.t, err)
	f, err := fs.Open(path)
	require.NoError(v.t, err)
	at, err := f.Where(off, 1)
	require.NoError(v.t, err)
	return at[0].Off
}

func (v *made) find() (*freespace.Found, disk.Disk) {
	v.t.Helper()
	d := filetest.RawImage(v.t, v.path)
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(v.t, err)
	require.Nil(v.t, l.Table)
	f, err := freespace.Find(d, l)
	require.NoError(v.t, err)
	require.Len(v.t, f.Volumes, 1)
	return f, d
}

// freeByTools is the number of free bytes by the tools of the file system.
func (v *made) freeByTools() int64 {
	v.t.Helper()
	number := func(pattern, text string) []int64 {
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		require.NotNil(v.t, m, text)
		var out []int64
		for _, s := range m[1:] {
			n, err := strconv.ParseInt(s, 10, 64)
			require.NoError(v.t, err)
			out = append(out, n)
		}
		return out
	}
	switch v.kind {
	case "ntfs":
		n := number(`Cluster Size: (\d+)(?s:.*)Free Clusters: (\d+)`,
			disktest.Output(v.t, "ntfsinfo", "-f", "-m", v.path))
		return n[0] * n[1]
	case "fat":
		n := number(`(\d+) bytes per cluster(?s:.*)files, (\d+)/(\d+) clusters`,
			disktest.Output(v.t, "fsck.fat", "-n", "-v", v.path))
		return n[0] * (n[2] - n[1])
	}
	n := number(`Free blocks: +(\d+)(?s:.*)Block size: +(\d+)`, disktest.Output(v.t, "dumpe2fs", "-h", v.path))
	return n[0] * n[1]
}

var kinds = map[string][]string{
	"ntfs":               {"ntfs"},
	"ntfs, 64K clusters": {"ntfs", "-c", "65536"},
	"fat16":              {"fat", "-F", "16"},
	"fat32":              {"fat", "-F", "32", "-s", "1"},
	"ext2":               {"ext2"},
	"ext3, 1K blocks":    {"ext3", "-b", "1024"},
	"ext4":               {"ext4"},
	"ext4, small groups": {"ext4", "-b", "1024", "-g", "1024", "-O", "^resize_inode"},
	"ext4, bigalloc":     {"ext4", "-O", "bigalloc,^resize_inode"},
	"ext4, meta_bg":      {"ext4", "-b", "1024", "-g", "2048", "-O", "meta_bg,^resize_inode"},
}

// The omitted space is free according to the tools; the files are unchanged; and a check finds nothing.
func TestFreeSpaceOfVolumes(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := make32(t, options[0], options[1:]...)
			f, d := v.find()
			got := f.Volumes[0]
			require.Empty(t, got.Whole)
			require.Equal(t, v.freeByTools(), got.Free)
			require.Greater(t, got.LeftOut, got.Free*9/10)
			require.Equal(t, got.LeftOut, got.Stored, "there is noise everywhere")
			require.Len(t, f.Ranges, int(got.Ranges))

			view := f.View(d)
			after, err := layout.Read(view, table.Geometry{})
			require.NoError(t, err)
			require.Empty(t, after.Volume.Issues)
			b := make([]byte, view.Size())
			require.NoError(t, ondisk.ReadFull(view, b, 0))
			require.NoError(t, os.WriteFile(v.path, b, 0o600))
			want := noise()[:mib]
			copied := filepath.Join(t.TempDir(), "f")
			switch v.kind {
			case "ntfs":
				require.Equal(t, string(want), disktest.Output(t, "ntfscat", "-f", v.path, "big"))
				return
			case "fat":
				disktest.Run(t, "mcopy", "-i", v.path, "::f5", copied)
				disktest.Run(t, "fsck.fat", "-n", v.path)
			default:
				disktest.Output(t, "debugfs", "-R", "dump f5 "+copied, v.path)
				disktest.Run(t, "e2fsck", "-f", "-n", v.path)
			}
			read := disktest.ReadFile(t, copied)
			disktest.EqualBytes(t, want, read)
		})
	}
}

// A read error ends the search for free space, and is no reason to copy a volume in full.
func TestEachReadFails(t *testing.T) {
	t.Parallel()
	d := filetest.RawImage(t, make32(t, "ntfs").path)
	whole, err := layout.Read(d, table.Geometry{})
	require.NoError(t, err)
	parted := *whole
	parted.Table, parted.Partitions = &table.Table{}, []boot.Partition{{
		Partition: table.Partition{Number: 1, Range: disk.Range{Len: d.Size()}}, Volume: whole.Volume,
	}}
	for name, l := range map[string]*layout.Layout{"whole disk": whole, "partition 1": &parted} {
		t.Run(name, func(t *testing.T) {
			f, err := freespace.Find(d, l)
			require.NoError(t, err)
			require.NotZero(t, f.Stored())
			disktest.EveryReadCounts(t, d, func(d disk.Disk) error {
				_, err := freespace.Find(d, l)
				return err
			})
		})
	}
}

// clearNTFS clears the bits of clusters in $Bitmap.
func clearNTFS(v *made, first, n int64) {
	for c := first; c < first+n; c++ {
		at := v.place("$Bitmap", c/8)
		v.edit(at, func(b []byte) { b[0] &^= 1 << (c % 8) })
	}
}

// A volume that was not left in order, or with a bitmap that is evidently wrong, is copied as a whole.
func TestVolumesThatAreNotBelieved(t *testing.T) {
	t.Parallel()
	u32 := binary.LittleEndian.PutUint32
	for _, c := range []struct {
		name, kind, why string
		change          func(v *made)
	}{
		{"errors", "ext4", "state", func(v *made) { v.debugfs("ssv state 3\n") }},
		{"not unmounted", "ext2", "not unmounted", func(v *made) { v.debugfs("ssv state 0\n") }},
		{"a journal", "ext4", "journal", func(v *made) { v.debugfs("feature needs_recovery\n") }},
		{"a file to delete", "ext4", "last orphan", func(v *made) { v.debugfs("ssv last_orphan 12\n") }},
		{"a count of the superblock", "ext4", "free blocks", func(v *made) { v.debugfs("ssv free_blocks_count 5\n") }},
		{"blocks that a file uses", "ext4", "group descriptor", func(v *made) {
			v.debugfs(fmt.Sprintf("freeb %d 200\n", v.place("f2", 0)/1024))
		}},
		{"blocks that a file uses, counted", "ext4", "in use", func(v *made) { v.lieExt(v.place("f2", 0)/1024, 200) }},
		{"blocks of the inodes, counted", "ext4", "in use", func(v *made) {
			m := regexp.MustCompile(`Inode table at (\d+)-`).FindStringSubmatch(disktest.Output(t, "dumpe2fs", v.path))
			at, _ := strconv.ParseInt(m[1], 10, 64)
			v.lieExt(at, 100)
		}},
		{"attributes behind the end", "ext4", "extended attributes", func(v *made) {
			v.debugfs("sif f2 file_acl 0xffffffffffff\n")
		}},
		{"a bitmap that is not read, and nowhere", "ext4", "block bitmap", func(v *made) {
			m := regexp.MustCompile(`Group (\d+): .*\[.*BLOCK_UNINIT`).FindStringSubmatch(
				disktest.Output(t, "dumpe2fs", v.path))
			require.NotNil(t, m)
			v.debugfs(fmt.Sprintf("set_bg %[1]s block_bitmap 0xfffffffffffffff0\nset_bg %[1]s checksum calc\n", m[1]))
		}},
		{"not closed", "ntfs", "dirty", func(v *made) { disktest.Run(t, "ntfsfix", v.path) }},
		{"clusters that a file uses", "ntfs", "in use", func(v *made) { clearNTFS(v, v.place("big", 0)/4096, 40) }},
		{"in use", "ntfs", "the log of the NTFS is open", func(v *made) {
			log := fsforge.NewLogFile(2 * mib).Sealed()
			for off := 0; off < len(log); off += 4096 {
				v.edit(v.place("$LogFile", int64(off)), func(b []byte) { copy(b, log[off:]) })
			}
		}},
		{"a broken log", "ntfs", "the log of the NTFS is missing or cannot be read", func(v *made) {
			v.edit(v.place("$LogFile", 0), func(b []byte) { copy(b, "RSTR") })
		}},
		{"no log by its name", "ntfs", "the log of the NTFS is missing or cannot be read", func(v *made) {
			b := disktest.ReadFile(t, v.path)
			name, other := []byte("L\x00o\x00g\x00F\x00i\x00l\x00e\x00"), []byte("L\x00o\x00g\x00F\x00i\x00l\x00x\x00")
			require.NoError(t, os.WriteFile(v.path, bytes.ReplaceAll(b, name, other), 0o600))
		}},
		{"clusters of the MFT", "ntfs", "in use", func(v *made) { clearNTFS(v, 4, 16) }},
		{"the boot sector", "ntfs", "in use", func(v *made) { clearNTFS(v, 0, 16) }},
		{"shadow copies", "ntfs", "vssadmin", func(v *made) {
			v.edit(0x1e00, func(b []byte) {
				copy(b, "\x6b\x87\x08\x38\x76\xc1\x48\x4e\xb7\xae\x04\x04\x6e\x6c\xc7\x52")
			})
			v.edit(0x1e32, func(b []byte) { b[0] = 0x10 })
		}},
		{"bits behind the end", "ntfs", "bit", func(v *made) { clearNTFS(v, 40*mib/4096-1, 1) }},
		{"tables that differ", "fat", "FAT 2", func(v *made) {
			b := disktest.ReadFile(t, v.path)
			at := int64(binary.LittleEndian.Uint16(b[14:]))*512 + int64(binary.LittleEndian.Uint32(b[0x24:]))*512
			v.edit(at+4*5000, func(b []byte) { b[0] ^= 1 })
		}},
		{
			"another number of free clusters", "fat", "FSInfo",
			func(v *made) { v.edit(512+488, func(b []byte) { u32(b, 77) }) },
		},
		{"no mark of its state", "fat12", "it is unknown", func(*made) {}},
		{"marked dirty", "fat", "dirty", func(v *made) { v.edit(0x41, func(b []byte) { b[0] |= 1 }) }},
		{"a chain that ends in free space", "fat", "entry of cluster", func(v *made) {
			b := disktest.ReadFile(t, v.path)
			start, size := int64(binary.LittleEndian.Uint16(b[14:]))*512,
				int64(binary.LittleEndian.Uint32(b[0x24:]))*512
			data := start + 2*size
			cluster := (v.place("f2", 0)-data)/512 + 2 + 300
			for n := range int64(300) {
				for _, at := range []int64{start, start + size} {
					v.edit(at+4*(cluster+n), func(b []byte) { u32(b, 0) })
				}
			}
			v.edit(512+488, func(b []byte) { u32(b, binary.LittleEndian.Uint32(b)+300) })
		}},
	} {
		t.Run(c.kind+": "+c.name, func(t *testing.T) {
			t.Parallel()
			options := map[string][]string{
				"fat": {"-F", "32", "-s", "1"}, "fat12": {"-F", "12", "-s", "64"},
				"ext4": {"-b", "1024"},
			}
			v := make32(t, c.kind, options[c.kind]...)
			v.t = t
			c.change(v)
			f, d := v.find()
			require.Contains(t, f.Volumes[0].Whole, c.why)
			require.Empty(t, f.Ranges)
			require.Equal(t, d, f.View(d))
		})
	}
}

// lieExt has the bitmap and all counts call blocks of 1 KiB free that are not.
func (v *made) lieExt(first, n int64) {
	free := v.freeByTools() / 1024
	group := (first - 1) / 8192
	m := regexp.MustCompile(fmt.Sprintf(`(?s) Group +%d: .*?(\d+) free blocks`, group)).FindStringSubmatch(
		disktest.Output(v.t, "debugfs", "-R", "stats", v.path))
	require.NotNil(v.t, m)
	inGroup, err := strconv.ParseInt(m[1], 10, 64)
	require.NoError(v.t, err)
	v.debugfs(fmt.Sprintf("freeb %d %d\nset_bg %d free_blocks_count %d\nset_bg %d checksum calc\n"+
		"ssv free_blocks_count %d\n", first, n, group, inGroup+n, group, free+n))
}

// FuzzFind changes bytes of the volumes of the corpus.
func FuzzFind(f *testing.F) {
	var disks []disk.Disk
	fixtures := disktest.Fixtures(f)
	for _, name := range slices.Sorted(maps.Keys(fixtures)) {
		if d := disktest.Fixture(f, fixtures[name]); d.Size() <= 64*mib {
			disks = append(disks, d)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range disks {
		f.Add(uint16(i), r.Uint32N(1<<20), []byte{0xff, 0, 1})
	}
	f.Fuzz(func(t *testing.T, which uint16, off uint32, change []byte) {
		d := disks[int(which)%len(disks)]
		at := int64(off) % d.Size()
		change = change[:min(int64(len(change)), d.Size()-at)]
		if len(change) > 0 {
			d = disk.Overlay(d, []disk.Patch{{Off: at, Old: make([]byte, len(change)), New: change}})
		}
		l, err := layout.Read(d, table.Geometry{})
		if err != nil {
			return
		}
		found, err := freespace.Find(d, l)
		require.NoError(t, err)
		end := int64(0)
		for _, x := range found.Ranges {
			require.GreaterOrEqual(t, x.Off, end)
			require.GreaterOrEqual(t, x.Len, freespace.MinRange)
			end = x.End()
		}
		require.LessOrEqual(t, end, d.Size())
	})
}

type source struct{ err error }

func (s source) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	if s.err != nil {
		return 0, s.err
	}
	return len(p), nil
}

func parts(n int, kind volume.Kind) (out []freespace.Part) {
	for i := range n {
		r := disk.Range{Off: int64(i) << 20, Len: 1 << 20}
		out = append(out, freespace.Part{Number: i + 1, Kind: kind, Range: r})
	}
	return out
}

func zeros(err error) disk.Disk {
	return disk.New(1<<30, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 1<<30 - off, Src: source{err}, Off: off}, nil
	})
}

// Every file system whose files are read has its files counted.
func TestEveryReaderHasAWalk(t *testing.T) {
	t.Parallel()
	for _, kind := range slices.Sorted(maps.Keys(boot.Readers)) {
		got, err := freespace.Count(zeros(nil), parts(1, kind))
		require.NoError(t, err)
		require.Len(t, got, 1, kind)
		require.ErrorIs(t, got[0].Err, ondisk.ErrNoMatch, kind)
	}
	got, err := freespace.Count(zeros(nil), parts(3, volume.Unknown))
	require.NoError(t, err)
	require.NotNil(t, got)
	require.Empty(t, got)
}

func TestErrorsOfReadingSurface(t *testing.T) {
	t.Parallel()
	bad := errors.New("input/output error")
	_, err := freespace.Count(zeros(bad), parts(1, volume.NTFS))
	require.ErrorIs(t, err, bad)
}

// A table can name thousands of volumes.
func TestVolumesAreBounded(t *testing.T) {
	t.Parallel()
	got, err := freespace.Count(zeros(nil), parts(500, volume.FAT16))
	require.NoError(t, err)
	require.Len(t, got, 129)
	require.ErrorIs(t, got[128].Err, ondisk.ErrLimit)
	got, err = freespace.Count(zeros(nil), []freespace.Part{
		{Kind: volume.NTFS, Range: disk.Range{Off: 1 << 29, Len: 1 << 30}},
		{Kind: volume.NTFS, Range: disk.Range{Off: -1, Len: 9}},
	})
	require.NoError(t, err)
	require.Empty(t, got, "parts that leave the disk")
}

// Of a divided volume, the contiguous parts are examined, and the others are listed.
func TestPartsOfAVolume(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	r := disk.Range{Off: 10 * mib, Len: 100 * mib}
	names := func(v *volume.Volume) (out []string) {
		for _, p := range freespace.PartsOf(3, r, v) {
			require.Equal(t, 3, p.Number)
			out = append(out, fmt.Sprint(p.Name, " ", p.Kind, " ", p.Off/mib, " ", p.Len/mib))
		}
		return out
	}
	require.Equal(t, []string{" ntfs 10 100"}, names(&volume.Volume{Kind: volume.NTFS}))
	divided := []volume.Part{
		{Name: "a", Start: 0, Size: 40 * mib},
		{Name: "b", Start: 40 * mib, Size: 20 * mib},
		{Name: "long", Start: 90 * mib, Size: 20 * mib},
	}
	require.Equal(t, []string{"a  10 40", "b  50 20"}, names(&volume.Volume{Kind: volume.LVM2, Parts: divided}))
	require.Equal(t, []string{" ntfs 10 100", "b  50 20"}, names(&volume.Volume{Kind: volume.NTFS, Parts: divided}),
		"a is the NTFS")

	lvm := &volume.Volume{Kind: volume.LVM2, Parts: []volume.Part{
		{Name: "elsewhere", Start: -1, Size: mib},
		{Name: "empty", Size: mib},
	}}
	got, err := freespace.Count(zeros(nil), freespace.PartsOf(1, r, lvm))
	require.NoError(t, err)
	require.Len(t, got, 2)
	for i, want := range []string{"several places", "only in NTFS"} {
		require.ErrorIs(t, got[i].Err, ondisk.ErrUnsupported)
		require.ErrorContains(t, got[i].Err, want)
	}
}

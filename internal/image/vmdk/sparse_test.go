package vmdk_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// Extents in every mixture that a descriptor can have: qemu-img 7.2 skips some of these lines, which shifts the rest;
// here each line counts.
func TestFlatExtents(t *testing.T) {
	a, b := imagetest.Noise(2, 200*sector), imagetest.Noise(3, 300*sector)
	for _, tc := range []struct {
		name, kind string
		lines      []string
		want       [][]byte
	}{
		{"one file", "monolithicFlat", []string{`RW 200 FLAT "a.bin" 0`}, [][]byte{a}},
		{"esxi, without an offset", "vmfs", []string{`RW 200 VMFS "a.bin"`}, [][]byte{a}},
		{"a part of a file", "monolithicFlat", []string{`RW 137 FLAT "a.bin" 63`}, [][]byte{a[63*sector:]}},
		{"two files", "monolithicFlat", []string{`RW 200 FLAT "a.bin" 0`, `RW 300 FLAT "b.bin" 0`}, [][]byte{a, b}},
		{
			"one file from behind", "monolithicFlat",
			[]string{`RW 100 FLAT "b.bin" 200`, `RW 100 FLAT "b.bin" 100`, `RW 100 FLAT "b.bin" 0`},
			[][]byte{b[200*sector:], b[100*sector : 200*sector], b[:100*sector]},
		},
		{
			"zeros in front, between and behind", "monolithicFlat",
			[]string{
				`RW 7 ZERO`, `RW 100 FLAT "a.bin" 1`, `RW 1 ZERO`, `RW 1 ZERO`, `RW 3 FLAT "b.bin" 297`, `RW 2000 ZERO`,
			},
			[][]byte{
				make([]byte, 7*sector), a[sector : 101*sector], make([]byte, 2*sector), b[297*sector:],
				make([]byte, 2000*sector),
			},
		},
		{
			"read-only extents", "monolithicFlat",
			[]string{`RDONLY 50 FLAT "a.bin" 0`, `RW 50 FLAT "b.bin" 0`, `RDONLY 5 ZERO`, `rdonly 2 flat "a.bin" 60`},
			[][]byte{a[:50*sector], b[:50*sector], make([]byte, 5*sector), a[60*sector : 62*sector]},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			imagetest.Write(t, dir, "a.bin", a)
			imagetest.SparseFile(t, filepath.Join(dir, "b.bin"), b)
			img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk",
				[]byte(vmdkforge.Descriptor(tc.kind, tc.lines...))))
			require.Equal(t, tc.kind, img.Subformat)
			disktest.CheckBytes(t, img.Disk, bytes.Join(tc.want, nil))
		})
	}
}

func TestSparseGrains(t *testing.T) {
	for _, grain := range []int64{8, 64, 2048} {
		for name, layout := range map[string]vmdkforge.SparseLayout{
			"as VMware writes it":          {},
			"from behind, no second table": {Backwards: true, Single: true},
			"marked zeros":                 {Zeroed: true},
		} {
			layout.Grain, layout.Short = grain, true
			// More than one table with small grains, and a truncated last grain.
			data := imagetest.Noise(uint64(grain), 5*mib+3*sector)
			clear(data[2*mib : 4*mib+100])
			t.Run(fmt.Sprintf("grains of %d sectors, %s", grain, name), func(t *testing.T) {
				v := vmdkforge.NewSparseOf(data, layout)
				img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vmdk", v.Bytes))
				require.Equal(t, "monolithicSparse", img.Subformat)
				disktest.CheckBytes(t, img.Disk, data)
				imagetest.NoDamage(t, img)
			})
		}
	}
}

// Entry 1 means zeros only with the flag in the header; otherwise it is sector 1, which cannot be a grain.
func TestZeroedGrainNeedsItsFlag(t *testing.T) {
	data := make([]byte, 2*mib)
	copy(data, "data")
	v := vmdkforge.NewSparseOf(data, vmdkforge.SparseLayout{Zeroed: true, Single: true})
	v.U32(vmdkforge.Flags, 1)
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vmdk", v.Bytes))
	_, err := img.Disk.ReadAt(make([]byte, 10), 64*kib)
	require.ErrorContains(t, err, "entry 1")
}

// TestSparseByQemuImg reads the same disks as written by qemu-img.
func TestSparseByQemuImg(t *testing.T) {
	for _, size := range []int{5*mib + 3*sector, 64 * kib, sector} {
		dir := t.TempDir()
		data := imagetest.Noise(uint64(size), size)
		raw, path := imagetest.Write(t, dir, "disk.img", data), filepath.Join(dir, "disk.vmdk")
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=monolithicSparse", raw, path)
		disktest.CheckBytes(t, imagetest.Open(t, path).Disk, data)
		flat := filepath.Join(dir, "flat.vmdk")
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=monolithicFlat", raw, flat)
		disktest.CheckBytes(t, imagetest.Open(t, flat).Disk, data)
	}
}

// A disk of the type custom can have flat extents, some at an offset, beside sparse ones written by qemu-img. A copy of
// it is a split disk.
func TestCustomDisk(t *testing.T) {
	dir := t.TempDir()
	flat, grains, tail := imagetest.Noise(1, 3*mib+7*sector), imagetest.Noise(2, 4*mib), imagetest.Noise(3, 2*mib)
	clear(grains[mib : 3*mib])
	imagetest.Write(t, dir, "a-flat.vmdk", flat)
	imagetest.Write(t, dir, "tail.bin", append(imagetest.Noise(4, 5*sector), tail...))
	raw := imagetest.Write(t, dir, "b.img", grains)
	disktest.Run(t, "qemu-img", "convert", "-O", "vmdk", "-o", "subformat=twoGbMaxExtentSparse", raw,
		filepath.Join(dir, "b.vmdk"))
	require.NoError(t, os.Remove(raw))
	path := imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor("custom",
		fmt.Sprintf(`RW %d FLAT "a-flat.vmdk" 0`, len(flat)/sector),
		fmt.Sprintf(`RW %d SPARSE "b-s001.vmdk"`, len(grains)/sector),
		"RW 100 ZERO",
		fmt.Sprintf(`RDONLY %d FLAT "tail.bin" 5`, len(tail)/sector))))
	want := slices.Concat(flat, grains, make([]byte, 100*sector), tail)

	img := imagetest.Open(t, path)
	disktest.CheckBytes(t, img.Disk, want)
	imagetest.NoDamage(t, img)
	require.Len(t, img.Files(), 4)
	require.Contains(t, imagetest.Codes(img.Issues, ondisk.Warn), "view", "an extent lies inside of a file")
	copied := filepath.Join(t.TempDir(), "copy.vmdk")
	imagetest.Copy(t, img, copied, store.CreateOptions{})
	require.Equal(t, "twoGbMaxExtentSparse", agrees(t, copied, want).Subformat)

	twice := imagetest.Write(t, dir, "twice.vmdk", []byte(vmdkforge.Descriptor("custom",
		`RW 8 FLAT "a-flat.vmdk" 0`, fmt.Sprintf(`RW %d SPARSE "b-s001.vmdk"`, len(grains)/sector),
		`RW 8 FLAT "a-flat.vmdk" 8`)))
	_, err := image.Open(twice, image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "convert it first: vmware-vdiskmanager -r")

	require.NoError(t, os.Truncate(filepath.Join(dir, "a-flat.vmdk"), int64(len(flat)-1)))
	_, err = image.Open(path, image.Options{})
	require.ErrorContains(t, err, fmt.Sprintf(`but the file "a-flat.vmdk" has %d bytes`, len(flat)-1))
}

// A map of a device is a flat disk if a file beside it has the data. A device is not opened, and a map without data is
// not a disk.
func TestMapsOfDevices(t *testing.T) {
	data := imagetest.Noise(6, 200*sector)
	for kind, c := range map[string]struct{ word, subformat string }{
		"fullDevice":                  {"FLAT", "monolithicFlat"},
		"partitionedDevice":           {"FLAT", "monolithicFlat"},
		"custom":                      {"FLAT", "monolithicFlat"},
		"vmfsRaw":                     {"VMFSRAW", "vmfs"},
		"vmfsRDM":                     {"VMFSRDM", "vmfs"},
		"vmfsRawDeviceMap":            {"VMFSRDM", "vmfs"},
		"vmfsPassthroughRawDeviceMap": {"VMFSRDM", "vmfs"},
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			open := func(file string) (*image.Image, error) {
				line := fmt.Sprintf(`RW 200 %s "%s"`, c.word, file)
				return image.Open(imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor(kind, line))),
					image.Options{})
			}
			imagetest.Write(t, dir, "disk-rdm.vmdk", data)
			img, err := open("disk-rdm.vmdk")
			require.NoError(t, err)
			disktest.CheckBytes(t, img.Disk, data)
			require.Equal(t, c.subformat, img.Subformat)
			require.Equal(t, kind == "custom", img.Flat)
			require.Equal(t, kind != "custom", img.MapsDevice)
			copied := filepath.Join(t.TempDir(), "copy.vmdk")
			imagetest.Copy(t, img, copied, store.CreateOptions{})
			require.NoError(t, img.Close())
			qemuReads(t, copied, data)

			for _, device := range []string{
				"/dev/sda", `\\.\PhysicalDrive0`, "/vmfs/devices/disks/vmhba1:0:0:0",
				`\\.\PhysicalDrive0" 0 partitionUUID "x`, // as VMware Workstation writes it
			} {
				_, err = open(device)
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				require.ErrorContains(t, err, "extent 0 is the device ")
			}
			imagetest.Write(t, dir, "disk-rdm.vmdk", bytes.Repeat([]byte{1}, sector))
			_, err = open("disk-rdm.vmdk")
			if c.word == "FLAT" {
				require.ErrorIs(t, err, ondisk.ErrFormat)
				return
			}
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, "has 512 of 102400 bytes")
		})
	}
}

// A directory of 2^40 entries in a hole of the file costs nothing to make, and nothing to check.
func TestVMDKDirectoryOfAHole(t *testing.T) {
	const directory, sectors = 4 << 40, 1 << 40 * 512 * 8 // of grains of 4 KiB
	path := filepath.Join(t.TempDir(), "disk.vmdk")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", path, "1M")
	b := disktest.ReadFile(t, path)
	le := binary.LittleEndian
	le.PutUint32(b[8:], le.Uint32(b[8:])&^2) // no redundant directory
	le.PutUint64(b[12:], sectors)
	le.PutUint64(b[20:], 8)
	le.PutUint64(b[56:], mib/sector)
	text := b[sector : 21*sector]
	line := fmt.Appendf(nil, "RW %d SPARSE", int64(sectors))
	copy(text, bytes.Clone(regexp.MustCompile(`RW \d+ SPARSE`).ReplaceAll(text, line)))
	imagetest.Write(t, filepath.Dir(path), "disk.vmdk", b)
	if err := os.Truncate(path, directory+2*mib); err != nil {
		t.Skipf("the file system takes no file of 4 TiB: %v", err)
	}
	img := imagetest.Open(t, path)
	spent := disktest.Spent()
	issues, err := img.Check()
	require.NoError(t, err)
	require.Empty(t, imagetest.Codes(issues, ondisk.Broken))
	e, err := img.Disk.Extent(0, img.Disk.Size())
	require.NoError(t, err)
	require.True(t, e.Zero)
	require.Greater(t, e.Len, int64(1)<<48)
	require.Less(t, spent(), 2*time.Second)
}

// flatOfSectors is a flat VMDK whose descriptor states the sector size.
func flatOfSectors(t *testing.T, size int, sectors string) string {
	t.Helper()
	dir := t.TempDir()
	imagetest.Write(t, dir, "d-flat.vmdk", imagetest.Noise(7, size))
	text := vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW %d FLAT "d-flat.vmdk" 0`, size/sector))
	return imagetest.Write(t, dir, "d.vmdk", []byte(text+"ddb.logicalSectorSize = \""+sectors+"\"\n"))
}

// A sector size in a descriptor is used, and every copy states the same.
func TestSectorSizeOfAVMDK(t *testing.T) {
	src := imagetest.Open(t, flatOfSectors(t, 256*kib, "4096"))
	require.Equal(t, int64(4096), src.Disk.SectorSize())
	for _, o := range imagetest.Kinds {
		path := filepath.Join(t.TempDir(), "out.vmdk")
		imagetest.Copy(t, src, path, o)
		if o.Format == "raw" {
			continue
		}
		require.Equal(t, int64(4096), imagetest.Open(t, path).Disk.SectorSize(), o.Subformat)
	}
	_, err := store.Create(filepath.Join(t.TempDir(), "out.qcow2"), src.Disk.Size(), src,
		store.CreateOptions{Format: "qcow2"})
	require.ErrorContains(t, err, "the format qcow2 cannot record that")
	require.Equal(t, int64(512), imagetest.Open(t, flatOfSectors(t, 256*kib, "512")).Disk.SectorSize())
}

func TestSectorSizesThatNoVMDKHas(t *testing.T) {
	_, err := image.Open(flatOfSectors(t, 256*kib, "1024"), image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "ddb.logicalSectorSize 1024")
	_, err = image.Open(flatOfSectors(t, 256*kib+sector, "4096"), image.Options{})
	require.ErrorContains(t, err, "not a multiple of it")
}

func TestHostileVMDK(t *testing.T) { hostile.Check(t, hostile.VMDK(), imagetest.Issues) }

// The hostile images differ from a valid one only in their changes.
func TestForgedSparseIsValid(t *testing.T) {
	large := make([]byte, 33*mib) // two grain tables
	copy(large, hostile.Disk())
	copy(large[32*mib:], "in the second table")
	for _, disk := range [][]byte{hostile.Disk(), large} {
		path := filepath.Join(t.TempDir(), "disk.vmdk")
		vmdkforge.NewSparse(disk).Write(t, path)
		require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vmdk", path), "No errors were found")
		agrees(t, path, disk)
	}
}

// Unusual but valid descriptors are read. qemu-img 7.2 skips some lines, which shifts the rest.
func TestOddDescriptors(t *testing.T) {
	disk := []byte(hostile.Disk())
	const line = `RW 4096 FLAT "x-flat.vmdk" 0`
	good := vmdkforge.Descriptor("monolithicFlat", line)
	room := 1<<20 - len(good)
	filler := strings.Repeat("#", room%1024) + strings.Repeat("\n#"+strings.Repeat("x", 1022), room/1024)
	for name, c := range map[string]struct {
		text string
		want []byte
	}{
		"lower case":               {strings.Replace(good, "RW 4096 FLAT", "rw 4096 flat", 1), disk},
		"byte order mark of UTF-8": {"\xef\xbb\xbf" + good, disk},
		"lines that end with CRLF": {strings.ReplaceAll(good, "\n", "\r\n"), disk},
		"another encoding":         {strings.Replace(good, "UTF-8", "windows-1252", 1), disk},
		"a line of 4096 bytes":     {good + "#" + strings.Repeat("x", 4095), disk},
		"a text of 1 MiB":          {good + filler, disk},
		"4096 extents, most of zeros": {
			strings.Replace(good, line, strings.Repeat("RW 1 ZERO\n", 4095)+line, 1),
			append(make([]byte, 4095*sector), disk...),
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			imagetest.Write(t, dir, "x-flat.vmdk", disk)
			img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk", []byte(c.text)))
			got := disktest.Head(t, img.Disk, img.Disk.Size())
			require.True(t, bytes.Equal(c.want, got))
		})
	}
}

// An ESX or ESXi extent that is truncated anywhere is not read like a whole one.
func TestTruncatedExtents(t *testing.T) {
	cowd, se := vmdkforge.NewCOWD(hostile.Disk(), 1, nil), vmdkforge.NewSESparse(hostile.Disk(), 0, nil)
	for _, c := range []struct {
		kind, word string
		file       []byte
		borders    []int64
	}{
		{"vmfsSparse", "VMFSSPARSE", cowd.Bytes, []int64{
			4, 512, 2048, cowd.GD, cowd.Tables[0], cowd.Tables[0] + vmdkforge.COWDTable, int64(len(cowd.Bytes)) - 8192,
		}},
		{"seSparse", "SESPARSE", se.Bytes, []int64{
			8, 512, se.Volatile, se.Volatile + 512, se.GD, se.GT, se.Grains, se.Grains + 4096,
			int64(len(se.Bytes)) - 8192,
		}},
	} {
		imagetest.CutShort(t, c.file, c.borders, func(dir string, cut []byte) string {
			imagetest.Write(t, dir, "x.vmdk", cut)
			return imagetest.Write(t, dir, "disk.vmdk",
				[]byte(vmdkforge.Descriptor(c.kind, fmt.Sprintf(`RW %d %s "x.vmdk"`, hostile.Sectors, c.word))))
		})
	}
}

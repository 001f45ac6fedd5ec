package image_test

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// headers begin files of formats that have a name but no reader, according to their specifications.
var headers = map[string]string{
	"bzip2": "BZh91AY&SY\xd8", "zstd": "\x28\xb5\x2f\xfd\x04\x88", "lz4": "\x04\x22\x4d\x18\x64\x40",
	"lzop": "\x89LZO\x00\r\n\x1a\n", "7z": "7z\xbc\xaf\x27\x1c\x00\x04", "RAR": "Rar!\x1a\x07\x01\x00",
	"Bochs": "Bochs Virtual HD Image\x00", "cloop": "#!/bin/sh\n#V2.0 Format\n",
	"EWF2 (Ex01)": "EVF2\r\n\x81\x00\x02\x01", "AFF": "AFF10\r\n\x00",
	"Apple sparseimage": "sprs\x00\x00\x00\x03", "ASIF": "shdw\x00\x00\x00\x01\x00\x00\x02\x00",
	"Android sparse": "\x3a\xff\x26\xed\x01\x00\x00\x00\x1c\x00\x0c\x00", "Proxmox VMA": "VMA\x00\x00\x00\x00\x01",
	"partclone": "partclone-image\x000.3.20", "ntfsclone": "\x00ntfsclone-image",
	"WIM": "MSWIM\x00\x00\x00\xd0\x00\x00\x00",
	"QED": "QED\x00\x00\x00\x01\x00",
}

// A recognised format is never read as a raw disk, and the message has a remedy.
func TestRecognised(t *testing.T) {
	// Content in whole sectors, compressed by foreign tools and libraries.
	plain := imagetest.Noise(9, 4096)
	var g, z bytes.Buffer
	gz := gzip.NewWriter(&g)
	_, err := gz.Write(plain)
	require.NoError(t, err)
	require.NoError(t, gz.Close())
	archive := zip.NewWriter(&z)
	w, err := archive.Create("disk.img")
	require.NoError(t, err)
	_, err = w.Write(plain)
	require.NoError(t, err)
	require.NoError(t, archive.Close())
	path := imagetest.Write(t, t.TempDir(), "disk.img", plain)
	all := map[string][]byte{
		"gzip": g.Bytes(), "zip": z.Bytes(),
		"xz": []byte(disktest.Output(t, "xz", "-c", path)),
	}
	for name, b := range all {
		all[name] = append(b, make([]byte, 512-len(b)%512)...)
	}

	for name, head := range headers {
		all[name] = append([]byte(head), make([]byte, 8192-len(head))...)
	}
	for name, content := range all {
		t.Run(name, func(t *testing.T) {
			path := imagetest.Write(t, t.TempDir(), "disk.img", content)
			_, err := image.Open(path, image.Options{})
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, name+": recognised, not supported; ")
			id, err := image.Identify(path, nil)
			require.NoError(t, err)
			require.Equal(t, name, id.Format)
			require.NotContains(t, []image.Kind{image.Disk, image.Bare}, id.Kind)

			img, err := image.Open(path, image.Options{Format: "raw"})
			require.NoError(t, err, "which is an order")
			defer img.Close()
			require.Equal(t, []string{"format-overridden"}, imagetest.Codes(img.Issues, ondisk.Warn))
			require.Equal(t, int64(len(content)), img.Disk.Size())
		})
	}
}

// The first version of QEMU's format has the magic number of the second, and another name.
func TestFirstVersionOfQcow(t *testing.T) {
	dir := t.TempDir()
	base := imagetest.Write(t, dir, "base.raw", imagetest.Noise(8, 1<<20))
	child := filepath.Join(dir, "child.img")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow", "-b", "base.raw", "-F", "raw", child)
	id, err := image.Identify(child, nil)
	require.NoError(t, err)
	require.Equal(t, image.Identity{Kind: image.Unsupported, Format: "qcow"}, id)
	_, err = image.Open(child, image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.EqualError(t, err, "qcow: recognised, not supported; convert it with qemu-img convert -O vmdk (or raw), "+
		"and use the result")
	issues, err := imagetest.Open(t, base).Children()
	require.NoError(t, err)
	require.Equal(t, []string{"snapshot-parent"}, imagetest.Codes(issues, ondisk.Refuse))
}

// The first bytes of a disk, which may be any code, do not hide it.
func TestRawDisksThatBeginWithAMagicNumber(t *testing.T) {
	table := func(head string) []byte {
		d := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Start: 63, Sectors: 1000})
		copy(d, head)
		return d
	}
	code := func(head string) []byte { return append([]byte(head), imagetest.Noise(3, 8192-len(head))...) }
	for name, content := range map[string][]byte{
		"zstd and a table": table("\x28\xb5\x2f\xfd\x04"), "7z and a table": table("7z\xbc\xaf\x27\x1c"),
		"gzip and a table":      table("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"),
		"gzip, reserved flags":  code("\x1f\x8b\x08\xff\x00\x00\x00\x00\x00\x03"),
		"bzip2 without a block": code("BZh9 boot"), "zip of version 200": code("PK\x03\x04\xc8"),
		"lz4 of version 3":            code("\x04\x22\x4d\x18\xc0"),
		"Android sparse of version 9": code("\x3a\xff\x26\xed\x09\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			img, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.img", content), image.Options{})
			require.NoError(t, err)
			defer img.Close()
			require.Equal(t, "raw", img.Format)
		})
	}
}

// A file that is not a disk is described as such, with the meaning of its name.
func TestNoDiskImage(t *testing.T) {
	dir := t.TempDir()
	const none = "no disk image: it has no known header, and its size (5000) is not a " +
		"multiple of 512, like that of a raw disk"
	for name, want := range map[string]string{
		"notes.txt":    none,
		"broken.qcow2": none + "; its file extension is that of qcow2: it may be truncated or damaged",
		"vm.ova":       none + "; its file extension is that of OVA: it may be truncated or damaged",
	} {
		_, err := image.Open(imagetest.Write(t, dir, name, make([]byte, 5000)), image.Options{})
		require.ErrorIs(t, err, ondisk.ErrFormat)
		require.EqualError(t, err, want)
	}
	_, err := image.Open(imagetest.Write(t, dir, "empty.img", nil), image.Options{})
	require.EqualError(t, err, "no disk image: the file is empty")
	for _, name := range []string{"vm.ova", "vm.ovf", "disk.vdi", "disk.qed", "disk.hdd"} {
		img := imagetest.Open(t, imagetest.Write(t, dir, name, binary.BigEndian.AppendUint64(make([]byte, 1016), 7)))
		require.Equal(t, []string{image.CodeMisnamed}, imagetest.Codes(img.Issues, ondisk.Refuse), name)
	}
}

// The remedy for a Parallels disk depends on its data files: QEMU reads no descriptor, and only one file.
func TestParallelsBundle(t *testing.T) {
	part := func(kind string) string {
		return "<Storage><Image><Type>" + kind + "</Type><File>a.hds</File></Image></Storage>"
	}
	for want, parts := range map[string]string{
		"convert its .hds file with qemu-img convert -f parallels": part("Compressed"),
		"name its .hds file, a raw disk":                           part("Plain"),
		"merge them first":                                         part("Plain") + part("Compressed"),
		"merge them":                                               part("of another kind"),
	} {
		text := "<?xml version='1.0' encoding='UTF-8'?>\n<Parallels_disk_image Version=\"1.0\">\n    <StorageData>" +
			parts + "</StorageData>\n</Parallels_disk_image>\n"
		path := imagetest.Write(t, t.TempDir(), "DiskDescriptor.xml", []byte(text))
		_, err := image.Open(path, image.Options{})
		require.ErrorIs(t, err, ondisk.ErrUnsupported)
		require.ErrorContains(t, err, "Parallels HDD: recognised, not supported; ")
		require.ErrorContains(t, err, want)
	}
}

// A VHD Set is recognized only by its name. A file with the content of an image is read as that.
func TestVHDSet(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"a.vhds": 260 << 10, "B.VHDS": 1000} {
		path := imagetest.Write(t, dir, name, imagetest.Noise(5, size))
		_, err := image.Open(path, image.Options{})
		require.ErrorContains(t, err, "VHD Set: recognised, not supported; name the .avhdx file in the same folder")
		id, err := image.Identify(path, nil)
		require.NoError(t, err)
		require.Equal(t, image.Identity{Kind: image.Unsupported, Format: "VHD Set"}, id)
	}
	path := filepath.Join(dir, "c.vhds")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vhdx", path, "8M")
	require.Equal(t, "vhdx", imagetest.Open(t, path).Format)
}

func TestNamedPacked(t *testing.T) {
	for name, want := range map[string]bool{
		"disk.img.gz": true, "DISK.VMDK.XZ": true, "a.qcow2.zst": true, "vm.ova.bz2": true, "vm.box": true,
		"sda1.ntfs-ptcl-img.gz.aa": true, "disk.raw.7z.001": true, "vzdump.vma.zst": true,
		"docs.tar.gz": false, "readme.gz": false, "a.zip": false, "img.gz": false, "disk.vdi.lz4": true,
	} {
		require.Equal(t, want, image.NamedPacked(filepath.Base(name)), name)
	}
}

// FuzzIdentify gives a file any content: the result is bounded, refers to nothing outside its folder, and needs few
// reads.
func FuzzIdentify(f *testing.F) {
	disk := make([]byte, 256*units.KiB)
	f.Add([]byte(vmdkforge.Descriptor("twoGbMaxExtentFlat", `RW 1 FLAT "a" 0`, `RW 1 FLAT "../b" 0`)), "x.vmdk")
	f.Add([]byte(vmdkforge.NewSparse(disk).Bytes), "x.vmdk")
	f.Add([]byte(vhdforge.NewFixed(disk[:64<<10]).Bytes), "x.vhd")
	f.Add([]byte(tarforge.New(tarforge.Member{Name: "x.ovf"})), "x.ova")
	f.Add([]byte(`<?xml version="1.0"?><Envelope><References><File href="d" id="f"/></References></Envelope>`), "x.ovf")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		if name != filepath.Base(name) || len(name) > 200 || name == "." || name == ".." || name == "/" {
			name = "x"
		}
		path := filepath.Join(dir, name)
		if os.WriteFile(path, content, 0o600) != nil {
			t.Skip("no file has such a name")
		}
		defer os.Remove(path)
		m := gate.NewMeter(64 * units.MiB)
		id, err := image.Identify(path, m)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(id.Extents)+len(id.Parents), 2*4096)
		for _, n := range append(append(image.FileNames{}, id.Extents...), id.Parents...) {
			require.Equal(t, filepath.Base(n), n, "a name in the folder")
		}
		require.LessOrEqual(t, m.Read(), int64(len(content))+units.MiB, "bytes, to know what a file is")
	})
}

const (
	sector = 512
	kib    = 1 << 10
	mib    = 1 << 20
)

// VMware's own files. The flat one is the disk byte for byte.
func TestCorpusImagesAreOneDisk(t *testing.T) {
	dir := disktest.CorpusSet(t, "vmdk-rs")
	want := disktest.ReadFile(t, filepath.Join(dir, "monolithicFlat-flat.vmdk"))
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "monolithicFlat.vmdk")).Disk, want)
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "monolithicSparse.vmdk")).Disk, want)
	thick := disktest.ReadFile(t, filepath.Join(dir, "vmfs_thick-flat.vmdk"))
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(dir, "vmfs_thick.vmdk")).Disk, thick)
}

// Ambiguous content, or content other than the user thinks, is never read as raw.
func TestHostileFiles(t *testing.T) { hostile.Check(t, hostile.Files(), imagetest.Issues) }

// LUKS is content of a disk in any image, and not an image format.
func TestLUKSInImages(t *testing.T) {
	hostile.Check(t, hostile.LUKSInImages(), imagetest.Issues)
	for _, r := range hostile.LUKSInImages() {
		img := imagetest.Open(t, r.Write(t, t.TempDir()))
		require.Equal(t, int64(hostile.Sectors*512), img.Disk.Size(), r.Name)
		head := make([]byte, 6)
		_, err := io.ReadFull(io.NewSectionReader(img.Disk, 0, 6), head)
		require.NoError(t, err)
		require.Equal(t, "LUKS\xba\xbe", string(head), r.Name)
		l, err := layout.Read(img.Disk, table.Geometry{})
		require.NoError(t, err)
		require.Nil(t, l.Table, r.Name)
		require.Equal(t, volume.LUKS, l.Volume.Kind, r.Name)
	}
}

// A truncated image is reported as such before the field that shows it.
func TestTruncatedImagesSaySo(t *testing.T) {
	t.Parallel()
	for format, rest := range map[string]int64{"vmdk": 100_000, "vpc": 100_000, "qcow2": 400_000, "vhdx": 5_000_000} {
		path := filepath.Join(t.TempDir(), "disk")
		disktest.Run(t, "qemu-img", "convert", "-O", format, "../../testdata/xp-lba63.vmdk", path)
		require.NoError(t, os.Truncate(path, rest))
		img, err := image.Open(path, image.Options{})
		if err == nil {
			issues, checkErr := img.Check()
			require.NoError(t, checkErr)
			require.NotEmpty(t, issues, format)
			err = issues[0].Err
			require.NoError(t, img.Close())
		}
		require.ErrorIs(t, err, ondisk.ErrFormat, format)
		require.ErrorContains(t, err, "the file is truncated or damaged, copy it again: ", format)
	}
}

// The error for an extent names the image in the same folder to which the extent belongs.
func TestAnExtentNamesItsImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-o", "subformat=twoGbMaxExtentSparse",
		filepath.Join(dir, "split disk.vmdk"), "4M")
	extent := filepath.Join(dir, "split disk-s001.vmdk")
	_, err := image.Open(extent, image.Options{})
	require.EqualError(t, err, `it is an extent of "split disk.vmdk": name that file instead`)
	require.NoError(t, os.Remove(filepath.Join(dir, "split disk.vmdk")))
	_, err = image.Open(extent, image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "open the descriptor file that names this extent")
}

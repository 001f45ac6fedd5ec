package qcow2_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	sector = 512
	kib    = 1 << 10
	mib    = 1 << 20
)

// qemuOptions are variants of qemu-img create, and packedOptions those that store clusters in another way if these are
// compressed.
var (
	qemuOptions = []string{
		"cluster_size=512", "cluster_size=4k", "cluster_size=64k", "cluster_size=2M", "compat=0.10",
		"compat=0.10,cluster_size=1k", "compat=1.1", "extended_l2=on", "extended_l2=on,cluster_size=16k",
		"extended_l2=on,cluster_size=2M", "preallocation=metadata", "preallocation=falloc", "preallocation=full",
		"preallocation=metadata,extended_l2=on", "lazy_refcounts=on", "refcount_bits=1", "refcount_bits=4",
		"refcount_bits=8", "refcount_bits=32", "refcount_bits=64", "compression_type=zstd",
	}
	packedOptions = []string{
		"cluster_size=512", "cluster_size=4k", "cluster_size=64k", "cluster_size=2M", "compat=0.10", "extended_l2=on",
		"compression_type=zstd,cluster_size=512", "compression_type=zstd", "compression_type=zstd,cluster_size=2M",
		"compression_type=zstd,extended_l2=on", "refcount_bits=16",
	}
)

func TestQcow2ByQemuImg(t *testing.T) {
	data := imagetest.Noise(1, 5*mib+3*sector)
	clear(data[2*mib : 3*mib+100])
	copy(data[3*mib+mib/2:], bytes.Repeat([]byte("packs well "), 50000))
	raw := imagetest.Write(t, t.TempDir(), "disk.img", data)
	for flags, options := range map[string][]string{"-q": qemuOptions, "-c": packedOptions} {
		for _, o := range options {
			t.Run(flags+" "+o, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "disk.qcow2")
				disktest.Run(t, "qemu-img", "convert", flags, "-f", "raw", "-O", "qcow2", "-o", o, raw, path)
				img := imagetest.Open(t, path)
				require.Equal(t, "qcow2", img.Format)
				disktest.CheckBytes(t, img.Disk, data)
				imagetest.NoDamage(t, img)
			})
		}
	}
}

// qcow2Kinds are the subformats that are written.
var qcow2Kinds = []string{"v3", "v2", "compressed"}

// requireClean requires an image in which neither qemu-img nor we find anything, and not an unused cluster.
func requireClean(t *testing.T, img *image.Image) {
	t.Helper()
	imagetest.NoDamage(t, img)
	var found struct {
		Errors      int `json:"check-errors"`
		Corruptions int
		Leaks       int
	}
	require.NoError(t,
		json.Unmarshal([]byte(disktest.Output(t, "qemu-img", "check", "--output=json", "-f", "qcow2", img.Path)),
			&found))
	require.Zero(t, found)
}

// writeQcow2 copies a disk to a qcow2, requires clean tables, and compares the two disks with qemu-img.
func writeQcow2(t *testing.T, src *image.Image, kind string) *image.Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	imagetest.Copy(t, src, path, store.CreateOptions{Format: "qcow2", Subformat: kind})
	img := imagetest.Open(t, path)
	requireClean(t, img)
	disktest.Run(t, "qemu-img", "compare", "-f", src.Format, "-F", "qcow2", src.Path, path)
	return img
}

func TestWrittenQcow2(t *testing.T) {
	for _, size := range []int{30*mib + 5*sector, 3*mib + 5*sector, 64 * kib, sector} {
		data := imagetest.Noise(uint64(size), size)
		copy(data[size/2:], bytes.Repeat([]byte("packs well "), size/40))
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
		for _, kind := range qcow2Kinds {
			t.Run(fmt.Sprintf("%s of %d bytes", kind, size), func(t *testing.T) {
				img := writeQcow2(t, src, kind)
				require.Equal(t, strings.Replace(kind, "compressed", "v3", 1), img.Subformat)
				disktest.CheckBytes(t, img.Disk, data)
			})
		}
	}
}

// A copy keeps the clusters of its source, but never has some that are smaller than the blocks of the file system: many
// refcount blocks and L2 tables with the small ones, clusters larger than a chunk of the copy with the large ones.
func TestQcow2CopiesKeepTheClusterSize(t *testing.T) {
	data := imagetest.Noise(3, 18*mib+3*sector)
	copy(data[9*mib:], bytes.Repeat([]byte("packs well "), 300000))
	raw := imagetest.Write(t, t.TempDir(), "disk.img", data)
	for _, tc := range []struct{ made, want, packed string }{
		{"512", "4 KiB", "4 KiB"},
		{"4k", "4 KiB", "4 KiB"},
		{"256k", "256 KiB", "256 KiB"},
		{"1M", "1 MiB", "1 MiB"},
		{"2M", "2 MiB", "1 MiB"},
	} {
		path := filepath.Join(t.TempDir(), "src.qcow2")
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size="+tc.made, raw, path)
		src := imagetest.Open(t, path)
		for _, kind := range qcow2Kinds {
			t.Run(tc.made+" "+kind, func(t *testing.T) {
				img := writeQcow2(t, src, kind)
				want := tc.want
				if kind == "compressed" {
					want = tc.packed
				}
				require.Contains(t, img.Details, driver.Detail{Name: "cluster size", Value: want})
				disktest.CheckBytes(t, img.Disk, data)
			})
		}
	}
}

// External data files, whose first cluster has data of the disk, are read as qemu-img reads them.
func TestDataFileByQemuImg(t *testing.T) {
	data := imagetest.Noise(2, 5*mib+3*sector)
	clear(data[2*mib : 4*mib+100])
	raw := imagetest.Write(t, t.TempDir(), "disk.img", data)
	for _, o := range []string{
		"data_file_raw=on", "data_file_raw=on,preallocation=metadata", "data_file_raw=off,cluster_size=4k",
		"data_file_raw=off,extended_l2=on", "data_file_raw=on,extended_l2=on,cluster_size=16k",
	} {
		t.Run(o, func(t *testing.T) {
			t.Chdir(t.TempDir()) // QEMU looks for the name there
			disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", "data_file=disk.raw,"+o, raw,
				"disk.qcow2")
			img := imagetest.Open(t, "disk.qcow2")
			disktest.CheckBytes(t, img.Disk, data)
			require.Contains(t, img.Details, driver.Detail{Name: "data file", Value: "disk.raw"})
			requireClean(t, img)

			disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -z 64k 100k", "-c", "write -P 7 3M 70k", "-c",
				"discard 1M 256k", "disk.qcow2")
			img = imagetest.Open(t, "disk.qcow2")
			disktest.CheckBytes(t, img.Disk, asRaw(t, "disk.qcow2"))
			requireClean(t, img)
			id, err := image.Identify("disk.qcow2", nil)
			require.NoError(t, err)
			require.Equal(t, image.FileNames{"disk.raw"}, id.Extents)
		})
	}
}

// The name of an external data file refers to a plain file beside the image, and names that QEMU refuses are refused.
func TestDataFileIsRefused(t *testing.T) {
	data := imagetest.Noise(3, 128*kib)
	forged := func(name string, change func(q *qcow2forge.File)) string {
		q := qcow2forge.New(data, 16)
		q.BE64(qcow2forge.Incompatible, 1<<2)
		q.AddExtension(0x44415441, []byte(name))
		q.SetEntry(0, qcow2forge.Copied)
		q.SetEntry(1, qcow2forge.Copied|64*kib)
		change(q)
		dir := t.TempDir()
		imagetest.Write(t, dir, "disk.raw", data)
		require.NoError(t, os.Symlink("disk.raw", filepath.Join(dir, "link.raw")))
		return imagetest.Write(t, dir, "disk.qcow2", q.Bytes)
	}
	sound := forged("disk.raw", func(*qcow2forge.File) {})
	imagetest.Shows(t, sound, data)
	require.NoError(t, os.Truncate(filepath.Join(filepath.Dir(sound), "disk.raw"), 127*kib))
	_, err := imagetest.Open(t, sound).Disk.ReadAt(make([]byte, 128*kib), 0)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "65536 bytes fit into the file of 130048 bytes")

	packed := forged("disk.raw", func(q *qcow2forge.File) { q.SetPacked(0, q.End, 100) })
	_, err = imagetest.Open(t, packed).Disk.ReadAt(make([]byte, 1), 0)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "no compressed cluster in an image with an external data file")

	for name, text := range map[string]string{
		"absent.raw": `"absent.raw" of the qcow2 is missing`, "disk.qcow2": "want another file than the qcow2 itself",
		"link.raw": "is a symbolic link", "../disk.raw": "leaves", "/etc/shadow": "/etc/shadow",
		`json:{"driver":"file"}`: "has a colon",
	} {
		_, err := image.Open(forged(name, func(*qcow2forge.File) {}), image.Options{})
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, err, "external data file", name)
	}
}

// asRaw returns the disk that qemu-img reads in an image.
func asRaw(t *testing.T, path string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "qemu.img")
	disktest.Run(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", path, out)
	b := disktest.ReadFile(t, out)
	return b
}

// overlay makes an image on a backing file, with some data, zeros and holes of its own.
func overlay(t *testing.T, dir, name, base, format, options, size string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	args := []string{"create", "-q", "-f", "qcow2", "-b", base, "-F", format}
	if options != "" {
		args = append(args, "-o", options)
	}
	args = append(args, path)
	if size != "" {
		args = append(args, size)
	}
	disktest.Run(t, "qemu-img", args...)
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 65 100k 3k", "-c", "write -P 66 1M 200k", "-c",
		"write -z 1100k 64k", "-c", "write -z 2M 130k", "-c", "write -P 67 2100k 512", path)
	return path
}

func TestQcow2Chains(t *testing.T) {
	data := imagetest.Noise(8, 5*mib+3*sector)
	formats := map[string]bool{}
	for name, tc := range map[string]struct{ base, options, size string }{
		"on raw":                      {base: "raw"},
		"on vmdk":                     {base: "vmdk"},
		"on qcow2":                    {base: "qcow2"},
		"on vdi":                      {base: "vdi"},
		"on vhd":                      {base: "vpc"},
		"on vhdx":                     {base: "vhdx"},
		"larger than its base":        {base: "raw", size: "9M"},
		"smaller than its base":       {base: "raw", size: "3M"},
		"version 2":                   {base: "raw", options: "compat=0.10"},
		"small clusters":              {base: "qcow2", options: "cluster_size=512"},
		"extended L2":                 {base: "raw", options: "extended_l2=on"},
		"extended L2, 16 KiB":         {base: "raw", options: "extended_l2=on,cluster_size=16k"},
		"extended L2, 2 MiB":          {base: "qcow2", options: "extended_l2=on,cluster_size=2M", size: "8M"},
		"clusters of 2 MiB":           {base: "raw", options: "cluster_size=2M"},
		"extended L2, on an odd base": {base: "vmdk", options: "extended_l2=on", size: "6M"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			imagetest.Write(t, dir, "src.img", data)
			disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", tc.base, filepath.Join(dir, "src.img"),
				filepath.Join(dir, "base.img"))
			overlay(t, dir, "middle.qcow2", "base.img", tc.base, tc.options, tc.size)
			top := overlay(t, dir, "top.qcow2", "middle.qcow2", "qcow2", "", "")
			disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 99 1500k 600k", "-c", "discard 2M 64k", top)
			img := imagetest.Open(t, top)
			require.True(t, img.Child)
			require.Len(t, img.Chain, 2)
			require.Equal(t, image.Link{Name: "middle.qcow2", Format: "qcow2", Subformat: img.Chain[0].Subformat},
				img.Chain[0])
			require.Equal(t, strings.Replace(tc.base, "vpc", "vhd", 1), img.Chain[1].Format)
			formats[img.Chain[1].Format] = true
			disktest.CheckBytes(t, img.Disk, asRaw(t, top))
			middle := filepath.Join(dir, "middle.qcow2")
			disktest.CheckBytes(t, imagetest.Open(t, middle).Disk, asRaw(t, middle))
			imagetest.NoDamage(t, imagetest.Open(t, middle))
		})
	}
	require.ElementsMatch(t, image.Names(), slices.Collect(maps.Keys(formats)))
}

// The parent is found by its content where its format is not stored, as QEMU wrote it before 5.1.
func TestQcow2ParentWithoutFormat(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "base.img", imagetest.Noise(8, mib))
	top := imagetest.Rebase(t, dir, "top.qcow2", "base.img", "raw")
	b := disktest.ReadFile(t, top)
	i := bytes.Index(b, []byte{0xe2, 0x79, 0x2a, 0xca})
	require.Positive(t, i)
	b[i] = 0 // an unknown extension
	imagetest.Write(t, dir, "top.qcow2", b)
	img := imagetest.Open(t, top)
	require.Equal(t, "raw", img.Chain[0].Format)
	require.NotContains(t, fmt.Sprint(img.Details), "backing format")
}

// The format of a parent is the one that its child gives.
func TestQcow2ParentOfAnotherFormat(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "raw.img", make([]byte, mib))
	_, err := image.Open(imagetest.Rebase(t, dir, "lie.qcow2", "raw.img", "qcow2"), image.Options{})
	require.ErrorContains(t, err, "want qcow2 (given by its child)")
}

// A base that has a child is found out by the child's name for it.
func TestQcow2ChildrenAreSeen(t *testing.T) {
	dir := t.TempDir()
	base := filepath.Join(dir, "base.qcow2")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", base, "1M")
	imagetest.Rebase(t, dir, "child.qcow2", "base.qcow2", "qcow2")
	issues, err := imagetest.Open(t, base).Children()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	require.Contains(t, issues[0].Text, "child.qcow2")
}

func TestCorpusQcow2(t *testing.T) {
	for name, sum := range map[string]string{
		"dfvfs/ext2.qcow2.xz":      "a6c2f0e39afe6c6ab432ca5465349fcefe8dc944398e97b2d957d3f89dbb5d80",
		"dfvfs/lvm.qcow2.xz":       "a652bd8e068d83eb74647afbe542cba40a25479a18a91c637fab2c7858f8da20",
		"keramics/fat16.qcow2.xz":  "595dbba68a86eda08e9c4f9bd4c8716cbb579cb778df8b1bcd9b2157169a0665",
		"dfvfs/vsstest.qcow2.xz":   "5cba558cfac0916cae697d2231dc1e17874aa262f2890f5236fb9c90b9610d0a",
		"cdi/fs-overhead.qcow2.xz": "f2e7d09dcc87cf4a8f96989d6479bdf5545cf0c84f9d5ea4cee4c6d099cdae6d",
	} {
		t.Run(name, func(t *testing.T) {
			path := disktest.Corpus(t, name)
			img := imagetest.Open(t, path)
			if img.Disk.Size() > 64*mib && testing.Short() {
				t.Skip("a gigabyte is long")
			}
			h := sha256.New()
			_, err := io.Copy(h, io.NewSectionReader(img.Disk, 0, img.Disk.Size()))
			require.NoError(t, err)
			require.Equal(t, sum, hex.EncodeToString(h.Sum(nil)))
			imagetest.NoDamage(t, img)
		})
	}
}

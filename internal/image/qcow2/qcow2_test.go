package qcow2_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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

// qemuOptions are what qemu-img creates in different ways.
var qemuOptions = []string{
	"cluster_size=512", "cluster_size=4k", "cluster_size=64k", "cluster_size=2M", "compat=0.10",
	"compat=0.10,cluster_size=1k", "compat=1.1", "extended_l2=on", "extended_l2=on,cluster_size=16k",
	"extended_l2=on,cluster_size=2M", "preallocation=metadata", "preallocation=falloc", "preallocation=full",
	"preallocation=metadata,extended_l2=on", "lazy_refcounts=on", "refcount_bits=1", "refcount_bits=4",
	"refcount_bits=8", "refcount_bits=32", "refcount_bits=64", "compression_type=zstd",
}

func TestQcow2ByQemuImg(t *testing.T) {
	data := imagetest.Noise(1, 5*mib+3*sector)
	clear(data[2*mib : 4*mib+100])
	raw := imagetest.Write(t, t.TempDir(), "disk.img", data)
	for _, o := range qemuOptions {
		t.Run(o, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.qcow2")
			disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", o, raw, path)
			img := imagetest.Open(t, path)
			require.Equal(t, "qcow2", img.Format)
			disktest.CheckBytes(t, img.Disk, data)
			imagetest.NoDamage(t, img)
		})
	}
}

func TestCompressedQcow2ByQemuImg(t *testing.T) {
	data := imagetest.Noise(1, 5*mib+3*sector)
	copy(data[3*mib:], bytes.Repeat([]byte("packs well "), 100000))
	raw := imagetest.Write(t, t.TempDir(), "disk.img", data)
	for _, o := range []string{
		"cluster_size=512", "cluster_size=4k", "cluster_size=64k", "cluster_size=2M", "compat=0.10", "extended_l2=on",
		"compression_type=zstd,cluster_size=512", "compression_type=zstd", "compression_type=zstd,cluster_size=2M",
		"compression_type=zstd,extended_l2=on", "refcount_bits=16",
	} {
		t.Run(o, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.qcow2")
			disktest.Run(t, "qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", o, raw, path)
			img := imagetest.Open(t, path)
			disktest.CheckBytes(t, img.Disk, data)
			imagetest.NoDamage(t, img)
		})
	}
}

// qcow2Kinds are the subformats that are written.
var qcow2Kinds = []string{"v3", "v2", "compressed"}

// requireClean wants an image in which neither qemu-img nor we find anything, and not an unused cluster.
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

// writeQcow2 copies a disk to a qcow2 and holds the result against it, with our eyes and with qemu-img's.
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

// External data files, whose first cluster has data of the disk, read as qemu-img reads them.
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

// A name of an external data file leads to a plain file beside the image, and what QEMU refuses in one is refused.
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

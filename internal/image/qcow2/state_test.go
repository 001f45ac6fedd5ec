package qcow2_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// created is an empty image of qemu-img, with what qemu-io then does to it.
func created(t *testing.T, options, size string, commands ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", options, path, size)
	args := []string{"-f", "qcow2"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	if len(commands) > 0 {
		disktest.Run(t, "qemu-io", append(args, path)...)
	}
	return path
}

// Every state that a cluster or a subcluster can have, where no parent is.
func TestQcow2ClusterStates(t *testing.T) {
	commands := []string{
		"write -P 7 0 1M", "write -z 256k 512k", "write -P 9 300k 1k", "write -P 8 2M 64k", "discard 2M 64k",
		"write -c -P 6 3M 64k", "write -P 5 3100k 512", "write -z -u 4M 64k", "write -P 3 4095k 2k",
	}
	for _, o := range []string{
		"compat=1.1", "compat=0.10", "extended_l2=on", "extended_l2=on,cluster_size=16k", "lazy_refcounts=on",
		"preallocation=metadata",
		"preallocation=metadata,extended_l2=on", "preallocation=full", "preallocation=falloc,compat=0.10",
	} {
		t.Run(o, func(t *testing.T) {
			use := commands
			if o != "compat=1.1" {
				use = append(use[:5:5], commands[7:]...) // compressed writes need clusters of their own size
			}
			path := created(t, o, "5M", use...)
			img := imagetest.Open(t, path)
			disktest.CheckBytes(t, img.Disk, asRaw(t, path))
			imagetest.NoDamage(t, img)
		})
	}
}

// Marked zeros and holes need no reading, and are long.
func TestQcow2ZerosAreExtents(t *testing.T) {
	img := imagetest.Open(t,
		created(t, "compat=1.1", "64T", "write -P 7 0 1M", "write -z 256k 512k", "write -P 1 60T 64k"))
	for _, want := range []struct{ off, end int64 }{{256 * kib, 768 * kib}, {mib, 60 << 40}} {
		e, err := img.Disk.Extent(want.off, 64<<40-want.off)
		for err == nil && e.Zero && e.End() < want.end {
			n, err := img.Disk.Extent(e.End(), want.end-e.End())
			require.NoError(t, err)
			require.True(t, n.Zero)
			e.Len += n.Len
		}
		require.NoError(t, err)
		require.True(t, e.Zero)
		require.Equal(t, want.end, e.End())
	}
}

func TestQcow2Snapshots(t *testing.T) {
	path := created(t, "compat=1.1", "4M", "write -P 1 0 1M")
	for i := range 10 {
		disktest.Run(t, "qemu-img", "snapshot", "-c", fmt.Sprintf("state %d", i), path)
		disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", fmt.Sprintf("write -P %d %dk 100k", 20+i, 70*i), path)
	}
	img := imagetest.Open(t, path)
	disktest.CheckBytes(t, img.Disk, asRaw(t, path))
	require.Equal(t, []string{"qcow2-snapshots"}, imagetest.Codes(img.Issues, ondisk.Note))
	require.Contains(t, img.Issues[0].Text, "10 internal snapshots")
	require.Contains(t, img.Details, driver.Detail{Name: "snapshots", Value: "10"})
	require.Contains(t, fmt.Sprint(img.Details), `"state 7", id "8"`)
	require.NotContains(t, fmt.Sprint(img.Details), `"state 8"`)
	imagetest.NoDamage(t, img)
	copied := writeQcow2(t, img, "v3")
	require.Empty(t, copied.Issues)
}

// The clusters of a bitmap are no orphans.
func TestQcow2Bitmaps(t *testing.T) {
	path := created(t, "compat=1.1", "256M")
	disktest.Run(t, "qemu-img", "bitmap", "--add", "-f", "qcow2", path, "backup")
	disktest.Run(t, "qemu-img", "bitmap", "--add", "-g", "512", "-f", "qcow2", path, "second")
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write -P 1 0 9M", path)
	img := imagetest.Open(t, path)
	require.Equal(t, []string{"qcow2-bitmaps"}, imagetest.Codes(img.Issues, ondisk.Note))
	require.Contains(t, img.Issues[0].Text, "2 persistent bitmaps:")
	requireClean(t, img)
}

// The ranges of a bitmap are those that qemu-nbd serves of it.
func TestQcow2BitmapOfWrites(t *testing.T) {
	for _, granularity := range []string{"512", "64k", "1M"} {
		path := created(t, "compat=1.1,cluster_size=512", "9999872") // no multiple of 64 KiB
		disktest.Run(t, "qemu-img", "bitmap", "--add", "-g", "512", "-f", "qcow2", path, "other")
		disktest.Run(t, "qemu-img", "bitmap", "--add", "-g", granularity, "-f", "qcow2", path, "guest")
		disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write 0 512", "-c", "write 700k 2M",
			"-c", "write 9999360 512", path)
		b, err := imagetest.Open(t, path).Bitmap("guest")
		require.NoError(t, err)
		require.True(t, b.Consistent)
		require.Equal(t, servedBitmap(t, path, "guest"), b.Written)
		require.Greater(t, len(b.Written), 1)
		_, err = imagetest.Open(t, path).Bitmap("none")
		require.ErrorIs(t, err, ondisk.ErrReference)
	}
}

// servedBitmap returns the dirty ranges of a bitmap by qemu-nbd.
func servedBitmap(t *testing.T, path, name string) (written []disk.Range) {
	t.Helper()
	out := disktest.Run(t, "nbdinfo", "--json", "--map=qemu:dirty-bitmap:"+name, "--", "[", "qemu-nbd", "-r", "-f",
		"qcow2", "-B", name, path, "]")
	var extents []struct{ Offset, Length, Type int64 }
	require.NoError(t, json.Unmarshal([]byte(out), &extents))
	for _, e := range extents {
		if e.Type == 1 {
			written = disk.Append(written, disk.Range{Off: e.Offset, Len: e.Length})
		}
	}
	return written
}

// Each wrong field of a bitmap is refused, and a bitmap that was not saved has no ranges.
func TestQcow2DamagedBitmaps(t *testing.T) {
	path := created(t, "compat=1.1", "256M")
	disktest.Run(t, "qemu-img", "bitmap", "--add", "-f", "qcow2", path, "guest")
	disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", "write 0 9M", path)
	img := disktest.ReadFile(t, path)
	name := bytes.LastIndex(img, []byte("guest"))
	entry := int64(name) - 24
	table := int64(binary.BigEndian.Uint64(img[entry:]))
	for at, tc := range map[int64]struct { // fields by the specification, "Bitmap directory"
		put  []byte
		says string
	}{
		entry:      {[]byte{1}, "table offset"},
		entry + 11: {[]byte{2}, "bitmap_table_size"},
		entry + 16: {[]byte{7}, "type"},
		entry + 17: {[]byte{8}, "granularity_bits"},
		table:      {[]byte{0, 0xFF}, "entry"},
	} {
		broken := bytes.Clone(img)
		copy(broken[at:], tc.put)
		require.NoError(t, os.WriteFile(path, broken, 0o600))
		_, err := imagetest.Open(t, path).Bitmap("guest")
		require.ErrorIs(t, err, ondisk.ErrFormat, tc.says)
		require.ErrorContains(t, err, tc.says)
	}
	img[entry+15] |= 1 // in use
	require.NoError(t, os.WriteFile(path, img, 0o600))
	b, err := imagetest.Open(t, path).Bitmap("guest")
	require.NoError(t, err)
	require.False(t, b.Consistent)
	require.Empty(t, b.Written)
}

func TestQcow2IsRefusedByName(t *testing.T) {
	secret := "secret,id=s,data=abc123"
	dir := t.TempDir()
	for _, tc := range []struct {
		name  string
		args  []string
		class error
		says  string
	}{
		{
			"luks",
			[]string{"--object", secret, "-o", "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10"},
			ondisk.ErrUnsupported, "encryption LUKS",
		},
		{
			"aes",
			[]string{"--object", secret, "-o", "encrypt.format=aes,encrypt.key-secret=s"},
			ondisk.ErrUnsupported,
			"encryption AES",
		},
		{
			"data outside",
			[]string{"-o", "data_file=" + filepath.Join(t.TempDir(), "outside.raw")},
			ondisk.ErrReference, "outside.raw",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "luks" && testing.Short() {
				t.Skip("its key takes seconds to derive")
			}
			path := filepath.Join(dir, tc.name+".qcow2")
			disktest.RunLUKS(t, append(append([]string{"create", "-q", "-f", "qcow2"}, tc.args...), path, "1M")...)
			_, err := image.Open(path, image.Options{})
			require.ErrorContains(t, err, tc.says)
			require.ErrorIs(t, err, tc.class)
		})
	}
}

// The same job gives the same bytes, on any number of processors.
func TestQcow2IsDeterministic(t *testing.T) {
	data := imagetest.Noise(9, 9*mib)
	copy(data[2*mib:], bytes.Repeat([]byte("packs well "), 300000))
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", data))
	for _, kind := range qcow2Kinds {
		imagetest.SameBytes(t, src, "copy.qcow2", store.CreateOptions{Format: "qcow2", Subformat: kind})
	}
}

// A file that is not complete is no qcow2.
func TestUnfinishedQcow2IsNoImage(t *testing.T) {
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", imagetest.Noise(5, mib)))
	b := imagetest.Unfinished(t, src, t.TempDir(), "x.qcow2", store.CreateOptions{Format: "qcow2"})
	require.NotEmpty(t, b)
	require.False(t, bytes.HasPrefix(b, []byte("QFI")))
}

// What lies on a MiB of the disk lies on 4 KiB of the file, whatever the clusters of the source are.
func TestQcow2PlacesAreAligned(t *testing.T) {
	path := created(t, "cluster_size=512", "4M", "write -P 7 512 3M")
	img := writeQcow2(t, imagetest.Open(t, path), "v3")
	for off := int64(0); off < 3*mib; off += mib {
		run, err := img.Disk.(disk.Mapped).Run(off)
		require.NoError(t, err)
		require.Zero(t, run.Off%4096)
	}
}

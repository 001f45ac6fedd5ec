package vmdk_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

var streamed = store.CreateOptions{Format: "vmdk", Subformat: "streamOptimized", Seed: []byte("job")}

// requireStream wants a sound file of a disk.
func requireStream(t *testing.T, path string, want []byte) {
	t.Helper()
	img := imagetest.Open(t, path)
	require.Equal(t, "streamOptimized", img.Subformat)
	disktest.CheckBytes(t, img.Disk, want)
	imagetest.NoDamage(t, img)
}

func TestStreamOptimizedGrains(t *testing.T) {
	for _, grain := range []int64{8, 128, 2048} {
		for name, layout := range map[string]vmdkforge.StreamLayout{
			"tables behind the grains":                          {Grain: grain},
			"tables in front":                                   {Grain: grain, Front: true},
			"tables in front, the last grain cut with the disk": {Grain: grain, Front: true, Short: true},
			"tables behind, the last grain cut with the disk":   {Grain: grain, Short: true},
		} {
			t.Run(fmt.Sprintf("grains of %d sectors, %s", grain, name), func(t *testing.T) {
				data := imagetest.Noise(uint64(grain), 7*mib+3*sector)
				clear(data[mib : 6*mib+100]) // the second of four tables of small grains is empty
				requireStream(t, imagetest.Write(t, t.TempDir(), "disk.vmdk", vmdkforge.NewStream(data, layout).Bytes),
					data)
			})
		}
	}
}

// qemu-img writes two directories in front, and zeros behind the last grain instead of a marker of the end.
func TestStreamOptimizedByQemuImg(t *testing.T) {
	for _, size := range []int{5*mib + 3*sector, 40 * mib, 64 * kib, sector} {
		for name, data := range map[string][]byte{
			"data":  imagetest.Noise(uint64(size), size),
			"zeros": make([]byte, size),
		} {
			t.Run(fmt.Sprintf("%d bytes of %s", size, name), func(t *testing.T) {
				dir := t.TempDir()
				raw, path := imagetest.Write(t, dir, "disk.img", data), filepath.Join(dir, "disk.vmdk")
				disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized",
					raw, path)
				requireStream(t, path, data)
			})
		}
	}
}

// vmware-vdiskmanager's file. The hash is that of the corpus's README.
func TestStreamOptimizedByVMware(t *testing.T) {
	path := disktest.Corpus(t, "vmdk-rs/streamOptimized.vmdk.xz")
	img := imagetest.Open(t, path)
	data := make([]byte, img.Disk.Size())
	require.NoError(t, ondisk.ReadFull(img.Disk, data, 0))
	sum := sha256.Sum256(data)
	require.Equal(t, "a3bcf05f07a1c06a3380eeca8571f0efb2b85afafa1e21662b8cad436d1f7727", hex.EncodeToString(sum[:]))
	requireStream(t, path, data)
}

// What is written is taken by our own readers, by one that follows the specification with other means, and by qemu-img.
func TestStreamOptimizedIsWritten(t *testing.T) {
	for _, tc := range []struct {
		name string
		size int
		zero [][2]int
	}{
		{name: "not a whole number of grains", size: 3*mib + 5*sector},
		{name: "one sector", size: sector},
		{name: "empty", size: 10 * mib, zero: [][2]int{{0, 10 * mib}}},
		{
			name: "four tables, the second and the last without a grain", size: 120 * mib,
			zero: [][2]int{{mib, 70 * mib}, {80 * mib, 120 * mib}},
		},
		{name: "exactly one table", size: 32 * mib, zero: [][2]int{{mib, 31 * mib}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data := imagetest.Noise(uint64(tc.size), tc.size)
			for _, z := range tc.zero {
				clear(data[z[0]:z[1]])
			}
			dir := t.TempDir()
			src := imagetest.Open(t, imagetest.Write(t, dir, "src.img", data))
			var first []byte
			for _, jobs := range []int{1, 8} {
				path := filepath.Join(dir, "disk.vmdk")
				o := streamed
				o.Force = true
				require.NoError(t, imagetest.Fill(t, src, path, o, jobs).Publish())
				file := disktest.ReadFile(t, path)
				if first == nil {
					first = file
					requireStream(t, path, data)
					disktest.EqualBytes(t, data, vmdkforge.ReadStream(t, file))
					disktest.Run(t, "qemu-img", "check", path)
					disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", src.Path, path)
				}
				require.True(t, bytes.Equal(first, file), "the file depends on the number of workers")
			}
		})
	}
}

// A copy keeps the lines of the disk data base, and stays what its source was.
func TestStreamOptimizedCopyKeepsTheDescriptor(t *testing.T) {
	src := imagetest.Open(t, disktest.Corpus(t, "vmdk-rs/streamOptimized.vmdk.xz"))
	path := filepath.Join(t.TempDir(), "copy.vmdk")
	imagetest.Copy(t, src, path, store.CreateOptions{})
	require.Equal(t, "streamOptimized", imagetest.Open(t, path).Subformat)
	head := disktest.ReadFile(t, path)
	for _, line := range []string{
		`ddb.adapterType = "buslogic"`, `ddb.virtualHWVersion = "7"`, `ddb.deletable = "true"`,
		`ddb.geometry.heads = "4"`, `createType="streamOptimized"`, `RW 20480 SPARSE "copy.vmdk"`, "parentCID=ffffffff",
	} {
		require.Contains(t, string(head[512:11*kib]), line+"\n")
	}
	disktest.Run(t, "qemu-img", "compare", "-f", "vmdk", "-F", "vmdk", src.Path, path)
}

// The file is a VMDK only when it is complete: the header comes last.
func TestStreamOptimizedHeaderComesLast(t *testing.T) {
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", imagetest.Noise(1, 3*mib)))
	dir := t.TempDir()
	out, err := store.Create(filepath.Join(dir, "x.vmdk"), src.Disk.Size(), src, streamed)
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	_, err = diskcopy.Run(t.Context(), src.Disk, out, diskcopy.Options{Jobs: 2, Pack: out.Pack()})
	require.NoError(t, err)
	head := func() []byte {
		b := disktest.ReadFile(t, filepath.Join(dir, disktest.Names(t, dir)[0]))
		return b[:sector]
	}
	require.Equal(t, make([]byte, sector), head())
	require.NoError(t, out.Finish())
	require.Equal(t, "KDMV", string(head()[:4]))
}

// A disk of nothing has an empty directory and no table.
func TestStreamOptimizedOfAHugeDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "huge.img")
	f, err := os.Create(path)
	require.NoError(t, err)
	if err := f.Truncate(8 << 40); err != nil {
		t.Skipf("the file system takes no file of 8 TiB: %v", err)
	}
	_, err = f.WriteAt([]byte("the last sector"), 8<<40-sector)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	src := imagetest.Open(t, path)
	dest := filepath.Join(t.TempDir(), "huge.vmdk")
	imagetest.Copy(t, src, dest, streamed)
	st := disktest.Stat(t, dest)
	require.Less(t, st.Size(), int64(2*mib))
	img := imagetest.Open(t, dest)
	require.Equal(t, int64(8<<40), img.Disk.Size())
	e, err := img.Disk.Extent(0, 8<<40)
	require.NoError(t, err)
	require.True(t, e.Zero)
	b := make([]byte, 15)
	_, err = img.Disk.ReadAt(b, 8<<40-sector)
	require.NoError(t, err)
	require.Equal(t, "the last sector", string(b))
	disktest.Run(t, "qemu-img", "check", dest)
}

// Grains that no table names any more: qemu-img marks a written grain as zeros and leaves the old one where it was.
func TestOrphanedGrains(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.vmdk")
	disktest.Run(t, "qemu-img", "create", "-f", "vmdk", "-o", "zeroed_grain=on", path, "4M")
	disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", "write -P 7 0 1M", path)
	imagetest.NoDamage(t, imagetest.Open(t, path))
	disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", "write -z 256k 512k", path)
	issues, err := imagetest.Open(t, path).Check()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	require.Equal(t, "orphaned-data", issues[0].Code)
	require.Contains(t, issues[0].Text, "8 grains (512 KiB)")
}

package vmdk_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

var streamed = store.CreateOptions{Format: "vmdk", Subformat: "streamOptimized", Seed: []byte("job")}

// requireStream requires a streamOptimized file without damage, with the bytes of a disk.
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

// qemu-img writes two directories at the start, and zeros after the last grain in place of an end marker.
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

// Our output is read by our own readers, by an independent one written from the specification, and by qemu-img.
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

// A copy keeps the lines of the disk data base, and the format of its source.
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

// Unreferenced grains: qemu-img marks a written grain as zeros and leaves the old data.
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

// A copy keeps the grain size of its source, down to the 4 KiB grains of linked clones.
func TestSparseCopiesKeepTheGrain(t *testing.T) {
	for _, grain := range []int64{8, 128, 2048} {
		data := imagetest.Noise(uint64(grain), 5*mib+3*sector)
		clear(data[2*mib : 4*mib+100])
		v := vmdkforge.NewSparseOf(data, vmdkforge.SparseLayout{Grain: grain, Short: true})
		src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.vmdk", v.Bytes))
		path := filepath.Join(t.TempDir(), "copy.vmdk")
		imagetest.Copy(t, src, path, store.CreateOptions{})
		head := disktest.ReadFile(t, path)
		require.Equal(t, uint64(grain), binary.LittleEndian.Uint64(head[vmdkforge.GrainSize:]))
		img := imagetest.Open(t, path)
		disktest.CheckBytes(t, img.Disk, data)
		imagetest.NoDamage(t, img)
		disktest.Run(t, "qemu-img", "check", path)
		disktest.Run(t, "qemu-img", "compare", "-f", "vmdk", "-F", "vmdk", src.Path, path)
	}
}

// The same job writes the same bytes, on any number of processors.
func TestOutputIsDeterministic(t *testing.T) {
	data := imagetest.Noise(9, 6*mib)
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.vmdk", vmdkforge.NewSparse(data).Bytes))
	kinds := slices.Clone(imagetest.Kinds)
	for i := range kinds {
		kinds[i].Seed = []byte("job")
	}
	imagetest.SameBytes(t, src, "copy.vmdk", kinds...)
}

// vmwareSplit is VMware's extent size, in bytes: descriptors of its disks contain `RW 4192256 SPARSE "…-s001.vmdk"`.
const vmwareSplit = 4192256 * sector

// splitRaw is a raw file of size bytes with 200 KiB of data at each of the offsets.
func splitRaw(t *testing.T, size int64, at ...int64) string {
	t.Helper()
	path := disktest.Blank(t, "src.img", size)
	for i, off := range at {
		disktest.WriteAt(t, path, off, imagetest.Noise(uint64(i), int(min(200*kib, size-off))))
	}
	return path
}

// Extents are split where VMware splits them, with data on both sides of a border.
func TestWrittenSplitDisks(t *testing.T) {
	const size = 5<<30 + 7*sector
	src := imagetest.Open(t, splitRaw(t, size, 0, vmwareSplit-100*kib, 2*vmwareSplit-sector, 4<<30, size-3*sector))
	for kind, c := range map[string]struct{ line, word string }{
		"twoGbMaxExtentSparse": {`RW %d SPARSE "disk-s%03d.vmdk"`, "s"},
		"twoGbMaxExtentFlat":   {`RW %d FLAT "disk-f%03d.vmdk" 0`, "f"},
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "disk.vmdk")
			imagetest.Copy(t, src, path, store.CreateOptions{Format: "vmdk", Subformat: kind})
			text := disktest.ReadFile(t, path)
			for i, n := range []int64{vmwareSplit, vmwareSplit, size - 2*vmwareSplit} {
				require.Contains(t, string(text), fmt.Sprintf(c.line, n/sector, i+1)+"\n")
			}
			img := imagetest.Open(t, path)
			require.Equal(t, kind, img.Subformat)
			if img.Check != nil {
				imagetest.NoDamage(t, img)
			}
			var stored int64
			for _, f := range img.Files() {
				stored += f.Allocated
			}
			require.Less(t, stored, int64(8*mib))
			disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", src.Path, path)
			if c.word == "s" {
				disktest.Run(t, "qemu-img", "check", "-f", "vmdk", path)
				// The header of an extent equals VMware's, except for the fields that depend on its size.
				theirs := disktest.ReadFile(t, disktest.Corpus(t, "vmdk-rs/twoGbMaxExtentSparse-s001.vmdk.xz"))[:512]
				ours := disktest.ReadFile(t, filepath.Join(dir, "disk-s001.vmdk"))[:512]
				for _, b := range [][]byte{theirs, ours} {
					clear(b[vmdkforge.Capacity:vmdkforge.GrainSize])
					clear(b[vmdkforge.GDOffset:vmdkforge.UncleanShutdown])
				}
				require.Equal(t, theirs, ours)
			}
			again := filepath.Join(t.TempDir(), "raw.img")
			imagetest.Copy(t, img, again, store.CreateOptions{Format: "raw"})
			disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", src.Path, again)
		})
	}
}

// A copy of a split disk is one, with grains of the same size.
func TestSplitCopiesKeepSubformatAndGrain(t *testing.T) {
	dir := t.TempDir()
	data := imagetest.Noise(8, 3*mib)
	l := vmdkforge.SparseLayout{Grain: 16, Short: true, Extent: true}
	vmdkforge.NewSparseOf(data, l).Write(t, filepath.Join(dir, "a-s001.vmdk"))
	src := imagetest.Open(t, imagetest.Write(t, dir, "a.vmdk",
		[]byte(vmdkforge.Descriptor("twoGbMaxExtentSparse", `RW 6144 SPARSE "a-s001.vmdk"`))))
	out := t.TempDir()
	imagetest.Copy(t, src, filepath.Join(out, "b.vmdk"), store.CreateOptions{})
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(out, "b.vmdk")).Disk, data)
	head := disktest.ReadFile(t, filepath.Join(out, "b-s001.vmdk"))
	require.Equal(t, uint64(16), binary.LittleEndian.Uint64(head[vmdkforge.GrainSize:]))
}

func TestSplitDisksHaveALimit(t *testing.T) {
	for _, kind := range []string{"twoGbMaxExtentSparse", "twoGbMaxExtentFlat"} {
		src := imagetest.Open(t, splitRaw(t, 512*vmwareSplit+sector))
		dir := t.TempDir()
		_, err := store.Create(filepath.Join(dir, "disk.vmdk"), src.Disk.Size(), src,
			store.CreateOptions{Format: "vmdk", Subformat: kind})
		require.ErrorIs(t, err, ondisk.ErrLimit)
		require.ErrorContains(t, err, "monolithicSparse")
		require.Empty(t, disktest.Names(t, dir))
	}
}

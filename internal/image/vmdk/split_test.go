package vmdk_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// vmwareSplit is where VMware cuts, in bytes: descriptors of its own disks say `RW 4192256 SPARSE "…-s001.vmdk"`.
const vmwareSplit = 4192256 * sector

// splitRaw is a raw file of size bytes that has data at each of some offsets, 200 KiB of it.
func splitRaw(t *testing.T, size int64, at ...int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "src.img")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	for i, off := range at {
		_, err := f.WriteAt(imagetest.Noise(uint64(i), int(min(200*kib, size-off))), off)
		require.NoError(t, err)
	}
	return path
}

// The name of a later extent appears while the copy runs: those in front of it are taken back, and it stays.
func TestAnExtentThatAppearsMeanwhileIsKept(t *testing.T) {
	src := imagetest.Open(t, splitRaw(t, 5<<30, 0))
	dir := t.TempDir()
	out := imagetest.Fill(t, src, filepath.Join(dir, "out.vmdk"),
		store.CreateOptions{Format: "vmdk", Subformat: "twoGbMaxExtentSparse"}, 2)
	imagetest.Write(t, dir, "out-s002.vmdk", []byte("precious"))
	require.ErrorIs(t, out.Publish(), ondisk.ErrOutput)
	require.NoError(t, out.Discard())
	require.Equal(t, []string{"out-s002.vmdk"}, disktest.Names(t, dir))
	b := disktest.ReadFile(t, filepath.Join(dir, "out-s002.vmdk"))
	require.Equal(t, "precious", string(b))
}

// Extents are cut where VMware cuts them, and data lies on both sides of a border.
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
				// The header of an extent equals VMware's, but for the fields that depend on its size.
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
	f := forge.Bytes(sparseImage{grain: 16}.forge(data))
	clear(f[sector : 21*sector])
	f.Write(t, filepath.Join(dir, "a-s001.vmdk"))
	src := imagetest.Open(t, imagetest.Write(t, dir, "a.vmdk",
		[]byte(vmdkforge.Descriptor("twoGbMaxExtentSparse", `RW 6144 SPARSE "a-s001.vmdk"`))))
	out := t.TempDir()
	imagetest.Copy(t, src, filepath.Join(out, "b.vmdk"), store.CreateOptions{})
	disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(out, "b.vmdk")).Disk, data)
	head := disktest.ReadFile(t, filepath.Join(out, "b-s001.vmdk"))
	require.Equal(t, uint64(16), binary.LittleEndian.Uint64(head[vmdkforge.GrainSize:]))
}

// A split disk takes the place of another: the old extents go, once the new ones have their names.
func TestSplitDiskReplacesAnother(t *testing.T) {
	src := imagetest.Open(t, splitRaw(t, 3<<30, 0, 2<<30))
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.vmdk")
	for _, kind := range []string{
		"twoGbMaxExtentSparse", "twoGbMaxExtentSparse", "twoGbMaxExtentFlat",
		"twoGbMaxExtentSparse",
	} {
		imagetest.Copy(t, src, path, store.CreateOptions{Format: "vmdk", Subformat: kind, Force: true})
		require.Len(t, disktest.Names(t, dir), 3, "%v", disktest.Names(t, dir))
		disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", src.Path, path)
	}
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

package vmdk_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	sector = 512
	kib    = 1 << 10
	mib    = 1 << 20
)

// agrees compares an image with its contents, and with what qemu-img reads.
func agrees(t *testing.T, path string, want []byte) *image.Image {
	t.Helper()
	img := imagetest.Open(t, path)
	disktest.CheckBytes(t, img.Disk, want)
	imagetest.NoDamage(t, img)
	qemuReads(t, path, want)
	return img
}

func qemuReads(t *testing.T, path string, want []byte) {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "raw.img")
	disktest.Run(t, "qemu-img", "convert", "-f", "vmdk", "-O", "raw", path, raw)
	got := disktest.ReadFile(t, raw)
	require.True(t, bytes.Equal(want, got), "qemu-img reads other bytes")
}

// childText is the descriptor of a snapshot in the style of ESXi: without geometry and adapter.
func childText(createType, cid, parentCID, parent, extent string) string {
	return fmt.Sprintf(`# Disk DescriptorFile
version=1
encoding="UTF-8"
CID=%s
parentCID=%s
isNativeSnapshot="no"
createType="%s"
parentFileNameHint="%s"
# Extent description
%s

# The Disk Data Base
#DDB

ddb.longContentID = "0123456789abcdef0123456789abcdef"
`, cid, parentCID, createType, parent, extent)
}

// baseCID is the CID that vmdkforge.Descriptor gives.
const baseCID = "4a5b6c7d"

// VMware's split disk has the same content as its monolithicFlat one.
func TestCorpusSplitDisk(t *testing.T) {
	dir := disktest.CorpusSet(t, "vmdk-rs")
	want := disktest.ReadFile(t, filepath.Join(dir, "monolithicFlat-flat.vmdk"))
	img := agrees(t, filepath.Join(dir, "twoGbMaxExtentSparse.vmdk"), want)
	require.Equal(t, "twoGbMaxExtentSparse", img.Subformat)
}

func TestSplitDisksByQemuImg(t *testing.T) {
	for _, sub := range []string{"twoGbMaxExtentSparse", "twoGbMaxExtentFlat"} {
		t.Run(sub, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "disk.vmdk")
			disktest.Run(t, "qemu-img", "create", "-f", "vmdk", "-o", "subformat="+sub, path, "5G")
			// Around the border of the first two extents, and at both ends.
			disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", "write -P 1 0 70k", "-c", "write -P 2 2097100k 100k", "-c",
				"write -P 3 5242879k 1k", path)
			img := imagetest.Open(t, path)
			require.Equal(t, sub, img.Subformat)
			require.Len(t, img.Files(), 4)
			require.Equal(t, int64(5<<30), img.Disk.Size())
			read := func(off, n int64) []byte {
				b := make([]byte, n)
				require.NoError(t, ondisk.ReadFull(img.Disk, b, off))
				return b
			}
			require.Equal(t, append(bytes.Repeat([]byte{1}, 70*kib), 0), read(0, 70*kib+1))
			want := bytes.Repeat([]byte{2}, 102*kib)
			clear(want[:kib])
			clear(want[101*kib:])
			require.Equal(t, want, read(2097099*kib, 102*kib))
			require.Equal(t, bytes.Repeat([]byte{3}, kib), read(5<<30-kib, kib))
			e, err := img.Disk.Extent(mib, 1<<30)
			require.NoError(t, err)
			require.True(t, e.Zero)
			if img.Check != nil {
				imagetest.NoDamage(t, img)
			}
		})
	}
}

// Every extent has its own grain size. qemu-img 7.2 reads past the end of an extent whose last grain is truncated, so
// it is used only if all are whole.
func TestExtentsOfDifferentGrains(t *testing.T) {
	for _, odd := range []int{0, 7 * sector} {
		dir := t.TempDir()
		var lines []string
		var want []byte
		for i, grain := range []int64{8, 128, 2048} {
			data := imagetest.Noise(uint64(i), 3*mib+int(grain)*sector+odd)
			clear(data[mib : 2*mib])
			name := fmt.Sprintf("disk-s%03d.vmdk", i+1)
			l := vmdkforge.SparseLayout{Grain: grain, Short: true, Single: i == 0, Extent: true}
			vmdkforge.NewSparseOf(data, l).Write(t, filepath.Join(dir, name))
			lines = append(lines, fmt.Sprintf(`RW %d SPARSE "%s"`, len(data)/sector, name))
			want = append(want, data...)
		}
		path := imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor("twoGbMaxExtentSparse", lines...)))
		disktest.CheckBytes(t, imagetest.Open(t, path).Disk, want)
		if odd == 0 {
			agrees(t, path, want)
		}
	}
}

// More extents than files may be open at once, of both imagetest.Kinds.
func TestManyExtents(t *testing.T) {
	for kind, word := range map[string]string{"twoGbMaxExtentFlat": "FLAT", "twoGbMaxExtentSparse": "SPARSE"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			var lines []string
			var want []byte
			for i := range 300 {
				data := imagetest.Noise(uint64(i), 16*sector)
				name := fmt.Sprintf("disk-%03d.bin", i)
				line := fmt.Sprintf(`RW 16 %s "%s"`, word, name)
				if word == "FLAT" {
					imagetest.Write(t, dir, name, data)
					line += " 0"
				} else {
					l := vmdkforge.SparseLayout{Grain: 8, Short: true, Single: true, Extent: true}
					vmdkforge.NewSparseOf(data, l).Write(t, filepath.Join(dir, name))
				}
				lines, want = append(lines, line), append(want, data...)
			}
			img := imagetest.Open(t, imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor(kind, lines...))))
			require.Len(t, img.Files(), 301)
			disktest.CheckBytes(t, img.Disk, want)
			if img.Check != nil {
				imagetest.NoDamage(t, img)
			}
		})
	}
}

// All createTypes of ESXi whose extents are flat are copied as vmfs.
func TestFlatTypesOfESXi(t *testing.T) {
	for _, kind := range []string{"vmfsThin", "vmfsPreallocated", "vmfsEagerZeroedThick"} {
		dir := t.TempDir()
		data := imagetest.Noise(6, 200*sector)
		imagetest.Write(t, dir, "disk-flat.vmdk", data)
		img := imagetest.Open(t,
			imagetest.Write(t, dir, "disk.vmdk", []byte(vmdkforge.Descriptor(kind, `RW 200 VMFS "disk-flat.vmdk"`))))
		require.Equal(t, "vmfs", img.Subformat)
		disktest.CheckBytes(t, img.Disk, data)
		path := filepath.Join(t.TempDir(), "copy.vmdk")
		imagetest.Copy(t, img, path, store.CreateOptions{})
		text := disktest.ReadFile(t, path)
		require.Contains(t, string(text), `createType="vmfs"`)
	}
}

func TestCOWD(t *testing.T) {
	for _, grain := range []int64{1, 8, 128} {
		// With grains of one sector, there are tables for 2 MiB each, the second of which is missing.
		data := imagetest.Noise(uint64(grain), 7*mib+5*sector)
		clear(data[2*mib : 4*mib])
		dir := t.TempDir()
		vmdkforge.NewCOWD(data, grain, nil).Write(t, filepath.Join(dir, "disk-delta.vmdk"))
		text := vmdkforge.Descriptor("vmfsSparse", fmt.Sprintf(`RW %d VMFSSPARSE "disk-delta.vmdk"`, len(data)/sector))
		img := agrees(t, imagetest.Write(t, dir, "disk.vmdk", []byte(text)), data)
		require.Equal(t, "vmfsSparse", img.Subformat)
		require.False(t, img.Child)
	}
}

func TestSESparse(t *testing.T) {
	// Grain numbers around 2^12, where the bits of an entry change position, and three tables, the second all holes.
	for _, first := range []int64{0, 4090} {
		data := imagetest.Noise(uint64(first), 34*mib+5*sector)
		clear(data[15*mib : 33*mib])
		dir := t.TempDir()
		vmdkforge.NewSESparse(data, first, nil).Write(t, filepath.Join(dir, "disk-sesparse.vmdk"))
		text := vmdkforge.Descriptor("seSparse", fmt.Sprintf(`RW %d SESPARSE "disk-sesparse.vmdk"`, len(data)/sector))
		img := agrees(t, imagetest.Write(t, dir, "disk.vmdk", []byte(text)), data)
		require.Equal(t, "seSparse", img.Subformat)
	}
}

// An ESXi snapshot on another on a flat disk: each kind of grain hides or shows the data below it.
func TestChainOfESXi(t *testing.T) {
	const size = 2 * mib
	base, middle, top := imagetest.Noise(1, size), imagetest.Noise(2, size), imagetest.Noise(3, size)
	inMiddle := func(i int64) bool { return i%3 == 0 }
	kind := func(i int64) vmdkforge.SEKind { return vmdkforge.SEKind(i * 7 % 11 % 4) }
	want := bytes.Clone(base)
	for i := range int64(size / sector) {
		if inMiddle(i) {
			copy(want[i*sector:(i+1)*sector], middle[i*sector:])
		}
	}
	wantMiddle := bytes.Clone(want)
	for i := range int64(size / vmdkforge.SEGrain) {
		grain := want[i*vmdkforge.SEGrain : (i+1)*vmdkforge.SEGrain]
		switch kind(i) {
		case vmdkforge.SEStored:
			copy(grain, top[i*vmdkforge.SEGrain:])
		case vmdkforge.SEZero, vmdkforge.SEUnmapped:
			clear(grain)
		case vmdkforge.SEAbsent: // shows the data below
		}
	}
	dir := t.TempDir()
	imagetest.Write(t, dir, "vm-flat.vmdk", base)
	imagetest.Write(t, dir, "vm.vmdk",
		[]byte(vmdkforge.Descriptor("vmfs", fmt.Sprintf(`RW %d VMFS "vm-flat.vmdk"`, size/sector))))
	vmdkforge.NewCOWD(middle, 1, inMiddle).Write(t, filepath.Join(dir, "vm-000001-delta.vmdk"))
	child := imagetest.Write(t, dir, "vm-000001.vmdk", []byte(childText("vmfsSparse", "00000001", baseCID, "vm.vmdk",
		fmt.Sprintf(`RW %d VMFSSPARSE "vm-000001-delta.vmdk"`, size/sector))))
	vmdkforge.NewSESparse(top, 0, kind).Write(t, filepath.Join(dir, "vm-000002-sesparse.vmdk"))
	grandchild := imagetest.Write(t, dir, "vm-000002.vmdk", []byte(childText("seSparse", "00000002", "00000001",
		"vm-000001.vmdk", fmt.Sprintf(`RW %d SESPARSE "vm-000002-sesparse.vmdk"`, size/sector))))

	img := agrees(t, child, wantMiddle)
	require.Equal(t, "00000001", img.ContentID)
	img = agrees(t, grandchild, want)
	require.True(t, img.Child)
	require.Len(t, img.Chain, 2)
	require.Equal(t, 63, img.Sectors, "the geometry of the base")

	// A copy is complete, and has the adapter and the geometry of the base.
	path := filepath.Join(t.TempDir(), "copy.vmdk")
	imagetest.Copy(t, img, path, store.CreateOptions{Subformat: "monolithicFlat"})
	flat := imagetest.Open(t, path)
	require.False(t, flat.Child)
	disktest.CheckBytes(t, flat.Disk, want)
	text := disktest.ReadFile(t, path)
	require.Contains(t, string(text), "parentCID=ffffffff")
	require.NotContains(t, string(text), "parentFileNameHint")
	require.Contains(t, string(text), `ddb.adapterType = "ide"`)
	require.Contains(t, string(text), `ddb.geometry.sectors = "63"`)
	qemuReads(t, path, want)
}

// qemuChain makes n disks of 8 MiB, each based on the preceding one, and returns their paths and the content of the
// last.
func qemuChain(t *testing.T, dir, subformat string, n int) (paths []string, want []byte) {
	t.Helper()
	want = make([]byte, 8*mib)
	for i := range n {
		path := filepath.Join(dir, fmt.Sprintf("disk%d.vmdk", i))
		args := []string{"create", "-q", "-f", "vmdk", "-o", "subformat=" + subformat}
		if i > 0 {
			args = append(args, "-b", filepath.Join(dir, fmt.Sprintf("disk%d.vmdk", i-1)), "-F", "vmdk")
		}
		args = append(args, path)
		if i == 0 {
			args = append(args, "8M")
		}
		disktest.Run(t, "qemu-img", args...)
		off := i % 10 * 700
		disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", fmt.Sprintf("write -P %d %dk 900k", i+1, off), path)
		copy(want[off*kib:], bytes.Repeat([]byte{byte(i + 1)}, 900*kib))
		paths = append(paths, path)
	}
	return paths, want
}

func TestChainsByQemuImg(t *testing.T) {
	for _, sub := range []string{"monolithicSparse", "twoGbMaxExtentSparse"} {
		t.Run(sub, func(t *testing.T) {
			paths, want := qemuChain(t, t.TempDir(), sub, 3)
			img := agrees(t, paths[2], want)
			require.True(t, img.Child)
			require.Len(t, img.Chain, 2)
			require.Equal(t, "disk1.vmdk", img.Chain[0].Name)
			require.Equal(t, imagetest.Open(t, paths[1]).ContentID, img.Chain[0].ContentID)
			require.False(t, imagetest.Open(t, paths[0]).Child)
			// The chain is moved to another folder as a whole, so its paths are wrong.
			moved := t.TempDir()
			require.NoError(t, os.CopyFS(moved, os.DirFS(filepath.Dir(paths[0]))))
			disktest.CheckBytes(t, imagetest.Open(t, filepath.Join(moved, "disk2.vmdk")).Disk, want)
		})
	}
}

// A child that marks grains as zeros hides the parent's data there.
func TestZeroedGrainsHideTheParent(t *testing.T) {
	dir := t.TempDir()
	base, top := filepath.Join(dir, "base.vmdk"), filepath.Join(dir, "top.vmdk")
	disktest.Run(t, "qemu-img", "create", "-f", "vmdk", base, "4M")
	disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", "write -P 7 0 4M", base)
	disktest.Run(t, "qemu-img", "create", "-f", "vmdk", "-o", "zeroed_grain=on", "-b", base, "-F", "vmdk", top)
	disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", "write -z 256k 512k", "-c", "write -P 9 1M 64k", top)
	want := bytes.Repeat([]byte{7}, 4*mib)
	clear(want[256*kib : 768*kib])
	copy(want[mib:], bytes.Repeat([]byte{9}, 64*kib))
	agrees(t, top, want)
}

// A child whose descriptor does not lead to its parent is refused. The other faults of a chain do not depend on the
// format: internal/image tests them.
func TestChildrenWithoutAParent(t *testing.T) {
	dir := t.TempDir()
	data := imagetest.Noise(1, 64*sector)
	imagetest.Write(t, dir, "x-flat.vmdk", data)
	vmdkforge.NewCOWD(data, 1, nil).Write(t, filepath.Join(dir, "x-delta.vmdk"))
	flat := childText("vmfs", "00000001", "00000002", "y.vmdk", `RW 64 VMFS "x-flat.vmdk"`)
	_, err := image.Open(imagetest.Write(t, dir, "x.vmdk", []byte(flat)), image.Options{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, `"y.vmdk"`)
	sparse := childText("vmfsSparse", "00000001", "00000002", "y.vmdk", `RW 64 VMFSSPARSE "x-delta.vmdk"`)
	nameless := strings.Replace(sparse, "parentFileNameHint", "#arentFileNameHint", 1)
	_, err = image.Open(imagetest.Write(t, dir, "x.vmdk", []byte(nameless)), image.Options{})
	imagetest.RefusesReference(t, err, "no parentFileNameHint names the parent")
}

// A child can be larger than its parent: data after the parent's end are zero. It can be smaller too.
func TestChildrenOfOtherSizes(t *testing.T) {
	for _, size := range []int{3 * mib, mib + 3*sector} {
		dir := t.TempDir()
		base, own := imagetest.Noise(1, 2*mib), imagetest.Noise(2, size)
		imagetest.Write(t, dir, "vm-flat.vmdk", base)
		imagetest.Write(t, dir, "vm.vmdk", []byte(vmdkforge.Descriptor("vmfs", `RW 4096 VMFS "vm-flat.vmdk"`)))
		stored := func(i int64) bool { return i%5 == 2 }
		vmdkforge.NewCOWD(own, 8, stored).Write(t, filepath.Join(dir, "delta.vmdk"))
		want := make([]byte, size)
		copy(want, base)
		for i := range int64(size / (8 * sector)) {
			if stored(i) {
				copy(want[i*8*sector:(i+1)*8*sector], own[i*8*sector:])
			}
		}
		path := imagetest.Write(t, dir, "child.vmdk", []byte(childText("vmfsSparse", "00000001", baseCID, "vm.vmdk",
			fmt.Sprintf(`RW %d VMFSSPARSE "delta.vmdk"`, size/sector))))
		disktest.CheckBytes(t, imagetest.Open(t, path).Disk, want)
	}
}

// A child can be split into other extents than its parent.
func TestChildOfSeveralExtents(t *testing.T) {
	dir := t.TempDir()
	base, own := imagetest.Noise(1, 96*sector), imagetest.Noise(2, 96*sector)
	imagetest.Write(t, dir, "vm-flat.vmdk", base)
	imagetest.Write(t, dir, "vm.vmdk", []byte(vmdkforge.Descriptor("vmfs", `RW 96 VMFS "vm-flat.vmdk"`)))
	odd := func(i int64) bool { return i%2 == 1 }
	vmdkforge.NewCOWD(own[:40*sector], 1, odd).Write(t, filepath.Join(dir, "a.bin"))
	vmdkforge.NewCOWD(own[40*sector:], 1, odd).Write(t, filepath.Join(dir, "b.bin"))
	want := bytes.Clone(base)
	for i := 1; i < 96; i += 2 {
		copy(want[i*sector:(i+1)*sector], own[i*sector:])
	}
	lines := "RW 40 VMFSSPARSE \"a.bin\"\nRW 56 VMFSSPARSE \"b.bin\""
	agrees(t, imagetest.Write(t, dir, "child.vmdk",
		[]byte(childText("vmfsSparse", "00000001", baseCID, "vm.vmdk", lines))), want)
}

// An extent of 2 GB looks like a disk: it even has a partition table.
func TestOwnerOfAFlatExtent(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "disk.vmdk",
		[]byte(vmdkforge.Descriptor("twoGbMaxExtentFlat", `RW 64 FLAT "disk-f001.vmdk" 0`)))
	for name, owned := range map[string]bool{
		"disk-f001.vmdk": true, "disk-flat.vmdk": true, "disk-f1.vmdk": false,
		"other-f001.vmdk": false,
	} {
		issues, err := imagetest.Open(t, imagetest.Write(t, dir, name, imagetest.Noise(1, 64*sector))).Owner()
		require.NoError(t, err)
		require.Equal(t, owned, len(issues) == 1, name)
	}
}

// All missing extents of a disk are named at once, not the first alone.
func TestMissingExtents(t *testing.T) {
	for kind, line := range map[string]string{
		"twoGbMaxExtentSparse": `RW 8 SPARSE "d-s%03d.vmdk"`, "twoGbMaxExtentFlat": `RW 8 FLAT "d-s%03d.vmdk" 0`,
	} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			var lines []string
			for i := range 20 {
				lines = append(lines, fmt.Sprintf(line, i+1))
			}
			path := imagetest.Write(t, dir, "d.vmdk", []byte(vmdkforge.Descriptor(kind, append(lines, "RW 8 ZERO")...)))
			missing := func(n int, rest string) {
				t.Helper()
				_, err := image.Open(path, image.Options{})
				require.ErrorIs(t, err, os.ErrNotExist)
				require.ErrorContains(t, err, `extent 0: file "d-s001.vmdk": `)
				if n == 1 {
					require.NotContains(t, err.Error(), "missing")
					return
				}
				require.ErrorContains(t, err, fmt.Sprintf(
					`; %d of its 20 files are missing: "d-s001.vmdk", "d-s002.vmdk"`, n))
				require.True(t, strings.HasSuffix(err.Error(), rest), err.Error())
			}
			missing(20, `"d-s016.vmdk" and 4 more`)
			for i := 20; i > 3; i-- {
				imagetest.Write(t, dir, fmt.Sprintf("d-s%03d.vmdk", i), make([]byte, 4096))
			}
			missing(3, `: "d-s001.vmdk", "d-s002.vmdk", "d-s003.vmdk"`)
			imagetest.Write(t, dir, "d-s002.vmdk", make([]byte, 4096))
			imagetest.Write(t, dir, "d-s003.vmdk", make([]byte, 4096))
			missing(1, "")
		})
	}
}

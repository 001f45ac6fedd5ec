package vmdk_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
)

// Extents in every mixture that a descriptor can have: qemu-img 7.2 skips some of these lines, so that what follows is
// shifted; here each line counts.
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

// sparseImage says how forge lays a disk out.
type sparseImage struct {
	grain     int64 // sectors
	zeroed    bool  // grains of zeros get entry 1 instead of 0
	redundant bool
	backwards bool // the last grain of the disk comes first in the file
}

// forge writes a monolithicSparse file from the specification, as vmdkforge.NewSparse does, for all sizes of
// grains and with grains left out: tables without a grain are not there either. Spec: Virtual Disk Format 1.1, "Hosted
// Sparse Extents".
func (s sparseImage) forge(disk []byte) []byte {
	grains := (int64(len(disk)) + s.grain*sector - 1) / (s.grain * sector)
	tables := (grains + 511) / 512
	gdSectors := (4*tables + sector - 1) / sector
	rgd := int64(1 + textSectors)
	gd := rgd + gdSectors + 4*tables
	f := s.header(int64(len(disk))/sector, rgd, gd, gd+gdSectors+4*tables)
	entry := func(g int64, v uint32) {
		for _, d := range []int64{rgd, gd} {
			table := d + gdSectors + g/512*4
			f.U32(d*sector+g/512*4, uint32(table))
			f.U32(table*sector+g%512*4, v)
		}
	}
	for i := range grains {
		g := i
		if s.backwards {
			g = grains - 1 - i
		}
		data := disk[g*s.grain*sector : min((g+1)*s.grain*sector, int64(len(disk)))]
		if len(bytes.Trim(data, "\x00")) > 0 {
			entry(g, uint32(len(f)/sector))
			// The file may end with the last grain cut at the disk's end.
			f = append(f, data...)
			if i < grains-1 {
				f = append(f, make([]byte, int(s.grain*sector)-len(data))...)
			}
		} else if s.zeroed {
			entry(g, 1)
		}
	}
	return f
}

// textSectors is the space for the descriptor, in sectors; it begins in sector 1.
const textSectors = 20

// header is a file up to its first grain. All arguments are in sectors.
func (s sparseImage) header(capacity, rgd, gd, end int64) forge.Bytes {
	overhead := (end + s.grain - 1) / s.grain * s.grain
	f := forge.Bytes(make([]byte, overhead*sector))
	f.Text(0, "KDMV")
	f.U32(vmdkforge.Version, 1)
	flags := uint32(1)
	if s.zeroed {
		flags |= 4
		f.U32(vmdkforge.Version, 2)
	}
	if s.redundant {
		flags |= 2
		f.U64(vmdkforge.RGDOffset, uint64(rgd))
	}
	f.U32(vmdkforge.Flags, flags)
	f.U64(vmdkforge.Capacity, uint64(capacity))
	f.U64(vmdkforge.GrainSize, uint64(s.grain))
	f.U64(vmdkforge.DescriptorOffset, 1)
	f.U64(vmdkforge.DescriptorSize, textSectors)
	f.U32(vmdkforge.NumGTEs, 512)
	f.U64(vmdkforge.GDOffset, uint64(gd))
	f.U64(vmdkforge.OverHead, uint64(overhead))
	f.Text(vmdkforge.NewLine, "\n \r\n")
	f.Text(sector, vmdkforge.Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, capacity)))
	return f
}

func TestSparseGrains(t *testing.T) {
	for _, grain := range []int64{8, 64, 2048} {
		for name, layout := range map[string]sparseImage{
			"as VMware writes it":          {grain: grain, redundant: true},
			"from behind, no second table": {grain: grain, backwards: true},
			"marked zeros":                 {grain: grain, zeroed: true, redundant: true},
		} {
			// More than one table with small grains, and a last grain that is cut.
			data := imagetest.Noise(uint64(grain), 5*mib+3*sector)
			clear(data[2*mib : 4*mib+100])
			t.Run(fmt.Sprintf("grains of %d sectors, %s", grain, name), func(t *testing.T) {
				img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vmdk", layout.forge(data)))
				require.Equal(t, "monolithicSparse", img.Subformat)
				disktest.CheckBytes(t, img.Disk, data)
				imagetest.NoDamage(t, img)
			})
		}
	}
}

// Entry 1 means zeros only where the header says so; elsewhere it names sector 1, which is no place for a grain.
func TestZeroedGrainNeedsItsFlag(t *testing.T) {
	data := make([]byte, 2*mib)
	copy(data, "data")
	f := forge.Bytes(sparseImage{grain: 128, zeroed: true}.forge(data))
	f.U32(vmdkforge.Flags, binary.LittleEndian.Uint32(f[vmdkforge.Flags:])&^4)
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "disk.vmdk", f))
	_, err := img.Disk.ReadAt(make([]byte, 10), 64*kib)
	require.ErrorContains(t, err, "entry 1")
}

// The same disks from the program in common use.
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

// qemu-img marks grains of zeros in a file of version 2.
func TestZeroedGrainsByQemuImg(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.vmdk")
	disktest.Run(t, "qemu-img", "create", "-f", "vmdk", "-o", "zeroed_grain=on", path, "4M")
	disktest.Run(t, "qemu-io", "-f", "vmdk", "-c", "write -P 7 0 1M", "-c", "write -z 256k 512k", path)
	want := make([]byte, 4*mib)
	copy(want, bytes.Repeat([]byte{7}, mib))
	clear(want[256*kib : 768*kib])
	img := imagetest.Open(t, path)
	disktest.CheckBytes(t, img.Disk, want)
	e, err := img.Disk.Extent(256*kib, mib)
	require.NoError(t, err)
	require.True(t, e.Zero, "the mark is known, the zeros need no reading")
	require.Equal(t, int64(512*kib), e.Len)
}

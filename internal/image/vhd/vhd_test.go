package vhd

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Expected sizes and offsets are those of VHD 1.0.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 512, binary.Size(rawFooter{}), "footer")
	assert.Equal(t, 1024, binary.Size(dynamicHeader{}), "dynamic header")
	b, err := binary.Append(nil, binary.BigEndian, rawFooter{
		FileFormatVersion: 1 << 24, DataOffset: 2 << 56, CreatorApplication: [4]byte{3}, CurrentSize: 4 << 56,
		DiskGeometry: geometry{5 << 8, 6, 7}, DiskType: 8 << 24, Checksum: 9 << 24, UniqueID: [16]byte{10},
		SavedState: 11,
	})
	require.NoError(t, err)
	for at, want := range map[int]byte{
		atVersion: 1, atDataOffset: 2, vhdforge.Creator: 3, atCurrentSize: 4, vhdforge.Geometry: 5, 58: 6, 59: 7,
		atDiskType: 8, atChecksum: 9, vhdforge.UniqueID: 10, atSavedState: 11,
	} {
		assert.Equal(t, want, b[at], "footer byte %d", at)
	}
	b, err = binary.Append(nil, binary.BigEndian, dynamicHeader{
		TableOffset: 1 << 56, HeaderVersion: 2 << 24, MaxTableEntries: 3 << 24, BlockSize: 4 << 24, Checksum: 5 << 24,
		ParentUniqueID: [16]byte{6}, ParentUnicodeName: [512]byte{7},
		ParentLocators: [8]locator{0: {PlatformCode: [4]byte{8}}, 7: {PlatformDataOffset: 9 << 56}},
	})
	require.NoError(t, err)
	for at, want := range map[int]byte{
		atTableOffset: 1, atHeaderVer: 2, atMaxEntries: 3, atBlockSize: 4, atHeaderSum: 5, vhdforge.ParentID: 6,
		vhdforge.ParentName: 7, vhdforge.Locators: 8, vhdforge.Locators + 7*24 + 16: 9,
	} {
		assert.Equal(t, want, b[at], "dynamic header byte %d", at)
	}
}

// The first three are what Hyper-V 2012 R2, Windows 10 and qemu-img wrote into images of the corpus; the others are
// worked out by hand from the pseudo code of VHD 1.0, "Appendix: CHS Calculation".
func TestGeometry(t *testing.T) {
	for size, want := range map[int64]geometry{
		136365211648:                        {65278, 16, 255},
		4 << 20:                             {120, 4, 17},
		4212736:                             {121, 4, 17},
		512:                                 {0, 4, 17},
		(4*1024*17 + 17) * 512:              {819, 5, 17},
		5*1024*17*512 - 512:                 {1023, 5, 17},
		5 * 1024 * 17 * 512:                 {175, 16, 31}, // cylinders times heads reach heads times 1024
		(1024*16*17 - 1) * 512:              {1023, 16, 17},
		1024 * 16 * 17 * 512:                {561, 16, 31},
		1024 * 16 * 31 * 512:                {503, 16, 63},
		(65535*16*63 - 1) * 512:             {65534, 16, 63},
		65535 * 16 * 63 * 512:               {16191, 16, 255},
		65535 * 16 * 255 * 512:              {65535, 16, 255},
		2040 << 30:                          {65535, 16, 255},
		(int64(1) << 62) + 512*(1<<40) + 17: {65535, 16, 255},
	} {
		assert.Equal(t, want, geometryOf(size), "%d bytes", size)
	}
}

func TestDetect(t *testing.T) {
	tail := func(at int) []byte {
		b := make([]byte, 1024)
		copy(b[at:], cookie)
		return b
	}
	require.True(t, detect([]byte(cookie+"…"), make([]byte, 1024)))
	require.True(t, detect(make([]byte, 1024), tail(512)))
	require.True(t, detect(make([]byte, 1024), tail(513)))
	for _, at := range []int{0, 511, 514} {
		require.False(t, detect(make([]byte, 1024), tail(at)))
	}
	require.False(t, detect([]byte("conecti"), []byte("x")))
}

// A disk that boots by cylinder, head and sector keeps heads and sectors when it grows, so far as a BIOS then reports
// them; the cylinders are those of the new size, and at most can be addressed where more would have the BIOS translate.
// A disk of which that is not wanted has the geometry of the specification.
func TestGeometryThatABIOSReports(t *testing.T) {
	chs := func(h, s int64) driver.Geometry { return driver.Geometry{Heads: h, Sectors: s} }
	for _, tc := range []struct {
		name    string
		sectors int64
		bios    driver.Geometry
		own     geometry
		want    geometry
	}{
		{"34 MiB grows by 1 MiB", 1023*4*17 + 2048, chs(4, 17), geometry{1023, 4, 17}, geometry{1024, 4, 17}},
		{"room for more cylinders", 900*5*17 + 2048, chs(5, 17), geometry{900, 5, 17}, geometry{924, 5, 17}},
		{"nothing depends on it", 1023*4*17 + 2048, chs(0, 0), geometry{1023, 4, 17}, geometry{842, 5, 17}},
		{"was no vhd: 16 heads of a small disk", 204800, chs(16, 63), geometry{}, geometry{203, 16, 63}},
		{"504 MiB: as many when translated", 1034240, chs(16, 63), geometry{1024, 16, 63}, geometry{1026, 16, 63}},
		{"8 GiB: 255 heads by translation", 16777216, chs(255, 63), geometry{16644, 16, 63}, geometry{16644, 16, 63}},
		{"100 MiB of 255 heads: none can say so", 204800, chs(255, 63), geometry{1003, 12, 17}, geometry{1003, 12, 17}},
	} {
		require.Equal(t, tc.want, geometryFor(512*tc.sectors, tc.bios, tc.own), tc.name)
	}
}

// An entry of the table has 32 bits for a sector, and all ones mean that there is no block. Spec: VHD 1.0, "Block
// Allocation Table and Data Blocks".
func TestBlocksBehind2TiB(t *testing.T) {
	t.Parallel()
	target := newDynamicTarget(&disktest.Blind{}, (&template{}).footerFor(1<<40, driver.Geometry{}, nil), defaultBlock)
	target.next = (math.MaxUint32 - 8) * units.SectorSize
	require.NoError(t, target.Reserve(0, 512))
	target.next = math.MaxUint32 * units.SectorSize
	require.ErrorIs(t, target.Reserve(defaultBlock, 512), ondisk.ErrLimit)
}

// A VHD has whole sectors of 512 bytes, up to 2040 GiB, also one that changes in its place.
func TestSizesOfVHDs(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]error{
		512: nil, maxSize: nil, maxSize + 512: ondisk.ErrLimit, 0: ondisk.ErrUnsupported, -512: ondisk.ErrUnsupported,
		513: ondisk.ErrUnsupported,
	} {
		_, err := create(&disktest.Blind{}, size, driver.Options{})
		require.ErrorIs(t, err, want, "%d", size)
	}
	_, err := create(&disktest.Blind{}, 4096, driver.Options{SectorSize: 4096})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	_, err = (&footer{}).around(maxSize, 512, driver.Geometry{})
	require.NoError(t, err)
	_, err = (&footer{}).around(maxSize+512, 512, driver.Geometry{})
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// source is a gate to a parent that has every name and identity.
func source(f *disktest.MemFile) *driver.Source {
	return &driver.Source{File: f, Parent: func(ref driver.ParentRef) (*driver.Image, error) {
		if len(ref.Names) == 0 {
			return nil, ondisk.In(ondisk.ErrReference, "no name")
		}
		return &driver.Image{Disk: disktest.ShortDisk([]byte("parent"), 1<<20)}, nil
	}}
}

// FuzzVHD reads anything as the start and the end of a VHD, with a hole of any length between.
func FuzzVHD(f *testing.F) {
	add := func(v *vhdforge.File, n int64) {
		n = min(n, v.Footer)
		f.Add([]byte(v.Bytes[:n]), []byte(v.Bytes[v.Footer:]), uint32(v.Footer-n), true)
	}
	data := bytes.Repeat([]byte("sector of a disk"), 40<<10/16)
	add(vhdforge.NewFixed(data), 512)
	add(vhdforge.New(data, vhdforge.Layout{}), 4096)
	add(vhdforge.New(data, vhdforge.Layout{Block: 4096, Stored: func(s int64) bool { return s%3 > 0 }}), 32<<10)
	parent := &vhdforge.Parent{ID: 1, Relative: `.\base.vhd`, Absolute: `C:\base.vhd`, Name: "base.vhd"}
	add(vhdforge.New(data,
		vhdforge.Layout{Block: 8192, Parent: parent, Stored: func(s int64) bool { return s%5 > 0 }}), 32<<10)
	for _, c := range []struct {
		at int64
		v  uint64
	}{
		{vhdforge.DataOffset, 1 << 63},
		{vhdforge.CurrentSize, 1 << 62},
		{vhdforge.CurrentSize, 1 << 30},
		{512 + vhdforge.TableOffset, 1 << 20},
		{512 + vhdforge.MaxEntries, 1<<63 | 4096},
		{512 + vhdforge.MaxEntries, 3<<32 | 256<<20},
		{vhdforge.Type, 4 << 32},
	} {
		v := vhdforge.New(data, vhdforge.Layout{Block: 4096})
		v.BE64(c.at, c.v)
		add(v, 4096)
	}
	for _, name := range []string{"dfvfs/ext2.vhd.xz", "dfvfs/fat-differential.vhd.xz"} {
		for _, b := range disktest.Seeds(f, 32<<10, name) {
			f.Add(b, b[:512], uint32(2<<20), true)
		}
	}
	f.Fuzz(func(t *testing.T, head, tail []byte, hole uint32, sums bool) {
		head, tail = slices.Clone(head), slices.Clone(tail)
		if sums { // are right where they stand in a file of the usual layout: no mutation would find them
			for _, b := range [][]byte{head, tail} {
				if len(b) >= footerBytes {
					binary.BigEndian.PutUint32(b[atChecksum:], checksum(b[:footerBytes], atChecksum))
				}
			}
			if len(head) >= tablePlace {
				h := head[headerPlace:tablePlace]
				binary.BigEndian.PutUint32(h[atHeaderSum:], checksum(h, atHeaderSum))
			}
		}
		spent := disktest.Spent()
		end := int64(len(head)) + int64(hole%(64<<20))
		readFuzzed(t, disktest.NewMemPieces("disk.vhd", end+int64(len(tail)),
			disktest.MemPiece{Data: head}, disktest.MemPiece{At: end, Data: tail}))
		require.Less(t, spent(), disktest.Slowest)
	})
}

func readFuzzed(t *testing.T, file *disktest.MemFile) {
	t.Helper()
	if _, err := names(file); err != nil {
		disktest.RequireClass(t, err)
	}
	img, err := open(source(file))
	if err != nil {
		disktest.RequireClass(t, err)
		return
	}
	require.True(t, hasCookie(file))
	disktest.ReadSome(t, img.Disk, disktest.RequireClass)
	if img.Check == nil {
		return
	}
	issues, err := img.Check()
	require.NoError(t, err)
	for _, i := range issues {
		if i.Effect == ondisk.Broken {
			require.ErrorIs(t, i.Err, ondisk.ErrFormat)
		}
	}
	if !disktest.ReadSound(t, img.Disk, issues, disktest.NoError) {
		return
	}

	// A disk that was read can be the template of a copy.
	for _, sub := range Format.Subformats {
		f, err := os.CreateTemp(t.TempDir(), "copy")
		require.NoError(t, err)
		o := driver.Options{Subformat: sub, Template: img.Template, SectorSize: 512}
		target, err := create(f, 3<<20, o)
		require.NoError(t, err)
		require.NoError(t, target.Reserve(1<<20, 1<<20))
		_, err = target.WriteAt(bytes.Repeat([]byte("x"), 1<<20), 1<<20)
		require.NoError(t, err)
		require.NoError(t, target.Finish())
		b := disktest.ReadFile(t, f.Name())
		require.NoError(t, f.Close())
		again, err := open(source(disktest.NewMemFile("disk.vhd", b, int64(len(b)))))
		require.NoError(t, err)
		want := make([]byte, 3<<20)
		copy(want[1<<20:], strings.Repeat("x", 1<<20))
		got := make([]byte, len(want))
		require.NoError(t, ondisk.ReadFull(again.Disk, got, 0))
		require.True(t, bytes.Equal(want, got))
	}
}

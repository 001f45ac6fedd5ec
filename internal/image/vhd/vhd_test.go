package vhd

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/image/driver"
)

// Expected sizes and places are those of VHD 1.0.
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

// The sum in the footers of the corpus is checked by opening these; this one is from the figures of VHD 1.0: the
// complement of the sum, without the field itself.
func TestChecksum(t *testing.T) {
	b := []byte{1, 2, 0xff, 0xff, 0xff, 0xff, 3}
	require.Equal(t, ^uint32(6), checksum(b, 2))
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
// them; the cylinders are those of the new size, and no more than can be addressed where more would have the BIOS
// translate. A disk of which that is not wanted has the geometry of the specification.
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

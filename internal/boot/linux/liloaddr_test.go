package linux

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// TestLiloRows moves rows of addresses. Spec: LILO 24, src/geometry.c, geo_comp_addr; src/map.c, map_compact.
func TestLiloRows(t *testing.T) {
	for name, tc := range map[string]struct {
		mode    liloMode
		row     string // addresses of sector, track, flags and drive, head, count
		sectors int64
		want    string // empty: does not fit
	}{
		"by lba":                          {liloLBA32, "3f01e00200", 1985, "0009e00200"},
		"by lba, over a limit of 24 bits": {liloLBA32, "ffffe0ff00", 1, "0000e00001"},
		"by lba, to the left":             {liloLBA32, "0000e00001", -1, "ffffe0ff00"},
		"with counts": {
			liloLBA32, "0000e01001" + "0100a0107f", 256,
			"0001e01001" + "0101a0107f",
		},
		"a count that would need other bits":  {liloLBA32, "feffe0ff00" + "ffffa0ff01", 1, ""},
		"a count over the limit":              {liloLBA32, "f0ffe0ff00" + "f1ffa0ff0e", 1, "f1ffe0ff00" + "f2ffa0ff0e"},
		"a count over the limit, by a sector": {liloLBA32, "f0ffe0ff00" + "f1ffa0ff0f", 1, ""},
		"all of it over the limit":            {liloLBA32, "feffe0ff00" + "ffffa0ff01", 2, "0000e00001" + "0100a00001"},
		"to the end of 32 bits":               {liloLBA32, "feffe0ffff", 1, ""},
		"to the start of the disk":            {liloLBA32, "0100e00000", -1, ""},
		"linear":                              {liloLinear, "3f01c00204", 1985, "0009c00204"},
		"linear, to the last cylinder":        {liloLinear, "0100c0fa01", 1024*63*255 - 0xfa0001 - 1, "ff03c0fb01"},
		"linear, behind it":                   {liloLinear, "0100c0fa01", 1024*63*255 - 0xfa0001, ""},
	} {
		t.Run(name, func(t *testing.T) {
			const size = 40 << 40
			d := disk.New(size, liloSector, func(off int64) (disk.Run, error) { return disk.Run{Len: size - off}, nil })
			m := &liloMap{g: &boot.Guest{Disk: d}, mode: tc.mode}
			page := make([]byte, liloSector)
			row, err := hex.DecodeString(tc.row)
			require.NoError(t, err)
			copy(page, row)
			err = m.shiftPages(page, tc.sectors)
			if tc.want == "" {
				require.ErrorIs(t, err, ondisk.ErrLimit)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, hex.EncodeToString(page[:len(row)]))
			require.True(t, ondisk.IsZero(page[len(row):]))
		})
	}
}

// TestLiloLinearOnSmallDisks avoids linear addresses in the last cylinders, which a BIOS may not report.
func TestLiloLinearOnSmallDisks(t *testing.T) {
	const size = 10 * liloCylinder * liloSector
	d := disk.New(size, liloSector, func(off int64) (disk.Run, error) { return disk.Run{Len: size - off}, nil })
	m := &liloMap{g: &boot.Guest{Disk: d}, mode: liloLinear}
	require.NoError(t, m.within(liloAddr{8*liloCylinder - 1, 1}))
	require.ErrorIs(t, m.within(liloAddr{8*liloCylinder - 1, 2}), ondisk.ErrLimit)
	m.mode = liloLBA32
	require.NoError(t, m.within(liloAddr{8*liloCylinder - 1, 2}))
}

// TestLiloSum compares with the check value of CRC-32/BZIP2.
func TestLiloSum(t *testing.T) {
	require.Equal(t, uint32(0xfc891918), liloSum([]byte("123456789")))
}

package identify

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// Windows NT and Linux keep the flag in the boot sector; DOS and Windows 95 in the second entry of the table.
func TestDirtyFAT(t *testing.T) {
	for name, tc := range map[string]struct {
		bits     string
		size     int64
		state    int64 // place of the flag in the boot sector
		reserved int64 // sectors in front of the table
		clean    int64 // place of the byte with the bit in the table; 0 if absent
	}{"FAT12": {"12", 2 << 20, 0x25, 1, 0}, "FAT16": {"16", 16 << 20, 0x25, 1, 3}, "FAT32": {
		"32", 40 << 20, 0x41, 32, 7,
	}} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, tc.size)
			disktest.Run(t, "mkfs.fat", "-a", "-F", tc.bits, "-R", fmt.Sprint(tc.reserved), path)
			require.Empty(t, probe(t, path).Issues)
			dirty := func() {
				v := probe(t, path)
				require.Equal(t, []string{"fat-dirty"}, disktest.Codes(v.Issues))
				require.Equal(t, ondisk.Note, v.Issues[0].Effect)
			}
			disktest.WriteAt(t, path, tc.state, []byte{1})
			dirty()
			disktest.WriteAt(t, path, tc.state, []byte{0})
			require.Empty(t, probe(t, path).Issues)
			if tc.clean > 0 {
				disktest.WriteAt(t, path, tc.reserved*512+tc.clean, []byte{0x07})
				dirty()
			}
		})
	}
}

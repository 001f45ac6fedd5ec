package layout_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/table"
)

// A machine has to report the heads and sectors of a DOS that a loader starts, whether or not its partition is active.
func TestGeometryOfABIOS(t *testing.T) {
	const start, altmbrNumber = 63, 439
	syslinux := func(t *testing.T, name string) []byte {
		t.Helper()
		return disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/"+name))
	}
	dos := table.Geometry{Heads: 255, Sectors: 63}
	for name, tc := range map[string]struct {
		mbr    string // code in sector 0; empty: none
		number byte   // of the partition that altmbr starts
		flag   byte
		mark   string // in the boot sector
		want   table.Geometry
	}{
		"an active partition":                 {"mbr.bin", 0, 0x80, "", dos},
		"a number in altmbr":                  {"altmbr.bin", 1, 0, "", dos},
		"another number in altmbr":            {"altmbr.bin", 2, 0, "", table.Geometry{}},
		"MS-DOS from the menu of a loader":    {"altmbr.bin", 2, 0, "IO      SYSMSDOS   SYS", dos},
		"FreeDOS from the menu of a loader":   {"mbr.bin", 0, 0, "KERNEL  SYS", dos},
		"Windows Vista or later, not active":  {"mbr.bin", 0, 0, "BOOTMGR", table.Geometry{}},
		"MS-DOS without any code in sector 0": {"", 0, 0x80, "IO      SYSMSDOS   SYS", table.Geometry{}},
		"a file system without a loader":      {"mbr.bin", 0, 0, "This is not a bootable disk.", table.Geometry{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(40000, tableforge.Slot{Type: 6, Flag: tc.flag, Start: start, Sectors: 16000},
				slot(0x83, 20000, 16000))
			fsforge.PutFAT16(f, start, 16000)
			fsforge.PutExt(f, 20000, 16000)
			if tc.mbr != "" {
				f.Put(0, syslinux(t, tc.mbr))
			}
			if tc.number > 0 {
				f.U8(altmbrNumber, tc.number)
			}
			f.Text(start*512+0x1a0, tc.mark)
			require.Equal(t, tc.want, read(t, f).BIOS())
		})
	}
}

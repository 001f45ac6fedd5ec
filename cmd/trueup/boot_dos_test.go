package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// dosDrivesCode is testdata/dos-drives.S: it finds the logical drives as MS-DOS does, and prints the names in their
// boot sectors.
const dosDrivesCode = "" +
	"fa31c08ed0bc00708ed88ec0fbfce800005db408b28055cd135d31c08ec083e1" +
	"3f890e00840fb6d64289160284b90100b600bb0080e87800bebe81b90400807c" +
	"0405740783c610e2f5eb588a74018b4c02bb008051e858005988c8c0c00283e0" +
	"0388c488e8f7260284f72600840306c6811316c881f736008489d14131d2f736" +
	"028488d688c5c0cc0208e1bb0082e81f00be0382b90800e81e00bece81807c04" +
	"0574a88db6ba00b90500e80b00f4ebfdb80102b280cd13c3ac3c207302b03f51" +
	"bb0700b40ecd1059e2eec320656e642e"

// What the console shows when both drives are found. FAT's boot sector has room for code at codeOfFAT.
const (
	dosDrives = "drive-D drive-E  end."
	codeOfFAT = 0x3e
)

// dosDisk is a disk of 16 heads as FDISK of DOS made them: a FAT16 and an extended partition of type 05 with two more,
// whose boot records begin cylinders. The boot sector of the first one lists the drives.
func dosDisk(t *testing.T) (raw string, heads int64) {
	t.Helper()
	const cylinder = 16 * trackSectors
	d := bootDisk{heads: 16}
	raw = disktest.Blank(t, "disk.raw", bootDiskSize)
	all := []window{
		{trackSectors, 32*cylinder - trackSectors},
		{32 * cylinder, 90 * cylinder},
		{32*cylinder + trackSectors, 40*cylinder - trackSectors},
		{72*cylinder + trackSectors, 40*cylinder - trackSectors},
	}
	commands := []string{"o"}
	for i, kind := range []string{"p\n1\n", "e\n2\n", "l\n", "l\n"} {
		commands = append(commands, fmt.Sprintf("n\n%s%d\n%d", kind, all[i].start, all[i].start+all[i].size-1))
	}
	commands = append(commands, "a\n1", "t\n1\n6", "t\n5\n6", "t\n6\n6", "w", "")
	disktest.RunInput(t, strings.Join(commands, "\n"), "fdisk", "--compatibility=dos", "--units=sectors", "--heads",
		"16", "--sectors", "63", raw)
	require.Equal(t, all, tableOf(t, raw))
	for i, name := range map[int]string{0: "drive-C ", 2: "drive-D ", 3: "drive-E "} {
		d.format(t, raw, all[i], 16)
		disktest.WriteAt(t, raw, all[i].start*sectorSize+3, []byte(name))
	}
	disktest.WriteAt(t, raw, trackSectors*sectorSize+codeOfFAT, assembled(dosDrivesCode)(t))
	disktest.WriteAt(t, raw, 0, assembled(ownCHSCode)(t))
	return raw, d.heads
}

// TestDOSFindsItsLogicalDrives boots a program that finds logical drives by the cylinder of their boot records, as DOS
// and Windows 95 to ME do, after the move, and in make boots before it.
func TestDOSFindsItsLogicalDrives(t *testing.T) {
	t.Parallel()
	raw, heads := dosDisk(t)
	drives := func(console string) string {
		if i := strings.Index(console, " end."); i >= 0 {
			return console[max(0, i+len(" end.")-len(dosDrives)) : i+len(" end.")]
		}
		return ""
	}
	if disktest.Exhaustive {
		require.Equal(t, dosDrives, pc{image: raw, heads: heads}.watch(t, drives), "before")
	}
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	r := trueup(t, "align", raw, dest)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	requireSameView(t, raw, dest)
	for _, w := range tableOf(t, dest)[2:] {
		require.Zero(t, w.start%128)
	}
	require.Equal(t, dosDrives, pc{image: dest, heads: heads}.watch(t, drives), "after")
}

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestAlignedGPTBoots moves the partition that a BIOS boots from by an attribute of the GPT. The code in sector 0 is
// that of syslinux; it reads the entries of the table and checks no sums, so sgdisk is asked about those. A stale start
// LBA in the primary entry proves that the boot depends on what trueup wrote.
func TestAlignedGPTBoots(t *testing.T) {
	t.Parallel()
	source := gptBootDisk(t)
	if disktest.Exhaustive {
		require.Equal(t, booted, boot(t, source, 255), "before")
	}

	dest := filepath.Join(t.TempDir(), "aligned.raw")
	answer := trueupJSON[jsonAlign](t, 0, "align", source, dest)
	requireSameView(t, source, dest)
	require.Equal(t, 2, answer.Moved)
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
	require.Equal(t, booted, boot(t, dest, 255), "after")

	const firstEntry = 2*sectorSize + 32
	disktest.WriteAt(t, dest, firstEntry, []byte{0x27, 0x04}) // 1063, little-endian
	require.Contains(t, gptFailed, boot(t, dest, 255), "with the old start LBA")
}

// gptBootDisk makes a disk whose first partition, at LBA 1063, holds syslinux.
func gptBootDisk(t testing.TB) string {
	t.Helper()
	d := bootDisk{fat: 16, heads: 255}
	source := disktest.Blank(t, "gpt.raw", bootDiskSize)
	w := window{start: 1063, size: 100_000}
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "3:40:1000", "-n", "1:"+decimal(w.start)+":"+decimal(w.start+w.size-1),
		"-t", "1:0700", "-A", "1:set:2", source)
	d.fillBoot(t, source, w)
	code := disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/gptmbr.bin"))
	disktest.WriteAt(t, source, 0, code)
	return source
}

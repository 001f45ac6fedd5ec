package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// Places of the disks below, in sectors: a system at LBA 63, data behind it.
const (
	systemLBA  = trackSectors
	systemSize = 8192
	dataLBA    = systemLBA + systemSize
	dataSize   = 16384
)

// systemDisk has a Linux root in front of data, none of them aligned. swapped has the data in front.
func systemDisk(t testing.TB, swapped bool) string {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	disktest.Run(t, "mkdir", "-p", filepath.Join(tree, "etc"))
	disktest.RunInput(t, "LABEL=root / ext4 defaults 0 1\n/dev/sda2 /srv ext2 defaults 0 2\n", "tee",
		filepath.Join(tree, "etc/fstab"))
	root, data := filepath.Join(dir, "root"), filepath.Join(dir, "data")
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-d", tree, root, "4M")
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext2", "-L", "data", data, "8M")
	first, second := slot(0x83, systemLBA, systemSize), slot(0x83, dataLBA, dataSize)
	at := []int64{systemLBA, dataLBA}
	if swapped {
		first, second = slot(0x83, systemLBA, dataSize), slot(0x83, systemLBA+dataSize, systemSize)
		at = []int64{systemLBA + dataSize, systemLBA}
	}
	disk := tableforge.NewMBR(20<<11, first, second)
	disk.Put(at[0]*sectorSize, readAt(t, root, 0, systemSize*sectorSize))
	disk.Put(at[1]*sectorSize, readAt(t, data, 0, dataSize*sectorSize))
	return writeForged("disk.raw", disk)(t, dir)
}

// TestDataOnlyLeavesTheSystem requires that the root stays at LBA 63, that the data are aligned, and that all commands
// agree about it.
func TestDataOnlyLeavesTheSystem(t *testing.T) {
	t.Parallel()
	source := systemDisk(t, false)
	dest := filepath.Join(t.TempDir(), "dest.raw")

	r := trueup(t, "plan", "--data-only", source)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "1 partition moves")
	require.Contains(t, r.stdout, "stays at byte 32256")
	require.Contains(t, match(t, r.stdout, `To do it:\s+(trueup .*)`), "trueup align --data-only ")

	answer := trueupJSON[jsonAlign](t, 0, "align", "--data-only", source, dest)
	require.Len(t, answer.Moves, 1)
	require.Equal(t, 2, answer.Moves[0].Partition)
	parts := readSfdisk(t, dest).Partitions
	require.Equal(t, int64(systemLBA), parts[0].Start)
	require.Zero(t, parts[1].Start%2048)
	require.Equal(t, 0, trueup(t, "verify", source, dest).code)
	require.Equal(t, 3, trueup(t, "inspect", dest).code, "the system is misaligned still")

	again := trueupJSON[jsonAlign](t, 0, "align", "--data-only", dest, filepath.Join(t.TempDir(), "again.raw"))
	require.Empty(t, again.Moves)
	skipped := trueup(t, "align", "--data-only", "--skip-aligned", dest, filepath.Join(t.TempDir(), "skipped.raw"))
	require.Equal(t, 0, skipped.code)
	require.NotContains(t, skipped.stdout, "is aligned already")

	both := trueupJSON[jsonAlign](t, 0, "align", source, filepath.Join(t.TempDir(), "both.raw"))
	require.Len(t, both.Moves, 2, "without the flag")
}

// TestDataOnlyWithoutRoom refuses data that would push the system away.
func TestDataOnlyWithoutRoom(t *testing.T) {
	t.Parallel()
	source := systemDisk(t, true)
	dest := filepath.Join(t.TempDir(), "dest.raw")
	for _, args := range [][]string{{"plan", "--data-only", source}, {
		"align", "--data-only", "--allow-unbootable",
		source, dest,
	}} {
		r := trueup(t, args...)
		require.Equal(t, 4, r.code, r.stdout)
		require.Contains(t, r.stderr, "partition 2: it would have to move")
		require.Contains(t, r.stderr, "holds the root of a Linux")
	}
	require.NoFileExists(t, dest)
}

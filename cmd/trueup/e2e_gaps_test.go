package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestAlignKeepsWhatNoPartitionOwns puts data into the space between and behind the partitions. Whose it is, is not
// known (a RAID controller's, a boot manager's), so that it has to survive.
func TestAlignKeepsWhatNoPartitionOwns(t *testing.T) {
	t.Parallel()
	const (
		between = 3 * cylinder * sectorSize     // in the middle of a free cylinder
		last    = (7*cylinder - 1) * sectorSize // the last sector of the disk
	)
	raw := gapDisk(t)
	disktest.WriteAt(t, raw, between, noise("between", 5000))
	disktest.WriteAt(t, raw, last, noise("last", sectorSize))
	after := alignRaw(t, raw, 32067, 32130)

	require.Equal(t, noise("between", 5000), readAt(t, after, between, 5000), "there is room enough for it to stay")
	require.Equal(t, noise("last", sectorSize), readAt(t, after, last, sectorSize))
	info := disktest.Stat(t, after)
	require.Equal(t, int64(7*cylinder*sectorSize), info.Size(), "the free space suffices: no growth")
}

// TestAlignKeepsDataInTheWay is the same with data right behind the last partition, where the partition has to grow
// into.
func TestAlignKeepsDataInTheWay(t *testing.T) {
	t.Parallel()
	const behind = 6 * cylinder * sectorSize
	raw := gapDisk(t)
	disktest.WriteAt(t, raw, behind, noise("behind", 5000))
	after := disktest.ReadFile(t, alignRaw(t, raw, 32067, 32130))
	require.True(t, bytes.Contains(after, noise("behind", 5000)), "the data behind the last partition is gone")
}

// TestAlignPushesAnAlignedNeighbour moves a partition that has no free sector behind it: the next one, which was
// aligned, has to make room and be aligned again.
func TestAlignPushesAnAlignedNeighbour(t *testing.T) {
	t.Parallel()
	raw := twoPartitions(t, 63, 32768-63, 32768, 32130)
	after := alignRaw(t, raw, 32768-63, 32130)
	starts := readSfdisk(t, after).Partitions
	require.Equal(t, int64(2048), starts[0].Start)
	require.Equal(t, int64(32768+2048), starts[1].Start)
}

// gapDisk has two partitions, free cylinders between them, and one behind.
func gapDisk(t *testing.T) string {
	t.Helper()
	return twoPartitions(t, 63, 32067, 64260, 32130)
}

// twoPartitions makes a disk of seven cylinders. No file system is needed here. Everything is in sectors.
func twoPartitions(t *testing.T, start1, size1, start2, size2 int64) string {
	t.Helper()
	raw := disktest.Blank(t, "gaps.raw", 7*cylinder*sectorSize)
	table := fmt.Sprintf("label: dos\nstart=%d, size=%d, type=83\nstart=%d, size=%d, type=83\n", start1, size1, start2,
		size2)
	disktest.RunInput(t, table, "sfdisk", "--quiet", raw)
	disktest.WriteAt(t, raw, start1*sectorSize, noise("partition 1", int(size1*sectorSize)))
	disktest.WriteAt(t, raw, start2*sectorSize, noise("partition 2", int(size2*sectorSize)))
	return raw
}

// alignRaw aligns the disk and requires that both partitions, of so many sectors, arrive whole.
func alignRaw(t *testing.T, raw string, sectors ...int64) string {
	t.Helper()
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	answer := trueupJSON[jsonAlign](t, 0, "align", raw, dest)
	require.Len(t, answer.Moves, 2)
	for i, size := range sectors {
		m := answer.Moves[i]
		require.Zero(t, m.ToBytes%(1<<20))
		require.Equal(t, size*sectorSize, m.SizeBytes)
		want := noise(fmt.Sprintf("partition %d", i+1), int(m.SizeBytes))
		require.True(t, bytes.Equal(want, readAt(t, dest, m.ToBytes, m.SizeBytes)), "partition %d", i+1)
	}
	require.Equal(t, 0, trueup(t, "verify", raw, dest).code)
	return dest
}

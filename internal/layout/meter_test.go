package layout_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Headers of 4 MiB in each of many partitions cost a stranger nothing, and us minutes.
func TestMetadataOfAllVolumesAreBounded(t *testing.T) {
	const count, size, header = 12, 9 << 11, 4 << 20
	var entries []disktest.GPTEntryFields
	for i := range uint64(count) {
		entries = append(entries, disktest.GPTEntryFields{First: 2048 + i*size, Last: 2048 + (i+1)*size - 1})
	}
	f := disktest.ForgeGPT(512, 2048+count*size+64, 128, entries...)
	for _, e := range entries {
		f[e.First*512:].PutLUKS2(disktest.LUKS2Text("8388608", "1000"), header)
	}
	l := readForged(t, f)
	require.Len(t, l.Partitions, count)
	require.Equal(t, volume.LUKS, l.Partitions[0].Volume.Kind)
	require.Equal(t, volume.Unknown, l.Partitions[count-1].Volume.Kind)
	var broken []ondisk.Issue
	for _, i := range l.Issues {
		if i.Effect == ondisk.Broken {
			broken = append(broken, i)
		}
	}
	require.Len(t, broken, 1)
	require.ErrorIs(t, broken[0].Err, ondisk.ErrLimit)
}

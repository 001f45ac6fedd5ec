package identify

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// One rule reports a volume that is larger than its partition, whichever prober found it.
func TestVolumeLargerThanItsPartition(t *testing.T) {
	const size = 16 << 20
	md := func(f forge.Bytes, version string, data uint64) {
		poolforge.PutMD1(f, version, data)
		f.U64(poolforge.MD1At(f, version)+poolforge.MD1DataSize, size/512-data)
		poolforge.SealMD1(f, version)
	}
	for name, put := range map[string]func(f forge.Bytes){
		"FAT16":                       func(f forge.Bytes) { fsforge.PutFAT16(f, 0, size/512) },
		"md, superblock at the start": func(f forge.Bytes) { md(f, "1.1", 264) },
		"md, superblock at 4 KiB":     func(f forge.Bytes) { md(f, "1.2", 272) },
		"swap": func(f forge.Bytes) {
			f.Text(4086, "SWAPSPACE2")
			f.U32(1024, 1)
			f.U32(1028, size/4096-1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, size)
			put(f)
			v, err := Probe(disktest.Memory(f), 0)
			require.NoError(t, err)
			require.NotEqual(t, volume.Unknown, v.Kind)
			require.NotContains(t, disktest.Codes(v.Issues), volume.CodeSize)
			v, err = Probe(disktest.Memory(f[:size*3/4]), 0)
			require.NoError(t, err)
			require.Equal(t, int64(size), v.Size)
			require.Contains(t, disktest.Codes(v.Issues), volume.CodeSize)
			bad := slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Effect == ondisk.BadVolume })
			require.Equal(t, v.Kind != volume.Swap, bad)
		})
	}
}

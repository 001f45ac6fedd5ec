package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
)

type jsonFragmentation struct {
	Fragmentation []struct {
		Partition int    `json:"partition"`
		Volume    string `json:"volume"`
		Kind      string `json:"kind"`
		Error     *struct{ Code, Message string }
	} `json:"fragmentation"`
}

// A logical volume in one place is counted as a file system, and the others are named.
func TestFragmentationInLVM(t *testing.T) {
	t.Parallel()
	ext := disktest.Blank(t, "ext.img", 1<<20)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext2", ext)
	path := poolImage(0x8e, 64<<20, func(v forge.Bytes) {
		poolforge.PutLVM(v, poolforge.LVMText, 512)
		v.Put(384*512+8*64<<10, disktest.ReadFile(t, ext))
	})(t, t.TempDir())
	answer := trueupJSON[jsonFragmentation](t, 3, "inspect", "--fragmentation", path)
	require.NotEmpty(t, answer.Fragmentation)
	root := answer.Fragmentation[0]
	require.Equal(t, "root", root.Volume)
	require.Equal(t, "ext2", root.Kind)
	require.Nil(t, root.Error)
	names := map[string]bool{}
	for _, f := range answer.Fragmentation[1:] {
		require.Equal(t, 1, f.Partition)
		require.Equal(t, "unsupported", f.Error.Code)
		names[f.Volume] = true
	}
	require.Len(t, names, len(answer.Fragmentation)-1)
	require.True(t, names["pieces"], "%v", names)
	r := trueup(t, "inspect", "--fragmentation", path)
	require.Contains(t, r.stdout, "Fragmentation of root in partition 1 (ext2):\n")
	require.Contains(t, strings.Join(strings.Fields(r.stdout), " "),
		"Fragmentation of pieces in partition 1: not counted: it is in several "+
			"places, or not only on this disk")
}

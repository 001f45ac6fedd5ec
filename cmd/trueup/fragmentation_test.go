package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
		Files     struct {
			Count      int64 `json:"count"`
			Fragmented int64 `json:"fragmented"`
			Pieces     int64 `json:"pieces"`
		} `json:"files"`
		Free struct {
			Pieces  int64 `json:"pieces"`
			Largest int64 `json:"largest_bytes"`
		} `json:"free"`
	} `json:"fragmentation"`
}

// fragmentedExt is an ext4 with a file of 20 pieces, each a block of 4 KiB, and what debugfs and e2freefrag say of it.
func fragmentedExt(t *testing.T) (path, pieces string, free []string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "ext.img")
	disktest.Run(t, "truncate", "-s", "16M", path)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", path)
	one, big := filepath.Join(dir, "one"), filepath.Join(dir, "big")
	noise := make([]byte, 20*4096)
	for i := range noise {
		noise[i] = byte(1 + i%251)
	}
	require.NoError(t, os.WriteFile(one, noise[:4096], 0o600))
	require.NoError(t, os.WriteFile(big, noise, 0o600))
	var script strings.Builder
	for i := range 40 {
		fmt.Fprintf(&script, "write %s s%d\n", one, i)
	}
	for i := 0; i < 40; i += 2 {
		fmt.Fprintf(&script, "rm s%d\n", i)
	}
	fmt.Fprintf(&script, "mkdir d\nwrite %s d/big\n", big)
	commands := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(commands, []byte(script.String()), 0o600))
	disktest.Output(t, "debugfs", "-w", "-f", commands, path)
	m := regexp.MustCompile(`/big: (\d+) contiguous`).FindStringSubmatch(disktest.Output(t, "debugfs", "-R",
		"filefrag -r /", path))
	require.NotNil(t, m)
	free = regexp.MustCompile(`Max\. free extent: (\d+) KB(?s:.*)Num\. free extent: (\d+)`).
		FindStringSubmatch(disktest.Output(t, "e2freefrag", path))
	require.NotNil(t, free)
	return path, m[1], free[1:]
}

// A logical volume in one place is counted as the same file system by itself, and the others are named.
func TestFragmentationInLVM(t *testing.T) {
	t.Parallel()
	ext, pieces, free := fragmentedExt(t)
	const extent = 64 << 10
	text := strings.NewReplacer("start_extent = 16\nextent_count = 16", "start_extent = 128\nextent_count = 128",
		"\"pv0\", 24", "\"pv0\", 136").
		Replace(poolforge.LVMText)
	text = strings.Replace(text, "start_extent = 0\nextent_count = 16", "start_extent = 0\nextent_count = 128", 1)
	path := poolImage(0x8e, 64<<20, func(v forge.Bytes) {
		poolforge.PutLVM(v, text, 512)
		v.Put(384*512+8*extent, disktest.ReadFile(t, ext))
	})(t, t.TempDir())
	answer := trueupJSON[jsonFragmentation](t, 3, "inspect", "--fragmentation", path)
	require.NotEmpty(t, answer.Fragmentation)
	root := answer.Fragmentation[0]
	require.Equal(t, "root", root.Volume)
	require.Equal(t, "ext4", root.Kind)
	require.Nil(t, root.Error)
	require.Equal(t, int64(1), root.Files.Fragmented)
	require.Equal(t, pieces, fmt.Sprint(root.Files.Pieces-20))
	require.Equal(t, free[1], fmt.Sprint(root.Free.Pieces))
	names := map[string]bool{}
	for _, f := range answer.Fragmentation[1:] {
		require.Equal(t, 1, f.Partition)
		require.Equal(t, "unsupported", f.Error.Code)
		names[f.Volume] = true
	}
	require.Len(t, names, len(answer.Fragmentation)-1)
	require.True(t, names["pieces"], "%v", names)
	r := trueup(t, "inspect", "--fragmentation", path)
	require.Contains(t, r.stdout, "Fragmentation of root in partition 1 (ext4):\n")
	require.Contains(t, strings.Join(strings.Fields(r.stdout), " "),
		"Fragmentation of pieces in partition 1: not counted: it lies in several "+
			"places, or not on this disk alone")
	validate(t, trueup(t, "inspect", "--json", "--fragmentation", path).stdout)
}

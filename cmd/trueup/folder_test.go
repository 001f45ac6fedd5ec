package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// The tests here are about what else lies in the folder of an image.

// TestLocksInALargeFolder requires that the size of a folder hides no lock and no snapshot. The order of its files is
// chance, so that several are looked for, each alone.
func TestLocksInALargeFolder(t *testing.T) {
	t.Parallel()
	const others = 6000
	dir := t.TempDir()
	for i := range others {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.vmsn", i)), nil, 0o644))
	}
	x := flatDisk(t, dir, "x")
	require.Equal(t, 0, trueup(t, "plan", x).code)
	for i := range 4 {
		locks := map[string]string{
			"x.vmdk.lck": "", "x-flat.vmdk.lck": "", fmt.Sprintf("%d.vmx.lck", i): "", fmt.Sprintf("%d.vmss", i): "",
			fmt.Sprintf("x-%06d.vmdk", i): `parentFileNameHint="x.vmdk"`,
		}
		for name, text := range locks {
			lock := filepath.Join(dir, name)
			if text != "" {
				text = vmdkforge.Descriptor("monolithicSparse", `RW 4096 SPARSE "none.vmdk"`) + text + "\n"
			}
			require.NoError(t, os.WriteFile(lock, []byte(text), 0o644))
			r := trueup(t, "plan", x)
			require.Equal(t, 4, r.code, name)
			require.Contains(t, r.stderr, name)
			require.NoError(t, os.Remove(lock))
		}
	}
}

// TestManyLinksToADescriptor requires that one file is read once, however many names it has.
func TestManyLinksToADescriptor(t *testing.T) {
	t.Parallel()
	image := sampleDisk(t)
	dir := filepath.Dir(image)
	text := vmdkforge.Descriptor("monolithicFlat", strings.Repeat("RW 1 FLAT \"none-flat.vmdk\" 0\n", 36<<10))
	require.Greater(t, len(text), 1<<20)
	first := filepath.Join(dir, "0.vmdk")
	require.NoError(t, os.WriteFile(first, []byte(text), 0o644))
	for i := range 500 {
		require.NoError(t, os.Link(first, filepath.Join(dir, fmt.Sprintf("%d.vmdk", i+1))))
	}
	require.Equal(t, 3, trueup(t, "inspect", image).code)
	log := filepath.Join(t.TempDir(), "strace")
	traced := run(t, disktest.Tool(t, "strace"), "-f", "-qq", "-o", log, "-e", "trace=pread64", builtPath, "inspect",
		image)
	require.Equal(t, 3, traced.code, traced.stderr)
	calls := disktest.ReadFile(t, log)
	require.Less(t, strings.Count(string(calls), "pread64("), 500, "less than one read for each name")
}

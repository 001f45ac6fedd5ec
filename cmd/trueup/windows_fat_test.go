package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestDirtyFAT aligns a Windows in a FAT that was not unmounted, and has it checked as Linux does at its start: the
// check finds nothing but the flag. Where the two FATs differ in the clusters of a file, a check can take either.
func TestDirtyFAT(t *testing.T) {
	t.Parallel()
	c := windowsOnFAT(mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_2.xz"), ""))
	v, source := c.disk.volumes[1], c.disk.make(t)
	const flag = 0x41
	at := v.start * sectorSize
	disktest.WriteAt(t, source, at+flag, []byte{1})
	dest := filepath.Join(t.TempDir(), "dest.raw")
	r := trueup(t, "align", source, dest, "--boundary", "2M")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "the FAT is marked dirty")

	moved := windowOf(t, dest, 2)
	require.NotEqual(t, v.start, moved.start)
	part := filepath.Join(t.TempDir(), "part")
	want := readAt(t, dest, moved.start*sectorSize, moved.size*sectorSize)
	require.NoError(t, os.WriteFile(part, want, 0o600))
	// it ends with 1 if it mends anything
	out, _ := exec.Command(disktest.Tool(t, "fsck.fat"), "-a", part).CombinedOutput()
	require.Contains(t, string(out), "Dirty bit is set")
	want[flag] = 0
	got := disktest.ReadFile(t, part)
	require.True(t, bytes.Equal(want, got), "fsck.fat changes no other byte")

	boot := readAt(t, source, at, 64)
	word := func(off int) int64 { return int64(boot[off]) | int64(boot[off+1])<<8 }
	second := at + (word(0x0e)+word(0x24))*sectorSize
	disktest.WriteAt(t, source, second+4*2, []byte{9, 9}) // the root folder, in cluster 2
	r = trueup(t, "align", source, filepath.Join(t.TempDir(), "none.raw"), "--boundary", "2M")
	require.Equal(t, 4, r.code, r.stdout)
	require.Contains(t, r.stderr, "FAT is marked dirty, and a check may change the file: fat")
	require.Contains(t, r.stderr, "entry of cluster 2 in FAT 2")
}

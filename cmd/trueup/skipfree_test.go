package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
)

type jsonCopied struct {
	Disks  []jsonFreeSpace `json:"disks"`
	Copied int64           `json:"copied_bytes"`
}

type jsonFreeSpace struct {
	FreeSpace []struct {
		Partition int    `json:"partition"`
		Content   string `json:"content"`
		Free      int64  `json:"free_bytes"`
		Ranges    int64  `json:"ranges"`
		LeftOut   int64  `json:"left_out_bytes"`
		Stored    int64  `json:"stored_bytes"`
		Whole     string `json:"whole"`
	} `json:"free_space"`
	Cost struct {
		Read  int64 `json:"read_bytes"`
		Write int64 `json:"write_bytes"`
	} `json:"cost"`
}

const skippedMiB = 1 << 20

// reusedDisk is a reused disk: an NTFS of 32 MiB at LBA 63 and an ext4 of 24 MiB after it, each with a file of 2 MiB,
// and a partition of 8 MiB of unknown content. Unused space is full of noise.
func reusedDisk(t *testing.T) (raw string, file []byte) {
	t.Helper()
	dir := t.TempDir()
	noise := filetest.Noise(11, 72*skippedMiB)
	file = slices.Clone(noise[:2*skippedMiB])
	path := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(path("file"), file, 0o600))
	require.NoError(t, os.WriteFile(path("ntfs"), noise[:32*skippedMiB], 0o600))
	require.NoError(t, os.WriteFile(path("ext"), noise[:24*skippedMiB], 0o600))
	disktest.Run(t, "mkntfs", "-q", "-Q", "-F", "-p", "63", "-H", "255", "-S", "63", path("ntfs"))
	disktest.Run(t, "ntfscp", "-q", path("ntfs"), path("file"), "file")
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-E", "nodiscard", path("ext"))
	disktest.Output(t, "debugfs", "-w", "-R", "write "+path("file")+" file", path("ext"))
	clear(noise[:63*sectorSize])
	raw = path("raw")
	require.NoError(t, os.WriteFile(raw, noise, 0o600))
	const ntfsAt, extAt = 63, 63 + 32*2048
	disktest.RunInput(t, fmt.Sprintf("label: dos\nstart=%d, size=%d, type=7\nstart=%d, size=%d, type=83\n"+
		"start=%d, size=%d, type=da\n",
		ntfsAt, 32*2048, extAt, 24*2048, extAt+24*2048, 8*2048), "sfdisk", "-q", raw)
	for name, at := range map[string]int64{"ntfs": ntfsAt, "ext": extAt} {
		b := disktest.ReadFile(t, path(name))
		disktest.WriteAt(t, raw, at*sectorSize, b)
	}
	return raw, file
}

// With --skip-free the free space is zero, every other byte equals a whole copy, the files are unchanged, and verify
// needs the flag, too.
func TestSkipFree(t *testing.T) {
	t.Parallel()
	raw, file := reusedDisk(t)
	dir := t.TempDir()
	whole, dest := filepath.Join(dir, "whole.img"), filepath.Join(dir, "dest.qcow2")
	require.Empty(t, trueupJSON[jsonCopied](t, 0, "align", raw, whole).Disks[0].FreeSpace)

	plain := trueupJSON[jsonFreeSpace](t, 0, "plan", raw)
	planned := trueupJSON[jsonFreeSpace](t, 0, "plan", "--skip-free", raw)
	r := trueupJSON[jsonCopied](t, 0, "align", "--skip-free", "--to", "qcow2", raw, dest)
	require.Equal(t, planned.FreeSpace, r.Disks[0].FreeSpace)
	require.Len(t, r.Disks[0].FreeSpace, 3)
	left := int64(0)
	for i, most := range []int64{29 * skippedMiB, 21 * skippedMiB} {
		v := r.Disks[0].FreeSpace[i]
		require.Empty(t, v.Whole)
		require.Greater(t, v.LeftOut, most-6*skippedMiB)
		require.Less(t, v.LeftOut, most)
		require.Equal(t, v.LeftOut, v.Stored)
		left += v.LeftOut
	}
	require.Contains(t, r.Disks[0].FreeSpace[2].Whole, "unknown")
	require.Equal(t, plain.Cost.Read-left, planned.Cost.Read, "the free space is not read")
	require.Equal(t, plain.Cost.Write-left, planned.Cost.Write)
	require.LessOrEqual(t, r.Copied, planned.Cost.Write)

	disktest.Run(t, "qemu-img", "check", "-q", dest)
	copied := filepath.Join(dir, "copied.img")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", dest, copied)
	a := disktest.ReadFile(t, whole)
	b := disktest.ReadFile(t, copied)
	requireZerosFor(t, a, b, left)

	// The tools of the file systems check the partitions of the copy, and read their files.
	parts := tableOf(t, copied)
	require.Len(t, parts, 3)
	for i, name := range []string{"ntfs", "ext"} {
		at := parts[i].start * sectorSize
		require.Zero(t, at%65536)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b[at:at+parts[i].size*sectorSize], 0o600))
	}
	disktest.Run(t, "ntfsfix", "-n", filepath.Join(dir, "ntfs"))
	require.Equal(t, sha256.Sum256(file), sha256.Sum256([]byte(disktest.Output(t, "ntfscat", "-f",
		filepath.Join(dir, "ntfs"), "file"))))
	disktest.Run(t, "e2fsck", "-f", "-n", filepath.Join(dir, "ext"))
	disktest.Output(t, "debugfs", "-R", "dump file "+filepath.Join(dir, "dumped"), filepath.Join(dir, "ext"))
	dumped := disktest.ReadFile(t, filepath.Join(dir, "dumped"))
	require.Equal(t, sha256.Sum256(file), sha256.Sum256(dumped))

	require.Equal(t, 0, trueup(t, "verify", "--skip-free", raw, dest).code)
	require.Equal(t, 5, trueup(t, "verify", raw, dest).code)
	require.Equal(t, 5, trueup(t, "verify", "--skip-free", raw, whole).code)
	disktest.WriteAt(t, copied, 40*skippedMiB, []byte("a byte in free space"))
	require.Equal(t, 5, trueup(t, "verify", "--skip-free", raw, copied).code)
}

// requireZerosFor requires that two disks differ only where the second has zeros, and in at most n bytes.
func requireZerosFor(t *testing.T, a, b []byte, n int64) {
	t.Helper()
	require.Len(t, b, len(a))
	var differ int64
	for i := range a {
		if a[i] == b[i] {
			continue
		}
		if differ++; b[i] != 0 {
			t.Fatalf("byte %#x is %#x, want %#x or zero", i, b[i], a[i])
		}
	}
	require.LessOrEqual(t, differ, n)
	require.Greater(t, differ, n*9/10)
}

// A copy without a move, and one that replaces SOURCE, omit the same free space.
func TestSkipFreeOfOtherCommands(t *testing.T) {
	t.Parallel()
	raw, _ := reusedDisk(t)
	dest := filepath.Join(t.TempDir(), "dest.img")
	want := trueupJSON[jsonFreeSpace](t, 0, "plan", "--skip-free", raw).FreeSpace
	r := trueupJSON[jsonCopied](t, 0, "convert", "--skip-free", raw, dest)
	require.Equal(t, want, r.Disks[0].FreeSpace)
	a := disktest.ReadFile(t, raw)
	b := disktest.ReadFile(t, dest)
	requireZerosFor(t, a, b, want[0].LeftOut+want[1].LeftOut)
	require.Equal(t, 0, trueup(t, "verify", "--skip-free", raw, dest).code)
	r = trueupJSON[jsonCopied](t, 0, "replace", "--skip-free", raw)
	require.Equal(t, want, r.Disks[0].FreeSpace)
	require.Less(t, r.Copied, int64(30*skippedMiB))
}

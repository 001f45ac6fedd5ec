package main

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// The tests here are about the containers that align writes, beside the disks in them.

// TestRoomForZeros copies a disk that is full of zeros to a place that has no room for them: a sparse VMDK stores none.
func TestRoomForZeros(t *testing.T) {
	t.Parallel()
	const size = 200 << 20
	disk := tableforge.NewMBR(size/sectorSize, slot(0x83, trackSectors, size/sectorSize-4096))
	f := newFault(t, writeForged("zeros.raw", disk)(t, t.TempDir()))
	info := disktest.Stat(t, f.source)
	if info.Sys().(*syscall.Stat_t).Blocks*512 < size {
		t.Skip("this file system stores no zeros")
	}
	args := []string{builtPath, "align", "-q", "--to", "vmdk", f.source, f.dest}
	r := privateMount(t, "size=20M", filepath.Dir(f.dest), args...)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, filepath.Base(f.dest)+"\n", r.stdout)
}

// TestFlushedWhileCopied requires that the storage has work before the flush at the end.
func TestFlushedWhileCopied(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 80))
	r := run(t, disktest.Tool(t, "strace"), "-f", "-qq", "-o", "/dev/stdout", "-e",
		"trace=pwrite64,sync_file_range,fsync",
		builtPath, "convert", "-q", "--to", "raw", "--verify", "structure", f.source, f.dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Regexp(t, `(?s)(pwrite64.*sync_file_range\(\d+, 0, \d+, SYNC_FILE_RANGE_WRITE.*){2}fsync`, r.stdout)
}

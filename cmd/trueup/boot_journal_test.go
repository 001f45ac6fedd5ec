package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestJournalBringsTheBootSectorBack is why a boot sector that has to change is refused in front of a journal that has
// to be replayed: e2fsck, as the kernel does, writes the block back that held superblock and boot sector when the guest
// was cut off.
func TestJournalBringsTheBootSectorBack(t *testing.T) {
	t.Parallel()
	raw, w, part := journalDisk(t, 0)
	dest := filepath.Join(filepath.Dir(raw), "aligned.raw")
	r := trueup(t, "align", raw, dest)
	require.Equal(t, 4, r.code, r.stdout)
	require.Contains(t, r.stderr, "the journal of partition 1 is to be replayed, which can bring its old bytes back: "+
		"transaction 1 holds its block 0")
	require.Contains(t, r.stderr, "shut the guest down cleanly first")

	require.Equal(t, 0, trueup(t, "align", "--allow-unbootable", raw, dest).code)
	now := windowOf(t, dest, 1)
	require.NotEqual(t, w.start, now.start)
	require.Equal(t, now.start, wordAt(t, dest, now.start*sectorSize+0x1C))
	require.NoError(t, os.WriteFile(part, readAt(t, dest, now.start*sectorSize, now.size*sectorSize), 0o600))
	disktest.Run(t, "e2fsck", "-p", "-E", "journal_only", part)
	require.Equal(t, w.start, wordAt(t, part, 0x1C))

	require.NoError(t, os.WriteFile(part, readAt(t, raw, w.start*sectorSize, w.size*sectorSize), 0o600))
	disktest.Run(t, "e2fsck", "-p", "-E", "journal_only", part)
	copyInto(t, part, raw, w)
	require.Equal(t, 0, trueup(t, "align", "--force", raw, dest).code, "once it is replayed")
}

// TestJournalLeavesTheBootSector aligns from an ext4 whose journal holds other blocks, and has it replayed by e2fsck
// and, as root, by Linux.
func TestJournalLeavesTheBootSector(t *testing.T) {
	t.Parallel()
	raw, _, part := journalDisk(t, 1)
	dest := filepath.Join(filepath.Dir(raw), "aligned.raw")
	r := trueup(t, "align", raw, dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "the ext4 of partition 1 was in use when it was copied")
	now := windowOf(t, dest, 1)
	require.NoError(t, os.WriteFile(part, readAt(t, dest, now.start*sectorSize, now.size*sectorSize), 0o600))
	if mnt := t.TempDir(); os.Getuid() == 0 && exec.Command("mount", "-o", "loop", part, mnt).Run() == nil {
		disktest.Run(t, "umount", mnt)
		require.Equal(t, now.start, wordAt(t, part, 0x1C), "after Linux")
		require.NoError(t, os.WriteFile(part, readAt(t, dest, now.start*sectorSize, now.size*sectorSize), 0o600))
	}
	disktest.Run(t, "e2fsck", "-p", "-E", "journal_only", part)
	require.Equal(t, now.start, wordAt(t, part, 0x1C))
	require.NotEqual(t, readAt(t, dest, now.start*sectorSize, 1<<20), readAt(t, part, 0, 1<<20), "it was replayed")
}

// journalDisk has an ext4 of 4 KiB blocks, with the boot sector of extlinux, whose journal holds a block.
func journalDisk(t testing.TB, held int64) (raw string, w window, part string) {
	t.Helper()
	d := commonDisk{
		script: dosLabel + wholeOld + "83, bootable\n", makes: []string{"mke2fs -q -t ext4 -b 4096 PART"},
		code: assembled(ownLBACode),
	}
	raw = d.build(t)
	w = windowOf(t, raw, 1)
	at := w.start * sectorSize
	disktest.WriteAt(t, raw, at, []byte("\xeb\x58\x90EXTLINUX"))
	disktest.WriteAt(t, raw, at+0x1C, []byte{trackSectors, 0, 0, 0})
	disktest.WriteAt(t, raw, at+sectorSize-2, []byte{0x55, 0xAA})
	part = filepath.Join(t.TempDir(), "part")
	require.NoError(t, os.WriteFile(part, readAt(t, raw, at, w.size*sectorSize), 0o600))
	block := hostFile(t, string(readAt(t, part, held*4096, 4096)))
	disktest.Run(t, "debugfs", "-w", "-f", hostFile(t,
		fmt.Sprintf("journal_open\njournal_write -b %d %s\njournal_close\n", held, block)), part)
	copyInto(t, part, raw, w)
	return raw, w, part
}

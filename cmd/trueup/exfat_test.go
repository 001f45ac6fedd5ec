package main

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
)

// exfatTools makes a volume by mkfs.exfat, which cannot say where its partition begins: the field and its checksum are
// written as Windows does it.
func exfatTools(t testing.TB, size, lba int64) forge.Bytes {
	t.Helper()
	path := disktest.Blank(t, "volume", size)
	disktest.Run(t, "mkfs.exfat", "-L", "Bilder", path)
	data := disktest.ReadFile(t, path)
	v := forge.Bytes(data)
	for _, first := range []int64{0, 12} {
		v.U64(first*512+fsforge.ExFATPartitionOffset, uint64(lba))
		fsforge.SealExFAT(v, first)
	}
	return v
}

// TestAlignExFAT moves an exFAT that stores its place. fsck.exfat proves the checksum of the copy; that it does, a
// flipped byte shows.
func TestAlignExFAT(t *testing.T) {
	t.Parallel()
	const start, sectors, total = 63, 40960, 65536
	volume := exfatTools(t, sectors*512, start)
	source := disktest.Blank(t, "exfat.raw", total*512)
	disktest.RunInput(t, "label: dos\nstart=63, size=40960, type=7\n", "sfdisk", "--quiet", source)
	disktest.WriteAt(t, source, start*512, volume)

	report := trueupJSON[jsonInspect](t, 3, "inspect", source)
	require.Equal(t, "exfat", report.Partitions[0].Volume.Kind)
	require.Equal(t, "Bilder", report.Partitions[0].Volume.Label)
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	r := trueup(t, "align", source, dest)
	require.Equal(t, 0, r.code, r.stderr)

	moved := readSfdisk(t, dest).Partitions[0].Start
	require.Equal(t, int64(2048), moved)
	got := forge.Bytes(readAt(t, dest, moved*512, sectors*512))
	for _, first := range []int64{0, 12} {
		require.Equal(t, uint64(moved), binary.LittleEndian.Uint64(got[first*512+fsforge.ExFATPartitionOffset:]))
		volume.U64(first*512+fsforge.ExFATPartitionOffset, uint64(moved))
		fsforge.SealExFAT(volume, first)
	}
	require.Equal(t, sha256.Sum256(volume), sha256.Sum256(got), "nothing else changes")
	part := filepath.Join(t.TempDir(), "part")
	require.NoError(t, os.WriteFile(part, got, 0o644))
	disktest.Run(t, "fsck.exfat", "-n", part)
	require.Contains(t, disktest.Output(t, "dump.exfat", part), "Bilder")
	require.Equal(t, 0, trueup(t, "verify", source, dest).code)

	got.U32(11*512, binary.LittleEndian.Uint32(got[11*512:])+1)
	got.U32(23*512, binary.LittleEndian.Uint32(got[23*512:])+1)
	require.NoError(t, os.WriteFile(part, got, 0o644))
	require.Error(t, exec.Command(disktest.Tool(t, "fsck.exfat"), "-n", part).Run(), "fsck.exfat reads the checksum")
}

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestAlignedHybridMBRBoots boots FreeDOS by the active slot of a hybrid MBR after the move, and in make boots before
// it. The code in sector 0 reads the CHS bytes of the slot: with the old ones in the copy it does not boot.
func TestAlignedHybridMBRBoots(t *testing.T) {
	t.Parallel()
	loaders := filepath.Join(disktest.CorpusDir(t), "loaders", "freedos") //nolint:misspell // FreeDOS
	d := bootDisk{fat: 16, heads: 255}
	source := disktest.Blank(t, "hybrid.raw", bootDiskSize)
	w := window{start: 1063, size: 100_000}
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "3:40:1000", "-n", "1:"+decimal(w.start)+":"+decimal(w.start+w.size-1),
		"-t", "1:0700", source)
	disktest.Run(t, "sgdisk", "-h", "1", source)
	d.format(t, source, w, 16)
	disktest.Run(t, "mcopy", "-i", drive(source, w), filepath.Join(loaders, "KERNEL.SYS"),
		filepath.Join(loaders, "COMMAND.COM"), "::")
	disktest.Run(t, "mcopy", "-i", drive(source, w), hostFile(t, "SHELL=C:\\COMMAND.COM C:\\ /P\r\n"), "::FDCONFIG.SYS")
	disktest.Run(t, "mcopy", "-i", drive(source, w), hostFile(t, "@ECHO "+booted+"\r\n"), "::AUTOEXEC.BAT")
	code := disktest.ReadFile(t, filepath.Join(loaders, "br_fat16fd_0x3e.bin"))
	disktest.WriteAt(t, source, w.start*sectorSize+codeOfFAT, code)
	disktest.WriteAt(t, source, w.start*sectorSize+0x24, []byte{0x80}) // the drive
	disktest.WriteAt(t, source, 0, chsBootCode(t))
	disktest.WriteAt(t, source, 446+16, []byte{0x80})   // slot 2 is active
	disktest.WriteAt(t, source, 446+16+4, []byte{0x06}) // DOS does not read type 07
	if disktest.Exhaustive {
		require.Equal(t, booted, boot(t, source, d.heads), "before")
	}

	dest := filepath.Join(t.TempDir(), "aligned.raw")
	answer := trueupJSON[jsonAlign](t, 0, "align", source, dest)
	require.Equal(t, 2, answer.Moved)
	require.Equal(t, booted, boot(t, dest, d.heads), "after")

	disktest.WriteAt(t, dest, 446+16+1, readAt(t, source, 446+16+1, 3))
	disktest.WriteAt(t, dest, w.start*sectorSize, marker(t, staleShown))
	require.Equal(t, staleShown, boot(t, dest, d.heads), "with the old CHS bytes")
}

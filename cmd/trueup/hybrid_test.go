package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// hybridDisk has sgdisk make a GPT of four misaligned partitions, and a hybrid MBR of some of them.
func hybridDisk(t testing.TB, slots string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hybrid.raw")
	disktest.Run(t, "truncate", "-s", "200M", path)
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "1:63:20000", "-t", "1:ef00", "-n", "2:20001:80000", "-t", "2:0700",
		"-n", "3:80063:150000", "-t", "3:8300", "-n", "4:150100:0", path)
	disktest.Run(t, "sgdisk", "-h", slots, path)
	for _, lba := range []int64{63, 20001, 80063, 150100} {
		disktest.WriteAt(t, path, lba*sectorSize, noise(decimal(lba), 64<<10))
	}
	return path
}

// mbrSlot is a slot as sfdisk reads it.
type mbrSlot struct {
	Node, Type  string
	Start, Size int64
	Bootable    bool
}

// slotsOf returns the slots of an MBR: sfdisk reads those of a disk without the GPT behind it.
func slotsOf(t testing.TB, path string) []mbrSlot {
	t.Helper()
	info := disktest.Stat(t, path)
	mbr := filepath.Join(t.TempDir(), "mbr.raw")
	require.NoError(t, os.WriteFile(mbr, readAt(t, path, 0, sectorSize), 0o600))
	require.NoError(t, os.Truncate(mbr, info.Size()))
	var dump struct {
		PartitionTable struct {
			Label, ID  string
			Partitions []mbrSlot
		}
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", mbr)), &dump))
	require.Equal(t, "dos", dump.PartitionTable.Label)
	for i := range dump.PartitionTable.Partitions {
		s := &dump.PartitionTable.Partitions[i]
		s.Node = strings.TrimPrefix(s.Node, mbr)
	}
	return dump.PartitionTable.Partitions
}

// TestAlignedHybridMBR aligns disks with hybrid MBRs that sgdisk made. gdisk and sfdisk read both tables of the copy.
func TestAlignedHybridMBR(t *testing.T) {
	t.Parallel()
	const ee, fat, linux, esp = "ee", "7", "83", "ef"
	behind := hybridDisk(t, "3")
	disktest.WriteAt(t, behind, 446+16, []byte{0x80}) // active, and a second protective entry up to the end of the disk
	disktest.WriteAt(t, behind, 446+3*16, []byte{
		0, 0xfe, 0xff, 0xff, 0xee, 0xfe, 0xff, 0xff, 0xf1, 0x49, 2, 0, 0x0f, 0xf6, 3,
		0,
	})
	for name, c := range map[string]struct {
		path string
		want []mbrSlot
	}{
		"two behind the protective entry": {hybridDisk(t, "2:3"), []mbrSlot{
			{"1", ee, 1, 22527, false}, {"2", fat, 22528, 60000, false}, {"3", linux, 83968, 69938, false},
		}},
		"the protective entry last": {hybridDisk(t, "3:2:EE"), []mbrSlot{
			{"1", linux, 83968, 69938, false}, {"2", fat, 22528, 60000, false}, {"3", ee, 1, 22527, false},
		}},
		"the first partition": {hybridDisk(t, "1"), []mbrSlot{
			{"1", ee, 1, 2047, false},
			{"2", esp, 2048, 19938, false},
		}},
		"protective entries on both sides": {behind, []mbrSlot{
			{"1", ee, 1, 83967, false}, {"2", linux, 83968, 69938, true}, {"4", ee, 153906, 203<<11 - 153906, false},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dest := filepath.Join(t.TempDir(), "aligned.raw")
			answer := trueupJSON[jsonAlign](t, 0, "align", c.path, dest)
			require.Equal(t, 4, answer.Moved)
			require.Equal(t, c.want, slotsOf(t, dest))
			require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
			require.Contains(t, disktest.Run(t, "gdisk", "-l", dest), "MBR: hybrid")
			require.Equal(t, 0, trueup(t, "verify", c.path, dest).code)
			again := trueupJSON[jsonPlan](t, 0, "plan", dest)
			require.Empty(t, again.Moves)
			require.Empty(t, again.Patches)
			for from, to := range map[int64]int64{63: 2048, 20001: 22528, 80063: 83968, 150100: 155648} {
				require.Equal(t, readAt(t, c.path, from*sectorSize, 64<<10), readAt(t, dest, to*sectorSize, 64<<10))
			}
		})
	}
}

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

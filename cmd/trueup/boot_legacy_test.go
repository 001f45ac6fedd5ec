package main

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// GRUB 0.97. Spec: stage1/stage1.h; stage2/start.S.
const (
	atStage1Sector = 0x44  // u32: LBA of the next stage
	atBlockList    = 0x1f8 // u32: LBA of its second sector
)

// legacyDisk is a disk that GRUB legacy boots, with ext in its first partition.
type legacyDisk struct {
	name    string
	kind    string                  // of ext
	logical bool                    // the partition is number 5, one track behind the start of number 1
	code    func(testing.TB) []byte // of the MBR; nil: GRUB installs its own
	install string                  // commands of the GRUB shell
	stage1  func([]window) int64    // byte offset of the stage1 that points into the last partition; nil: nothing does
	quick   bool                    // make test starts it
}

const menu = "default 0\ntimeout 0\ntitle marker\nroot %s\nchainloader /boot/marker.bin\n"

func inMBR([]window) int64       { return 0 }
func inFirst(all []window) int64 { return all[0].start * sectorSize }

var legacyDisks = []legacyDisk{
	{
		name: "stage1.5 in the gap", kind: "ext3",
		install: "root (hd0,0)\nsetup (hd0)\n",
	}, {
		name: "stage2 by a block list", kind: "ext2", stage1: inMBR,
		install: "root (hd0,0)\ninstall /boot/grub/stage1 (hd0) /boot/grub/stage2 p /boot/grub/menu.lst\n",
	}, {
		// As the installer of Red Hat Enterprise Linux 6 did it.
		name: "stage2 by a block list, from the first disk whatever the BIOS says", kind: "ext3", stage1: inMBR,
		install: "root (hd0,0)\ninstall --force-lba /boot/grub/stage1 d (hd0) /boot/grub/stage2 p " +
			"(hd0,0)/boot/grub/menu.lst\n",
	}, {
		name: "stage1.5 as a file by a block list", kind: "ext2", stage1: inMBR,
		install: "root (hd0,0)\ninstall /boot/grub/stage1 (hd0) /boot/grub/e2fs_stage1_5 p (hd0,0)/boot/grub/stage2 " +
			"/boot/grub/menu.lst\n",
	}, {
		name: "stage1 in the boot sector of the partition", kind: "ext2", code: assembled(ownLBACode), stage1: inFirst,
		install: "root (hd0,0)\ninstall /boot/grub/stage1 (hd0,0) /boot/grub/stage2 p /boot/grub/menu.lst\n",
	}, {
		name: "stage2 in a logical partition", kind: "ext2", logical: true, stage1: inMBR,
		install: "root (hd0,4)\ninstall /boot/grub/stage1 (hd0) /boot/grub/stage2 p /boot/grub/menu.lst\n",
	}, {
		// As SUSE set it up: the extended partition is the active one.
		name: "stage1 in the first record of an extended partition", kind: "ext3", logical: true,
		code: assembled(ownLBACode), stage1: inFirst, quick: true,
		install: "root (hd0,4)\ninstall /boot/grub/stage1 (hd0,0) /boot/grub/stage2 p /boot/grub/menu.lst\n",
	},
}

const legacyHeads = 16

// build makes the image of the disk.
func (d legacyDisk) build(t testing.TB) string {
	t.Helper()
	raw := disktest.Blank(t, "disk.raw", bootDiskSize)
	commands := "o\nn\np\n1\n63\n112895\na\nw\n"
	if d.logical {
		commands = "o\nn\ne\n1\n63\n112895\nn\nl\n126\n112895\na\n1\nw\n"
	}
	disktest.RunInput(t, commands, "fdisk", "--compatibility=dos", "--units=sectors", "--heads", decimal(legacyHeads),
		"--sectors", decimal(trackSectors), raw)
	if d.code != nil {
		disktest.WriteAt(t, raw, 0, d.code(t))
	}
	d.fill(t, raw)
	said := disktest.GrubLegacy(t, raw, d.install+"quit\n")
	require.NotContains(t, said, "Error", "GRUB")
	return raw
}

// fill makes the file system with the files of GRUB and the sector that it loads.
func (d legacyDisk) fill(t testing.TB, raw string) {
	t.Helper()
	w := last(tableOf(t, raw))
	part := filepath.Join(t.TempDir(), "part")
	// GRUB 0.97 as its authors left it reads inodes of 128 bytes only.
	disktest.Run(t, "mke2fs", "-q", "-t", d.kind, "-I", "128", "-b", "1024", part, decimal(w.size/2)+"k")
	// One after the other, so that each file gets the same blocks in every run: plans name them.
	commands := "mkdir boot\nmkdir boot/grub\n"
	for _, name := range []string{"stage1", "e2fs_stage1_5", "stage2"} {
		commands += fmt.Sprintf("write %s boot/grub/%s\n", disktest.GrubLegacyStage(t, name), name)
	}
	commands += fmt.Sprintf("write %s boot/grub/menu.lst\n", hostFile(t, fmt.Sprintf(menu, d.device())))
	commands += fmt.Sprintf("write %s boot/marker.bin\n", hostFile(t, string(marker(t, booted))))
	disktest.Run(t, "debugfs", "-w", "-f", hostFile(t, commands), part)
	copyInto(t, part, raw, w)
}

// device is what GRUB calls the partition.
func (d legacyDisk) device() string {
	if d.logical {
		return "(hd0,4)"
	}
	return "(hd0,0)"
}

// last is the partition with the file system.
func last(all []window) window { return all[len(all)-1] }

// copyInto puts a volume that a tool made in a file to its place.
func copyInto(t testing.TB, part, raw string, w window) {
	t.Helper()
	disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=65536", "conv=sparse,notrunc", "oflag=seek_bytes",
		"seek="+decimal(w.start*sectorSize), "status=none")
}

func wordAt(t testing.TB, raw string, off int64) int64 {
	t.Helper()
	return int64(binary.LittleEndian.Uint32(readAt(t, raw, off, 4)))
}

// TestAlignedGrubLegacyBoots asks debugfs and the bytes of each result. make boots starts each, and each source.
func TestAlignedGrubLegacyBoots(t *testing.T) {
	t.Parallel()
	for _, d := range legacyDisks {
		t.Run(d.name, d.run)
	}
}

func (d legacyDisk) run(t *testing.T) {
	source, dest := d.build(t), filepath.Join(t.TempDir(), "aligned.raw")
	if disktest.Exhaustive {
		require.Equal(t, booted, boot(t, source, legacyHeads), "before")
	}
	goldenPlan(t, "grub legacy "+d.name, source)
	r := trueup(t, "align", source, dest)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	requireSameView(t, source, dest)
	was, now := tableOf(t, source), tableOf(t, dest)
	require.Zero(t, last(now).start%2048)
	require.NotEqual(t, last(was).start, last(now).start)
	starts := d.quick || disktest.Exhaustive
	if starts {
		require.Equal(t, booted, boot(t, dest, legacyHeads), "after")
	}
	if d.stage1 == nil {
		// Code and gap are as they were, except for the table.
		gap := (was[0].start - 1) * sectorSize
		require.Equal(t, readAt(t, source, 0, codeSize), readAt(t, dest, 0, codeSize))
		require.Equal(t, readAt(t, source, sectorSize, gap), readAt(t, dest, sectorSize, gap))
		return
	}
	d.checkSectors(t, dest, now)
	if starts {
		d.checkStale(t, source, dest)
	}
}

// checkSectors asks debugfs where the stage lies in the result.
func (d legacyDisk) checkSectors(t *testing.T, dest string, now []window) {
	t.Helper()
	w := last(now)
	part, file := filepath.Join(t.TempDir(), "part"), "/boot/grub/stage2"
	if strings.Contains(d.install, "/boot/grub/e2fs_stage1_5 p") {
		file = "/boot/grub/e2fs_stage1_5"
	}
	disktest.Run(t, "dd", "if="+dest, "of="+part, "bs=65536", "iflag=skip_bytes,count_bytes", "conv=sparse",
		"skip="+decimal(w.start*sectorSize), "count="+decimal(w.size*sectorSize), "status=none")
	var first int64
	_, err := fmt.Sscan(disktest.Output(t, "debugfs", "-R", "blocks "+file, part), &first)
	require.NoError(t, err)
	lba := w.start + first*2
	require.Equal(t, lba, wordAt(t, dest, d.stage1(now)+atStage1Sector))
	require.Equal(t, lba+1, wordAt(t, dest, lba*sectorSize+atBlockList))
}

// checkStale undoes one rewritten reference after the other, each in a copy of the result. At the place that the loader
// then reads stands a sector that says so.
func (d legacyDisk) checkStale(t *testing.T, source, dest string) {
	t.Helper()
	was, now := tableOf(t, source), tableOf(t, dest)
	old, moved := wordAt(t, source, d.stage1(was)+atStage1Sector), wordAt(t, dest, d.stage1(now)+atStage1Sector)
	for name, stale := range map[string]struct{ at, lba int64 }{
		"stage1":     {d.stage1(now) + atStage1Sector, old},
		"block list": {moved*sectorSize + atBlockList, old + 1},
	} {
		broken := filepath.Join(t.TempDir(), "broken.raw")
		disktest.Run(t, "cp", "--sparse=always", dest, broken)
		disktest.WriteAt(t, broken, stale.at, binary.LittleEndian.AppendUint32(nil, uint32(stale.lba)))
		disktest.WriteAt(t, broken, stale.lba*sectorSize, marker(t, staleShown))
		require.Equal(t, staleShown, boot(t, broken, legacyHeads), "stale %s", name)
	}
}

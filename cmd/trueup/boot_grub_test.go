package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// grubDir is the folder of Debian's grub-pc-bin.
const grubDir = "/usr/lib/grub/i386-pc"

// Places in GRUB 2's first sectors. Spec: include/grub/i386/pc/boot.h, grub-core/boot/i386/pc/diskboot.S.
const (
	grubKernelSector = 0x5C  // boot.img: u64, LBA of core.img
	grubDriveCheck   = 0x66  // boot.img: a jump that setup replaces on hard disks
	grubFirstList    = 0x1F4 // first sector of core.img: start u64, sectors u16, segment u16
	grubListSize     = 12
)

// grubDisk is a disk with GRUB 2 and one Linux.
type grubDisk struct {
	size   int64  // bytes
	script string // script for sfdisk
	root   int    // number of the partition with Linux
	prefix string // prefix in core.img: a partition number of the boot disk, and a folder
}

// grubExtent is a run of sectors of core.img.
type grubExtent struct{ start, sectors int64 }

// build makes the disk without GRUB's boot code. dir is the content of its Linux, with the files that GRUB reads by
// name.
func (d grubDisk) build(t testing.TB) (raw, dir string) {
	t.Helper()
	raw, dir = blankDisk(t, d.size, d.script), linuxRoot(t)
	modules := filepath.Join(dir, "boot/grub/i386-pc")
	require.NoError(t, os.MkdirAll(modules, 0o755))
	text := disktest.ReadFile(t, disktest.DataFile(t, filepath.Join(grubDir, "moddep.lst")))
	for _, name := range withNeeds(string(text), "normal", "linux", "search", "echo") {
		data := disktest.ReadFile(t, filepath.Join(grubDir, name+".mod"))
		require.NoError(t, os.WriteFile(filepath.Join(modules, name+".mod"), data, 0o644))
	}
	config := "insmod search\ninsmod linux\ninsmod echo\nsearch --no-floppy --fs-uuid --set=root " + linuxRootUUID +
		"\n" +
		"linux /boot/vmlinuz " + linuxCommand + "\ninitrd /boot/initrd.img\n" +
		strings.Repeat("echo \""+grubLoaded+"\"\n", 3) + "boot\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "boot/grub/grub.cfg"), []byte(config), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(modules, "core.img"), d.core(t), 0o644))
	makeLinuxRoot(t, raw, windowOf(t, raw, d.root), dir, "-t", "ext4")
	return raw, dir
}

// core makes core.img in whole sectors, small enough for the gap before LBA 63.
func (d grubDisk) core(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "core.img")
	disktest.Run(t, "grub-mkimage", "-O", "i386-pc", "-d", grubDir, "-p", d.prefix, "-o", path, "biosdisk",
		"part_msdos", "part_gpt", "ext2")
	core := disktest.ReadFile(t, path)
	return append(core, make([]byte, -len(core)&(sectorSize-1))...)
}

func (d grubDisk) coreSectors(t testing.TB) int64 {
	t.Helper()
	return int64(len(d.core(t)) / sectorSize)
}

// listed returns core with its list of sectors filled in. The first sector holds the list, and is not in it.
func listed(core []byte, extents []grubExtent) []byte {
	core = bytes.Clone(core)
	rest := append([]grubExtent{{extents[0].start + 1, extents[0].sectors - 1}}, extents[1:]...)
	segment, at := int64(0x820), grubFirstList
	for _, e := range rest {
		binary.LittleEndian.PutUint64(core[at:], uint64(e.start))
		binary.LittleEndian.PutUint16(core[at+8:], uint16(e.sectors))
		binary.LittleEndian.PutUint16(core[at+10:], uint16(segment))
		segment += e.sectors * sectorSize / 16
		at -= grubListSize
	}
	return core
}

// installGrub installs like grub-bios-setup, which needs devices: it writes boot.img into a sector, keeping some of its
// fields, and core.img to its places.
func installGrub(t testing.TB, raw string, bootSector int64, core []byte, extents []grubExtent) {
	t.Helper()
	img := disktest.ReadFile(t, disktest.DataFile(t, filepath.Join(grubDir, "boot.img")))
	binary.LittleEndian.PutUint64(img[grubKernelSector:], uint64(extents[0].start))
	copy(img[grubDriveCheck:], []byte{0x90, 0x90})
	disktest.WriteAt(t, raw, bootSector*sectorSize, img[:codeSize])
	disktest.WriteAt(t, raw, bootSector*sectorSize+sectorSize-2, []byte{0x55, 0xAA})
	core = listed(core, extents)
	for _, e := range extents {
		n := e.sectors * sectorSize
		disktest.WriteAt(t, raw, e.start*sectorSize, core[:n])
		core = core[n:]
	}
	require.Empty(t, core)
}

// windowOf returns a partition as sfdisk reads it, by number.
func windowOf(t testing.TB, raw string, number int) window {
	t.Helper()
	all := numbered(t, raw)
	require.Contains(t, all, number, raw)
	return all[number]
}

// grubRescue is the prompt of a core.img without its files.
const grubRescue = "grub rescue>"

// grubLoaded is the output of grub.cfg after loading kernel and initrd, three times: the mirror of the BIOS can lose a
// character when the kernel takes over.
const grubLoaded = "trueup: loaded"

// oldGrubDisk is a disk like an old Debian: one partition after the first track, core.img in the gap.
var oldGrubDisk = grubDisk{
	size: 64 << 20, script: "label: dos\nstart=63, size=120000, type=83, bootable\n", root: 1,
	prefix: "(,msdos1)/boot/grub",
}

// boots returns a PC with the disk. Its Linux prints the digest of its files. In make test, a boot ends when GRUB has
// loaded kernel and initrd unless whole is set, because Linux takes ten seconds of processor time.
func (d grubDisk) boots(sum string, whole bool) movedBoot {
	others := []string{grubRescue, staleShown}
	if !whole && !disktest.Exhaustive {
		others, sum = append(others, grubLoaded), grubLoaded
	}
	return movedBoot{quick: true, shows: sum, boot: func(t testing.TB, image string) string {
		t.Helper()
		return bootLinux(t, pc{image: image}, others...)
	}}
}

// TestAlignedGrub2InTheGapBoots boots GRUB 2 in the gap. It needs only the table, where it finds its partition by
// number: with the old start LBA in the table, it does not boot.
func TestAlignedGrub2InTheGapBoots(t *testing.T) {
	t.Parallel()
	raw, dir := oldGrubDisk.build(t)
	installGrub(t, raw, 0, oldGrubDisk.core(t), []grubExtent{{1, oldGrubDisk.coreSectors(t)}})
	m := oldGrubDisk.boots(treeSum(t, dir), false)
	m.plan, m.starts = "grub 2 in the gap", []int64{2048}
	staleLBA.require(t, m.align(t, raw), []string{grubRescue}, m.boot)
}

// TestAlignedGrub2InABootSectorBoots boots a GRUB 2 in a boot sector, chained from the MBR code of another system: the
// boot sector lists the sectors of core.img. Its plan is no golden text, because the place of a file depends on the
// sizes of the others.
func TestAlignedGrub2InABootSectorBoots(t *testing.T) {
	t.Parallel()
	d := oldGrubDisk
	raw, dir := d.build(t)
	disktest.WriteAt(t, raw, 0, lbaBootCode(t))
	root := windowOf(t, raw, 1)
	var extents []grubExtent
	for _, lba := range fileSectors(t, raw, root, "/boot/grub/i386-pc/core.img") {
		if k := len(extents) - 1; k >= 0 && extents[k].start+extents[k].sectors == lba {
			extents[k].sectors++
		} else {
			extents = append(extents, grubExtent{lba, 1})
		}
	}
	// Two entries in place of one, like for a file with two fragments.
	first := extents[0]
	extents = append([]grubExtent{{first.start, 9}, {first.start + 9, first.sectors - 9}}, extents[1:]...)
	installGrub(t, raw, root.start, d.core(t), extents)

	// The list is part of the file, which the guest reads too: nothing else in it may change.
	const shift = 2048 - 63
	sum := func(shift int64) string {
		moved := slices.Clone(extents)
		for i := range moved {
			moved[i].start += shift
		}
		file := filepath.Join(dir, "boot/grub/i386-pc/core.img")
		require.NoError(t, os.WriteFile(file, listed(d.core(t), moved), 0o644))
		return treeSum(t, dir)
	}
	m := d.boots(sum(0), false)
	m.starts = []int64{2048}
	if disktest.Exhaustive {
		m.after = func(testing.TB, string) string { return sum(shift) }
	}
	boot, core := (root.start+shift)*sectorSize, (first.start+shift)*sectorSize
	m.requireGrub(t, m.align(t, raw), shift, map[int64]int64{
		boot + grubKernelSector: first.start, core + grubFirstList: first.start + 1,
		core + grubFirstList - grubListSize: first.start + 9,
	})
}

// TestAlignedGrub2OnGPTBoots has core.img in the BIOS boot partition of a GPT. At LBA 34 it is off every boundary, and
// moves if it is selected.
func TestAlignedGrub2OnGPTBoots(t *testing.T) {
	t.Parallel()
	d := grubDisk{
		size: 96 << 20, root: 2, prefix: "(,gpt2)/boot/grub",
		// Names of its own, because the digests in the golden plan cover them.
		script: "label: gpt\nlabel-id: 6E1FA5C0-0000-4000-8000-000000000000\nfirst-lba: 34\n" +
			"start=34, size=200, type=21686148-6449-6E6F-744E-656564454649, " +
			"uuid=6E1FA5C0-0000-4000-8000-000000000001\nstart=1063, size=120000, " +
			"type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, uuid=6E1FA5C0-0000-4000-8000-000000000002\n",
	}
	raw, dir := d.build(t)
	// setup.c skips sectors that other software has marked.
	installGrub(t, raw, 0, d.core(t), []grubExtent{{34, 20}, {56, d.coreSectors(t) - 20}})
	m := d.boots(treeSum(t, dir), true)
	m.plan, m.flags, m.starts = "grub 2 in a bios boot partition", bothParts, []int64{2048, 4096}
	const shift, core = 2048 - 34, 2048 * sectorSize
	m.requireGrub(t, m.align(t, raw), shift, map[int64]int64{
		grubKernelSector: 34, core + grubFirstList: 35, core + grubFirstList - grubListSize: 56,
	})
}

// TestAlignedGrub2WithALogicalRootBoots aligns an old disk with the root in a logical partition: its boot record moves
// too.
func TestAlignedGrub2WithALogicalRootBoots(t *testing.T) {
	t.Parallel()
	d := grubDisk{
		size: 96 << 20, root: 5, prefix: "(,msdos5)/boot/grub",
		script: "label: dos\n" +
			"start=63, size=16002, type=83\n" +
			"start=16065, size=144585, type=5\n" +
			"start=16128, size=120000, type=83\n",
	}
	raw, dir := d.build(t)
	installGrub(t, raw, 0, d.core(t), []grubExtent{{1, d.coreSectors(t)}})
	m := d.boots(treeSum(t, dir), false)
	m.plan = "grub 2 in the gap, root in a logical partition"
	m.align(t, raw)
}

// requireGrub requires that sector numbers in the copy have moved, each by shift from its old value, and that the boot
// fails with the old number of the extent that begins at run.
func (m movedBoot) requireGrub(t *testing.T, dest string, shift int64, fields map[int64]int64) {
	t.Helper()
	for at, was := range fields {
		require.Equal(t, sectorField(was+shift), readAt(t, dest, at, 8), "sector number at byte %d", at)
		if at%sectorSize != grubFirstList-grubListSize { // the second sector of a list
			m.requireLeads(t, dest, at, sectorField(was))
		}
	}
}

// sectorField is a sector number as GRUB 2 stores it.
func sectorField(sector int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(sector)) }

// GRUB 0.97. Spec: stage1/stage1.h; stage2/start.S.
const (
	atStage1Sector = 0x44  // u32: LBA of the next stage
	atBlockList    = 0x1f8 // u32: LBA of its second sector
)

// legacyDisk is a disk with GRUB legacy, and ext in its first partition.
type legacyDisk struct {
	name    string
	kind    string                  // of ext
	logical bool                    // the partition is logical (5), one track after the start of number 1
	code    func(testing.TB) []byte // of the MBR; nil: GRUB installs its own
	install string                  // commands of the GRUB shell
	stage1  func([]window) int64    // byte offset of the stage1 that points into the last partition; nil: there is none
	quick   bool                    // make test boots it
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
		// Like the installer of Red Hat Enterprise Linux 6.
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
		// Like SUSE: the extended partition is the active one.
		name: "stage1 in the first record of an extended partition", kind: "ext3", logical: true,
		code: assembled(ownLBACode), stage1: inFirst, quick: true,
		install: "root (hd0,4)\ninstall /boot/grub/stage1 (hd0,0) /boot/grub/stage2 p /boot/grub/menu.lst\n",
	},
}

const legacyHeads = 16

// build makes the disk, its file system with the files of GRUB, and the sector that it loads.
func (d legacyDisk) build(t testing.TB) string {
	t.Helper()
	raw, device := disktest.Blank(t, "disk.raw", bootDiskSize), "(hd0,0)"
	commands := "n\np\n1\n63\n112895\na"
	if d.logical {
		commands, device = "n\ne\n1\n63\n112895\nn\nl\n126\n112895\na\n1", "(hd0,4)"
	}
	fdisk(t, raw, legacyHeads, trackSectors, commands)
	if d.code != nil {
		disktest.WriteAt(t, raw, 0, d.code(t))
	}
	w, part := last(tableOf(t, raw)), filepath.Join(t.TempDir(), "part")
	// Original GRUB 0.97 reads only inodes of 128 bytes.
	disktest.Run(t, "mke2fs", "-q", "-t", d.kind, "-I", "128", "-b", "1024", part, decimal(w.size/2)+"k")
	// Sequentially, so that each file gets the same blocks in every run, because plans contain them.
	commands = "mkdir boot\nmkdir boot/grub\n"
	for _, name := range []string{"stage1", "e2fs_stage1_5", "stage2"} {
		commands += fmt.Sprintf("write %s boot/grub/%s\n", disktest.GrubLegacyStage(t, name), name)
	}
	commands += fmt.Sprintf("write %s boot/grub/menu.lst\n", hostFile(t, fmt.Sprintf(menu, device)))
	commands += fmt.Sprintf("write %s boot/marker.bin\n", hostFile(t, string(marker(t, booted))))
	disktest.Run(t, "debugfs", "-w", "-f", hostFile(t, commands), part)
	copyInto(t, part, raw, w)
	require.NotContains(t, disktest.GrubLegacy(t, raw, d.install+"quit\n"), "Error", "GRUB")
	return raw
}

func wordAt(t testing.TB, raw string, off int64) int64 {
	t.Helper()
	return int64(binary.LittleEndian.Uint32(readAt(t, raw, off, 4)))
}

// TestAlignedGrubLegacyBoots checks each result with debugfs and by its bytes. make boots starts each result and each
// source.
func TestAlignedGrubLegacyBoots(t *testing.T) {
	t.Parallel()
	for _, d := range legacyDisks {
		t.Run(d.name, d.run)
	}
}

func (d legacyDisk) run(t *testing.T) {
	source := d.build(t)
	m := movedBoot{plan: "grub legacy " + d.name, quick: d.quick, boot: on(legacyHeads), shows: booted}
	dest := m.align(t, source)
	was, now := tableOf(t, source), tableOf(t, dest)
	require.NotEqual(t, last(was).start, last(now).start)
	if d.stage1 == nil {
		// Code and gap are unchanged except for the table.
		gap := (was[0].start - 1) * sectorSize
		require.Equal(t, readAt(t, source, 0, codeSize), readAt(t, dest, 0, codeSize))
		require.Equal(t, readAt(t, source, sectorSize, gap), readAt(t, dest, sectorSize, gap))
		return
	}
	// debugfs locates the stage in the result.
	file := "/boot/grub/stage2"
	if strings.Contains(d.install, "/boot/grub/e2fs_stage1_5 p") {
		file = "/boot/grub/e2fs_stage1_5"
	}
	old, lba := wordAt(t, source, d.stage1(was)+atStage1Sector), fileSectors(t, dest, last(now), file)[0]
	for at, was := range map[int64]int64{d.stage1(now) + atStage1Sector: old, lba*sectorSize + atBlockList: old + 1} {
		require.Equal(t, was-old+lba, wordAt(t, dest, at))
		if m.started() {
			m.requireLeads(t, dest, at, binary.LittleEndian.AppendUint32(nil, uint32(was)))
		}
	}
}

// copyInto copies a volume from a file into the disk.
func copyInto(t testing.TB, part, raw string, w window) {
	t.Helper()
	disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=65536", "conv=sparse,notrunc", "oflag=seek_bytes",
		"seek="+decimal(w.start*sectorSize), "status=none")
}

package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// grubDir is where Debian's grub-pc-bin keeps GRUB 2 for the BIOS.
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
	script string // the table, for sfdisk
	root   int    // number of the partition that Linux is in
	prefix string // where core.img finds the rest of GRUB: a partition number of the boot disk, and a folder
}

// grubExtent is a run of sectors of core.img.
type grubExtent struct{ start, sectors int64 }

// build makes the disk without GRUB's boot code. dir is what its Linux has been filled from.
func (d grubDisk) build(t testing.TB) (raw, dir string) {
	t.Helper()
	raw = disktest.Blank(t, "grub.raw", d.size)
	disktest.RunInput(t, d.script, "sfdisk", "--quiet", raw)
	dir = linuxRoot(t)
	d.fill(t, dir)
	makeLinuxRoot(t, raw, windowOf(t, raw, d.root), dir, "-t", "ext4")
	return raw, dir
}

// fill puts into the folder what GRUB reads by names.
func (d grubDisk) fill(t testing.TB, dir string) {
	t.Helper()
	modules := filepath.Join(dir, "boot/grub/i386-pc")
	require.NoError(t, os.MkdirAll(modules, 0o755))
	for _, name := range grubModules(t, "normal", "linux", "search", "echo") {
		data := disktest.ReadFile(t, filepath.Join(grubDir, name+".mod"))
		require.NoError(t, os.WriteFile(filepath.Join(modules, name+".mod"), data, 0o644))
	}
	config := "insmod search\ninsmod linux\ninsmod echo\nsearch --no-floppy --fs-uuid --set=root " + linuxRootUUID +
		"\n" +
		"linux /boot/vmlinuz " + linuxCommand + "\ninitrd /boot/initrd.img\n" +
		strings.Repeat("echo \""+grubLoaded+"\"\n", 3) + "boot\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "boot/grub/grub.cfg"), []byte(config), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(modules, "core.img"), d.core(t), 0o644))
}

// grubModules are these modules and all that they need.
func grubModules(t testing.TB, names ...string) []string {
	t.Helper()
	text := disktest.ReadFile(t, disktest.DataFile(t, filepath.Join(grubDir, "moddep.lst")))
	needs := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[name] = strings.Fields(rest)
	}
	seen := map[string]bool{}
	var all []string
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if !seen[name] {
			seen[name] = true
			all = append(all, name)
			names = append(names, needs[name]...)
		}
	}
	return all
}

// core makes core.img in whole sectors. It is small enough for the gap in front of LBA 63.
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

// listed is core with the list of its sectors. The first sector, which the list is in, is not in the list.
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

// installGrub does what grub-bios-setup does, which wants devices: it writes boot.img in front of what a sector keeps,
// and core.img to its places.
func installGrub(t testing.TB, raw string, bootSector int64, core []byte, extents []grubExtent) {
	t.Helper()
	img := disktest.ReadFile(t, disktest.DataFile(t, filepath.Join(grubDir, "boot.img")))
	binary.LittleEndian.PutUint64(img[grubKernelSector:], uint64(extents[0].start))
	copy(img[grubDriveCheck:], []byte{0x90, 0x90})
	disktest.WriteAt(t, raw, bootSector*sectorSize, img[:codeSize])
	disktest.WriteAt(t, raw, bootSector*sectorSize+sectorSize-2, []byte{0x55, 0xAA})
	core = listed(core, extents)
	for _, e := range extents {
		n := min(e.sectors*sectorSize, int64(len(core))) // the last block of a file may not be full
		disktest.WriteAt(t, raw, e.start*sectorSize, core[:n])
		core = core[n:]
	}
	require.Empty(t, core)
}

// windowOf returns a partition that sfdisk sees, by its number.
func windowOf(t testing.TB, raw string, number int) window {
	t.Helper()
	var dump struct {
		PartitionTable struct {
			Partitions []struct {
				Node        string
				Start, Size int64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &dump))
	for _, p := range dump.PartitionTable.Partitions {
		if p.Node == raw+strconv.Itoa(number) {
			return window{p.Start, p.Size}
		}
	}
	t.Fatalf("%s has no partition %d", raw, number)
	return window{}
}

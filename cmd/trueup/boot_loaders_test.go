package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// loaderDisk is a disk with real loaders of the corpus, for a BIOS of 255 heads.
type loaderDisk struct {
	build  func(testing.TB) string
	shows  string // on the console, without spaces, once the loader has found all that it reads
	code   string // of sector 0
	starts []int64
	quick  bool // make test starts it
	flags  []string
}

// bothParts names the partitions of a disk whose first one would stay, since no running guest reads it.
var bothParts = []string{"--partition", "1", "--partition", "2"}

var loaderDisks = map[string]loaderDisk{
	"FreeDOS behind lilo -M": {
		build: freeDOS,
		shows: "theguestisup", code: "lilo-mbr", starts: []int64{2048},
	},
	"FreeBSD on a slice": {
		build: freeBSDSlice,
		shows: "isdisk0", code: "freebsd-boot0", starts: []int64{128},
	},
	"FreeBSD on a GPT": {
		build: freeBSDOnGPT,
		shows: "isdisk0", code: "freebsd-pmbr", starts: []int64{2048, 4096}, quick: true,
		flags: bothParts,
	},
	"Limine in the gap": {
		build: limineDisk(dosLabel+"start=63, size=112392, type=c, bootable\n", 1),
		shows: "theguestisup", code: "limine", starts: []int64{2048},
	},
	"Limine behind the entries of a GPT": {
		build: limineDisk(gptLabel+"start=63, size=112392, type="+dataGUID+"\n", 1),
		shows: "theguestisup", code: "limine", starts: []int64{2048},
	},
	"Limine in a BIOS boot partition": {
		build: limineDisk(
			gptLabel+"start=34, size=128, type="+biosBootGUID+"\nstart=163, size=112392, type="+dataGUID+"\n", 2, "1"),
		shows: "theguestisup", code: "limine", starts: []int64{2048, 4096}, quick: true,
		flags: bothParts,
	},
	"GRUB 2 of Ubuntu 16.04":       grub2Disk("ubuntu1604", "grubrescue>", 63, 2048),
	"GRUB 2 of Linux from scratch": grub2Disk("lfs", "grubrescue>", 63, 2048),
	"GRUB 2.14":                    grub2Disk("grub214", "grubrescue>", 127, 2048),
}

// Types of partitions of a GPT. Spec: GRUB manual, "BIOS installation"; Microsoft, "PARTITION_INFORMATION_GPT".
const (
	biosBootGUID = "21686148-6449-6E6F-744E-656564454649"
	dataGUID     = "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7"
)

// TestLoadersOfTheCorpusBoot moves loaders that no package here has. make boots starts each before and after; make test
// those that are quick, after the move.
func TestLoadersOfTheCorpusBoot(t *testing.T) {
	t.Parallel()
	for name, d := range loaderDisks {
		t.Run(name, d.run)
	}
}

func (d loaderDisk) run(t *testing.T) {
	source := d.build(t)
	require.Equal(t, d.code, trueupJSON[struct {
		Boot struct{ Name string } `json:"boot_code"`
	}](t, 3, "inspect", source).Boot.Name)
	m := movedBoot{flags: d.flags, starts: d.starts, quick: d.quick, shows: d.shows}
	m.boot = func(t testing.TB, image string) string {
		t.Helper()
		return pc{image: image, heads: 255}.watch(t, func(console string) string {
			return anyOf(d.shows)(strings.Join(strings.Fields(console), "")) // a cursor can stand within a word
		})
	}
	m.align(t, source)
}

// TestLimineWithoutRoom refuses a disk that would grow over Limine, and makes the copy for a user who accepts that.
func TestLimineWithoutRoom(t *testing.T) {
	t.Parallel()
	source := limineDisk(gptLabel+"start=63, size=130914, type="+dataGUID+"\n", 1)(t)
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	r := trueup(t, "align", source, dest)
	require.Equal(t, 4, r.code, r.stdout)
	require.Contains(t, r.stderr, "Limine in sector 0 loads half 2 of its stage 2")
	require.NoFileExists(t, dest)
	require.Equal(t, 0, trueup(t, "align", "--allow-unbootable", source, dest).code)
}

// loader returns a file of the loaders in the corpus.
func loader(t testing.TB, name string) []byte {
	t.Helper()
	b := disktest.ReadFile(t, disktest.Corpus(t, "loaders/"+name))
	return b
}

// freeDOS returns a disk with FreeDOS on a FAT16 at LBA 63, which says that it is up, behind lilo -M.
func freeDOS(t testing.TB) string {
	t.Helper()
	d := bootDisk{heads: 255, fat: 16}
	raw := blankDisk(t, bootDiskSize, dosLabel+"start=63, size=112392, type=6, bootable\n")
	w := windowOf(t, raw, 1)
	d.format(t, raw, w, 16)
	for name, text := range map[string]string{
		"AUTOEXEC.BAT": "@ECHO " + booted + "\r\n", "FDCONFIG.SYS": "SHELL=C:\\COMMAND.COM C:\\ /P\r\n",
	} {
		disktest.Run(t, "mcopy", "-i", drive(raw, w), hostFile(t, text), "::"+name)
	}
	const folder = "freedos/" //nolint:misspell // FreeDOS
	for _, name := range []string{"KERNEL.SYS", "COMMAND.COM"} {
		disktest.Run(t, "mcopy", "-i", drive(raw, w), disktest.Corpus(t, "loaders/"+folder+name), "::"+name)
	}
	disktest.WriteAt(t, raw, w.start*sectorSize+codeOfFAT, loader(t, folder+"br_fat16fd_0x3e.bin"))
	disktest.WriteAt(t, raw, 0, loader(t, "lilo24/mbr.b")[:codeSize])
	return raw
}

// putUFS puts a UFS2 with FreeBSD's loader into a window of a disk.
func putUFS(t testing.TB, raw string, w window) {
	t.Helper()
	root, volume := t.TempDir(), filepath.Join(t.TempDir(), "ufs")
	require.NoError(t, os.Mkdir(filepath.Join(root, "boot"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "boot", "loader"), loader(t, "freebsd8/loader"), 0o600))
	disktest.Run(t, "makefs", "-t", "ffs", "-o", "version=2", "-s", "40m", volume, root)
	copyInto(t, volume, raw, w)
}

// freeBSDSlice returns a disk with boot0, boot1 and boot2, and one slice whose label counts from its start.
func freeBSDSlice(t testing.TB) string {
	t.Helper()
	raw := blankDisk(t, bootDiskSize, dosLabel+"start=63, size=112392, type=a5, bootable\n")
	w := windowOf(t, raw, 1)
	putUFS(t, raw, w)
	disktest.WriteAt(t, raw, w.start*sectorSize, loader(t, "freebsd8/boot1"))
	boot2 := forge.Bytes(loader(t, "freebsd8/boot2")) // it begins with room for the label
	tableforge.PutDisklabel(boot2, 0, tableforge.Slice{Sectors: uint32(w.size), Type: 7}, tableforge.Slice{},
		tableforge.Slice{Sectors: uint32(w.size)})
	disktest.WriteAt(t, raw, (w.start+1)*sectorSize, boot2)
	disktest.WriteAt(t, raw, 0, loader(t, "freebsd8/boot0")[:codeSize])
	return raw
}

// freeBSDOnGPT returns a disk as the installers of FreeBSD 8 to 10 set it up.
func freeBSDOnGPT(t testing.TB) string {
	t.Helper()
	raw := blankDisk(t, bootDiskSize, gptLabel+"start=34, size=128, type=83BD6B9D-7F41-11DC-BE0B-001560B84F0F\n"+
		"start=162, size=112392, type=516E7CB6-6ECF-11D6-8FF8-00022D09712B\n")
	putUFS(t, raw, windowOf(t, raw, 2))
	disktest.WriteAt(t, raw, 34*sectorSize, loader(t, "freebsd8/gptboot"))
	disktest.WriteAt(t, raw, 0, loader(t, "freebsd8/pmbr")[:codeSize])
	return raw
}

// limineDisk returns a disk on which the installer of Limine has been, with limine-bios.sys on the FAT32 of a
// partition. Its menu shows the guest's text, on the serial port.
func limineDisk(script string, files int, partition ...string) func(t testing.TB) string {
	return func(t testing.TB) string {
		t.Helper()
		raw := blankDisk(t, bootDiskSize, script)
		w := windowOf(t, raw, files)
		bootDisk{heads: 255}.format(t, raw, w, 32)
		config := "serial: yes\ntimeout: no\ninterface_branding: " + booted +
			"\n/nothing\n    protocol: linux\n    path: boot():/nothing\n"
		disktest.Run(t, "mcopy", "-i", drive(raw, w), hostFile(t, config), "::limine.conf")
		disktest.Run(t, "mcopy", "-i", drive(raw, w), disktest.Corpus(t, "loaders/limine8/limine-bios.sys"),
			"::limine-bios.sys")
		installer := filepath.Join(t.TempDir(), "limine")
		disktest.Run(t, "cc", "-w", "-o", installer, disktest.Corpus(t, "loaders/limine8/limine.c"))
		disktest.Run(t, installer, append([]string{"bios-install", raw}, partition...)...)
		return raw
	}
}

// grub2Disk is a disk with core.img in the gap, which ends in a prompt without its file system.
func grub2Disk(name, shows string, start, to int64) loaderDisk {
	return loaderDisk{
		build: func(t testing.TB) string {
			t.Helper()
			raw := blankDisk(t, bootDiskSize, dosLabel+"start="+decimal(start)+", size=100000, type=83, bootable\n")
			disktest.WriteAt(t, raw, 0, loader(t, "grub2/"+name+".boot")[:codeSize])
			disktest.WriteAt(t, raw, sectorSize, loader(t, "grub2/"+name+".core"))
			return raw
		},
		shows: shows, code: "grub2", starts: []int64{to},
	}
}

// extlinuxVolume is a disk with one file system that extlinux boots from.
type extlinuxVolume struct {
	kind      string
	cylinders int64 // at whose end the partition ends
	mkfs      []string
}

var extlinuxVolumes = []extlinuxVolume{
	{"ext4", 40, []string{"mke2fs", "-q", "-t", "ext4"}},
	{"btrfs", 400, []string{"mkfs.btrfs", "-q", "--mixed"}},
	{"xfs", 680, []string{"mkfs.xfs", "-q"}}, // the smallest that mkfs.xfs makes has 300 MiB
}

// extlinuxCases boot the disks. The disk of XFS has its boot sector behind the superblock, and only syslinux's own code
// finds it there.
var extlinuxCases = []struct {
	name   string
	kind   string
	code   func(testing.TB) []byte
	starts int64
	stale  stale
	fails  []string // nil: it boots nevertheless
}{
	{"ext4, code that reads chs", "ext4", assembled(ownCHSCode), 128, staleCHS, ownCHSFailed},
	{
		"ext4, code that reads the lba and hands nothing over", "ext4", assembled(ownLBACode), 2048, staleHidden,
		vbrFailed,
	},
	{
		"btrfs, code that reads the lba and hands nothing over", "btrfs", assembled(ownLBACode), 2048, staleHidden,
		vbrFailed,
	},
	{"xfs, syslinux code, which hands the entry over", "xfs", lbaBootCode, 2048, staleXFSHidden, nil},
}

// staleXFSHidden is staleHidden where the boot sector is the fifth sector.
var staleXFSHidden = stale{
	"hidden sectors", func(w window) int64 { return (w.start+4)*sectorSize + 0x1C },
	[]byte{63, 0, 0, 0},
}

const extlinuxHeads = 16

// testExtlinuxBoots boots the disks on which extlinux was installed, by the kind of their file systems, and their
// aligned copies.
func testExtlinuxBoots(t *testing.T, disks map[string]string) {
	t.Helper()
	for _, v := range extlinuxVolumes {
		// The kernel of the guest said where the partition starts.
		at := staleHidden.at
		if v.kind == "xfs" {
			at = staleXFSHidden.at
		}
		require.Equal(t, staleHidden.bytes, readAt(t, disks[v.kind], at(window{start: trackSectors}), 4), v.kind)
	}
	for _, c := range extlinuxCases {
		t.Run(c.name, func(t *testing.T) {
			source := filepath.Join(t.TempDir(), "disk.raw")
			disktest.Run(t, "cp", "--sparse=always", disks[c.kind], source)
			disktest.WriteAt(t, source, 0, c.code(t))
			m := movedBoot{
				plan: "extlinux on " + c.name, starts: []int64{c.starts}, quick: true, boot: on(extlinuxHeads),
				shows: booted,
			}
			c.stale.require(t, m.align(t, source), c.fails, m.boot)
		})
	}
}

// extlinuxDrives makes a disk of each volume, adds them to a guest, and returns what installs extlinux there, which
// wants a file system that is mounted.
func extlinuxDrives(t *testing.T, s *linuxSetup, volumes ...extlinuxVolume) (disks map[string]string, install string) {
	t.Helper()
	disks = map[string]string{}
	s.files["extlinux.conf"] = hostFile(t, "SAY "+booted+"\nPROMPT 1\n")
	install = "set -e\n"
	for _, v := range volumes {
		disks[v.kind] = v.make(t)
		device := s.add(guestDisk{disks[v.kind], "raw", sectorSize})
		install += fmt.Sprintf("mount -t %s %s1 /root\nmkdir /root/boot\ncp /extlinux.conf /root/boot\n"+
			"extlinux --install /root/boot >&2\numount /root\n", v.kind, device)
	}
	return disks, install
}

func (v extlinuxVolume) make(t testing.TB) string {
	t.Helper()
	raw, part := filepath.Join(t.TempDir(), "disk.raw"), filepath.Join(t.TempDir(), "part")
	end := v.cylinders * extlinuxHeads * trackSectors
	w := window{trackSectors, end - trackSectors}
	for path, sectors := range map[string]int64{raw: end + 4*extlinuxHeads*trackSectors, part: w.size / 8 * 8} {
		disktest.MakeBlank(t, path, sectors*sectorSize)
	}
	fdisk(t, raw, extlinuxHeads, trackSectors, "n\np\n1", decimal(w.start), decimal(w.start+w.size-1), "a")
	disktest.Run(t, v.mkfs[0], append(v.mkfs[1:], part)...)
	copyInto(t, part, raw, w)
	return raw
}

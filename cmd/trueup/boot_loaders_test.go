package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// loaderDisk is a disk with real loaders of the corpus.
type loaderDisk struct {
	build  func(testing.TB) string
	heads  int64  // of the BIOS
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
		build: func(t testing.TB) string { t.Helper(); return freeDOS(t, loader(t, "lilo24/mbr.b")) },
		heads: 255, shows: "theguestisup", code: "lilo-mbr", starts: []int64{2048},
	},
	"FreeBSD on a slice": {
		build: func(t testing.TB) string { t.Helper(); return freeBSDSlice(t) },
		heads: 255, shows: "isdisk0", code: "freebsd-boot0", starts: []int64{128},
	},
	"FreeBSD on a GPT": {
		build: func(t testing.TB) string { t.Helper(); return freeBSDOnGPT(t) },
		heads: 255, shows: "isdisk0", code: "freebsd-pmbr", starts: []int64{2048, 4096}, quick: true,
		flags: bothParts,
	},
	"Limine in the gap": {
		build: func(t testing.TB) string {
			t.Helper()
			return limineDisk(t, dosLabel+"start=63, size=112392, type=c, bootable\n", 1)
		},
		heads: 255, shows: "theguestisup", code: "limine", starts: []int64{2048},
	},
	"Limine behind the entries of a GPT": {
		build: func(t testing.TB) string {
			t.Helper()
			return limineDisk(t, gptLabel+"start=63, size=112392, type="+dataGUID+"\n", 1)
		},
		heads: 255, shows: "theguestisup", code: "limine", starts: []int64{2048},
	},
	"Limine in a BIOS boot partition": {
		build: func(t testing.TB) string {
			t.Helper()
			return limineDisk(t,
				gptLabel+"start=34, size=128, type="+biosBootGUID+"\nstart=163, size=112392, type="+dataGUID+"\n", 2,
				"1")
		},
		heads: 255, shows: "theguestisup", code: "limine", starts: []int64{2048, 4096}, quick: true,
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
	shows := func(console string) string { // a cursor that the BIOS mirrors can stand within a word
		return anyOf(d.shows)(strings.Join(strings.Fields(console), ""))
	}
	if disktest.Exhaustive {
		require.Equal(t, d.shows, pc{image: source, heads: d.heads}.watch(t, shows), "before")
	}
	require.Equal(t, d.code, trueupJSON[struct {
		Boot struct{ Name string } `json:"boot_code"`
	}](t, 3, "inspect", source).Boot.Name)
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	r := trueup(t, append([]string{"align", source, dest}, d.flags...)...)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	requireSameView(t, source, dest, d.flags...)
	var starts []int64
	for _, w := range tableOf(t, dest) {
		starts = append(starts, w.start)
	}
	require.Equal(t, d.starts, starts)
	if d.quick || disktest.Exhaustive {
		require.Equal(t, d.shows, pc{image: dest, heads: d.heads}.watch(t, shows), "after")
	}
}

// TestLimineWithoutRoom refuses a disk that would grow over Limine, and makes the copy for a user who accepts that.
func TestLimineWithoutRoom(t *testing.T) {
	t.Parallel()
	source := limineDisk(t, gptLabel+"start=63, size=130914, type="+dataGUID+"\n", 1)
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

// blankDisk returns a disk with the table that sfdisk makes of a script.
func blankDisk(t testing.TB, script string) string {
	t.Helper()
	raw := disktest.Blank(t, "disk.raw", bootDiskSize)
	disktest.RunInput(t, script, "sfdisk", "--quiet", raw)
	return raw
}

// freeDOS returns a disk with FreeDOS on a FAT16 at LBA 63, which says that it is up.
func freeDOS(t testing.TB, code []byte) string {
	t.Helper()
	d := bootDisk{heads: 255, fat: 16}
	raw := blankDisk(t, dosLabel+"start=63, size=112392, type=6, bootable\n")
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
	disktest.WriteAt(t, raw, 0, code[:codeSize])
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
	raw := blankDisk(t, dosLabel+"start=63, size=112392, type=a5, bootable\n")
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
	raw := blankDisk(t, gptLabel+"start=34, size=128, type=83BD6B9D-7F41-11DC-BE0B-001560B84F0F\n"+
		"start=162, size=112392, type=516E7CB6-6ECF-11D6-8FF8-00022D09712B\n")
	putUFS(t, raw, windowOf(t, raw, 2))
	disktest.WriteAt(t, raw, 34*sectorSize, loader(t, "freebsd8/gptboot"))
	disktest.WriteAt(t, raw, 0, loader(t, "freebsd8/pmbr")[:codeSize])
	return raw
}

// limineDisk returns a disk on which the installer of Limine has been, with limine-bios.sys on the FAT32 of a
// partition. Its menu shows the guest's text, on the serial port.
func limineDisk(t testing.TB, script string, files int, partition ...string) string {
	t.Helper()
	raw := blankDisk(t, script)
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

// grub2Disk is a disk with core.img in the gap, which ends in a prompt without its file system.
func grub2Disk(name, shows string, start, to int64) loaderDisk {
	return loaderDisk{
		build: func(t testing.TB) string {
			t.Helper()
			raw := blankDisk(t, dosLabel+"start="+decimal(start)+", size=100000, type=83, bootable\n")
			disktest.WriteAt(t, raw, 0, loader(t, "grub2/"+name+".boot")[:codeSize])
			disktest.WriteAt(t, raw, sectorSize, loader(t, "grub2/"+name+".core"))
			return raw
		},
		heads: 255, shows: shows, code: "grub2", starts: []int64{to},
	}
}

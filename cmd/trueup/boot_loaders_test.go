package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/liloforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// loaderDisk is a disk with real loaders from the corpus, for a BIOS of 255 heads.
type loaderDisk struct {
	build  func(testing.TB) string
	shows  string // console output, without spaces, after the loader has read all its files
	code   string // of sector 0
	starts []int64
	quick  bool // make test boots it
	flags  []string
}

// bothParts selects both partitions of a disk: the first one would stay, since no running guest reads it.
var bothParts = []string{"--partition", "1", "--partition", "2"}

var loaderDisks = map[string]loaderDisk{
	"FreeDOS behind lilo -M": {
		shows: "theguestisup", code: "lilo-mbr", starts: []int64{2048},
		// FreeDOS on a FAT16 at LBA 63 prints the text when it has started
		build: func(t testing.TB) string {
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
		},
	},
	"FreeBSD on a slice": {
		shows: "isdisk0", code: "freebsd-boot0", starts: []int64{128},
		// boot0, boot1 and boot2, and one slice whose label counts from its start
		build: func(t testing.TB) string {
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
		},
	},
	"FreeBSD on a GPT": {
		shows: "isdisk0", code: "freebsd-pmbr", starts: []int64{2048, 4096}, quick: true,
		flags: bothParts,
		// in the layout of the installers of FreeBSD 8 to 10
		build: func(t testing.TB) string {
			t.Helper()
			raw := blankDisk(t, bootDiskSize, gptLabel+
				"start=34, size=128, type=83BD6B9D-7F41-11DC-BE0B-001560B84F0F\n"+
				"start=162, size=112392, type=516E7CB6-6ECF-11D6-8FF8-00022D09712B\n")
			putUFS(t, raw, windowOf(t, raw, 2))
			disktest.WriteAt(t, raw, 34*sectorSize, loader(t, "freebsd8/gptboot"))
			disktest.WriteAt(t, raw, 0, loader(t, "freebsd8/pmbr")[:codeSize])
			return raw
		},
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

// TestLoadersOfTheCorpusBoot moves loaders from the corpus, which no package here contains. make boots starts each
// before and after; make test starts the quick ones after the move.
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

// TestLimineWithoutRoom requires that a disk that would grow over Limine is refused, and copied if the user accepts
// that.
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

// loader returns a loader file of the corpus.
func loader(t testing.TB, name string) []byte {
	t.Helper()
	b := disktest.ReadFile(t, disktest.Corpus(t, "loaders/"+name))
	return b
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

// limineDisk returns a disk with Limine installed, and limine-bios.sys on the FAT32 of a partition. Its menu shows the
// guest's text on the serial port.
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

// grub2Disk is a disk with core.img in the gap. GRUB stops at a prompt, because its file system is missing.
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

// extlinuxVolume is a disk with one file system and extlinux.
type extlinuxVolume struct {
	kind      string
	cylinders int64 // at whose end the partition ends
	mkfs      []string
}

var extlinuxVolumes = []extlinuxVolume{
	{"ext4", 40, []string{"mke2fs", "-q", "-t", "ext4"}},
	{"btrfs", 400, []string{"mkfs.btrfs", "-q", "--mixed"}},
	{"xfs", 680, []string{"mkfs.xfs", "-q"}}, // the smallest XFS of mkfs.xfs has 300 MiB
}

// extlinuxCases boots the disks. The XFS disk has its boot sector after the superblock, where only syslinux's own code
// finds it.
var extlinuxCases = []struct {
	name   string
	kind   string
	code   func(testing.TB) []byte
	starts int64
	stale  stale
	fails  []string // nil: it boots anyway
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

// staleXFSHidden is staleHidden for a boot sector in the fifth sector.
var staleXFSHidden = stale{
	"hidden sectors", func(w window) int64 { return (w.start+4)*sectorSize + 0x1C },
	[]byte{63, 0, 0, 0},
}

const extlinuxHeads = 16

// extlinuxDrives makes a disk of each volume, adds them to a guest, and returns the command that installs extlinux
// there, which needs a mounted file system.
func extlinuxDrives(t testing.TB, s *linuxSetup, volumes ...extlinuxVolume) (disks map[string]string, install string) {
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

// liloDisk is a disk with LILO, and its map in the last partition.
type liloDisk struct {
	name    string
	kind    string // of ext
	size    int64  // of the disk, in bytes
	start   int64  // LBA of the partition
	home    int64  // sector of the first stage
	mode    byte
	compact bool
	forged  bool // stages without code, so that no corpus is needed
	linux   bool // Debian's kernel with an initial RAM disk, in place of one that prints a text
}

var liloDisks = []liloDisk{
	{name: "by lba in the mbr", kind: "ext2", start: 63, mode: liloforge.LBA32},
	{
		name: "linear and compact in a boot sector", kind: "ext3", start: 63, home: 63, mode: liloforge.Linear,
		compact: true,
	},
	{
		name: "by lba and compact above 8 GiB", kind: "ext4", size: 9 << 30, start: 1<<24 + 100_063,
		mode: liloforge.LBA32, compact: true,
	},
	{name: "linux by lba and compact", kind: "ext4", start: 63, mode: liloforge.LBA32, compact: true, linux: true},
}

// liloKernel is a kernel of the oldest kind. LILO loads its system to 1000:0, and its setup jumps to the last sector of
// the system, which prints a text. All sectors differ.
func liloKernel(t testing.TB, sectors int) []byte {
	t.Helper()
	const setup = 4
	r := rand.New(rand.NewPCG(1, 2))
	kernel := make([]byte, (1+setup+sectors)*sectorSize)
	for i := range kernel {
		kernel[i] = byte(r.Uint32())
	}
	kernel[497] = setup
	last := (sectors - 1) * sectorSize
	copy(kernel[sectorSize:], []byte{0xea, byte(last), byte(last >> 8), 0, 0x10}) // jmp 1000:last
	// prints the text at si in its own segment
	code := assembled("0e1fbe0000fcac84c07409bb0700b40ecd10ebf2f4ebfd")(t)
	text := last + len(code)
	code[3], code[4] = byte(text), byte(text>>8)
	copy(kernel[(1+setup)*sectorSize+last:], append(code, booted+"\x00"...))
	return kernel
}

// build makes the disk with the files in root.
func (d liloDisk) build(t testing.TB) (raw, root string) {
	t.Helper()
	raw = blankDisk(t, max(d.size, bootDiskSize), fmt.Sprintf("label: dos\nlabel-id: 0x4c494c4f\n"+
		"start=%d, size=%d, type=83, bootable\n", d.start, min(bootDiskSize/sectorSize-2200, 120_000)))
	if d.linux {
		root = linuxRoot(t)
	} else {
		root = t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(root, "boot"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(root, "boot/vmlinuz"), liloKernel(t, 120), 0o600))
	}
	// Blocks of zeros would become holes.
	require.NoError(t, os.WriteFile(filepath.Join(root, "boot/map"), []byte(strings.Repeat("M", 400<<10)), 0o600))
	flags := []string{"-t", d.kind, "-b", "1024"}
	if d.linux {
		flags[3] = "4096"
	}
	makeLinuxRoot(t, raw, tableOf(t, raw)[0], root, flags...)
	if d.home != 0 {
		disktest.WriteAt(t, raw, 0, assembled(ownLBACode)(t))
	}
	i := d.install(t, raw)
	onDisk(t, raw, false, func(b forge.Bytes) { i.Put(b, d.home) })
	return raw, root
}

// install returns the output of LILO's installer: boot sector and map, with LILO's own stages unless d.forged is set.
func (d liloDisk) install(t testing.TB, raw string) liloforge.Install {
	t.Helper()
	w := tableOf(t, raw)[0]
	i := liloforge.New(fileSectors(t, raw, w, "/boot/map"), liloforge.Image{
		Name: "Linux", Kernel: fileSectors(t, raw, w, "/boot/vmlinuz"), Setup: 4, Flags: liloforge.Kernel,
	})
	if d.linux {
		stat := disktest.Output(t, "debugfs", "-R", "stat /boot/initrd.img", extIn(raw, w))
		i.Images[0].Initrd, i.Images[0].InitrdLen = fileSectors(t, raw, w, "/boot/initrd.img"), statSize(t, stat)
		i.Images[0].Setup, i.Images[0].Flags, i.Images[0].Options = 39, liloforge.Modern, linuxCommand
	}
	i.Mode, i.Compact = d.mode, d.compact
	if !d.forged {
		i.First, i.Second = liloStage(t, "first.b"), liloStage(t, "second.b")
	}
	return i
}

// liloStage returns a stage of LILO 24.2 from the corpus.
func liloStage(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(disktest.CorpusDir(t), "loaders/lilo24", name))
	if os.IsNotExist(err) {
		t.Skip("the corpus has no ", name, " of LILO")
	}
	require.NoError(t, err)
	return b
}

// onDisk calls change with the bytes of a raw disk. The changes are written to the file, unless it is private.
func onDisk(t testing.TB, raw string, private bool, change func(b forge.Bytes)) {
	t.Helper()
	f, err := os.OpenFile(raw, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	flags := syscall.MAP_SHARED
	if private {
		flags = syscall.MAP_PRIVATE
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ|syscall.PROT_WRITE, flags)
	require.NoError(t, err)
	change(b)
	require.NoError(t, syscall.Munmap(b))
}

// extIn addresses an ext in a raw disk for the tools of e2fsprogs.
func extIn(raw string, w window) string { return fmt.Sprintf("%s?offset=%d", raw, w.start*sectorSize) }

// statSize returns the size of a file from the output of debugfs' stat.
func statSize(t testing.TB, stat string) (size int64) {
	t.Helper()
	_, rest, ok := strings.Cut(stat, "Size: ")
	require.True(t, ok, stat)
	_, err := fmt.Sscan(rest, &size)
	require.NoError(t, err)
	return size
}

// fileSectors returns the sectors of a file, from debugfs.
func fileSectors(t testing.TB, raw string, w window, path string) []int64 {
	t.Helper()
	stat := disktest.Output(t, "debugfs", "-R", "stat "+path, extIn(raw, w))
	var block int64
	_, rest, ok := strings.Cut(disktest.Output(t, "debugfs", "-R", "stats -h", extIn(raw, w)), "Block size:")
	require.True(t, ok)
	_, err := fmt.Sscan(rest, &block)
	require.NoError(t, err)
	return liloforge.Sectors(stat, w.start, block, statSize(t, stat))
}

func TestAlignedLiloBoots(t *testing.T) {
	t.Parallel()
	for _, d := range liloDisks {
		if !d.linux || disktest.Exhaustive { // make boots uses Linux, which takes long
			t.Run(d.name, d.run)
		}
	}
}

func (d liloDisk) run(t *testing.T) {
	t.Parallel()
	source, root := d.build(t)
	m := movedBoot{quick: true, shows: booted}
	m.boot = func(t testing.TB, image string) string {
		t.Helper()
		if d.linux {
			return bootLinux(t, pc{image: image})
		}
		return pc{image: image, ahci: true}.watch(t,
			anyOf(append(verdicts, "L 40", "L 99", "L 9A", "Error 0x", "mismatch", "checksum error", "EOF")...))
	}
	if d.linux {
		m.shows = d.treeSum(t, source, root)
	}
	m.after = func(t testing.TB, dest string) string {
		t.Helper()
		// Every sector of LILO equals the output of its installer for the new place.
		home := d.home
		if home != 0 {
			home = tableOf(t, dest)[0].start
		}
		i := d.install(t, dest)
		onDisk(t, dest, true, func(b forge.Bytes) {
			sectors := append([]int64{home}, i.Map...)
			var now []byte
			for _, lba := range sectors {
				now = append(now, b[lba*sectorSize:][:sectorSize]...)
			}
			i.Put(b, home)
			for k, lba := range sectors {
				require.Equal(t, b[lba*sectorSize:][:sectorSize], forge.Bytes(now[k*sectorSize:][:sectorSize]),
					"LBA %d", lba)
			}
		})
		if d.linux {
			return d.treeSum(t, dest, root)
		}
		return booted
	}
	m.align(t, source)
}

// treeSum is the digest that Linux prints of its root, whose content came from a folder before LILO wrote its map.
func (d liloDisk) treeSum(t testing.TB, raw, root string) string {
	t.Helper()
	disktest.Run(t, "debugfs", "-R", "dump /boot/map "+filepath.Join(root, "boot/map"), extIn(raw, tableOf(t, raw)[0]))
	return treeSum(t, root)
}

// TestLiloUnderAJournal requires that a LILO map is refused in an ext whose journal must be replayed, whatever block
// the journal holds.
func TestLiloUnderAJournal(t *testing.T) {
	t.Parallel()
	raw, _ := liloDisk{kind: "ext4", start: 63, mode: liloforge.LBA32, forged: true}.build(t)
	dest := filepath.Join(filepath.Dir(raw), "aligned.raw")
	w := tableOf(t, raw)[0]
	block := (fileSectors(t, raw, w, "/boot/map")[30] - w.start) / 2
	write := hostFile(t, fmt.Sprintf("journal_open\njournal_write -b %d %s\njournal_close\n", block,
		hostFile(t, strings.Repeat("J", 1024))))
	disktest.Run(t, "debugfs", "-w", "-f", write, extIn(raw, w))
	r := trueup(t, "align", raw, dest)
	require.Equal(t, 4, r.code, r.stdout)
	require.Contains(t, r.stderr, "LILO 24.2 in the MBR holds the absolute sectors of the kernel, and trueup cannot "+
		"rewrite its map, since ")
	require.Contains(t, r.stderr, "journal of the ext file system must be replayed first")
	require.Contains(t, r.stderr, "shut the guest down cleanly first")
	require.NoFileExists(t, dest)
}

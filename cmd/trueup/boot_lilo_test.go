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
)

// liloDisk is a disk that LILO boots, with its map in the last partition.
type liloDisk struct {
	name    string
	kind    string // of ext
	size    int64  // of the disk, in bytes
	start   int64  // LBA of the partition
	home    int64  // sector of the first stage
	mode    byte
	compact bool
	forged  bool // its stages have no code, so that the corpus is not needed
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
// that, which prints a text. No sector is like another.
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

// build makes the disk with its files. root is the folder that they are from.
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

// install returns LILO as its installer would write it to the disk. Its stages are real ones.
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

// onDisk calls change with the bytes of a raw disk. Its changes reach the file, or are lost if it is private.
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

// extIn names an ext in a raw disk for the tools of e2fsprogs.
func extIn(raw string, w window) string { return fmt.Sprintf("%s?offset=%d", raw, w.start*sectorSize) }

// statSize returns the size that debugfs shows of a file.
func statSize(t testing.TB, stat string) (size int64) {
	t.Helper()
	_, rest, ok := strings.Cut(stat, "Size: ")
	require.True(t, ok, stat)
	_, err := fmt.Sscan(rest, &size)
	require.NoError(t, err)
	return size
}

// fileSectors asks debugfs where a file lies.
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
		if !d.linux || disktest.Exhaustive { // make boots has Linux, which takes long
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
		d.checkInstalled(t, dest)
		if d.linux {
			return d.treeSum(t, dest, root)
		}
		return booted
	}
	m.align(t, source)
}

// treeSum is the sum that Linux prints for its root, which was filled from a folder before LILO wrote its map.
func (d liloDisk) treeSum(t testing.TB, raw, root string) string {
	t.Helper()
	disktest.Run(t, "debugfs", "-R", "dump /boot/map "+filepath.Join(root, "boot/map"), extIn(raw, tableOf(t, raw)[0]))
	return treeSum(t, root)
}

// checkInstalled requires LILO on a disk to be what its installer would write there now, sector by sector.
func (d liloDisk) checkInstalled(t testing.TB, raw string) {
	t.Helper()
	if d.home != 0 {
		d.home = tableOf(t, raw)[0].start
	}
	i := d.install(t, raw)
	onDisk(t, raw, true, func(b forge.Bytes) {
		sectors := append([]int64{d.home}, i.Map...)
		var now []byte
		for _, lba := range sectors {
			now = append(now, b[lba*sectorSize:][:sectorSize]...)
		}
		i.Put(b, d.home)
		for k, lba := range sectors {
			require.Equal(t, b[lba*sectorSize:][:sectorSize], forge.Bytes(now[k*sectorSize:][:sectorSize]), "LBA %d",
				lba)
		}
	})
}

// TestLiloUnderAJournal refuses a map in an ext whose journal is to be replayed, whatever block it holds.
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
	require.Contains(t, r.stderr, "LILO 24.2 in the MBR holds the absolute sectors of the kernel, and its map is not "+
		"rewritten, since ")
	require.Contains(t, r.stderr, "journal of the ext file system must be replayed first")
	require.Contains(t, r.stderr, "shut the guest down cleanly first")
	require.NoFileExists(t, dest)
}

package linux_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// swapFile returns a swap file with a signature at the end of its first page. Spec: Linux, include/linux/swap.h, union
// swap_header (version at 1024, last page at 1028); kernel/power/swap.c, HIBERNATE_SIG "S1SUSPEND".
func swapFile(page int, signature string) string {
	b := []byte(strings.Repeat("\x00", 2*page))
	b[1024], b[1028] = 1, 1
	copy(b[page-10:], signature)
	return string(b)
}

// TestHibernationIntoASwapFile finds a hibernated Linux in files with usual names, and in those of an fstab, also in a
// file system mounted below the root. It refuses any move, as for swap partitions.
func TestHibernationIntoASwapFile(t *testing.T) {
	asleep := swapFile(4<<10, "S1SUSPEND")
	for name, tc := range map[string]struct {
		fstab    string
		bootFile string // a file of the first partition, and of the root
		rootFile string
		content  string
		want     string // the path, and the partition; empty: no finding
	}{
		"usual name":            {"", "", "swapfile", asleep, "/swapfile\" of partition 2"},
		"Ubuntu":                {"/swap.img none swap sw 0 0\n", "", "swap.img", asleep, "/swap.img\" of partition 2"},
		"Calamares":             {"", "", "swap/swapfile", asleep, "/swap/swapfile\" of partition 2"},
		"Raspberry Pi OS":       {"", "", "var/swap", asleep, "/var/swap\" of partition 2"},
		"pages of 64 KiB":       {"", "", "swapfile", swapFile(64<<10, "S1SUSPEND"), "/swapfile\" of partition 2"},
		"of uswsusp":            {"", "", "swapfile", swapFile(4<<10, "ULSUSPEND"), "/swapfile\" of partition 2"},
		"named":                 {"/home/x none swap sw 0 0", "", "home/x", asleep, "/home/x\" of partition 2"},
		"mounted":               {"/srv/data/x none swap sw 0 0", "x", "", asleep, "/x\" of partition 1"},
		"not named":             {"#/home/x none swap sw 0 0", "", "home/x", asleep, ""},
		"a partition":           {"/dev/sda5 none swap sw 0 0", "", "dev/sda5", asleep, ""},
		"another kind":          {"/home/x /mnt ext4 loop 0 0", "", "home/x", asleep, ""},
		"awake":                 {"/swap.img none swap sw 0 0", "", "swap.img", swapFile(4<<10, "SWAPSPACE2"), ""},
		"signature elsewhere":   {"", "", "swapfile", swapFile(4<<10, "") + "S1SUSPEND", ""},
		"shorter than one page": {"", "", "swapfile", "S1SUSPEND", ""},
	} {
		onBoot, onRoot := map[string]string{}, map[string]string{"etc/fstab": tc.fstab}
		if tc.bootFile != "" {
			onBoot[tc.bootFile] = tc.content
		}
		if tc.rootFile != "" {
			onRoot[tc.rootFile] = tc.content
		}
		r := boottest.ReadGuest(t, linuxDisk(t, onBoot, onRoot))
		issues := boottest.Issues(r, "hibernated-linux")
		if tc.want == "" {
			require.Empty(t, issues, name)
			require.NotEqual(t, boot.Hibernated, r.State, name)
			continue
		}
		require.Len(t, issues, 1, name)
		require.Contains(t, issues[0].Text, tc.want, name)
		require.Contains(t, issues[0].Text, "holds a hibernated Linux", name)
		require.Equal(t, ondisk.Refuse, issues[0].Effect, name)
		require.True(t, issues[0].OnMove && issues[0].DiskWide, name)
		require.Equal(t, boot.Hibernated, r.State, name)
	}
}

// TestUnreadableSwapFile reports an unreadable swap file as not examined, and continues with the next one. A bad sector
// is never mistaken for a running system.
func TestUnreadableSwapFile(t *testing.T) {
	img := filepath.Join(t.TempDir(), "ext")
	require.NoError(t, os.WriteFile(img, extOf(t, "ext4", rootFS, map[string]string{
		"etc/fstab": "", "swapfile": swapFile(4<<10, "S1SUSPEND"), "swap.img": swapFile(4<<10, "S1SUSPEND"),
	}), 0o600))
	disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field /swapfile flags 0x80800", img) // EXT4_ENCRYPT_FL
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: bootLBA, Sectors: 2048})
	f.Put(bootLBA*512, disktest.ReadFile(t, img))
	d := boottest.Disk(f)
	tab, parts := boottest.Partitions(t, d)
	g := boottest.Guest(d, tab, parts)
	r := boottest.ReadGuest(t, g)
	require.Len(t, boottest.Issues(r, "hibernated-linux"), 1)
	require.Contains(t, boottest.Issues(r, "hibernated-linux")[0].Text, "/swap.img")
	require.Len(t, r.Unseen, 1)
	require.Contains(t, r.Unseen[0].What, "a swap file with a hibernated Linux")
	require.Contains(t, r.Unseen[0].Why, "swapfile")
	boottest.EveryBadSector(t, boottest.Guest(d, tab, parts))
}

// extOfTree is extOf for a folder, so that its files can have holes.
func extOfTree(t testing.TB, dir string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ext")
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext2", "-d", dir, path, "1M")
	b := disktest.ReadFile(t, path)
	return b
}

// onePartition is a disk with unknown code and a file system.
func onePartition(t testing.TB, volume []byte) *boot.Guest {
	t.Helper()
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0x83, Start: bootLBA, Sectors: 2048})
	f.U8(0, 0xfa)
	f.Put(bootLBA*512, volume)
	return boottest.GuestOf(t, f)
}

const unseen = "trueup cannot read its files"

// Configuration files above the limits of size and number are not read. The partition may then hold a system.
func TestLimitsOfConfiguration(t *testing.T) {
	const position = "image=/dev/sda3\n" // a chain loader of a partition, in lilo.conf
	names := []string{"etc/fstab", "etc/crypttab", "etc/default/grub", "etc/kernel/cmdline", "etc/dracut.conf"}
	many := map[string]string{"etc/lilo.conf": position}
	for i := range 64 {
		many[fmt.Sprintf("etc/dracut.conf.d/%d.conf", i)] = ""
	}
	for name, tc := range map[string]struct {
		sizes map[string]int64
		files map[string]string
		seen  bool
	}{
		"files of a MiB":        {sizes: map[string]int64{names[0]: 1 << 20, names[1]: 1 << 20}, seen: true},
		"a file that is larger": {sizes: map[string]int64{names[1]: 1<<20 + 1}},
		"files of 4 MiB and one": {sizes: map[string]int64{
			names[0]: 1 << 20, names[1]: 1 << 20, names[2]: 1 << 20,
			names[3]: 1 << 20, names[4]: 1,
		}},
		"65 files": {files: many},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t, tc.files)
			for name, size := range tc.sizes {
				path := filepath.Join(dir, filepath.FromSlash(name))
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				disktest.MakeBlank(t, path, size)
			}
			g := onePartition(t, extOfTree(t, dir))
			g.Partitions[0].Active = false
			r := boottest.ReadGuest(t, g)
			r.Chain = nil // of the read files
			require.Equal(t, !tc.seen, strings.Contains(r.Needs(g.Partitions[0]), unseen), r.Needs(g.Partitions[0]))
		})
	}
}

// The number of looked-up names per disk is limited. After them, no partition is examined, whether it has folders to
// list or files to open.
func TestNamesOfADisk(t *testing.T) {
	full := extOfTree(t, tree(t, map[string]string{"etc/hosts": "", "boot/x": "", "efi/x": ""}))
	for name, put := range map[string]func(name string) error{
		"efi":          func(name string) error { return os.Mkdir(name, 0o700) },
		"syslinux.cfg": func(name string) error { return os.WriteFile(name, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, put(filepath.Join(dir, name)))
			small := extOfTree(t, dir)
			f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0x83, Start: bootLBA, Sectors: 2048},
				tableforge.Slot{Type: 0x83, Start: rootLBA, Sectors: 2048})
			f.U8(0, 0xfa)
			f.Put(bootLBA*512, full)
			f.Put(rootLBA*512, small)
			for copies, all := range map[int]bool{2: true, 60: false} {
				d := boottest.Disk(f)
				tab, parts := boottest.Partitions(t, d)
				last := parts[1]
				parts = slices.Repeat(parts[:1], copies)
				for i := range parts {
					parts[i].Number = i + 10
				}
				parts = append(parts, last)
				r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
				r.Chain = nil
				require.Equal(t, !all, strings.Contains(r.Needs(last), unseen), r.Needs(last))
			}
		})
	}
}

// An unreadable sector of a file is an error, regardless of faults in files after it.
func TestBadSectorInFrontOfABrokenFile(t *testing.T) {
	for _, names := range [][2]string{
		{"etc/fstab", "etc/crypttab"},
		{"etc/dracut.conf.d/1.conf", "etc/dracut.conf.d/2.conf"},
	} {
		const text = "# a file of which a sector is bad\n"
		dir := tree(t, map[string]string{names[0]: text, names[1]: ""})
		require.NoError(t, os.Truncate(filepath.Join(dir, names[1]), 2<<20))
		volume := extOfTree(t, dir)
		g := onePartition(t, volume)
		at := bootLBA*512 + int64(bytes.Index(volume, []byte(text)))
		g.Disk = disktest.NewBadDisk(g.Disk, at&^511)
		_, err := linux.Configuration.Find(g)
		require.ErrorIs(t, err, disktest.ErrFault, names[0])
	}
}

// LILO is not followed if its map is empty, or in a partition that ends past the end of the disk.
func TestLiloWithoutAMap(t *testing.T) {
	d := newLiloDisk(t, "boot/map", "boot/other")
	d.install().Put(d.bytes, 0)
	path := filepath.Join(t.TempDir(), "ext")
	volume := d.bytes[liloStart*512:][:liloParts*512]
	require.NoError(t, os.WriteFile(path, volume, 0o600))
	disktest.Run(t, "debugfs", "-w", "-R", "write /dev/null boot/map", path)
	b := disktest.ReadFile(t, path)
	d.bytes.Put(liloStart*512, b)
	requireLiloRefused(t, liloGuest(t, d.bytes), "partition 1: ")

	d = newLiloDisk(t)
	d.install().Put(d.bytes, 0)
	g := liloGuest(t, d.bytes)
	g.Partitions[0].Len = g.Disk.Size()
	requireLiloRefused(t, g, "partition 1: ")
}

// putLBACode writes code to sector 0 that reads the boot sector of the active partition by LBA.
func putLBACode(f forge.Bytes) {
	f.Put(0, []byte{0xbe, 0xbe, 0x07, 0xb4, 0x42, 0xcd, 0x13}) // mov si,07beh; mov ah,42h; int 13h
}

// brokenLoaders put a loader into a boot sector that a move breaks.
var brokenLoaders = map[string]func(f forge.Bytes, lba int64){
	"GRUB 2, no such core.img": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		f.Text(5000*512, "another file")
	},
	"GRUB 2 of another build": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		f.U16(lba*512+0x5a, 0x2000)
	},
	"GRUB 2 behind the disk": func(f forge.Bytes, lba int64) { grubforge.PutBoot(f, lba, 1<<30) },
	"GRUB 2 on another disk": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		f.U8(lba*512+0x64, 0x81)
		grubforge.PutCore(f, 5000)
	},
	"GRUB 2, a list into nowhere": func(f forge.Bytes, lba int64) {
		grubforge.PutBoot(f, lba, 5000)
		grubforge.PutCore(f, 5000, list(8070, 2)...)
	},
	"GRUB legacy, no such stage": func(f forge.Bytes, lba int64) {
		grubforge.PutStage1(f, lba, grubforge.Stage2(5000))
	},
	"LILO": func(f forge.Bytes, lba int64) { f.Text(lba*512, "\xfa\xeb\x21\x01\xb4\x01LILO\x01\x00\x16\x08") },
	"GRUB legacy from another disk": func(f forge.Bytes, lba int64) {
		grubforge.PutStage1(f, lba, grubforge.Stage2(5000))
		f.U8(lba*512+0x40, 0x81)
	},
}

// A loader that a move breaks is refused if the boot reaches it. Old boot sectors that nothing reads are on many disks,
// and cause a warning.
func TestLoadersLeftOver(t *testing.T) {
	for name, put := range brokenLoaders {
		t.Run(name, func(t *testing.T) {
			for _, tc := range []struct {
				lba  int64
				code func(forge.Bytes)
				want ondisk.Effect
			}{
				{63, putLBACode, ondisk.Unbootable},
				{63, func(forge.Bytes) {}, ondisk.Unbootable}, // its code is on another disk
				{8100, putLBACode, ondisk.Warn},
				{
					63, func(f forge.Bytes) { grubforge.PutBoot(f, 0, 1); grubforge.PutCore(f, 1, list(2, 50)...) },
					ondisk.Warn,
				},
			} {
				f := legacyDisk()
				tc.code(f)
				put(f, tc.lba)
				r := boottest.Read(t, f)
				issues := boottest.But(r, boottest.Unseen)
				require.Len(t, issues, 1)
				i := issues[0]
				require.Equal(t, tc.want, i.Effect, i.Text)
				require.True(t, i.OnMove)
				require.Zero(t, i.Partition)
				require.NotEmpty(t, i.Remedy)
			}
		})
	}
}

// A list in an unused boot sector is judged again for the boot sector that boots by it.
func TestGrub2ListOfTwoBootSectors(t *testing.T) {
	f := tableforge.NewMBR(16384, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 8000},
		tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 8100, Sectors: 8000})
	putLBACode(f)
	grubforge.PutBoot(f, 63, 5000)
	grubforge.PutBoot(f, 8100, 5000)
	grubforge.PutCore(f, 5000, list(5001, 7, 8070, 2)...)
	r := boottest.Read(t, f)
	require.Len(t, r.Issues, 2)
	require.Equal(t, ondisk.Warn, r.Issues[0].Effect)
	require.Equal(t, ondisk.Unbootable, r.Issues[1].Effect)
	require.Len(t, r.Refs, 3, "entry 1 is found twice and kept once")
}

// A table has thousands of partitions: issues about their loaders are bounded, and the loader that boots always counts.
func TestLoadersInManyPartitions(t *testing.T) {
	for name, put := range map[string]func(f forge.Bytes){
		"GRUB 2": func(f forge.Bytes) { grubforge.PutBoot(f, 63, 5000); grubforge.PutCore(f, 5000, list(5001, 9)...) },
		"LILO":   func(f forge.Bytes) { brokenLoaders["LILO"](f, 63) },
	} {
		f := legacyDisk()
		putLBACode(f)
		put(f)
		d := boottest.Disk(f)
		tab, parts := boottest.Partitions(t, d)
		many := slices.Repeat(parts[:1], 1000)
		for i := range many {
			many[i].Number, many[i].Active = i+1, i == 999
		}
		r := boottest.ReadGuest(t, boottest.Guest(d, tab, many))
		require.Less(t, len(r.Chain), 60, name)
		require.Less(t, len(r.Issues), 20, name)
		require.Equal(t, ondisk.Unbootable, r.Issues[len(r.Issues)-1].Effect, name)
	}
}

// A GRUB whose core.img is missing boots nothing, and does not prevent a move.
func TestGrub2WithoutACore(t *testing.T) {
	for name, first := range map[string]string{"zeros": "", "made a GPT": "EFI PART\x00\x00\x01\x00"} {
		t.Run(name, func(t *testing.T) {
			f := legacyDisk()
			grubforge.PutBoot(f, 0, 1)
			f.Text(512, first)
			r := boottest.Read(t, f)
			require.Len(t, r.Issues, 1)
			require.Equal(t, ondisk.Warn, r.Issues[0].Effect)
			require.Contains(t, r.Issues[0].Text, "no BIOS boots with it")
		})
	}
}

// extlinux puts its boot sector, with its own parameter block, where the file system leaves room. Spec: syslinux 6.04,
// extlinux/main.c.
func TestHiddenSectorsOfExtlinuxByFileSystem(t *testing.T) {
	for kind, tc := range map[string]struct {
		put  func(f forge.Bytes)
		at   int64 // of the boot sector in the volume
		none bool  // extlinux does not support this file system
	}{
		"ext2":  {put: func(f forge.Bytes) { fsforge.PutExt(f, 63, 8000) }},
		"btrfs": {put: func(f forge.Bytes) { volumeforge.PutBtrfs(f, 63, 8000) }},
		"ufs1":  {put: func(f forge.Bytes) { volumeforge.PutUFS1(f, 63, 8000) }},
		"ufs2":  {put: func(f forge.Bytes) { volumeforge.PutUFS2(f, 63, 8000) }},
		"xfs":   {put: func(f forge.Bytes) { volumeforge.PutXFS(f, 63, 8000) }, at: 2048},
		"jfs":   {put: func(f forge.Bytes) { volumeforge.PutJFS(f, 63, 8000) }, none: true},
	} {
		t.Run(kind, func(t *testing.T) {
			f := legacyDisk()
			tc.put(f)
			require.Empty(t, boottest.Read(t, f).Refs)
			sector := 63*512 + tc.at
			f.Put(sector, []byte("\xeb\x58\x90SYSLINUX"))
			f.U32(sector+0x1c, 63)
			f.U16(sector+510, 0xaa55)
			r := boottest.Read(t, f)
			if tc.none {
				require.Empty(t, r.Refs)
				require.Empty(t, r.Chain)
				return
			}
			require.Empty(t, boottest.But(r, boottest.Unseen))
			require.Len(t, r.Refs, 1)
			ref := r.Refs[0]
			require.Equal(t, kind+" hidden sectors", ref.Kind)
			require.Equal(t, []disk.Range{{Off: sector + 0x1c, Len: 4}}, ref.At)
			require.Equal(t, tc.at+0x1c, ref.Off)
			require.Equal(t, 1, ref.Target)
			require.Equal(t, int64(63*512), ref.Points)
			require.True(t, r.Boots(1))

			f.U32(sector+0x1c, 64)
			require.False(t, boottest.Read(t, f).Refs[0].Follows(), "old value first")
		})
	}
}

// FAT has a parameter block of its own, which syslinux keeps.
func TestSyslinuxOnFAT(t *testing.T) {
	f := legacyDisk()
	fsforge.PutFAT16(f, 63, 8000)
	require.Empty(t, boottest.Read(t, f).Chain)
	f.Text(63*512+3, "SYSLINUX")
	r := boottest.Read(t, f)
	require.Len(t, r.Refs, 1)
	require.Equal(t, "fat16 hidden sectors", r.Refs[0].Kind)
	require.Equal(t,
		[]string{"SYSLINUX in the boot sector of partition 1 loads ldlinux.sys by sectors that count from " +
			"the start of the partition"}, boottest.Texts(r.Chain))
}

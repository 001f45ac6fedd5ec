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
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
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

// TestHibernationIntoASwapFile finds a hibernated Linux in files with usual names, and in those that an fstab names,
// also in a file system that is mounted below the root. It refuses any move, as swap partitions do.
func TestHibernationIntoASwapFile(t *testing.T) {
	t.Parallel()
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

// TestUnreadableSwapFile lists a swap file that cannot be read as not seen, and goes on with the next one. No bad
// sector is taken for a system that is awake.
func TestUnreadableSwapFile(t *testing.T) {
	t.Parallel()
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

// onePartition is a disk with code that is not known, and a file system.
func onePartition(t testing.TB, volume []byte) *boot.Guest {
	t.Helper()
	f := tableforge.NewMBR(4096, tableforge.Slot{Type: 0x83, Start: bootLBA, Sectors: 2048})
	f.U8(0, 0xfa)
	f.Put(bootLBA*512, volume)
	return boottest.GuestOf(t, f)
}

const unseen = "trueup cannot read its files"

// Files that are larger than configuration is, and more of them than a disk has, are not read; a system can lie behind
// them.
func TestLimitsOfConfiguration(t *testing.T) {
	t.Parallel()
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
			t.Parallel()
			dir := tree(t, tc.files)
			for name, size := range tc.sizes {
				path := filepath.Join(dir, filepath.FromSlash(name))
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				disktest.MakeBlank(t, path, size)
			}
			g := onePartition(t, extOfTree(t, dir))
			g.Partitions[0].Active = false
			r := boottest.ReadGuest(t, g)
			r.Chain = nil // of the files that were read
			require.Equal(t, !tc.seen, strings.Contains(r.Needs(g.Partitions[0]), unseen), r.Needs(g.Partitions[0]))
		})
	}
}

// So many names are looked up on a disk. Behind them no partition is looked into, whether it has folders to list or
// files to open.
func TestNamesOfADisk(t *testing.T) {
	t.Parallel()
	full := extOfTree(t, tree(t, map[string]string{"etc/hosts": "", "boot/x": "", "efi/x": ""}))
	for name, put := range map[string]func(name string) error{
		"efi":          func(name string) error { return os.Mkdir(name, 0o700) },
		"syslinux.cfg": func(name string) error { return os.WriteFile(name, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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

// A sector of a file that cannot be read is an error, whatever is wrong with files behind it.
func TestBadSectorInFrontOfABrokenFile(t *testing.T) {
	t.Parallel()
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

// A map that is empty, or in a partition that ends behind the disk, is not that of a LILO which can be followed.
func TestLiloWithoutAMap(t *testing.T) {
	t.Parallel()
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

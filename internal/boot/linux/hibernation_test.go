package linux_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
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

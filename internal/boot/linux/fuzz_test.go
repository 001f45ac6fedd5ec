package linux_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/volume"
)

// FuzzLinuxConfiguration writes a text into files of every kind, in place.
func FuzzLinuxConfiguration(f *testing.F) {
	const size = 1000 // a block, less the marker: the blocks of a file need not lie together
	files := map[string]string{}
	for i, name := range []string{
		"boot/grub/grub.cfg", "etc/fstab", "etc/crypttab", "etc/lilo.conf", "etc/rc.local",
		"etc/udev/rules.d/1.rules", "etc/default/grub",
	} {
		files[name] = fmt.Sprintf("# marker %d", i) + strings.Repeat("\n", size)
	}
	made := tableforge.NewMBR(
		8192, tableforge.Slot{Type: 0x83, Start: bootLBA, Sectors: 2048},
		tableforge.Slot{Type: 0x83, Start: rootLBA, Sectors: 2048},
		tableforge.Slot{Type: 0x83, Start: dataLBA, Sectors: 2048},
	)
	made.U32(0x1b8, linuxID)
	made.Put(rootLBA*512, extOf(f, "ext4", rootFS, files))
	var at []int
	for i := range len(files) {
		n := bytes.Index(made, fmt.Appendf(nil, "# marker %d", i))
		require.Positive(f, n)
		at = append(at, n)
	}
	for _, seed := range []string{
		debianFstab, debianGRUB, "chainloader (hd0)63+1,2175+8", "root (hd0)\nkernel 4287+1 root=/dev/sda2",
		"/dev/sda /x " +
			"ext4 offset=32256", "x /dev/sda /dev/sda offset=63,keyfile-offset=99999",
		"start = 63", "losetup -o $((63*512)) x /dev/sda", "0 2048 linear /dev/sda 4287", `ATTR{start}=="4287"`,
		`X="cryptkey=/dev/sda:1113700:512 blkdevparts=sda:32256,1M@1113600(x),-"`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		disk := forge.Bytes(bytes.Clone(made))
		for _, n := range at {
			disk.Put(int64(n), text[:min(len(text), size)])
		}
		d := boottest.Disk(disk)
		tab, parts := boottest.Partitions(t, d)
		r := boottest.ReadGuest(t, boottest.Guest(d, tab, parts))
		require.LessOrEqual(t, len(said(r)), 17)
		require.Less(t, len(r.Chain), 32)
		if parts[1].Volume.Kind == volume.Ext4 { // the text can make it look like something else too
			require.True(t, r.Boots(2), "it has an fstab")
		}
		for _, i := range r.Issues {
			require.Less(t, len(i.Text), 1500)
			require.True(t, utf8.ValidString(i.Text))
			require.Negative(t, strings.IndexFunc(i.Text, unicode.IsControl))
			require.Contains(t, []int{0, 1, 2, 3}, i.Partition)
		}
	})
}

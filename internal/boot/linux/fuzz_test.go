package linux_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/linux"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// FuzzLinuxConfiguration writes a text into files of every kind, in place.
func FuzzLinuxConfiguration(f *testing.F) {
	const size = 1000 // a block without the marker: the blocks of a file need not be contiguous
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
		"/dev/sda /x ext4 offset=32256", "x /dev/sda /dev/sda offset=63,keyfile-offset=99999",
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
		if parts[1].Volume.Kind == volume.Ext4 { // the text can imitate other structures too
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

// FuzzGrub2 has a boot sector and a core image, which is at the LBA in the boot sector if that is on the disk.
func FuzzGrub2(f *testing.F) {
	const sectors = 512
	blank := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 200},
		tableforge.Slot{Type: 0x83, Start: 300, Sectors: 100})
	_, parts := boottest.Partitions(f, boottest.Disk(blank))
	for _, first := range []uint64{1, 100, 310, 280, endless} {
		for place := range byte(2) {
			seed := tableforge.NewMBR(2)
			grubforge.PutBoot(seed, 0, first)
			grubforge.PutCore(seed, 1, list(first+1, 5, 110, 7)...)
			f.Add(place, []byte(seed[:440]), []byte(seed[512:]))
		}
	}
	f.Fuzz(func(t *testing.T, place byte, code, core []byte) {
		image := bytes.Clone(blank)
		at := []int{0, 63 * 512, 300 * 512}[place%3]
		copy(image[at:at+440], code)
		first := binary.LittleEndian.Uint64(image[at+grubforge.KernelSector:])
		if first > 0 && first < sectors {
			copy(image[first*512:][:512], core)
		}
		d := boottest.Disk(image)
		g := &boot.Guest{Disk: d, Sector0: image[:440], Scheme: table.MBR, Partitions: parts}
		r, err := layout.ReadBoot(g)
		require.NoError(t, err)
		require.LessOrEqual(t, len(r.Refs), 64)
		for _, x := range r.Refs {
			raw, err := g.Read(x.At)
			require.NoError(t, err)
			require.Equal(t, raw, x.Raw)
			if x.Encode == nil || x.Target == 0 {
				continue
			}
			p, ok := g.Holding(x.Points, 512)
			require.True(t, ok)
			require.Equal(t, p.Number, x.Target)
			same, err := x.Encode(x.Raw, x.Points)
			require.NoError(t, err)
			require.Equal(t, x.Raw, same)
		}
	})
}

// installed is where scripts/install-tools.sh unpacks the real stages.
const installed = "/usr/local/lib/trueup-tests/grub-legacy/x86_64-pc/"

// FuzzGrubLegacy compares finder and references: a stage that was found at one place of the partition must be found at
// another, after rewriting.
func FuzzGrubLegacy(f *testing.F) {
	forged, s := legacyDisk(), grubforge.Stage2(64)
	grubforge.PutStage1(forged, 0, s)
	grubforge.PutStage(forged, s)
	f.Add([]byte(forged[:440]), []byte(forged[64*512:66*512]))
	s = grubforge.Stage15()
	grubforge.PutStage1(forged, 0, s)
	grubforge.PutStage(forged, s)
	f.Add([]byte(forged[:440]), []byte(forged[512:3*512]))
	for _, name := range []string{"stage2", "e2fs_stage1_5"} {
		one, err := os.ReadFile(installed + "stage1")
		two, bad := os.ReadFile(installed + name)
		if err == nil && bad == nil {
			one[0x44], two[0x1f8] = 64, 65
			f.Add(one[:440], two[:1024])
		}
	}
	f.Fuzz(func(t *testing.T, one, two []byte) {
		const sectors, shift = 1024, 65
		disks := [2]forge.Bytes{}
		for i := range disks {
			start := uint32(63 + i*shift)
			d := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: start, Sectors: 800})
			d.Put(int64(start+1)*512, two[:min(len(two), 1024)])
			d.Put(512, two[:min(len(two), 1024)])
			d.Put(0, one[:min(len(one), 440)])
			disks[i] = d
		}
		was := boottest.Read(t, disks[0])
		for _, r := range was.Refs {
			require.Len(t, r.Raw, int(r.At[0].Len))
			if r.Target != 0 {
				move := int64(0)
				if r.Partition != 0 {
					move = shift * 512
				}
				patches, err := r.Patches(move, r.Points+shift*512)
				require.NoError(t, err)
				for _, p := range patches {
					require.Equal(t, p.Old, []byte(disks[1][p.Off:][:len(p.Old)]))
					disks[1].Put(p.Off, p.New)
				}
			}
		}
		if len(was.Issues) > 0 || len(was.Refs) == 0 || was.Code != linux.Legacy {
			return
		}
		now := boottest.Read(t, disks[1])
		require.Empty(t, now.Issues)
		require.Len(t, now.Refs, len(was.Refs))
		for i, r := range now.Refs {
			want := was.Refs[i].Points
			if r.Target != 0 {
				want += shift * 512
			}
			require.Equal(t, want, r.Points)
			require.Equal(t, was.Refs[i].Target, r.Target)
		}
	})
}

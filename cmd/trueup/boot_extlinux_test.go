package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

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
			dest := filepath.Join(filepath.Dir(source), "aligned.raw")
			disktest.Run(t, "cp", "--sparse=always", disks[c.kind], source)
			disktest.WriteAt(t, source, 0, c.code(t))
			if disktest.Exhaustive {
				require.Equal(t, booted, boot(t, source, extlinuxHeads), "before")
			}
			goldenPlan(t, "extlinux on "+c.name, source)
			r := trueup(t, "align", source, dest)
			require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
			now := tableOf(t, dest)[0]
			require.Equal(t, c.starts, now.start)
			require.Equal(t, booted, boot(t, dest, extlinuxHeads), "after")

			require.NotEqual(t, c.stale.bytes, readAt(t, dest, c.stale.at(now), int64(len(c.stale.bytes))))
			disktest.WriteAt(t, dest, c.stale.at(now), c.stale.bytes)
			shown := boot(t, dest, extlinuxHeads)
			if c.fails == nil {
				require.Equal(t, booted, shown, "stale %s", c.stale.name)
				return
			}
			require.Contains(t, c.fails, shown, "stale %s, and the disk boots nevertheless", c.stale.name)
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
	disktest.RunInput(t, fmt.Sprintf("o\nn\np\n1\n%d\n%d\na\nw\n", w.start, w.start+w.size-1), "fdisk",
		"--compatibility=dos", "--units=sectors",
		"--heads", decimal(extlinuxHeads), "--sectors", decimal(trackSectors), raw)
	disktest.Run(t, v.mkfs[0], append(v.mkfs[1:], part)...)
	copyInto(t, part, raw, w)
	return raw
}

package main

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// movedBoot is a disk that boots before and after its partitions move.
type movedBoot struct {
	plan   string // name of its golden plan; empty for none
	flags  []string
	starts []int64                                 // LBAs of the partitions in the copy
	unit   int64                                   // of the last partition in sectors, if starts is nil; 0: 2048
	quick  bool                                    // make test boots the copy; make boots also boots the source
	boot   func(t testing.TB, image string) string // starts an image and returns its output
	shows  string                                  // output of the source
	after  func(t testing.TB, dest string) string  // output of the copy, if different
}

// on boots with the BIOS of a PC.
func on(heads int64) func(t testing.TB, image string) string {
	return func(t testing.TB, image string) string { t.Helper(); return boot(t, image, heads) }
}

// started reports whether to boot the copy.
func (m movedBoot) started() bool { return m.quick || disktest.Exhaustive }

// align aligns the disk, checks the copy with tools, and boots it.
func (m movedBoot) align(t *testing.T, source string) (dest string) {
	t.Helper()
	if disktest.Exhaustive {
		require.Equal(t, m.shows, m.boot(t, source), "before")
	}
	if m.plan != "" {
		goldenPlan(t, m.plan, source, m.flags...)
	}
	dest = filepath.Join(t.TempDir(), "aligned"+filepath.Ext(source))
	r := trueup(t, append([]string{"align", source, dest}, m.flags...)...)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	if filepath.Ext(source) == ".raw" {
		requireSameView(t, source, dest, m.flags...)
		var starts []int64
		for _, w := range tableOf(t, dest) {
			starts = append(starts, w.start)
		}
		if m.starts == nil {
			require.Zero(t, last(starts)%cmp.Or(m.unit, 2048), starts)
		} else {
			require.Equal(t, m.starts, starts)
		}
	}
	if m.after != nil {
		m.shows = m.after(t, dest)
	}
	if m.started() {
		require.Equal(t, m.shows, m.boot(t, dest), "after")
	}
	return dest
}

// last returns the last element: of partitions, the one with the file system.
func last[T any](all []T) T { return all[len(all)-1] }

// requireLeads requires that a sector number in the copy is used: with the old number, the loader runs the sector at
// the old place, which prints a text.
func (m movedBoot) requireLeads(t *testing.T, dest string, at int64, old []byte) {
	t.Helper()
	broken := filepath.Join(t.TempDir(), "broken.raw")
	disktest.Run(t, "cp", "--sparse=always", dest, broken)
	disktest.WriteAt(t, broken, at, old)
	disktest.WriteAt(t, broken, int64(binary.LittleEndian.Uint32(old))*sectorSize, marker(t, staleShown))
	require.Equal(t, staleShown, m.boot(t, broken), "with the old sector number at byte %d", at)
}

// stale is the old value of a stored position that trueup repairs. If the boot fails with the old value, the repair
// made it succeed.
type stale struct {
	name  string
	at    func(first window) int64
	bytes []byte
}

var (
	// staleCHS: bytes 1 to 3 of the first table entry, at 0x1BE: cylinder 0, head 1, sector 1, which is LBA 63.
	staleCHS = stale{"start CHS", func(window) int64 { return 0x1BE + 1 }, []byte{1, 1, 0}}

	// staleHidden: hidden sectors of the BPB, at 0x1C: 63.
	staleHidden = stale{
		"hidden sectors", func(w window) int64 { return w.start*sectorSize + 0x1C },
		[]byte{63, 0, 0, 0},
	}

	// staleLBA: start LBA of the first entry: 63.
	staleLBA = stale{"start LBA", func(window) int64 { return 0x1BE + 8 }, []byte{63, 0, 0, 0}}

	// staleGPT: start LBA of the first entry of the primary GPT: 1063.
	staleGPT = stale{"start LBA", func(window) int64 { return 2*sectorSize + 32 }, []byte{0x27, 0x04}}
)

// require restores the position in a raw copy, and with boot starts it. It must show one of fails; if that is nil, it
// boots anyway.
func (s stale) require(t *testing.T, raw string, fails []string, boot func(t testing.TB, image string) string) {
	t.Helper()
	at := s.at(tableOf(t, raw)[0])
	require.NotEqual(t, s.bytes, readAt(t, raw, at, int64(len(s.bytes))), s.name)
	if boot == nil {
		return
	}
	disktest.WriteAt(t, raw, at, s.bytes)
	shown := boot(t, raw)
	if fails == nil {
		require.Equal(t, booted, shown, "stale %s", s.name)
		return
	}
	require.Contains(t, fails, shown, "stale %s, and the disk boots nevertheless", s.name)
}

type bootCase struct {
	name   string
	disk   bootDisk
	flags  []string
	starts []int64  // LBAs of the partitions in the result
	stale  stale    // empty: not tried
	fails  []string // console output with the old value; nil: irrelevant, the disk boots
	view   bool     // also boot a view of the disk
	quick  bool     // make test boots it: one row for each behaviour that only a boot shows
}

// LBA 128 is 64 KiB, the target of `auto` for partitions whose MBR code reads CHS; LBA 2048 is 1 MiB, the target for
// all others.
var bootCases = []bootCase{
	{
		name:   "code that reads chs, 16 heads, fat16, raw",
		disk:   bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 16},
		starts: []int64{128}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		name:   "code that reads chs, 255 heads, fat32, sparse vmdk",
		disk:   bootDisk{code: assembled(ownCHSCode), fat: 32, heads: 255, subformat: "monolithicSparse"},
		starts: []int64{128}, stale: staleCHS, fails: ownCHSFailed, quick: true,
	}, {
		// LBA 2048 is cylinder 2, head 0, sector 33 with 16 heads.
		name:  "code that reads chs, 16 heads, 1 MiB asked for, flat vmdk",
		disk:  bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 16, subformat: "monolithicFlat"},
		flags: []string{"--boundary", "1M"}, starts: []int64{2048}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		// LBA 2048 is cylinder 0, head 32, sector 33 with 255 heads. The descriptor's 16 heads are wrong, as always
		// with qemu-img; the table has the right number.
		name:  "code that reads chs, 255 heads, 1 MiB asked for, sparse vmdk",
		disk:  bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 255, subformat: "monolithicSparse"},
		flags: []string{"--boundary", "1M"}, starts: []int64{2048}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		// The first partition moves by 65 sectors and then ends before LBA 64325. The next multiple of 128 is 64384, so
		// the second partition moves from 64261 by 123.
		name:   "code that reads chs, a data partition that moves by another distance, sparse vmdk",
		disk:   bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 255, data: true, subformat: "monolithicSparse"},
		starts: []int64{128, 64384}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		// Such a disk just hangs with stale CHS, so there is no output.
		name:   "parted code, which reads chs, fat16, raw",
		disk:   bootDisk{code: chsBootCode, fat: 16, heads: 255},
		starts: []int64{128},
	}, {
		name:   "windows 2003 code, 255 heads, fat16, flat vmdk",
		disk:   bootDisk{code: windowsCode, fat: 16, heads: 255, subformat: "monolithicFlat"},
		starts: []int64{128}, stale: staleCHS, fails: windowsFailed, quick: true,
	}, {
		name:   "windows 2003 code, 16 heads, fat32, raw",
		disk:   bootDisk{code: windowsCode, fat: 32, heads: 16},
		starts: []int64{128}, stale: staleCHS, fails: windowsFailed,
	}, {
		name:   "syslinux code, which reads the lba, fat16, raw",
		disk:   bootDisk{code: lbaBootCode, fat: 16, heads: 255},
		starts: []int64{2048}, stale: staleCHS,
	}, {
		name:   "syslinux code, which hands the entry over, fat32, sparse vmdk",
		disk:   bootDisk{code: lbaBootCode, fat: 32, heads: 16, subformat: "monolithicSparse"},
		starts: []int64{2048}, stale: staleHidden,
	}, {
		name: "code that reads the lba and hands nothing over, fat16, flat vmdk",
		disk: bootDisk{code: assembled(ownLBACode), fat: 16, heads: 255, subformat: "monolithicFlat"}, view: true,
		starts: []int64{2048}, stale: staleHidden, fails: vbrFailed, quick: true,
	}, {
		name:   "code that reads the lba and hands nothing over, fat32, raw",
		disk:   bootDisk{code: assembled(ownLBACode), fat: 32, heads: 255},
		starts: []int64{2048}, stale: staleHidden, fails: vbrFailed,
	},
}

// TestAlignedDiskBoots checks each result with tools. make boots starts each result and each source; make test starts
// the quick ones.
func TestAlignedDiskBoots(t *testing.T) {
	t.Parallel()
	for _, c := range bootCases {
		t.Run(c.name, c.run)
	}
}

func (c bootCase) run(t *testing.T) {
	source := c.disk.build(t, t.TempDir())
	before := hashFolder(t, filepath.Dir(source))
	m := movedBoot{
		plan: c.name, flags: c.flags, starts: c.starts, quick: c.quick, boot: on(c.disk.heads), shows: booted,
	}
	dest := m.align(t, source)
	if c.disk.subformat == "monolithicFlat" {
		view := sameView(t, source, dest, c.flags...)
		if c.view && m.started() {
			require.Equal(t, booted, m.boot(t, view), "from a view")
		}
		removeView(t, view)
	}
	require.Equal(t, before, hashFolder(t, filepath.Dir(source)), "the source has changed")
	raw := filepath.Join(t.TempDir(), "result.raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", dest, raw)
	want := c.disk.windows()
	for i := range want {
		want[i].start = c.starts[i]
	}
	require.Equal(t, want, tableOf(t, raw))
	if c.disk.data {
		require.Equal(t, dataText, disktest.Output(t, "mtype", "-i", drive(raw, want[1]), "::data.txt"))
	}
	if !m.started() {
		m.boot = nil
	}
	if c.stale.at != nil {
		c.stale.require(t, raw, c.fails, m.boot)
	}
}

// windows7Code is the code of a real Windows 7.
func windows7Code(t testing.TB) []byte {
	t.Helper()
	return readAt(t, disktest.Corpus(t, "vmdk-rs/monolithicFlat-flat.vmdk.xz"), 0, codeSize)
}

// debianCode is the code of install-mbr in Debian's package mbr.
func debianCode(t testing.TB) []byte {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.WriteFile(image, make([]byte, 1<<20), 0o600))
	disktest.Run(t, "install-mbr", "--force", image)
	return readAt(t, image, 0, codeSize)
}

// TestClaimsAboutBootCode compares the boot code report of inspect with a boot. If the code is said not to read CHS
// bytes, they are made wrong. If it is said to pass its entry on, the hidden sectors are made wrong, because syslinux
// then finds itself only by that entry. TestAlignedDiskBoots shows that a wrong start CHS is fatal where it is read.
func TestClaimsAboutBootCode(t *testing.T) {
	t.Parallel()
	altCode := func(t testing.TB) []byte { // configured to boot partition 1
		t.Helper()
		code := disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/altmbr.bin"))
		return append(code[:codeSize-1], 1)
	}
	for name, tc := range map[string]struct {
		code        func(testing.TB) []byte
		reads, over bool
	}{
		"windows-2000":    {windowsCode, true, true},
		"windows-7":       {windows7Code, false, false},
		"parted":          {chsBootCode, true, true},
		"debian-mbr":      {debianCode, false, true},
		"syslinux":        {lbaBootCode, false, true},
		"syslinux-altmbr": {altCode, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := bootDisk{code: tc.code, fat: 16, heads: 255}
			raw := d.raw(t)
			var claims struct {
				BootCode struct {
					Name      string `json:"name"`
					ReadsCHS  bool   `json:"reads_chs"`
					HandsOver bool   `json:"hands_entry_over"`
				} `json:"boot_code"`
			}
			got := trueup(t, "inspect", "--json", raw)
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &claims), got.stderr)
			require.Equal(t, name, claims.BootCode.Name)
			require.Equal(t, []bool{tc.reads, tc.over}, []bool{claims.BootCode.ReadsCHS, claims.BootCode.HandsOver})
			if !tc.reads {
				disktest.WriteAt(t, raw, 0x1BE+1, []byte{5, 1, 0}) // LBA 315: no boot sector
			}
			require.Equal(t, booted, boot(t, raw, d.heads))
			// 1000 sectors before it, not 63
			disktest.WriteAt(t, raw, trackSectors*sectorSize+0x1C, []byte{0xE8, 3, 0, 0})
			require.Equal(t, tc.over, boot(t, raw, d.heads) == booted)
		})
	}
}

// TestAlignedGPTBoots moves a partition that a BIOS boots by an attribute of the GPT. The code in sector 0 is
// syslinux's; it reads the entries but no checksums, so sgdisk checks those. With the old start LBA in the primary
// entry, the boot must fail.
func TestAlignedGPTBoots(t *testing.T) {
	t.Parallel()
	m := movedBoot{starts: []int64{4096, 2048}, quick: true, boot: on(255), shows: booted}
	dest := m.align(t, gptBootDisk(t))
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
	staleGPT.require(t, dest, gptFailed, m.boot)
}

// gptBootDisk makes a disk whose first partition, at LBA 1063, holds syslinux.
func gptBootDisk(t testing.TB) string {
	t.Helper()
	d := bootDisk{fat: 16, heads: 255}
	source := disktest.Blank(t, "gpt.raw", bootDiskSize)
	w := window{start: 1063, size: 100_000}
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "3:40:1000", "-n", "1:"+decimal(w.start)+":"+decimal(w.start+w.size-1),
		"-t", "1:0700", "-A", "1:set:2", source)
	d.fillBoot(t, source, w)
	code := disktest.ReadFile(t, disktest.DataFile(t, "/usr/lib/syslinux/mbr/gptmbr.bin"))
	disktest.WriteAt(t, source, 0, code)
	return source
}

// TestBootsByTheGeometryOfAVHD boots a guest that reads CHS from a VHD, before and after, with the geometry of the
// footer, as VHD machines use it: 1023 cylinders of 4 heads and 17 sectors, all in one FAT16. Like other BIOSes, QEMU's
// translates more than 1024 cylinders.
func TestBootsByTheGeometryOfAVHD(t *testing.T) {
	t.Parallel()
	const heads, track, cylinders = 4, 17, 1023
	dir := t.TempDir()
	raw := disktest.Blank(t, "disk.raw", cylinders*heads*track*sectorSize)
	w := window{track, cylinders*heads*track - track}
	fdisk(t, raw, heads, track, "n\np\n1", decimal(w.start), decimal(w.start+w.size-1), "t\n6\na")
	disktest.Run(t, "mkfs.fat", "-F", "16", "-g", fmt.Sprintf("%d/%d", heads, track), "-h", decimal(track), "--offset",
		decimal(track), raw, decimal(w.size/2))
	disktest.Run(t, "mcopy", "-i", drive(raw, w), hostFile(t, "SAY "+booted+"\nPROMPT 1\n"), "::syslinux.cfg")
	disktest.Run(t, "syslinux", "--install", "--offset", decimal(w.start*sectorSize), raw)
	disktest.WriteAt(t, raw, 0, assembled(ownCHSCode)(t))
	source, dest := filepath.Join(dir, "disk.vhd"), filepath.Join(dir, "aligned.vhd")
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vpc", raw, source)

	// Spec: VHD 1.0, "Hard Disk Footer Format".
	starts := func(vhd string) (foot []byte, shown string) {
		b := disktest.ReadFile(t, vhd)
		foot = b[len(b)-512:]
		flat := filepath.Join(t.TempDir(), "flat.raw")
		disktest.Run(t, "qemu-img", "convert", "-f", "vpc", "-O", "raw", vhd, flat)
		disk := fmt.Sprintf(",cyls=%d,heads=%d,secs=%d", binary.BigEndian.Uint16(foot[56:]), foot[58], foot[59])
		return foot, pc{image: flat, disk: disk}.watch(t, anyOf(verdicts...))
	}
	foot, shown := starts(source)
	require.Equal(t, []byte{heads, track}, foot[58:60])
	require.Equal(t, booted, shown, "before")
	r := trueup(t, "align", source, dest)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout+r.stderr, "last 43 sectors are past cylinder 1023")
	foot, shown = starts(dest)
	require.Equal(t, []byte{heads, track}, foot[58:60])
	require.Equal(t, booted, shown, "after")

	trial := trueupJSON[jsonTrial](t, 0, "boot", "--accel", "tcg", source)
	require.Equal(t, "same", trial.Verdict, trial.Reason)
	require.Contains(t, trial.After.shown(), booted)
}

// dosDrivesCode is testdata/dos-drives.S: it finds logical drives like MS-DOS, and prints the names in their boot
// sectors.
const dosDrivesCode = "" +
	"fa31c08ed0bc00708ed88ec0fbfce800005db408b28055cd135d31c08ec083e1" +
	"3f890e00840fb6d64289160284b90100b600bb0080e87800bebe81b90400807c" +
	"0405740783c610e2f5eb588a74018b4c02bb008051e858005988c8c0c00283e0" +
	"0388c488e8f7260284f72600840306c6811316c881f736008489d14131d2f736" +
	"028488d688c5c0cc0208e1bb0082e81f00be0382b90800e81e00bece81807c04" +
	"0574a88db6ba00b90500e80b00f4ebfdb80102b280cd13c3ac3c207302b03f51" +
	"bb0700b40ecd1059e2eec320656e642e"

// Console output when both drives are found. FAT's boot sector has room for code at codeOfFAT.
const (
	dosDrives = "drive-D drive-E  end."
	codeOfFAT = 0x3e
)

// TestDOSFindsItsLogicalDrives boots a program that finds logical drives by the cylinder of their boot records, like
// DOS and Windows 95 to ME. The disk has 16 heads and the layout of DOS FDISK: a FAT16, and an extended partition of
// type 05 with two more, whose boot records begin cylinders. The boot sector of the first one lists the drives.
func TestDOSFindsItsLogicalDrives(t *testing.T) {
	t.Parallel()
	const heads, cylinder = 16, 16 * trackSectors
	raw := disktest.Blank(t, "disk.raw", bootDiskSize)
	all := []window{
		{trackSectors, 32*cylinder - trackSectors},
		{32 * cylinder, 90 * cylinder},
		{32*cylinder + trackSectors, 40*cylinder - trackSectors},
		{72*cylinder + trackSectors, 40*cylinder - trackSectors},
	}
	var commands []string
	for i, kind := range []string{"p\n1\n", "e\n2\n", "l\n", "l\n"} {
		commands = append(commands, fmt.Sprintf("n\n%s%d\n%d", kind, all[i].start, all[i].start+all[i].size-1))
	}
	fdisk(t, raw, heads, trackSectors, append(commands, "a\n1", "t\n1\n6", "t\n5\n6", "t\n6\n6")...)
	require.Equal(t, all, tableOf(t, raw))
	for i, name := range map[int]string{0: "drive-C ", 2: "drive-D ", 3: "drive-E "} {
		bootDisk{heads: heads}.format(t, raw, all[i], 16)
		disktest.WriteAt(t, raw, all[i].start*sectorSize+3, []byte(name))
	}
	disktest.WriteAt(t, raw, trackSectors*sectorSize+codeOfFAT, assembled(dosDrivesCode)(t))
	disktest.WriteAt(t, raw, 0, assembled(ownCHSCode)(t))
	drives := func(console string) string {
		if i := strings.Index(console, " end."); i >= 0 {
			return console[max(0, i+len(" end.")-len(dosDrives)) : i+len(" end.")]
		}
		return ""
	}
	m := movedBoot{
		unit: 128, quick: true, shows: dosDrives,
		boot: func(t testing.TB, image string) string {
			t.Helper()
			return pc{image: image, heads: heads}.watch(t, drives)
		},
	}
	for _, w := range tableOf(t, m.align(t, raw))[2:] {
		require.Zero(t, w.start%128)
	}
}

// TestMovedDiskBoots boots disks under their own names: after an exchange, a move in place, a resumed move, and undo.
// make boots runs all rows, make test only the exchange and the resumed move.
func TestMovedDiskBoots(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	const heads = 255
	disks := map[string]func(testing.TB) string{
		"mbr": bootDisk{code: assembled(ownLBACode), fat: 16, heads: heads}.raw,
		"gpt": gptBootDisk,
	}
	for name, c := range map[string]struct {
		steps [][]string // commands; an empty name is a killed move in place
		moved bool       // at the end; otherwise the disk has its old bytes
		quick bool
	}{
		"exchanged":                        {[][]string{{"replace"}}, true, true},
		"exchanged and taken back":         {[][]string{{"replace"}, {"undo"}}, false, false},
		"exchanged for good":               {[][]string{{"replace"}, {"finish"}}, true, false},
		"moved in place":                   {[][]string{{"move"}}, true, false},
		"moved in place, killed, resumed":  {[][]string{{}, {"resume"}}, true, true},
		"moved in place, killed, and back": {[][]string{{}, {"undo"}}, false, false},
	} {
		if !c.quick && !disktest.Exhaustive {
			continue
		}
		for kind, disk := range disks {
			t.Run(kind+", "+name, func(t *testing.T) {
				m := newMove(t, formatRaw, disk(t))
				for _, step := range c.steps {
					if len(step) == 0 {
						m.kill(t, callPoint{call: "fsync", number: 4})
						require.NotEqual(t, []byte{0x55, 0xAA}, readAt(t, m.path, 510, 2),
							"no firmware may start it now")
						continue
					}
					r := trueup(t, append(step, m.path)...)
					require.Equal(t, 0, r.code, "%q\n%s%s", step, r.stdout, r.stderr)
				}
				if c.moved {
					require.Equal(t, m.want, sha256Of(t, m.path))
				} else {
					m.requireOld(t)
				}
				require.Equal(t, booted, boot(t, m.path, heads))
			})
		}
	}
}

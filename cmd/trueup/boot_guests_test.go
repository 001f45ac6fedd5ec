package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/grubforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
)

// commonDisk is a disk as a common system or tool sets it up.
type commonDisk struct {
	script string // of sfdisk
	// commands that make a volume in the file PART, for the partition at LBA START; may be empty
	makes  []string
	code   func(testing.TB) []byte        // of sector 0; nil: none
	change func(t testing.TB, raw string) // further changes
	codes  []string                       // expected text of the plan, other than notes
}

const (
	dosLabel  = "label: dos\n"
	gptLabel  = "label: gpt\nfirst-lba: 34\n"
	wholeOld  = "start=63, size=112392, type="
	guestNTFS = "mkntfs -q -F -f -p START -H 255 -S 63 PART"
	guestExt3 = "mke2fs -q -t ext3 PART"
)

// bootImg is GRUB 2's boot.img from the package: it points to LBA 1.
func bootImg(t testing.TB) []byte {
	t.Helper()
	img := disktest.ReadFile(t, disktest.DataFile(t, filepath.Join(grubDir, "boot.img")))
	return img[:codeSize]
}

// commonDisks lists disks that are in wide use. None may be refused.
var commonDisks = map[string]commonDisk{
	"Windows XP": {
		script: dosLabel + wholeOld + "7, bootable\n", makes: []string{guestNTFS},
		code: windowsCode,
	},
	"Windows 7 on the partition of XP": {
		script: dosLabel + wholeOld + "7, bootable\n", makes: []string{guestNTFS},
		code: windows7Code,
	},
	"data, NTFS without a loader": {
		script: dosLabel + wholeOld + "7\n", makes: []string{guestNTFS},
		codes: []string{"known-elsewhere"},
	},
	"data, NTFS of a formatter that sees the volume only": {
		script: dosLabel + wholeOld + "7\n", makes: []string{"mkntfs -q -F -f -p 0 -H 255 -S 63 PART"},
		code: windows7Code, codes: []string{"known-elsewhere"},
	},
	"data, active, with the message of mkfs.fat": {
		script: dosLabel + wholeOld + "c, bootable\n", makes: []string{"mkfs.fat -F 32 -s 1 -h START PART"},
		codes: []string{"known-elsewhere"},
	},
	"FreeDOS": {
		script: dosLabel + wholeOld + "6, bootable\n",
		makes:  []string{"mkfs.fat -F 16 -h START PART"}, code: assembled(ownCHSCode),
	},
	"Linux by code of syslinux, active": {
		script: dosLabel + wholeOld + "83, bootable\n", makes: []string{guestExt3},
		code: lbaBootCode,
	},
	"table of parted": {script: dosLabel + wholeOld + "83\n", makes: []string{guestExt3}, code: chsBootCode},
	"CentOS, /boot and LVM": {
		script: dosLabel + "start=63, size=40002, type=83, bootable\nstart=40065, size=70000, type=8e\n",
		makes:  []string{guestExt3},
		// GRUB legacy in MBR and gap, and a physical volume, both made by hand, because their tools need devices
		change: func(t testing.TB, raw string) {
			t.Helper()
			front := forge.Bytes(readAt(t, raw, 0, trackSectors*sectorSize))
			grubforge.PutStage1(front, 0, grubforge.Stage15())
			grubforge.PutStage(front, grubforge.Stage15())
			disktest.WriteAt(t, raw, 0, front)
			w := windowOf(t, raw, 2)
			part := make(forge.Bytes, w.size*sectorSize)
			poolforge.PutLVM(part, poolforge.LVMText, 512)
			disktest.WriteAt(t, raw, w.start*sectorSize, part)
		},
	},
	"root, swap in a logical partition": {
		script: dosLabel + "start=63, size=40002, type=83, bootable\nstart=40065, size=72390, type=5\n" +
			"start=40128, size=72327, type=82\n",
		makes: []string{guestExt3, "", "", "", "mkswap -q PART"}, code: debianCode,
	},
	"FreeBSD": {
		script: dosLabel + wholeOld + "a5, bootable\n",
		makes:  []string{"makefs -t ffs -o version=2 -s 40m PART ."},
	},
	"UEFI": {
		script: gptLabel + "start=35, size=69999, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B\n" +
			"start=70034, size=40000, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4\n",
		makes: []string{"mkfs.fat -F 32 -s 1 PART", guestExt3},
	},
	"Windows 7, an old GRUB in a data partition": {
		script: dosLabel + "start=63, size=40002, type=7, bootable\nstart=40065, size=40000, type=83\n",
		makes:  []string{guestNTFS, guestExt3}, code: windows7Code, codes: []string{"grub2"},
		change: func(t testing.TB, raw string) { // GRUB 2 in its boot sector, with core.img missing
			t.Helper()
			at := windowOf(t, raw, 2).start * sectorSize
			disktest.WriteAt(t, raw, at, bootImg(t))
			disktest.WriteAt(t, raw, at+grubKernelSector, sectorField(1<<40))
			disktest.WriteAt(t, raw, at+sectorSize-2, []byte{0x55, 0xAA})
		},
	},
	"data, MBR of a GRUB without the gap": {
		script: dosLabel + wholeOld + "7\n", makes: []string{guestNTFS},
		code: bootImg, codes: []string{"grub2"},
	},
	"UEFI, MBR of an old GRUB": {
		script: gptLabel + "start=35, size=70000, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B\n",
		makes:  []string{"mkfs.fat -F 32 -s 1 PART"}, code: bootImg, codes: []string{"grub2"},
	},
}

func (d commonDisk) build(t testing.TB) string {
	t.Helper()
	raw := blankDisk(t, bootDiskSize, d.script)
	for i, command := range d.makes {
		if command == "" {
			continue
		}
		w, part := windowOf(t, raw, i+1), filepath.Join(t.TempDir(), "part")
		disktest.MakeBlank(t, part, w.size*sectorSize)
		args := strings.Fields(strings.NewReplacer("START", decimal(w.start), "PART", part).Replace(command))
		if strings.HasPrefix(command, "makefs") {
			args[len(args)-1] = t.TempDir()
		}
		disktest.Run(t, args[0], args[1:]...)
		copyInto(t, part, raw, w)
	}
	if d.code != nil {
		disktest.WriteAt(t, raw, 0, d.code(t))
	}
	if d.change != nil {
		d.change(t, raw)
	}
	return raw
}

// TestCommonDisksAreNotRefused requires no more than warnings, each with a reason: too much caution makes a tool as
// useless as too little.
func TestCommonDisksAreNotRefused(t *testing.T) {
	t.Parallel()
	for name, d := range commonDisks {
		t.Run(name, func(t *testing.T) {
			raw := d.build(t)
			dest := filepath.Join(filepath.Dir(raw), "aligned.raw")
			answer := trueupJSON[struct {
				Disks []struct {
					Moves    []jsonMove    `json:"moves"`
					Findings []jsonFinding `json:"findings"`
				} `json:"disks"`
			}](t, 0, "align", raw, dest).Disks[0]
			require.NotEmpty(t, answer.Moves)
			var codes []string
			for _, f := range answer.Findings {
				if f.Severity != "info" {
					codes = append(codes, f.Code)
				}
			}
			require.Equal(t, d.codes, codes, answer.Findings)
			require.Equal(t, 0, trueup(t, "inspect", dest).code)
		})
	}
}

// TestJournalBringsTheBootSectorBack shows why a boot sector must not change while a journal has to be replayed:
// e2fsck, like the kernel, writes back the old block with superblock and boot sector.
func TestJournalBringsTheBootSectorBack(t *testing.T) {
	t.Parallel()
	raw, w := journalDisk(t, 0)
	dest := filepath.Join(filepath.Dir(raw), "aligned.raw")
	r := trueup(t, "align", raw, dest)
	require.Equal(t, 4, r.code, r.stdout)
	require.Contains(t, r.stderr, "a pending replay of the journal of partition 1 can restore its old bytes: "+
		"transaction 1 holds its block 0")
	require.Contains(t, r.stderr, "shut the guest down cleanly first")

	require.Equal(t, 0, trueup(t, "align", "--allow-unbootable", raw, dest).code)
	now := windowOf(t, dest, 1)
	require.NotEqual(t, w.start, now.start)
	require.Equal(t, now.start, wordAt(t, dest, now.start*sectorSize+0x1C))
	require.Equal(t, w.start, wordAt(t, replayed(t, dest, now), 0x1C))

	copyInto(t, replayed(t, raw, w), raw, w)
	require.Equal(t, 0, trueup(t, "align", "--force", raw, dest).code, "once it is replayed")
}

// TestJournalLeavesTheBootSector aligns from an ext4 whose journal holds other blocks, and replays it with e2fsck and,
// as root, with Linux.
func TestJournalLeavesTheBootSector(t *testing.T) {
	t.Parallel()
	raw, _ := journalDisk(t, 1)
	dest := filepath.Join(filepath.Dir(raw), "aligned.raw")
	r := trueup(t, "align", raw, dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "the ext4 of partition 1 was in use when it was copied")
	now := windowOf(t, dest, 1)
	part := extract(t, dest, now.start*sectorSize, now.size*sectorSize)
	if mnt := t.TempDir(); os.Getuid() == 0 && exec.Command("mount", "-o", "loop", part, mnt).Run() == nil {
		disktest.Run(t, "umount", mnt)
		require.Equal(t, now.start, wordAt(t, part, 0x1C), "after Linux")
	}
	part = replayed(t, dest, now)
	require.Equal(t, now.start, wordAt(t, part, 0x1C))
	require.NotEqual(t, readAt(t, dest, now.start*sectorSize, 1<<20), readAt(t, part, 0, 1<<20), "it was replayed")
}

// replayed replays the journal of a partition with e2fsck, and returns its file.
func replayed(t testing.TB, raw string, w window) (part string) {
	t.Helper()
	part = extract(t, raw, w.start*sectorSize, w.size*sectorSize)
	disktest.Run(t, "e2fsck", "-p", "-E", "journal_only", part)
	return part
}

// journalDisk has an ext4 of 4 KiB blocks with the boot sector of extlinux, and a block in its journal.
func journalDisk(t testing.TB, held int64) (raw string, w window) {
	t.Helper()
	d := commonDisk{
		script: dosLabel + wholeOld + "83, bootable\n", makes: []string{"mke2fs -q -t ext4 -b 4096 PART"},
		code: assembled(ownLBACode),
	}
	raw = d.build(t)
	w = windowOf(t, raw, 1)
	at := w.start * sectorSize
	disktest.WriteAt(t, raw, at, []byte("\xeb\x58\x90EXTLINUX"))
	disktest.WriteAt(t, raw, at+0x1C, []byte{trackSectors, 0, 0, 0})
	disktest.WriteAt(t, raw, at+sectorSize-2, []byte{0x55, 0xAA})
	part := extract(t, raw, at, w.size*sectorSize)
	block := hostFile(t, string(readAt(t, part, held*4096, 4096)))
	disktest.Run(t, "debugfs", "-w", "-f", hostFile(t,
		fmt.Sprintf("journal_open\njournal_write -b %d %s\njournal_close\n", held, block)), part)
	copyInto(t, part, raw, w)
	return raw, w
}

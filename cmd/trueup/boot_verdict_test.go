package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// judged is a disk for trueup boot. Without any one of its corrections, the aligned disk boots differently.
type judged struct {
	disk    func(t testing.TB) string
	flags   []string
	shows   string // output of both runs, on the screen or the serial port
	without []takenBack
}

// takenBack lists corrections of a plan, by a part of their reasons. Without them, the output of the aligned disk
// differs.
type takenBack struct{ patches, shows string }

// run compares both boots, then boots without each correction.
func (j judged) run(t *testing.T) {
	t.Helper()
	disktest.Tool(t, "qemu-system-x86_64")
	source := j.disk(t)
	args := slices.Concat([]string{"boot", "--accel", "tcg"}, j.flags, []string{source})
	r := trueupJSON[jsonTrial](t, 0, args...)
	require.Equal(t, "same", r.Verdict, r.Reason)
	require.Contains(t, r.Before.shown()+r.Reason, j.shows)
	require.Contains(t, r.After.shown()+r.Reason, j.shows)
	var moves []string // flags that select partitions
	for i, f := range j.flags {
		if f == "--partition" {
			moves = append(moves, j.flags[i:i+2]...)
		}
	}
	for _, w := range j.without {
		qemu := w.qemu(t, source, moves)
		r := trueupJSON[jsonTrial](t, 5, append([]string{"boot", "--qemu", qemu}, args[1:]...)...)
		require.DirExists(t, qemu+".ran")
		require.Equal(t, "differs", r.Verdict, "without %s: %s", w.patches, r.Reason)
		require.Contains(t, r.Before.shown()+r.Reason, j.shows)
		require.Contains(t, r.After.shown(), w.shows, "without %s: %s", w.patches, r.Reason)
		require.NotEmpty(t, r.Differences)
	}
}

// shown returns all text output of a run of a trial.
func (r *jsonRun) shown() string {
	var b strings.Builder
	for _, s := range r.Screens {
		b.WriteString(strings.Join(s.Lines, "\n"))
	}
	return b.String() + r.Serial
}

// qemu returns a program for --qemu: QEMU with an overlay of a few sectors in its second start, where the corrections
// are undone. moves lists the partitions that move.
func (w takenBack) qemu(t *testing.T, source string, moves []string) string {
	t.Helper()
	plan := trueupJSON[struct {
		Patches []struct {
			Offset      int64 `json:"offset_bytes"`
			Old, Reason string
		}
	}](t, 0, append([]string{"plan", source}, moves...)...)
	dir, err := os.MkdirTemp("", "trueup-layer-") //nolint:usetesting // QEMU runs as another user
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o777)) // the script records its run there
	aligned, layer := filepath.Join(t.TempDir(), "aligned.raw"), filepath.Join(dir, "layer.qcow2")
	require.Equal(t, 0, trueup(t, append([]string{"align", source, aligned}, moves...)...).code)
	disktest.Run(t, "qemu-img", "create", "-f", "qcow2", "-o", "cluster_size=512", "-b", aligned, "-F", "raw", layer)
	found := false
	for _, p := range plan.Patches {
		if !strings.Contains(p.Reason, w.patches) {
			continue
		}
		found = true
		old, err := hex.DecodeString(p.Old)
		require.NoError(t, err)
		write := fmt.Sprintf("write -s %s %d %d", hostFile(t, string(old)), p.Offset, len(old))
		disktest.Run(t, "qemu-io", "-f", "qcow2", "-c", write, layer)
	}
	require.True(t, found, "no %q in %+v", w.patches, plan.Patches)
	disktest.Run(t, "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", "", layer) // the lines below come with --qemu
	script := fmt.Sprintf(`#!/bin/sh
for a; do
	shift
	case $a in *driver=raw,file.driver=nbd*)
		mkdir "$0.ran" 2>/dev/null || {
			a=$(echo "$a," | sed 's|driver=raw,||; s|file[.]|backing.file.|g')
			a="${a}driver=qcow2,file.filename=%s,backing.driver=raw"
		}
	esac
	set -- "$@" "$a"
done
exec %s "$@"
`, layer, disktest.Tool(t, "qemu-system-x86_64"))
	qemu := filepath.Join(dir, "qemu")
	// Another process writes it, because a file that this process had open for writing could be busy.
	disktest.RunInput(t, script, "sh", "-c", `cat > "$0" && chmod 755 "$0"`, qemu)
	return qemu
}

// Machine flags. A kernel unpacks itself behind a static screen.
var (
	loaderFlags = []string{"--memory", "64", "--settle", "2", "--seconds", "600"}
	linuxFlags  = []string{"--memory", "256", "--settle", "10", "--seconds", "900"}
)

// TestVerdictOnBoots starts systems of each kind of output: make boots all of them, make test the first. Tests of
// aligned disks start the other loaders.
func TestVerdictOnBoots(t *testing.T) {
	t.Parallel()
	lba := bootDisk{code: assembled(ownLBACode), fat: 16, heads: 16}
	chs := bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 16}
	hidden := []takenBack{{"hidden sectors", "Boot error"}}
	for name, j := range map[string]judged{
		"syslinux":            {lba.raw, loaderFlags, booted, hidden},
		"code that reads chs": {chs.raw, loaderFlags, booted, []takenBack{{"start CHS", "CHS:"}}},
		"uefi": {func(t testing.TB) string {
			t.Helper()
			return uefiDisk(t, [2]string{"EFI/BOOT/BOOTX64.EFI", efiProgram(t)})
		}, []string{"--memory", "256", "--settle", "5", "--seconds", "900"}, "", []takenBack{{"GPT", ""}}},
		"linux in text":     {restingLinux("normal"), linuxFlags, booted, hidden},
		"linux in graphics": {restingLinux("785"), linuxFlags, booted, hidden},
	} {
		if name == "syslinux" || disktest.Exhaustive {
			t.Run(name, j.run)
		}
	}
}

// restingLinux is Debian's kernel on a FAT with syslinux. vga is the mode of its console.
func restingLinux(vga string) func(t testing.TB) string {
	return func(t testing.TB) string {
		t.Helper()
		d := bootDisk{code: assembled(ownLBACode), fat: 16, heads: 16}
		raw := d.raw(t)
		kernel, release := linuxKernel(t)
		initrd := linuxInitrd(t, release, "linux-stay", nil, nil)
		config := "DEFAULT linux\nPROMPT 0\nLABEL linux\nKERNEL vmlinuz\nAPPEND initrd=initrd.img console=tty0 " +
			"no_timer_check vga=" + vga + "\n"
		for name, path := range map[string]string{
			"vmlinuz": kernel, "initrd.img": hostFile(t, string(initrd)), "syslinux.cfg": hostFile(t, config),
		} {
			disktest.Run(t, "mcopy", "-o", "-i", drive(raw, d.windows()[0]), path, "::"+name)
		}
		return raw
	}
}

// espLBA is where the EFI system partition of a misaligned GPT starts, and espSectors how long it is: long enough for a
// FAT32.
const (
	espLBA     = 63
	espSectors = 130_000
)

// efiProgram is a UEFI program that prints the marker on every console: a GRUB without modules on disk.
func efiProgram(t testing.TB) string {
	t.Helper()
	disktest.DataFile(t, "/usr/lib/grub/x86_64-efi/kernel.img")
	path := filepath.Join(t.TempDir(), "loader.efi")
	config := hostFile(t, "terminal_output console\necho \""+booted+"\"\nsleep 600\n")
	disktest.Run(t, "grub-mkimage", "-O", "x86_64-efi", "-p", "/", "-c", config, "-o", path, "echo", "sleep",
		"terminal")
	return path
}

// uefiDisk makes a GPT with an EFI system partition, and copies these files of the host into it.
func uefiDisk(t testing.TB, files ...[2]string) (raw string) {
	t.Helper()
	raw = disktest.Blank(t, "uefi.raw", bootDiskSize+1<<20)
	disktest.Run(t, "sgdisk", "-a", "1", "-n", fmt.Sprintf("1:%d:+%d", espLBA, espSectors), "-t", "1:ef00", raw)
	w := window{start: espLBA, size: espSectors}
	bootDisk{heads: 255}.format(t, raw, w, 32)
	made := map[string]bool{}
	for _, f := range files {
		folder := "::"
		for name := range strings.SplitSeq(filepath.Dir(f[0]), "/") {
			if folder += "/" + name; !made[folder] && name != "." {
				disktest.Run(t, "mmd", "-i", drive(raw, w), folder)
				made[folder] = true
			}
		}
		disktest.Run(t, "mcopy", "-i", drive(raw, w), f[1], "::/"+f[0])
	}
	return raw
}

// firmwareMemory is a fresh NVRAM, which holds the boot entries.
func firmwareMemory(t testing.TB) string {
	t.Helper()
	return hostFile(t, string(disktest.ReadFile(t, disktest.DataFile(t, ovmfVars))))
}

// movedESP is a uefiDisk that boots.
var movedESP = movedBoot{
	starts: []int64{2048}, shows: booted, boot: func(t testing.TB, image string) string {
		t.Helper()
		return pc{image: image, memory: 256, nvram: firmwareMemory(t)}.watch(t, anyOf(booted))
	},
}

// TestAlignedUEFIBoots moves the EFI system partition of a disk whose loader has the default path. make boots starts it
// before, too.
func TestAlignedUEFIBoots(t *testing.T) {
	t.Parallel()
	m := movedESP
	m.quick = true
	dest := m.align(t, uefiDisk(t, [2]string{"EFI/BOOT/BOOTX64.EFI", efiProgram(t)}))
	require.Equal(t, []window{{2048, espSectors}}, tableOf(t, dest))
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
}

// TestStoredBootEntriesAfterTheMove tests boot entries after a move. The shell of the firmware writes two before the
// move, as installers do; the disk has no loader at the default path. A short-form entry, which begins with HD(), holds
// number, GUID, start and size, and EDK2 finds the partition by GUID: it boots. A full device path is compared byte by
// byte: hence the note on NVRAM, which is a warning if \EFI\BOOT has no loader. Only make boots starts the firmware.
func TestStoredBootEntriesAfterTheMove(t *testing.T) {
	t.Parallel()
	memory, where := firmwareMemory(t), `FS0:\EFI\own\loader.efi`
	script := hostFile(t,
		"bcfg boot add 0 "+where+" whole\r\nbcfg boot addp 1 "+where+" short\r\nbcfg boot dump -v\r\nreset -s\r\n")
	source := uefiDisk(t, [2]string{"EFI/own/loader.efi", efiProgram(t)}, [2]string{"startup.nsh", script})
	var severity string
	for _, f := range trueupJSON[struct{ Findings []jsonFinding }](t, 0, "plan", source).Findings {
		if f.Code == "efi-boot-entries" {
			severity = f.Severity
		}
	}
	require.Equal(t, "warning", severity)
	if !disktest.Exhaustive {
		return
	}
	_, shown := pc{image: source, memory: 256, nvram: memory}.start(t, anyOf())
	old := regexp.MustCompile(fmt.Sprintf(`DevPath - (\S+/)?HD\(1,GPT,[0-9A-F-]{36},0x%X,0x%X\)`, espLBA, espSectors))
	require.Len(t, old.FindAllString(shown, -1), 2, "the entries have the old start: %s", shown)

	dest := filepath.Join(t.TempDir(), "aligned.raw")
	require.Equal(t, 0, trueup(t, "align", source, dest).code)
	text, shown := pc{image: dest, memory: 256, nvram: memory}.start(t, anyOf(booted))
	require.Equal(t, booted, text)
	require.Regexp(t, `failed to load Boot\d+ "whole"`, shown)
	require.Regexp(t, `starting Boot\d+ "short"`, shown)
}

// TestAlignedHybridMBRBoots boots FreeDOS from the active slot of a hybrid MBR after the move, and in make boots also
// before. The code in sector 0 reads the CHS bytes of the slot: with the old bytes, the copy does not boot.
func TestAlignedHybridMBRBoots(t *testing.T) {
	t.Parallel()
	loaders := filepath.Join(disktest.CorpusDir(t), "loaders", "freedos") //nolint:misspell // FreeDOS
	d := bootDisk{fat: 16, heads: 255}
	source := disktest.Blank(t, "hybrid.raw", bootDiskSize)
	w := window{start: 1063, size: 100_000}
	disktest.Run(t, "sgdisk", "-a", "1", "-n", "3:40:1000", "-n", "1:"+decimal(w.start)+":"+decimal(w.start+w.size-1),
		"-t", "1:0700", source)
	disktest.Run(t, "sgdisk", "-h", "1", source)
	d.format(t, source, w, 16)
	disktest.Run(t, "mcopy", "-i", drive(source, w), filepath.Join(loaders, "KERNEL.SYS"),
		filepath.Join(loaders, "COMMAND.COM"), "::")
	disktest.Run(t, "mcopy", "-i", drive(source, w), hostFile(t, "SHELL=C:\\COMMAND.COM C:\\ /P\r\n"), "::FDCONFIG.SYS")
	disktest.Run(t, "mcopy", "-i", drive(source, w), hostFile(t, "@ECHO "+booted+"\r\n"), "::AUTOEXEC.BAT")
	code := disktest.ReadFile(t, filepath.Join(loaders, "br_fat16fd_0x3e.bin"))
	disktest.WriteAt(t, source, w.start*sectorSize+codeOfFAT, code)
	disktest.WriteAt(t, source, w.start*sectorSize+0x24, []byte{0x80}) // the drive
	disktest.WriteAt(t, source, 0, chsBootCode(t))
	disktest.WriteAt(t, source, 446+16, []byte{0x80})   // slot 2 is active
	disktest.WriteAt(t, source, 446+16+4, []byte{0x06}) // DOS does not support type 07
	if disktest.Exhaustive {
		require.Equal(t, booted, boot(t, source, d.heads), "before")
	}

	dest := filepath.Join(t.TempDir(), "aligned.raw")
	answer := trueupJSON[jsonAlign](t, 0, "align", source, dest)
	require.Equal(t, 2, answer.Moved)
	require.Equal(t, booted, boot(t, dest, d.heads), "after")

	disktest.WriteAt(t, dest, 446+16+1, readAt(t, source, 446+16+1, 3))
	disktest.WriteAt(t, dest, w.start*sectorSize, marker(t, staleShown))
	require.Equal(t, staleShown, boot(t, dest, d.heads), "with the old CHS bytes")
}

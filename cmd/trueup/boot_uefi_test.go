package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The firmware of these machines: EDK2 for QEMU, as Debian builds it. It has the UEFI shell inside.
const (
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// espLBA is where the EFI system partition of a misaligned GPT starts, and espSectors how long it is: long enough for a
// FAT32.
const (
	espLBA     = 63
	espSectors = 130_000
	alignedLBA = 2048 // 1 MiB
)

// efiProgram is a program for UEFI that prints the marker on every console: a GRUB without modules on disk.
func efiProgram(t testing.TB) string {
	t.Helper()
	disktest.DataFile(t, "/usr/lib/grub/x86_64-efi/kernel.img")
	path := filepath.Join(t.TempDir(), "loader.efi")
	config := hostFile(t, "terminal_output console\necho \""+booted+"\"\nsleep 600\n")
	disktest.Run(t, "grub-mkimage", "-O", "x86_64-efi", "-p", "/", "-c", config, "-o", path, "echo", "sleep",
		"terminal")
	return path
}

// uefiDisk makes a GPT whose only partition is an EFI system partition with these files: paths on it and of the host.
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
	b := disktest.ReadFile(t, disktest.DataFile(t, ovmfVars))
	path := filepath.Join(t.TempDir(), "vars.fd")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// escapes are what firmware sends to place and paint a text.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]`)

// runUEFI starts a machine with UEFI firmware until its console shows one of the texts, or until it switches itself
// off; it gives the text and all that was shown. The disk is not changed, the firmware's memory is.
func runUEFI(t testing.TB, raw, memory string, texts ...string) (text, shown string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-system-x86_64"), "-machine", "q35,accel=tcg", "-m", "256",
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none", "-serial", "stdio",
		"-drive", "if=pflash,format=raw,readonly=on,file="+disktest.DataFile(t, ovmfCode), "-drive",
		"if=pflash,format=raw,file="+memory, "-drive", "if=none,id=disk,snapshot=on,format=raw,file="+raw, "-device",
		"virtio-blk-pci,drive=disk")
	var errs, all bytes.Buffer
	cmd.Stderr = &errs
	console, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }() // killed, it ends with an error that says nothing new
	buf := make([]byte, 4096)
	for {
		n, err := console.Read(buf)
		all.Write(buf[:n])
		shown = escapes.ReplaceAllString(all.String(), "")
		for _, text := range texts {
			if strings.Contains(shown, text) {
				return text, shown
			}
		}
		if err != nil {
			require.NoError(t, ctx.Err(), "the console of %s shows %q\n%s", raw, shown, errs.String())
			return "", shown
		}
	}
}

// alignESP aligns a disk of uefiDisk.
func alignESP(t testing.TB, source string) (dest string) {
	t.Helper()
	dest = filepath.Join(t.TempDir(), "aligned.raw")
	answer := trueupJSON[jsonAlign](t, 0, "align", source, dest)
	require.Equal(t, 1, answer.Moved)
	require.Equal(t, []window{{alignedLBA, espSectors}}, tableOf(t, dest))
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
	return dest
}

// TestAlignedUEFIBoots moves the EFI system partition of a disk whose loader lies where firmware looks without a boot
// entry. make boots starts it before, too.
func TestAlignedUEFIBoots(t *testing.T) {
	t.Parallel()
	source := uefiDisk(t, [2]string{"EFI/BOOT/BOOTX64.EFI", efiProgram(t)})
	if disktest.Exhaustive {
		before, _ := runUEFI(t, source, firmwareMemory(t), booted)
		require.Equal(t, booted, before)
	}
	after, _ := runUEFI(t, alignESP(t, source), firmwareMemory(t), booted)
	require.Equal(t, booted, after)
}

// TestStoredBootEntriesAfterTheMove settles what boot entries are worth after a move. The shell of the firmware writes
// two, as installers do, while the partition is where it was; the disk has no loader that would be started without one.
// An entry of the usual short form, which begins with HD(), holds number, GUID, start and size, and EDK2 finds the
// partition by the GUID: it boots. One with the whole path of devices is compared byte by byte. Hence the note on
// NVRAM, which is a warning where \EFI\BOOT has no loader. The firmware is a matter of make boots.
func TestStoredBootEntriesAfterTheMove(t *testing.T) {
	t.Parallel()
	memory, where := firmwareMemory(t), `FS0:\EFI\own\loader.efi`
	script := hostFile(t,
		"bcfg boot add 0 "+where+" whole\r\nbcfg boot addp 1 "+where+" short\r\nbcfg boot dump -v\r\nreset -s\r\n")
	source := uefiDisk(t, [2]string{"EFI/own/loader.efi", efiProgram(t)}, [2]string{"startup.nsh", script})
	dest := alignESP(t, source)
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
	_, shown := runUEFI(t, source, memory)
	old := regexp.MustCompile(fmt.Sprintf(`DevPath - (\S+/)?HD\(1,GPT,[0-9A-F-]{36},0x%X,0x%X\)`, espLBA, espSectors))
	require.Len(t, old.FindAllString(shown, -1), 2, "the entries have the old start: %s", shown)

	text, shown := runUEFI(t, dest, memory, booted)
	require.Equal(t, booted, text)
	require.Regexp(t, `failed to load Boot\d+ "whole"`, shown)
	require.Regexp(t, `starting Boot\d+ "short"`, shown)
}

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// escapes are what firmware sends to place and paint a text, and what the BIOS sends when it mirrors the screen to the
// serial port and a timer tick comes between a guest's character and the guest's cursor. They may stand within a word.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]|\r`)

// What a console shows when a boot has failed, by who says so.
var (
	ownCHSFailed  = []string{"CHS:N", "CHS:R", "CHS:B"}
	ownLBAFailed  = []string{"LBA:N", "LBA:R", "LBA:B"}
	windowsFailed = []string{"Invalid partition table", "Error loading operating system", "Missing operating system"}
	vbrFailed     = []string{"Boot error"} // the boot sector of syslinux
	gptFailed     = []string{"Missing OS"} // syslinux's code for a GPT
)

// verdicts are all texts that end a boot.
var verdicts = slices.Concat([]string{booted, staleShown}, ownCHSFailed, ownLBAFailed, windowsFailed, vbrFailed,
	gptFailed)

// The firmware of machines with UEFI: EDK2 for QEMU, as Debian builds it. It has the UEFI shell inside.
const (
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// pc is a computer that boots from an image, which it does not change.
type pc struct {
	image  string
	heads  int64  // of its BIOS
	disk   string // options of the disk, such as its geometry
	memory int    // in MiB; 64 when 0
	ahci   bool   // the disk hangs on AHCI: a BIOS reads it with DMA, in half the time of IDE
	nvram  string // of UEFI firmware, which the PC has in place of a BIOS: it keeps the boot entries
}

// boot starts a PC from the image and returns the first of the verdicts that its console shows.
func boot(t testing.TB, image string, heads int64) string {
	t.Helper()
	return pc{image: image, heads: heads}.watch(t, anyOf(verdicts...))
}

// anyOf waits for the first of these texts.
func anyOf(texts ...string) func(console string) string {
	return func(console string) string {
		for _, text := range texts {
			if strings.Contains(console, text) {
				return text
			}
		}
		return ""
	}
}

// watch starts the PC until verdict returns a text for what its console has shown, and fails if it never does.
func (p pc) watch(t testing.TB, verdict func(console string) string) string {
	t.Helper()
	text, shown := p.start(t, verdict)
	require.NotEmpty(t, text, "the console of %s shows nothing that was waited for, but %q", p.image, shown)
	return text
}

// start starts the PC, and switches it off when verdict returns a text for the output of its console so far. It returns
// the text, which is empty if the PC switched itself off, and the output.
func (p pc) start(t testing.TB, verdict func(console string) string) (text, shown string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-system-x86_64"), p.args(t)...)
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
		if text = verdict(shown); text != "" {
			return text, shown
		}
		if err != nil {
			require.NoError(t, ctx.Err(), "the console of %s shows %q\n%s", p.image, shown, errs.String())
			return "", shown + errs.String()
		}
	}
}

// args describe a PC without a screen: with graphics=off its BIOS shows on the serial port what a guest
// prints through INT 10h, so that the complaints of every MBR code can be read.
func (p pc) args(t testing.TB) []string {
	t.Helper()
	format := "raw"
	if filepath.Ext(p.image) == ".vmdk" {
		format = "vmdk"
	}
	machine, device, more := "pc,accel=tcg,graphics=off", "ide-hd", []string(nil)
	switch {
	case p.nvram != "":
		machine, device = "q35,accel=tcg", "virtio-blk-pci"
		more = []string{
			"-drive", "if=pflash,format=raw,readonly=on,file=" + disktest.DataFile(t, ovmfCode),
			"-drive", "if=pflash,format=raw,file=" + p.nvram,
		}
	case p.ahci:
		device, more = "ide-hd,bus=ahci.0", []string{"-device", "ahci,id=ahci"}
	}
	if p.heads > 16 {
		// A BIOS reports more than 16 heads for disks far larger than these. With 16 or fewer QEMU takes the geometry
		// from the table's end CHS, and that is a part of what is tested.
		device += fmt.Sprintf(",lcyls=1024,lheads=%d,lsecs=%d", p.heads, trackSectors)
	}
	return slices.Concat([]string{
		"-machine", machine, "-m", strconv.Itoa(cmp.Or(p.memory, 64)), "-nodefaults",
		"-no-user-config", "-no-reboot", "-display", "none", "-vga", "none", "-serial", "stdio",
	}, more, []string{
		"-drive", "if=none,id=disk,snapshot=on,format=" + format + ",file=" + strings.ReplaceAll(p.image, ",", ",,"),
		"-device", device + p.disk + ",drive=disk",
	})
}

// Our own MBR code, so that a boot can be tested where no Windows is at hand. The sources in testdata say what each
// does; the bytes are here because a machine that runs the tests need not have an assembler. They are made by
//
//	as --32 -o NAME.o testdata/NAME.S
//	ld -m elf_i386 -Ttext=0x600 --oformat=binary -e start -o NAME.bin NAME.o
//	xxd -p -c 32 NAME.bin
const (
	// ownCHSCode is testdata/chs-mbr.S: it reads the start CHS of the active entry and nothing else.
	ownCHSCode = "" +
		"fa31c08ed0bc007c8ed88ec0fbfc89e6bf0006b90001f3a5ea1d060000bebe07" +
		"b90400f60480750983c610e2f6b04eeb218a74018b4c02b80102bb007ccd13b0" +
		"52720f813efe7d55aab0427505ea007c0000a26d06be6906bb0700ac84c07406" +
		"b40ecd10ebf5f4ebfd4348533a0000"

	// ownLBACode is testdata/lba-mbr.S: it reads the start LBA and tells the boot sector nothing.
	ownLBACode = "" +
		"fa31c08ed0bc007c8ed88ec0fbfc89e6bf0006b90001f3a5ea1d060000bdbe07" +
		"b90400f6460080750983c510e2f5b04eeb25668b460866a37c06be7406b442cd" +
		"13b0527212813efe7d55aab0427508be8406ea007c0000a27206be6e06bb0700" +
		"ac84c07406b40ecd10ebf5f4ebfd4c42413a000010000100007c000000000000" +
		"0000000000000000000000000000000000000000"

	// markerCode is testdata/marker.S: it prints the text behind it and halts, wherever it is loaded.
	markerCode = "" +
		"fae800005e81c6210031c08ed88ed0bc0070fcfbac84c07409bb0700b40ecd10" +
		"ebf2f4ebfd"
)

// codeSize is the room for code in an MBR: the disk signature follows at 0x1B8.
const codeSize = 0x1B8

// assembled gives MBR code that stands in this file.
func assembled(code string) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		bytes, err := hex.DecodeString(code)
		require.NoError(t, err)
		return bytes
	}
}

// windowsCode gives the MBR code that a real Windows Server 2003 wrote. It reads the start CHS if the start LBA lies
// within what the BIOS calls the CHS range.
func windowsCode(t testing.TB) []byte {
	t.Helper()
	return readAt(t, disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz"), 0, codeSize)
}

func TestBootCodeIsItsSource(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"chs-mbr": ownCHSCode, "lba-mbr": ownLBACode, "marker": markerCode, "dos-drives": dosDrivesCode,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			object, flat := filepath.Join(dir, "o"), filepath.Join(dir, "bin")
			disktest.Run(t, "as", "--32", "-o", object, filepath.Join("testdata", name+".S"))
			disktest.Run(t, "ld", "-m", "elf_i386", "-Ttext=0x600", "--oformat=binary", "-e", "start", "-o", flat,
				object)
			got := disktest.ReadFile(t, flat)
			require.Equal(t, code, hex.EncodeToString(got))
		})
	}
}

// staleShown is what the console shows when a loader read the sectors that its next stage had before the move.
const staleShown = "trueup: a stale sector"

// marker is a boot sector that prints a text.
func marker(t testing.TB, text string) []byte {
	t.Helper()
	sector := make([]byte, sectorSize)
	n := copy(sector, assembled(markerCode)(t))
	require.Less(t, n+len(text), sectorSize-2)
	copy(sector[n:], text)
	sector[510], sector[511] = 0x55, 0xaa
	return sector
}

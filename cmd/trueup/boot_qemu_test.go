package main

import (
	"cmp"
	"context"
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

// cursorMoves are what the BIOS sends when it mirrors the screen to the serial port and a timer tick comes between a
// guest's character and the guest's cursor. They may stand within a word.
var cursorMoves = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|\r`)

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

// pc is a computer that boots from an image, which it does not change.
type pc struct {
	image   string
	heads   int64    // of its BIOS
	disk    string   // options of the disk, such as its geometry
	memory  int      // in MiB; 64 when 0
	ahci    bool     // the disk hangs on AHCI: a BIOS reads it with DMA, in half the time of IDE
	options []string // for QEMU, besides those of args
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

// watch starts the PC and shows verdict what the console has shown so far, until it returns a text; the PC is then
// switched off. A console that shows nothing of worth in time fails the test.
func (p pc) watch(t testing.TB, verdict func(console string) string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-system-x86_64"), p.args()...)
	var errs strings.Builder
	cmd.Stderr = &errs
	console, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	// Killed, it ends with an error that says nothing new.
	switchOff := func() { cancel(); _ = cmd.Wait() }
	defer switchOff()

	var all []byte
	buf := make([]byte, 4096)
	for {
		n, err := console.Read(buf)
		all = append(all, buf[:n]...)
		shown := cursorMoves.ReplaceAllString(string(all), "")
		if text := verdict(shown); text != "" {
			return text
		}
		if err != nil {
			switchOff()
			t.Fatalf("the console of %s shows nothing that was waited for, but %q: %v\n%s", p.image, shown, err,
				errs.String())
		}
	}
}

// args describe a PC without a screen: with graphics=off its BIOS shows on the serial port what a guest
// prints through INT 10h, so that the complaints of every MBR code can be read.
func (p pc) args() []string {
	format := "raw"
	if filepath.Ext(p.image) == ".vmdk" {
		format = "vmdk"
	}
	device := "ide-hd,drive=disk"
	if p.heads > 16 {
		// A BIOS reports more than 16 heads for disks far larger than these. With 16 or fewer QEMU takes the geometry
		// from the table's end CHS, and that is a part of what is tested.
		device += fmt.Sprintf(",lcyls=1024,lheads=%d,lsecs=%d", p.heads, trackSectors)
	}
	device += p.disk
	controller := []string{}
	if p.ahci {
		controller = []string{"-device", "ahci,id=ahci"}
		device += ",bus=ahci.0"
	}
	return slices.Concat([]string{
		"-machine", "pc,accel=tcg,graphics=off", "-m", strconv.Itoa(cmp.Or(p.memory, 64)), "-nodefaults",
		"-no-user-config", "-no-reboot", "-display", "none", "-vga", "none", "-serial", "stdio",
	}, controller, []string{
		"-drive", "if=none,id=disk,snapshot=on,format=" + format + ",file=" + strings.ReplaceAll(p.image, ",", ",,"),
		"-device", device,
	}, p.options)
}

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// bootLimit is how long a guest may take. It is some fifty times what one needs.
const bootLimit = 60 * time.Second

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
var verdicts = slices.Concat([]string{booted, staleShown}, ownCHSFailed, ownLBAFailed, windowsFailed, vbrFailed, gptFailed)

// boot starts a PC from the image and returns the first of the verdicts that its console shows; the PC is then switched
// off. The image is not changed. A console that shows none of them in time fails the test.
func boot(t testing.TB, image string, heads int64) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bootLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-system-x86_64"), pcOptions(image, heads)...)
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
		for _, text := range verdicts {
			if strings.Contains(shown, text) {
				return text
			}
		}
		if err != nil {
			switchOff()
			t.Fatalf("the console of %s shows none of %q, but %q: %v\n%s", image, verdicts, shown, err, errs.String())
		}
	}
}

// pcOptions describes a PC without a screen: with graphics=off its BIOS shows on the serial port what a guest
// prints through INT 10h, so that the complaints of every MBR code can be read.
func pcOptions(image string, heads int64) []string {
	format := "raw"
	if filepath.Ext(image) == ".vmdk" {
		format = "vmdk"
	}
	device := "ide-hd,drive=disk"
	if heads > 16 {
		// A BIOS reports more than 16 heads for disks far larger than these. With 16 or fewer QEMU takes the geometry
		// from the table's end CHS, and that is a part of what is tested.
		device += fmt.Sprintf(",lcyls=1024,lheads=%d,lsecs=%d", heads, trackSectors)
	}
	return []string{
		"-machine", "pc,accel=tcg,graphics=off", "-m", "64", "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-vga", "none", "-serial", "stdio",
		"-drive", "if=none,id=disk,snapshot=on,format=" + format + ",file=" + strings.ReplaceAll(image, ",", ",,"),
		"-device", device,
	}
}

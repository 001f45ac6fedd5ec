package disktest

import (
	"os"
	"path/filepath"
	"testing"
)

// grubLegacyDir is where scripts/install-tools.sh unpacks GRUB legacy. Its package is never installed, because it
// replaces GRUB 2 and writes to the boot disk of the machine.
const grubLegacyDir = "/usr/local/lib/trueup-tests/grub-legacy"

// GrubLegacy runs commands in the shell of GRUB legacy, with a raw image as its first hard disk, and returns the
// output.
func GrubLegacy(t testing.TB, image, commands string) string {
	t.Helper()
	shell := DataFile(t, filepath.Join(grubLegacyDir, "grub"))
	drives := filepath.Join(t.TempDir(), "device.map")
	if err := os.WriteFile(drives, []byte("(hd0) "+image+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The program is for i386, and its loader is not at the expected path.
	libraries := filepath.Join(grubLegacyDir, "lib32")
	return RunInput(t, commands, filepath.Join(libraries, "ld-linux.so.2"), "--library-path", libraries, shell,
		"--batch", "--no-floppy", "--device-map="+drives)
}

// GrubLegacyStage returns the path of a stage of GRUB legacy: "stage1", "stage2", "e2fs_stage1_5".
func GrubLegacyStage(t testing.TB, name string) string {
	t.Helper()
	return DataFile(t, filepath.Join(grubLegacyDir, "x86_64-pc", name))
}

package main

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestBootsByTheGeometryOfAVHD starts a guest that reads CHS in a VHD, before and after, with the geometry of the
// footer, as machines of VHDs do: 1023 cylinders of 4 heads and 17 sectors, all of them one FAT16. QEMU's BIOS
// translates more than 1024 cylinders, as others do.
func TestBootsByTheGeometryOfAVHD(t *testing.T) {
	t.Parallel()
	const heads, track, cylinders = 4, 17, 1023
	dir := t.TempDir()
	raw := disktest.Blank(t, "disk.raw", cylinders*heads*track*sectorSize)
	w := window{track, cylinders*heads*track - track}
	disktest.RunInput(t, fmt.Sprintf("o\nn\np\n1\n%d\n%d\nt\n6\na\nw\n", w.start, w.start+w.size-1), "fdisk",
		"--compatibility=dos", "--units=sectors", "--heads", decimal(heads), "--sectors", decimal(track), raw)
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
	require.Contains(t, r.stdout+r.stderr, "last 43 sectors lie behind cylinder 1023")
	foot, shown = starts(dest)
	require.Equal(t, []byte{heads, track}, foot[58:60])
	require.Equal(t, booted, shown, "after")

	trial := trueupJSON[jsonTrial](t, 0, "boot", "--accel", "tcg", source)
	require.Equal(t, "same", trial.Verdict, trial.Reason)
	require.Contains(t, trial.After.shown(), booted)
}

package main

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// guestDisk is a disk that the appliance gets to see.
type guestDisk struct {
	format  string // as QEMU calls it
	path    string
	sector  int64
	volumes []madeVolume
}

// TestLibguestfsReadsTheResults has a real Linux kernel mount every volume of the sources and of the results.
func TestLibguestfsReadsTheResults(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	disks := append(alignedMade(t), alignedFourK(t)...)
	sums := t.TempDir()
	kinds := guestfish(t, disks, sums)
	for i, d := range disks {
		for n, v := range d.volumes {
			name := deviceName(i, n+1)
			require.Contains(t, kinds, "/dev/"+name+"\n"+v.guestKind()+"\n", "%s", d.path)
			if d.sector == sectorSize || v.kind == "ext4" { // fourKDisk puts files into no other
				require.Subset(t, readSums(t, filepath.Join(sums, name)), v.wantSums(), "%s, %s", d.path, v.label)
			}
		}
	}
	// All that the kernel finds is compared, not only what the test put in. Each result follows its source.
	for i := 0; i < len(disks); i += 2 {
		for n := range disks[i].volumes {
			source, result := deviceName(i, n+1), deviceName(i+1, n+1)
			require.Equal(t, readSums(t, filepath.Join(sums, source)), readSums(t, filepath.Join(sums, result)), disks[i+1].path)
		}
	}
}

// alignedMade returns each of madeDisks as a raw file, and an aligned copy of it.
func alignedMade(t *testing.T) (disks []guestDisk) {
	t.Helper()
	for i, d := range madeDisks {
		raw := d.make(t, t.TempDir())
		// A mount takes seconds in emulation: every disk and every format comes up, not every pair of them.
		f := diskFormats[i%len(diskFormats)]
		source := f.convert(t, raw, t.TempDir(), "disk", d.adapter)
		dest := filepath.Join(t.TempDir(), "aligned"+f.ext)
		r := trueup(t, "align", source, dest)
		require.Equal(t, 0, r.code, r.stderr)
		disks = append(disks,
			guestDisk{formatRaw.container, raw, sectorSize, d.volumes},
			guestDisk{f.container, dest, sectorSize, d.volumes})
	}
	return disks
}

// alignedFourK returns disks with sectors of 4096 bytes, and their aligned copies.
func alignedFourK(t *testing.T) (disks []guestDisk) {
	t.Helper()
	for _, label := range []string{"dos", "gpt"} {
		raw, dest := fourKDisk(t, label), filepath.Join(t.TempDir(), label+".raw")
		r := trueup(t, "align", "--sector-size", "4096", raw, dest)
		require.Equal(t, 0, r.code, r.stderr)
		disks = append(disks, guestDisk{"raw", raw, fourK, fourKVolumes}, guestDisk{"raw", dest, fourK, fourKVolumes})
	}
	return disks
}

// guestKind is the name that libguestfs has for the file system.
func (v madeVolume) guestKind() string {
	if strings.HasPrefix(v.kind, "fat") {
		return "vfat"
	}
	return v.kind
}

// wantSums are the lines that sha256sum prints for the volume's files.
func (v madeVolume) wantSums() []string {
	var lines []string
	for name, data := range v.files() {
		lines = append(lines, fmt.Sprintf("%x  ./%s", sha256.Sum256(data), name))
	}
	return lines
}

// guestfish writes the checksums of each partition's files into a file of the folder sums, and returns devices and the
// kinds of their file systems, line by line.
func guestfish(t *testing.T, disks []guestDisk, sums string) string {
	t.Helper()
	require.LessOrEqual(t, len(disks), 26, "deviceName has one letter")
	var args []string
	script := "run\n"
	for i, d := range disks {
		args = append(args, fmt.Sprintf("--blocksize=%d", d.sector), "--format="+d.format, "-a", d.path)
		for n := range d.volumes {
			name := deviceName(i, n+1)
			script += fmt.Sprintf("echo /dev/%s\nvfs-type /dev/%[1]s\nmount-ro /dev/%[1]s /\n", name)
			script += fmt.Sprintf("checksums-out sha256 / %q\numount /\n", filepath.Join(sums, name))
		}
	}
	return runGuestfish(t, args, script)
}

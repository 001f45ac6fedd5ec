package main

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readDisk is a disk whose volumes a guest reads.
type readDisk struct {
	guestDisk
	volumes []madeVolume
}

// TestLinuxReadsTheResults has a real Linux kernel mount every volume of made and of random disks and of their results,
// and read served disks.
func TestLinuxReadsTheResults(t *testing.T) {
	t.Parallel()
	r := newReading()
	checkServed := readServed(t, r)
	checkSoak := readSoak(alignSoak(t, 1, soakDefault), r)
	checkMade := readMade(append(alignedMade(t), alignedFourK(t)...), r)
	found := r.run(t)
	t.Run("served disks", func(t *testing.T) { checkServed(t, found) })
	t.Run("random disks", func(t *testing.T) { checkSoak(t, found) })
	t.Run("made disks", func(t *testing.T) { checkMade(t, found) })
}

// readMade has the guest read every file of sources and results, each mounted as the kind that is found, and
// returns what checks that.
func readMade(disks []readDisk, r *reading) (check func(t *testing.T, found map[string]volumeRead)) {
	var names []string
	device := func(i, n int) string { return fmt.Sprint(names[i], n+1) }
	for i, d := range disks {
		names = append(names, r.add(d.guestDisk))
		for n := range d.volumes {
			r.read(device(i, n), "")
		}
	}
	return func(t *testing.T, found map[string]volumeRead) {
		t.Helper()
		for i, d := range disks {
			for n, v := range d.volumes {
				read := found[device(i, n)]
				require.Equal(t, v.guestKind(), read.kind, "%s, %s", d.path, v.label)
				if d.sector == sectorSize || v.kind == "ext4" { // fourKDisk puts files into no other
					require.Subset(t, read.sums, v.wantSums(), "%s, %s", d.path, v.label)
				}
				// All that the kernel finds is compared, not only what the test put in. Each result follows its source.
				if i%2 == 1 {
					require.Equal(t, found[device(i-1, n)].sums, read.sums, "%s, %s", d.path, v.label)
				}
			}
		}
	}
}

// alignedMade returns each of madeDisks as a raw file, and an aligned copy of it.
func alignedMade(t *testing.T) (disks []readDisk) {
	t.Helper()
	for i, d := range madeDisks {
		raw := d.make(t, t.TempDir())
		// A mount takes seconds in emulation: every disk and every format comes up, not every pair of them.
		f := diskFormats[i%len(diskFormats)]
		source := f.convert(t, raw, t.TempDir(), "disk", d.adapter)
		dest := filepath.Join(t.TempDir(), "aligned"+f.ext)
		args := []string{"align", source, dest}
		if f == formatFlat { // Linux reads a view, which has the bytes of the copy
			dest = filepath.Join(filepath.Dir(source), viewName)
			args = []string{"view", source, dest}
		}
		r := trueup(t, args...)
		require.Equal(t, 0, r.code, r.stderr)
		disks = append(disks,
			readDisk{guestDisk{raw, formatRaw.container, sectorSize}, d.volumes},
			readDisk{guestDisk{dest, f.container, sectorSize}, d.volumes})
	}
	return disks
}

// alignedFourK returns disks with sectors of 4096 bytes, and their aligned copies.
func alignedFourK(t *testing.T) (disks []readDisk) {
	t.Helper()
	for _, label := range []string{"dos", "gpt"} {
		raw, dest := fourKDisk(t, label), filepath.Join(t.TempDir(), label+".raw")
		r := trueup(t, "align", "--sector-size", "4096", raw, dest)
		require.Equal(t, 0, r.code, r.stderr)
		for _, path := range []string{raw, dest} {
			disks = append(disks, readDisk{guestDisk{path, "raw", fourK}, fourKVolumes})
		}
	}
	return disks
}

// guestKind is the name that blkid has for the file system.
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

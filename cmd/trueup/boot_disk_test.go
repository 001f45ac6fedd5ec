package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

const (
	trackSectors = 63       // sectors per track of every BIOS geometry here
	bootDiskSize = 64 << 20 // room for a FAT32: it needs 65525 clusters
	booted       = "trueup: the guest is up"
	dataText     = "the second partition is whole\n"
)

// bootDisk says how a disk was set up before trueup meets it.
type bootDisk struct {
	code      func(testing.TB) []byte // the MBR code
	fat       int                     // 16 or 32, bits of the first partition's FAT
	heads     int64                   // of the BIOS that partitioned the disk
	data      bool                    // a second partition, which is not active
	subformat string                  // of a VMDK; raw if empty
}

// window is a partition, in sectors.
type window struct{ start, size int64 }

// windows gives the partitions as the DOS and Windows of the time laid them out: the first one after one track, each
// ending with a cylinder.
func (d bootDisk) windows() []window {
	cylinder := d.heads * trackSectors
	cylinders := bootDiskSize / sectorSize / cylinder
	if !d.data {
		return []window{{trackSectors, cylinders*cylinder - trackSectors}}
	}
	second := cylinders / 2 * cylinder
	return []window{
		{trackSectors, second - trackSectors},
		{second + 1, cylinders*cylinder - second - 1}, // on the cylinder, its clusters would lie on 4 KiB, and it stays
	}
}

// build makes the disk's image in dir and returns its path.
func (d bootDisk) build(t testing.TB, dir string) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "disk.raw")
	if d.subformat == "" {
		raw = filepath.Join(dir, "disk.raw")
	}
	disktest.MakeBlank(t, raw, bootDiskSize)
	d.partition(t, raw)
	d.fillBoot(t, raw, d.windows()[0])
	if d.data {
		d.format(t, raw, d.windows()[1], 16)
		disktest.Run(t, "mcopy", "-i", drive(raw, d.windows()[1]), hostFile(t, dataText), "::data.txt")
	}
	code := d.code(t)
	require.LessOrEqual(t, len(code), codeSize)
	disktest.WriteAt(t, raw, 0, code)
	if d.subformat == "" {
		return raw
	}
	image := filepath.Join(dir, "disk.vmdk")
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat="+d.subformat, raw, image)
	return image
}

// partition writes the table as Windows has since 95B: FAT with LBA.
func (d bootDisk) partition(t testing.TB, raw string) {
	t.Helper()
	types, all := map[int]string{16: "e", 32: "c"}, d.windows()
	end := func(w window) string { return decimal(w.start + w.size - 1) }
	commands := []string{"n\np\n1", decimal(all[0].start), end(all[0]), "t", types[d.fat], "a"}
	if d.data {
		commands = append(commands, "n\np\n2", decimal(all[1].start), end(all[1]), "t\n2", types[16])
	}
	fdisk(t, raw, d.heads, trackSectors, commands...)
	require.Equal(t, all, tableOf(t, raw))
}

// fdisk writes a table as DOS did. It is fdisk that does it and not sfdisk, because only fdisk can be told the heads;
// QEMU's BIOS takes its geometry from the end CHS.
func fdisk(t testing.TB, raw string, heads, track int64, commands ...string) {
	t.Helper()
	disktest.RunInput(t, "o\n"+strings.Join(commands, "\n")+"\nw\n", "fdisk", "--compatibility=dos", "--units=sectors",
		"--heads", decimal(heads), "--sectors", decimal(track), raw)
}

// blankDisk returns a disk with the table that sfdisk makes of a script.
func blankDisk(t testing.TB, size int64, script string) string {
	t.Helper()
	raw := disktest.Blank(t, "disk.raw", size)
	disktest.RunInput(t, script, "sfdisk", "--quiet", raw)
	return raw
}

// fillBoot puts a FAT with syslinux into a partition. Syslinux prints the marker as soon as it has read its
// configuration; there is no kernel, so it stays at its prompt.
func (d bootDisk) fillBoot(t testing.TB, raw string, w window) {
	t.Helper()
	d.format(t, raw, w, d.fat)
	config := "SAY " + booted + "\nPROMPT 1\n"
	disktest.Run(t, "mcopy", "-i", drive(raw, w), hostFile(t, config), "::syslinux.cfg")
	disktest.Run(t, "syslinux", "--install", "--offset", strconv.FormatInt(w.start*sectorSize, 10), raw)
}

func (d bootDisk) format(t testing.TB, raw string, w window, fat int) {
	t.Helper()
	geometry := fmt.Sprintf("%d/%d", d.heads, trackSectors)
	args := []string{"-F", strconv.Itoa(fat), "--offset", decimal(w.start), "-h", decimal(w.start), "-g", geometry}
	if fat == 32 {
		args = append(args, "-s", "1") // else there are too few clusters for a FAT32
	}
	kibibytes := w.size * sectorSize / 1024
	disktest.Run(t, "mkfs.fat", append(args, raw, decimal(kibibytes))...)
}

// tableOf returns the partitions that sfdisk sees in a raw disk.
func tableOf(t testing.TB, raw string) (all []window) {
	t.Helper()
	parts := numbered(t, raw)
	for _, number := range slices.Sorted(maps.Keys(parts)) {
		all = append(all, parts[number])
	}
	return all
}

// numbered returns them by their numbers.
func numbered(t testing.TB, raw string) map[int]window {
	t.Helper()
	var dump struct {
		PartitionTable struct {
			Partitions []struct {
				Node        string
				Start, Size int64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &dump))
	all := map[int]window{}
	for _, p := range dump.PartitionTable.Partitions {
		all[int(disktest.Number(t, strings.TrimPrefix(strings.TrimPrefix(p.Node, raw), "p")))] = window{p.Start, p.Size}
	}
	return all
}

// drive names a FAT inside a raw disk for mtools.
func drive(raw string, w window) string { return fmt.Sprintf("%s@@%d", raw, w.start*sectorSize) }

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// hostFile returns a file of that text, for a tool to copy into a guest.
func hostFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

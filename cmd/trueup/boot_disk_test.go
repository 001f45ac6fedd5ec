package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
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
		d.fillData(t, raw, d.windows()[1])
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

// partition writes the table. It is fdisk that does it and not sfdisk, because only fdisk can be told the heads; QEMU's
// BIOS takes its geometry from the end CHS.
func (d bootDisk) partition(t testing.TB, raw string) {
	t.Helper()
	// FAT with LBA, as Windows has made them since 95B.
	types := map[int]string{16: "e", 32: "c"}
	all := d.windows()
	commands := []string{
		"o", "n", "p", "1", decimal(all[0].start), decimal(all[0].start + all[0].size - 1), "t", types[d.fat], "a",
	}
	if d.data {
		commands = append(commands, "n", "p", "2", decimal(all[1].start), decimal(all[1].start+all[1].size-1), "t", "2",
			types[16])
	}
	commands = append(commands, "w", "")
	disktest.RunInput(t, strings.Join(commands, "\n"), "fdisk", "--compatibility=dos", "--units=sectors",
		"--heads", strconv.FormatInt(d.heads, 10), "--sectors", strconv.Itoa(trackSectors), raw)
	require.Equal(t, all, tableOf(t, raw))
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

// fillData puts a FAT16 with one file into a partition.
func (d bootDisk) fillData(t testing.TB, raw string, w window) {
	t.Helper()
	d.format(t, raw, w, 16)
	disktest.Run(t, "mcopy", "-i", drive(raw, w), hostFile(t, dataText), "::data.txt")
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
func tableOf(t testing.TB, raw string) []window {
	t.Helper()
	var dump struct {
		PartitionTable struct {
			Partitions []struct{ Start, Size int64 }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &dump))
	var all []window
	for _, p := range dump.PartitionTable.Partitions {
		all = append(all, window{p.Start, p.Size})
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

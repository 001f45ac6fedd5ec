package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// chsLimit is the first cylinder that CHS bytes cannot name.
const chsLimit = 1024

// entryCHS holds the CHS bytes of a table entry, and its LBAs.
type entryCHS struct {
	where                             string
	startCylinder, startHead, startIn int64
	endCylinder, endHead, endIn       int64
	first, last                       int64
	saturatedEnd                      bool
}

func unpackCHS(b []byte) (cylinder, head, sector int64) {
	return int64(b[1]&0xC0)<<2 | int64(b[2]), int64(b[0]), int64(b[1] & 0x3F)
}

// entriesOf walks the table and its chain of extended boot records, links included.
func entriesOf(t testing.TB, raw string) []entryCHS {
	t.Helper()
	var out []entryCHS
	var box int64
	for sector, depth := int64(0), 0; depth < 10; depth++ {
		b, next := readAt(t, raw, sector*sectorSize, sectorSize), int64(0)
		for slot := range 4 {
			e := b[446+16*slot : 462+16*slot]
			if e[4] == 0 {
				continue
			}
			base, link := sector, e[4] == 5
			if link {
				base = box
			}
			c := entryCHS{
				where: fmt.Sprintf("entry %d of LBA %d", slot, sector),
				first: base + int64(binary.LittleEndian.Uint32(e[8:])),
			}
			c.last = c.first + int64(binary.LittleEndian.Uint32(e[12:])) - 1
			c.startCylinder, c.startHead, c.startIn = unpackCHS(e[1:])
			c.endCylinder, c.endHead, c.endIn = unpackCHS(e[5:])
			c.saturatedEnd = e[5] == 0xFE && e[6] == 0xFF && e[7] == 0xFF
			out = append(out, c)
			if link {
				if next = c.first; box == 0 {
					box = c.first
				}
			}
		}
		if next == 0 {
			break
		}
		sector = next
	}
	return out
}

// TestCHSOfEveryEntry moves primary and logical partitions that fdisk laid out under two geometries, some of them
// beyond the last cylinder of CHS, one with an end in the middle of a cylinder. Every start, also in extended boot
// records, is then right in the geometry of the table; every end is the last head and sector of its cylinder, or FE FF
// FF. fdisk itself finds no wrong start.
func TestCHSOfEveryEntry(t *testing.T) {
	t.Parallel()
	for _, heads := range []int64{16, 255} {
		t.Run(fmt.Sprintf("%d heads", heads), func(t *testing.T) {
			cylinder := heads * trackSectors
			size := (chsLimit + 60) * cylinder * sectorSize
			source, dest := filepath.Join(t.TempDir(), "disk.raw"), filepath.Join(t.TempDir(), "aligned.raw")
			disktest.MakeBlank(t, source, size)
			fdisk := func(raw string, commands ...string) string {
				return disktest.RunInput(t, strings.Join(commands, "\n")+"\n", "fdisk", "--compatibility=dos",
					"--units=sectors", "--heads", decimal(heads), "--sectors", decimal(trackSectors), raw)
			}
			at := func(cylinders, more int64) string { return decimal(cylinders*cylinder + more) }
			fdisk(source,
				"o", "n", "p", "1", "63", at(10, -1),
				"n", "p", "2", at(10, 0), at(12, 500), // it ends in the middle of a cylinder
				"n", "e", "3", at(20, 0), at(chsLimit+50, -1),
				"n", "l", at(20, trackSectors), at(30, -1),
				"n", "l", at(30, trackSectors), at(chsLimit-10, -1),
				"n", "l", at(chsLimit-10, trackSectors), at(chsLimit+5, -1), // it ends beyond the limit
				"n", "l", at(chsLimit+5, trackSectors), at(chsLimit+50, -1), // it starts there
				"w")
			before := entriesOf(t, source)
			require.Len(t, before, 10, "three, four in records, and three links")
			answer := trueupJSON[jsonAlign](t, 0, "align", "--boundary", "1M", source, dest)
			require.GreaterOrEqual(t, answer.Moved, 6)

			after := entriesOf(t, dest)
			require.Len(t, after, len(before))
			for i, e := range after {
				if e.first == before[i].first && e.last == before[i].last {
					require.Equal(t, before[i], e, "what stays is left as it was found")
					continue
				}
				if c := e.first / cylinder; c < chsLimit {
					require.Equal(t, []int64{c, e.first / trackSectors % heads, e.first%trackSectors + 1},
						[]int64{e.startCylinder, e.startHead, e.startIn}, e.where)
				} else {
					require.Equal(t, []int64{chsLimit - 1, 63}, []int64{e.startCylinder, e.startIn}, e.where)
				}
				if c := e.last / cylinder; c < chsLimit && !e.saturatedEnd {
					require.Equal(t, []int64{c, heads - 1, trackSectors}, []int64{e.endCylinder, e.endHead, e.endIn},
						e.where)
				} else {
					require.Equal(t, []int64{chsLimit - 1, 63}, []int64{e.endCylinder, e.endIn}, e.where)
					require.Contains(t, []int64{heads - 1, 254}, e.endHead, e.where)
				}
			}
			require.NotContains(t, fdisk(dest, "v", "q"), "different physical/logical beginnings")
		})
	}
}

// fourK is the size in bytes of the sectors of the disks here.
const fourK = 4096

// fourKVolumes are the volumes of such a disk. Positions are in sectors.
var fourKVolumes = []madeVolume{
	{kind: "ntfs", label: "NT", start: 263, sectors: 4000},
	{kind: "vfat", label: "FATTY", start: 4502, sectors: 6000},
	{kind: "ext4", label: "EX", start: 11001, sectors: 4000},
}

// fourKDisk is a raw disk of 128 MiB whose table, of a kind known to fdisk, has sectors of 4096 bytes.
func fourKDisk(t testing.TB, label string) string {
	t.Helper()
	dir := t.TempDir()
	raw, script := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "script")
	disktest.Run(t, "truncate", "-s", "128M", raw)
	table := "label: " + label + "\nunit: sectors\nsector-size: 4096\n"
	for _, v := range fourKVolumes {
		table += fmt.Sprintf("start=%d, size=%d\n", v.start, v.sectors)
	}
	require.NoError(t, os.WriteFile(script, []byte(table), 0o644))
	disktest.RunInput(t, "I\n"+script+"\nw\n", "fdisk", "--sector-size", "4096", "--wipe", "never", raw)
	for i, v := range fourKVolumes {
		part := filepath.Join(dir, fmt.Sprintf("part%d", i+1))
		disktest.Run(t, "truncate", "-s", fmt.Sprint(v.sectors*fourK), part)
		hidden := fmt.Sprint(v.start)
		switch v.kind {
		case "ntfs":
			disktest.Run(t, "mkntfs", "-q", "-F", "-Q", "-s", "4096", "-c", "4096", "-p", hidden, "-H", "255", "-S",
				"63", "-L", v.label, part)
		case "vfat":
			disktest.Run(t, "mkfs.fat", "-F", "16", "-S", "4096", "-s", "1", "-h", hidden, "-n", v.label, part)
		default:
			disktest.Run(t, "mke2fs", "-q", "-t", v.kind, "-b", "4096", "-L", v.label, "-d", v.writeFiles(t), part)
		}
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=4096", "conv=sparse,notrunc", fmt.Sprintf("seek=%d", v.start),
			"status=none")
	}
	return raw
}

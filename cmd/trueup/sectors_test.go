package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// fourK is the size in bytes of the sectors of the disks here.
const fourK = 4096

// fourKVolumes are what such a disk holds. Positions are in sectors; the wanted ones are the next multiples of 1 MiB
// behind what lies in front.
var fourKVolumes = []madeVolume{
	{kind: "ntfs", label: "NT", start: 263, sectors: 4000, wantStart: 512},
	{kind: "vfat", label: "FATTY", start: 4502, sectors: 6000, wantStart: 4608},
	{kind: "ext4", label: "EX", start: 11001, sectors: 4000, wantStart: 11008},
}

// fourKDisk is a raw disk of 128 MiB whose table, of a kind that fdisk knows, counts sectors of 4096 bytes.
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

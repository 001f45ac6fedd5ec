package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// sfdiskTable is what sfdisk reads from a raw disk.
type sfdiskTable struct {
	Label      string            `json:"label"`
	ID         string            `json:"id"`
	Partitions []sfdiskPartition `json:"partitions"`
}

type sfdiskPartition struct {
	Start    int64  `json:"start"`
	Size     int64  `json:"size"`
	Type     string `json:"type"`
	Bootable bool   `json:"bootable"`
}

// typeByte is the type as trueup writes it.
func (p sfdiskPartition) typeByte() string { return fmt.Sprintf("0x%02s", p.Type) }

func readSfdisk(t testing.TB, raw string) sfdiskTable {
	t.Helper()
	var answer struct {
		Table sfdiskTable `json:"partitiontable"`
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &answer))
	return answer.Table
}

// toolVolume is what the tools of a file system, and blkid, say about the volume in the file part.
func toolVolume(t testing.TB, kind, part string) jsonVolume {
	t.Helper()
	v := jsonVolume{Kind: kind, Label: blkid(t, part, "LABEL"), UUID: blkid(t, part, "UUID")}
	switch kind {
	case "ntfs":
		text := disktest.Output(t, "ntfsinfo", "-m", part)
		require.Equal(t, v.Label, match(t, text, `Volume Name: (.*)`))
		v.ClusterBytes = number(t, text, `Cluster Size: (\d+)`)
		v.SizeBytes = number(t, text, `Volume Size in Clusters: (\d+)`) * v.ClusterBytes
		v.HiddenSectors = int64(binary.LittleEndian.Uint32(readAt(t, part, hiddenSectorsAt, 4))) // no tool prints it
	case "fat16", "fat32":
		text := disktest.Output(t, "fsck.fat", "-v", "-n", part)
		v.ClusterBytes = number(t, text, `(\d+) bytes per cluster`)
		v.SizeBytes = number(t, text, `(\d+) sectors total`) * sectorSize
		v.HiddenSectors = number(t, text, `(\d+) hidden sectors`)
		v.DataOffsetBytes = number(t, text, `Data area starts at byte (\d+)`)
	default:
		text := disktest.Output(t, "dumpe2fs", "-h", part)
		require.Equal(t, v.Label, match(t, text, `Filesystem volume name: +(.*)`))
		require.Equal(t, v.UUID, match(t, text, `Filesystem UUID: +(.*)`))
		v.ClusterBytes = number(t, text, `Block size: +(\d+)`)
		v.SizeBytes = number(t, text, `Block count: +(\d+)`) * v.ClusterBytes
	}
	return v
}

func blkid(t testing.TB, part, tag string) string {
	t.Helper()
	return strings.TrimSpace(disktest.Output(t, "blkid", "-p", "-o", "value", "-s", tag, part))
}

func match(t testing.TB, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, found, "%s in\n%s", pattern, text)
	return strings.TrimSpace(found[1])
}

func number(t testing.TB, text, pattern string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(match(t, text, pattern), 10, 64)
	require.NoError(t, err)
	return n
}

// fsck runs the read-only check of the file system in the file part, which must not complain, and returns what it
// printed with the file's name taken out.
func fsck(t testing.TB, kind, part string) string {
	t.Helper()
	var out string
	switch kind {
	case "ntfs":
		out = disktest.Run(t, "ntfsfix", "-n", part)
		require.Contains(t, out, "alternate boot sector... OK")
	case "fat16", "fat32":
		out = disktest.Run(t, "fsck.fat", "-n", part)
	default:
		out = disktest.Run(t, "e2fsck", "-f", "-n", part)
	}
	return strings.ReplaceAll(out, part, "PART")
}

// readVolumeFile reads a file out of the volume with the file system's own tool.
func readVolumeFile(t testing.TB, kind, part, name string) []byte {
	t.Helper()
	switch kind {
	case "ntfs":
		return []byte(disktest.Output(t, "ntfscat", part, name))
	case "fat16", "fat32":
		return []byte(disktest.Output(t, "mcopy", "-i", part, "::/"+name, "-"))
	default:
		return []byte(disktest.Output(t, "debugfs", "-R", fmt.Sprintf("cat \"/%s\"", name), part))
	}
}

// qemuWindow is a range of an image as qemu-img's tools take it.
func qemuWindow(f diskFormat, path string, off, size int64) string {
	return fmt.Sprintf(
		`json:{"driver":"raw","offset":%d,"size":%d,"file":{"driver":%q,"file":{"driver":"file","filename":%q}}}`,
		off, size, f.container, path)
}

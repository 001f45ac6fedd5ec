package main

import (
	"encoding/json"
	"fmt"
	"regexp"
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

func readSfdisk(t testing.TB, raw string) sfdiskTable {
	t.Helper()
	var answer struct {
		Table sfdiskTable `json:"partitiontable"`
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &answer))
	return answer.Table
}

func match(t testing.TB, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, found, "%s in\n%s", pattern, text)
	return strings.TrimSpace(found[1])
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

package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// libraryImages is how many images the library of the tests has, hostile ones not counted: enough for each kind of them
// to come several times, or 2,000, which take three times as long.
var libraryImages = func() int {
	if disktest.Exhaustive {
		return 2000
	}
	return 600
}()

// expectedImage is a line of the record of scripts/make-library.py: what is to be expected of an image, from who had
// the tools make it.
type expectedImage struct {
	Path      string         `json:"path"` // below the library
	PathBytes string         `json:"path_base64"`
	Also      []string       `json:"also"` // further names of the same inode
	Files     []string       `json:"files"`
	State     string         `json:"state"`
	Format    string         `json:"format"`
	Subformat string         `json:"subformat"`
	Layout    string         `json:"layout"`
	Verdict   string         `json:"verdict"`
	Parents   []string       `json:"parents"`
	Disks     []expectedDisk `json:"disks"`
}

type expectedDisk struct {
	Member     string              `json:"member"`
	Size       int64               `json:"size_bytes"`
	Scheme     string              `json:"scheme"`
	Verdict    string              `json:"verdict"`
	Volume     *expectedVolume     `json:"volume"` // of a disk without a table
	Partitions []expectedPartition `json:"partitions"`
}

type expectedVolume struct {
	Kind  string `json:"kind"`
	Label string `json:"label"`
}

type expectedPartition struct {
	Number     int     `json:"number"`
	Kind       string  `json:"kind"`
	Start      int64   `json:"start_bytes"`
	Size       int64   `json:"size_bytes"`
	Verdict    string  `json:"verdict"`     // none of an extended one
	FileSystem *string `json:"file_system"` // nil: not known, empty: none
	Label      string  `json:"label"`
}

// name is the path as the bytes that it is.
func (e *expectedImage) name(t testing.TB) string {
	t.Helper()
	return pathBytes(t, e.Path, e.PathBytes)
}

func pathBytes(t testing.TB, path, encoded string) string {
	t.Helper()
	if encoded == "" {
		return path
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	require.NoError(t, err)
	return string(raw)
}

// sharedLibrary is the folder of images that the tests of this package share. It and its record lie beside the built
// program, and go with it.
var sharedLibrary struct {
	sync.Mutex
	dir string
}

// madeLibrary gives the folder of the library and its record.
func madeLibrary(t testing.TB) (dir string, record []expectedImage) {
	t.Helper()
	for _, tool := range []string{
		"python3", "sfdisk", "sgdisk", "parted", "mkntfs", "mkfs.vfat", "mke2fs", "mkfs.xfs",
		"mkswap", "qemu-img", "qemu-io", "tar", "xorriso",
	} {
		disktest.Tool(t, tool)
	}
	disktest.DataFile(t, "/usr/lib/syslinux/mbr/mbr.bin")
	sharedLibrary.Lock()
	defer sharedLibrary.Unlock()
	if sharedLibrary.dir == "" {
		sharedLibrary.dir = copyLibrary(t)
	}
	dir = sharedLibrary.dir
	f, err := os.Open(dir + ".ndjson")
	require.NoError(t, err)
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var e expectedImage
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		record = append(record, e)
	}
	require.NoError(t, lines.Err())
	require.Len(t, record, libraryImages)
	return dir, record
}

// copyLibrary copies the library, since tests add to it.
func copyLibrary(t testing.TB) string {
	t.Helper()
	recipe := []string{"scripts/make-library.py", "scripts/library"}
	kept := disktest.Made(t, fmt.Sprintf("library-%d", libraryImages), recipe, func(work string) {
		disktest.Run(t, "python3", "../../scripts/make-library.py", filepath.Join(work, "library"),
			strconv.Itoa(libraryImages), "--record", filepath.Join(work, "library.ndjson"))
	})
	beside := filepath.Dir(builtPath)
	disktest.Run(t, "cp", "-a", "--sparse=always", kept+"/.", beside)
	return filepath.Join(beside, "library")
}

// TestLibraryRecord proves the record of the library by programs that had no part in it, or by the other end of one
// that had: qemu-img says what the image is and unpacks it, sfdisk reads the table, blkid the volumes.
func TestLibraryRecord(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes hundreds of images")
	}
	dir, record := madeLibrary(t)
	seen, layouts, verdicts := map[string]int{}, map[string]int{}, map[string]int{}
	for n, e := range record {
		kind := strings.TrimSpace(e.State + " " + e.Format + " " + e.Subformat)
		if seen[kind]++; seen[kind] <= 2 || n%50 == 0 {
			e.prove(t, filepath.Join(dir, e.name(t)))
		}
		layouts[e.Layout]++
		verdicts[e.Verdict]++
	}
	for _, kind := range []string{
		"raw", "vmdk monolithicSparse", "vmdk monolithicFlat", "vmdk twoGbMaxExtentSparse", "vmdk twoGbMaxExtentFlat",
		"vmdk streamOptimized",
		"vhd fixed", "vhd dynamic", "vhdx fixed", "vhdx dynamic", "qcow2 v2", "qcow2 v3", "ova", "ovf",
	} {
		require.NotZero(t, seen["judged "+kind], "%s in %v", kind, seen)
	}
	require.NotZero(t, seen["orphan vmdk"])
	require.Greater(t, len(layouts), 60)
	for _, verdict := range []string{"aligned", "below_boundary", "misaligned"} {
		require.Greater(t, verdicts[verdict], libraryImages/10, verdict)
	}
}

// prove holds one line of the record against the image.
func (e *expectedImage) prove(t *testing.T, path string) {
	t.Helper()
	for _, name := range e.Files[1:] { // the first is that of the path, which may be no UTF-8
		require.FileExists(t, filepath.Join(filepath.Dir(path), name))
	}
	for _, name := range e.Parents {
		require.FileExists(t, filepath.Join(filepath.Dir(path), name))
	}
	switch {
	case e.State == "orphan":
		require.Regexp(t, `-(flat|s002)\.vmdk$`, path)
		require.Empty(t, e.Disks)
	case e.Format == "ova":
		dir, _ := unpack(t, path)
		e.proveMembers(t, dir)
	case e.Format == "ovf":
		e.proveMembers(t, filepath.Dir(path))
	default:
		require.Len(t, e.Disks, 1)
		require.Equal(t, e.Verdict, e.Disks[0].Verdict, e.Path)
		e.Disks[0].prove(t, path, e.Format, e.Subformat)
	}
}

func (e *expectedImage) proveMembers(t *testing.T, dir string) {
	t.Helper()
	require.NotEmpty(t, e.Disks)
	for _, d := range e.Disks {
		d.prove(t, filepath.Join(dir, d.Member), "vmdk", "streamOptimized")
	}
}

// prove has the tools read one disk.
func (d *expectedDisk) prove(t *testing.T, path, format, subformat string) {
	t.Helper()
	if format == "vhd" {
		format = "vpc"
	}
	var info struct {
		Format string `json:"format"`
		Size   int64  `json:"virtual-size"`
		Detail struct {
			Data struct {
				CreateType string `json:"create-type"`
				Compat     string `json:"compat"`
			} `json:"data"`
		} `json:"format-specific"`
	}
	probe := []string{"info", "--output=json", path}
	if format == "raw" || (format == "vpc" && subformat == "fixed") {
		// a fixed VHD has nothing at its start, and could be raw
		probe = []string{"info", "--output=json", "-f", format, path}
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "qemu-img", probe...)), &info), path)
	require.Equal(t, format, info.Format, path)
	require.Equal(t, d.Size, info.Size, path)
	switch format {
	case "vmdk":
		require.Equal(t, subformat, info.Detail.Data.CreateType, path)
	case "qcow2":
		require.Equal(t, map[string]string{"v2": "0.10", "v3": "1.1"}[subformat], info.Detail.Data.Compat, path)
	}
	raw := filepath.Join(t.TempDir(), "disk.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", path, raw)
	d.proveTable(t, path, raw)
	require.NoError(t, os.Remove(raw))
}

func (d *expectedDisk) proveTable(t *testing.T, path, raw string) {
	t.Helper()
	if d.Scheme == "none" {
		if d.Volume != nil {
			require.Equal(t, *d.Volume, blkidVolume(t, raw, 0, d.Size), path)
		}
		require.Empty(t, d.Partitions, path)
		return
	}
	var answer struct {
		Table struct {
			Label      string `json:"label"`
			Partitions []struct {
				Node  string `json:"node"`
				Start int64  `json:"start"`
				Size  int64  `json:"size"`
			} `json:"partitions"`
		} `json:"partitiontable"`
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &answer), path)
	require.Equal(t, map[string]string{"mbr": "dos", "gpt": "gpt"}[d.Scheme], answer.Table.Label, path)
	require.Len(t, answer.Table.Partitions, len(d.Partitions), path)
	for i, got := range answer.Table.Partitions {
		want := d.Partitions[i]
		require.Equal(t, raw+strconv.Itoa(want.Number), got.Node, path)
		require.Equal(t, []int64{want.Start, want.Size}, []int64{got.Start * sectorSize, got.Size * sectorSize}, path)
		if want.FileSystem != nil && want.Kind != "extended" {
			require.Equal(t, expectedVolume{*want.FileSystem, want.Label}, blkidVolume(t, raw, want.Start, want.Size),
				"%s, partition %d", path, want.Number)
		}
	}
}

// blkidVolume is what blkid finds in a range of a disk, by our names of file systems.
func blkidVolume(t *testing.T, raw string, off, size int64) expectedVolume {
	t.Helper()
	value := func(tag string) string {
		cmd := exec.Command(disktest.Tool(t, "blkid"), "-p", "-O", strconv.FormatInt(off, 10), "-S",
			strconv.FormatInt(size, 10), "-o", "value", "-s", tag, raw)
		out, err := cmd.Output()
		const nothing = 2 // the exit code of blkid that found nothing
		if err != nil && cmd.ProcessState.ExitCode() != nothing {
			require.NoError(t, err)
		}
		return strings.TrimRight(string(out), "\n")
	}
	kind := value("TYPE")
	if kind == "vfat" {
		kind = strings.ToLower(value("VERSION"))
	}
	return expectedVolume{kind, value("LABEL")}
}

package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// libraryImages is how many images the library of the tests has, hostile ones not counted: enough for each kind of them
// to come several times, or 2,000, which take three times as long.
var libraryImages = func() int {
	if disktest.Exhaustive {
		return 2000
	}
	return 600
}()

// expectedImage is a line of the record of scripts/make-library.py: the expected properties of an image, from the
// script that made it.
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
	FileSystem *string `json:"file_system"` // nil: unknown
	Label      string  `json:"label"`
}

// name returns the exact bytes of the path.
func (e *expectedImage) name(t testing.TB) string {
	t.Helper()
	if e.PathBytes == "" {
		return e.Path
	}
	raw, err := base64.StdEncoding.DecodeString(e.PathBytes)
	require.NoError(t, err)
	return string(raw)
}

// sharedLibrary is the folder of images that the tests of this package share. The library and its record are beside the
// built program, and are removed with it.
var sharedLibrary struct {
	sync.Mutex
	dir string
}

// madeLibrary returns the folder of the library and its record.
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
		recipe := []string{"scripts/make-library.py", "scripts/library"}
		kept := disktest.Made(t, fmt.Sprintf("library-%d", libraryImages), recipe, func(work string) {
			disktest.Run(t, "python3", "../../scripts/make-library.py", filepath.Join(work, "library"),
				strconv.Itoa(libraryImages), "--record", filepath.Join(work, "library.ndjson"))
		})
		beside := filepath.Dir(builtPath)
		disktest.Run(t, "cp", "-a", "--sparse=always", kept+"/.", beside) // a copy, since tests add to it
		sharedLibrary.dir = filepath.Join(beside, "library")
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

// TestLibraryRecord verifies the record of the library with independent programs: qemu-img identifies and unpacks the
// image, sfdisk reads the table, blkid the volumes.
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

// prove compares one line of the record with the image.
func (e *expectedImage) prove(t *testing.T, path string) {
	t.Helper()
	for _, name := range e.Files[1:] { // the first is that of the path, which may not be UTF-8
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

// prove verifies one disk with the tools.
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
		// a fixed VHD has no magic number at its start, and could be raw
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

// blkidVolume returns blkid's result for a range of a disk, with our names of file systems.
func blkidVolume(t *testing.T, raw string, off, size int64) expectedVolume {
	t.Helper()
	value := func(tag string) string {
		cmd := exec.Command(disktest.Tool(t, "blkid"), "-p", "-O", strconv.FormatInt(off, 10), "-S",
			strconv.FormatInt(size, 10), "-o", "value", "-s", tag, raw)
		out, err := cmd.Output()
		const nothing = 2 // exit code of blkid without a result
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

// TestScanLibrary scans hundreds of images in all formats, in the disorder of a real library, with hostile ones in
// between. Each row equals the record written when the images were made.
func TestScanLibrary(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("makes hundreds of images")
	}
	dir, record := madeLibrary(t)
	k, between := newEveryKind(t), filepath.Join(dir, "every kind")
	disktest.Run(t, "cp", "-a", k.dir, between)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(between)) })
	s := scan(t, dir)
	require.Equal(t, 1, s.code, s.stderr)
	require.True(t, s.sum.Complete)
	require.Empty(t, s.sum.Unreadable)
	words, want := s.words(dir), map[string]string{}
	for name, word := range k.want {
		want["every kind/"+name] = word
	}
	want["every kind/up.vmdk"] = "failed io" // ../outside would be in the library
	for _, e := range record {
		rows := 0
		slices.Sort(e.Files)
		for _, name := range append([]string{e.name(t)}, e.Also...) { // the names of one inode
			i := s.rows[filepath.Join(dir, name)]
			if i == nil {
				continue
			}
			if rows++; e.State == string(results.Judged) {
				require.Equal(t, e, e.of(i), "%q", name)
			}
			want[name] = strings.TrimSpace(e.State + " " + e.Verdict)
			words[name], _, _ = strings.Cut(words[name], ", refused")
		}
		require.Equal(t, 1, rows, "rows of %q", e.Path)
	}
	require.Equal(t, want, words)
	sums := map[string]int{}
	for _, word := range words {
		state, verdict, _ := strings.Cut(word, " ")
		sums["images"]++
		if sums[state]++; state == string(results.Judged) {
			sums[verdict]++
		}
	}
	require.Equal(t, map[string]int{
		"images": s.sum.Images, "judged": s.sum.Aligned + s.sum.Below + s.sum.Misaligned + s.sum.Nothing,
		"aligned": s.sum.Aligned, "below_boundary": s.sum.Below, "misaligned": s.sum.Misaligned,
		"nothing_to_judge": s.sum.Nothing, "failed": s.sum.Failed, "orphan": s.sum.Orphans,
	}, sums)
}

// of makes a record of a row. It copies the fields that the record leaves open.
func (e expectedImage) of(i *results.Image) expectedImage {
	got := e
	got.State, got.Format, got.Subformat = string(i.State), i.Format, i.Subformat
	got.Verdict, got.Parents, got.Disks = string(i.Verdict), e.Parents[:0:0], e.Disks[:0:0]
	got.Parents = append(got.Parents, i.Parents...)
	if filepath.Base(i.Path) == filepath.Base(e.Path) { // otherwise it has the other name of its inode
		got.Files = e.Files[:0:0]
		for _, f := range i.Files {
			if !slices.Contains(e.Parents, f.Name) {
				got.Files = append(got.Files, f.Name)
			}
		}
		slices.Sort(got.Files)
	}
	for n := range i.Disks {
		got.Disks = append(got.Disks, e.Disks[min(n, len(e.Disks)-1)].of(&i.Disks[n]))
	}
	return got
}

func (d expectedDisk) of(is *results.Disk) expectedDisk {
	got := expectedDisk{is.Member, is.Size, is.Table.Scheme, string(is.Verdict), d.Volume, d.Partitions[:0:0]}
	if d.Volume != nil {
		got.Volume = volumeOf(is.Volume)
	}
	for n, p := range is.Partitions {
		part := expectedPartition{
			Number: p.Number, Kind: p.Kind, Start: p.Start, Size: p.Size, Verdict: string(p.Verdict),
		}
		if open := &d.Partitions[min(n, len(d.Partitions)-1)]; open.FileSystem == nil || open.Kind == "extended" {
			part.FileSystem, part.Label = open.FileSystem, open.Label
		} else {
			v := volumeOf(p.Volume)
			part.FileSystem, part.Label = &v.Kind, v.Label
		}
		got.Partitions = append(got.Partitions, part)
	}
	return got
}

// volumeOf returns a volume in the terms of the record, which has no unknown volumes.
func volumeOf(v *report.Volume) *expectedVolume {
	if v == nil || v.Kind == "unknown" {
		return &expectedVolume{}
	}
	return &expectedVolume{v.Kind, v.Label}
}

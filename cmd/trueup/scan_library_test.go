package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
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
	requireVariety(t, record)
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

// requireVariety requires that a record has each kind of image, many layouts, and no rare verdict.
func requireVariety(t *testing.T, record []expectedImage) {
	t.Helper()
	kinds, layouts, verdicts := map[string]int{}, map[string]int{}, map[string]int{}
	for _, e := range record {
		kinds[strings.TrimSpace(e.State+" "+e.Format+" "+e.Subformat)]++
		layouts[e.Layout]++
		verdicts[e.Verdict]++
	}
	for _, kind := range []string{
		"judged raw", "judged vmdk monolithicSparse", "judged vmdk monolithicFlat", "judged vmdk twoGbMaxExtentSparse",
		"judged vmdk twoGbMaxExtentFlat", "judged vmdk streamOptimized", "judged vhd fixed", "judged vhd dynamic",
		"judged vhdx fixed", "judged vhdx dynamic", "judged qcow2 v2", "judged qcow2 v3", "judged ova", "judged ovf",
		"orphan vmdk",
	} {
		require.NotZero(t, kinds[kind], "%s in %v", kind, kinds)
	}
	require.Greater(t, len(layouts), 60)
	for _, verdict := range []string{"aligned", "below_boundary", "misaligned"} {
		require.Greater(t, verdicts[verdict], libraryImages/10, verdict)
	}
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

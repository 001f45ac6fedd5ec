package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// scanned is what a scan printed: rows by path, and the summary.
type scanned struct {
	rows    map[string]*results.Image
	again   []string // paths of more than one row
	summary *results.Summary
}

// parseScan reads NDJSON: lines of images, and the summary as the last one.
func parseScan(t testing.TB, text string) *scanned {
	t.Helper()
	s := &scanned{rows: map[string]*results.Image{}}
	lines := bufio.NewReader(strings.NewReader(text))
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			require.Empty(t, line, "a line without an end")
			return s
		}
		require.Nil(t, s.summary, "a line behind the summary: %s", line)
		var head struct{ Event string }
		require.NoError(t, json.Unmarshal(line, &head), "%s", line)
		if head.Event == "summary" {
			require.NoError(t, json.Unmarshal(line, &s.summary), "%s", line)
			continue
		}
		require.Equal(t, "image", head.Event)
		i := &results.Image{}
		require.NoError(t, json.Unmarshal(line, i), "%s", line)
		name := pathBytes(t, i.Path, i.PathBytes)
		if s.rows[name] != nil {
			s.again = append(s.again, name)
		}
		s.rows[name] = i
	}
}

// compareLibrary holds a scan of the library at dir against its record and the hostile images in it, and lists every
// difference.
func compareLibrary(t testing.TB, dir string, record []expectedImage, strangers []stranger, s *scanned) (out []string) {
	t.Helper()
	say := func(name, format string, args ...any) {
		out = append(out, fmt.Sprintf("%q: ", name)+fmt.Sprintf(format, args...))
	}
	for _, name := range s.again {
		say(name, "two rows")
	}
	left := maps.Clone(s.rows)
	for _, e := range record {
		names := []string{dir + "/" + e.name(t)}
		for _, also := range e.Also {
			names = append(names, dir+"/"+also)
		}
		names = slices.DeleteFunc(names, func(n string) bool { return left[n] == nil })
		if len(names) != 1 {
			say(e.Path, "%d rows, want one", len(names))
			continue
		}
		for _, difference := range e.differences(left[names[0]], names[0] != dir+"/"+e.name(t)) {
			say(names[0], "%s", difference)
		}
		delete(left, names[0])
	}
	for _, h := range strangers {
		i := left[h.path]
		if i == nil {
			say(h.path, "%s: no row", h.name)
			continue
		}
		for _, difference := range h.differences(i) {
			say(h.path, "%s: %s", h.name, difference)
		}
		// What else lies in its folder is as strange, and may have rows.
		maps.DeleteFunc(left, func(name string, _ *results.Image) bool { return path.Dir(name) == path.Dir(h.path) })
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		say(name, "a row of what is no image: %s %s", left[name].State, left[name].Format)
	}
	return append(out, s.sums()...)
}

// differences holds a row against its line of the record. A row by another name of the inode has that name among its
// files.
func (e *expectedImage) differences(i *results.Image, also bool) (out []string) {
	equal := func(what string, want, got any) {
		if want != got {
			out = append(out, fmt.Sprintf("%s %v, want %v", what, got, want))
		}
	}
	if i.Error != nil {
		out = append(out, "error: "+i.Error.Code+": "+i.Error.Message)
	}
	equal("state", e.State, string(i.State))
	if e.State != string(results.Judged) || i.State != results.Judged {
		return out
	}
	equal("format", e.Format, i.Format)
	equal("subformat", e.Subformat, i.Subformat)
	equal("verdict", e.Verdict, string(i.Verdict))
	if !slices.Equal(e.Parents, i.Parents) {
		out = append(out, fmt.Sprintf("parents %q, want %q", i.Parents, e.Parents))
	}
	out = append(out, e.fileDifferences(i, also)...)
	var size int64
	for _, d := range e.Disks {
		size += d.Size
	}
	equal("size", size, i.Size)
	equal("disks", len(e.Disks), len(i.Disks))
	for n := range min(len(e.Disks), len(i.Disks)) {
		for _, difference := range e.Disks[n].differences(&i.Disks[n]) {
			out = append(out, fmt.Sprintf("disk %d: %s", n+1, difference))
		}
	}
	return out
}

// fileDifferences wants the files of the image, and of those that it completes, and no other.
func (e *expectedImage) fileDifferences(i *results.Image, also bool) (out []string) {
	if also {
		return nil
	}
	want := map[string]bool{}
	for _, name := range append(slices.Clone(e.Files), e.Parents...) {
		want[name] = true
	}
	got := map[string]bool{}
	for _, f := range i.Files {
		if got[f.Name] = true; !want[f.Name] {
			out = append(out, fmt.Sprintf("file %q is not its own", f.Name))
		}
	}
	for _, name := range e.Files {
		if !got[name] {
			out = append(out, fmt.Sprintf("file %q is not listed", name))
		}
	}
	return out
}

func (d *expectedDisk) differences(got *results.Disk) (out []string) {
	equal := func(what string, want, got any) {
		if want != got {
			out = append(out, fmt.Sprintf("%s %v, want %v", what, got, want))
		}
	}
	if got.Error != nil {
		out = append(out, "error: "+got.Error.Message)
	}
	equal("member", d.Member, got.Member)
	equal("size", d.Size, got.Size)
	equal("scheme", d.Scheme, got.Table.Scheme)
	equal("verdict", d.Verdict, string(got.Verdict))
	if d.Volume != nil {
		equal("volume", *d.Volume, volumeOf(got.Volume))
	}
	equal("partitions", len(d.Partitions), len(got.Partitions))
	for n := range min(len(d.Partitions), len(got.Partitions)) {
		want, p := d.Partitions[n], got.Partitions[n]
		equal("number", want.Number, p.Number)
		equal(fmt.Sprintf("partition %d kind", want.Number), want.Kind, p.Kind)
		equal(fmt.Sprintf("partition %d start", want.Number), want.Start, p.Start)
		equal(fmt.Sprintf("partition %d size", want.Number), want.Size, p.Size)
		equal(fmt.Sprintf("partition %d verdict", want.Number), want.Verdict, string(p.Verdict))
		if want.FileSystem != nil && want.Kind != "extended" {
			equal(fmt.Sprintf("partition %d volume", want.Number), expectedVolume{*want.FileSystem, want.Label},
				volumeOf(p.Volume))
		}
	}
	return out
}

// volumeOf is a volume by the words of the record, in which there is no unknown one.
func volumeOf(v *report.Volume) expectedVolume {
	if v == nil || v.Kind == "unknown" {
		return expectedVolume{}
	}
	return expectedVolume{v.Kind, v.Label}
}

// sums holds the summary against the rows.
func (s *scanned) sums() (out []string) {
	if s.summary == nil {
		return []string{"no summary"}
	}
	want := map[string]int{}
	for _, i := range s.rows {
		want["images"]++
		if want[string(i.State)]++; i.State == results.Judged {
			want[string(i.Verdict)]++
		}
	}
	got := s.summary
	for what, n := range map[string]int{
		"images": got.Images, string(align.Aligned): got.Aligned, string(align.BelowBoundary): got.Below,
		string(align.Misaligned): got.Misaligned, string(align.NothingToJudge): got.Nothing,
		string(results.Failed): got.Failed, string(results.Orphan): got.Orphans, string(results.Packed): got.Packed,
	} {
		if n != want[what] {
			out = append(out, fmt.Sprintf("summary: %s %d, want %d", what, n, want[what]))
		}
	}
	slices.Sort(out)
	return out
}

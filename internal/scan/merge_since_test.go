package scan

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// night is the file of a scan of /lib by host a, from 3 o'clock of a day on.
func night(t testing.TB, day int, set func(s *results.Summary), rows ...*results.Image) string {
	t.Helper()
	var b bytes.Buffer
	marks := results.Labels{"host": {"a"}}
	s := results.NewSummary()
	for _, i := range rows {
		i.Labels = marks
		require.NoError(t, report.Line(&b, i))
		s.Add(i)
	}
	s.Paths, s.Complete, s.Whole, s.Labels, s.Storage = []string{"/lib"}, true, true, marks, "generic"
	s.Started, s.Finished = fmt.Sprintf("2026-01-%02dT03:00:00Z", day), fmt.Sprintf("2026-01-%02dT03:59:00Z", day)
	if set != nil {
		set(s)
	}
	require.NoError(t, report.Line(&b, s))
	return b.String()
}

// written is an image that has another content since a time.
func written(path string, lba, at int64) *results.Image {
	i := judgedRow(path, lba)
	i.Files[0].Modified, i.Files[0].Changed, i.Files[0].Inode = at, at, uint64(at)
	return i
}

func changesOf(rows []*results.Image) map[string]results.Change {
	out := map[string]results.Change{}
	for _, i := range rows {
		out[i.Path] += i.Change + ";"
	}
	return out
}

func TestSince(t *testing.T) {
	t.Parallel()
	first := night(t, 1, nil, written("/lib/kept.raw", 2048, 1), written("/lib/fixed.raw", 63, 1),
		written("/lib/gone.raw", 63, 1))
	between := night(t, 5, nil, written("/lib/kept.raw", 2048, 1), written("/lib/fixed.raw", 63, 4),
		written("/lib/gone.raw", 63, 1), written("/lib/brief.raw", 63, 1))
	last := night(t, 9, nil, written("/lib/kept.raw", 2048, 1), written("/lib/fixed.raw", 2048, 7),
		written("/lib/new.raw", 63, 7))
	since := MergeTask{Since: "2026-01-02T00:00:00Z"}
	for _, order := range [][]string{{first, between, last}, {last, first, between}, {between, last, first}} {
		r, rows, err := merged(t, since, order...)
		require.NoError(t, err)
		require.Equal(t, map[string]results.Change{
			"/lib/kept.raw": "same;", "/lib/fixed.raw": "changed;", "/lib/new.raw": "new;", "/lib/gone.raw": "removed;",
		}, changesOf(rows))
		s := r.Summary
		require.Equal(t, &results.Changes{Since: since.Since, New: 1, Changed: 1, Same: 1, Removed: 1}, s.Changes)
		require.Equal(t, []int{3, 2, 1}, []int{s.Images, s.Aligned, s.Misaligned}, "what is gone, and earlier rows, "+
			"count in no sum")
		require.Equal(t, []int{3, 1, 2}, []int{s.Merged.Before.Images, s.Merged.Before.Aligned, s.Merged.Before.Off})
		require.Equal(t, s.Merged.Before, s.Merged.Labels[0].Before)
		require.Equal(t, 3, s.Merged.Labels[0].Images)
		require.Equal(t, 3, s.ExitCode)
	}
	since.Since = "2026-01-05T03:59:00Z" // the end of the second
	r, _, err := merged(t, since, first, between, last)
	require.NoError(t, err)
	require.Equal(t, &results.Changes{Since: since.Since, New: 1, Changed: 1, Same: 1, Removed: 2}, r.Summary.Changes)
	require.Equal(t, 4, r.Summary.Merged.Before.Images)

	since.Since = "2026-01-01T03:58:59Z"
	_, _, err = merged(t, since, last, first)
	require.ErrorIs(t, err, ondisk.ErrUsage)
	require.ErrorContains(t, err, "the first did on 2026-01-01T03:59:00Z")
}

// TestSinceKeepsWhatNoScanMissed has later scans that say nothing of an image: it stays as it was last seen.
func TestSinceKeepsWhatNoScanMissed(t *testing.T) {
	t.Parallel()
	for why, set := range map[string]func(s *results.Summary){
		"interrupted": func(s *results.Summary) { s.Complete = false },
		"filtered":    func(s *results.Summary) { s.Whole = false },
		"elsewhere":   func(s *results.Summary) { s.Paths = []string{"/lib2"} },
		"other host":  func(s *results.Summary) { s.Labels = results.Labels{"host": {"b"}} },
		"no label":    func(s *results.Summary) { s.Labels = nil },
		"one shard":   func(s *results.Summary) { s.Shard = "1/2" },
		"a folder": func(s *results.Summary) {
			s.UnreadableCount = 1
			s.Unreadable = []results.Unreadable{{Path: "/lib/x", Error: report.Error{Code: "io", Message: "no"}}}
		},
		"at once": func(s *results.Summary) { s.Started = "2026-01-01T03:59:00Z" },
	} {
		r, rows, err := merged(t, MergeTask{Since: "2026-01-02T00:00:00Z"},
			night(t, 1, nil, written("/lib/a.raw", 63, 1)),
			night(t, 9, set))
		require.NoError(t, err, why)
		require.Equal(t, map[string]results.Change{"/lib/a.raw": "same;"}, changesOf(rows), why)
		require.Equal(t, 1, r.Summary.Misaligned, why)
	}
	shard := func(k string) string { return night(t, 9, func(s *results.Summary) { s.Shard = k }) }
	r, _, err := merged(t, MergeTask{Since: "2026-01-02T00:00:00Z"},
		night(t, 1, nil, written("/lib/a.raw", 63, 1)),
		shard("1/2"), shard("2/2"))
	require.NoError(t, err)
	require.Equal(t, 1, r.Summary.Changes.Removed, "all shards together miss it")
}

// TestSinceOfNowhere has rows of which nothing says whether they are about one image.
func TestSinceOfNowhere(t *testing.T) {
	t.Parallel()
	plain := func(minute int, i *results.Image) string { return scanned(t, minute, i) }
	r, rows, err := merged(t, MergeTask{Since: "2026-01-02T03:05:00Z"}, plain(1, written("/lib/a.raw", 63, 1)),
		plain(9, written("/lib/a.raw", 2048, 2)))
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, 2, r.Summary.Changes.Unplaced)

	disk := func(lba, at int64, system string) *results.Image {
		i := written("/lib/a.raw", lba, at)
		i.FileSystem = system
		return i
	}
	for system, want := range map[string]string{"u1": "changed;", "u2": "removed;new;"} { // of a disk at the same place
		_, rows, err = merged(t, MergeTask{Since: "2026-01-02T00:00:00Z"}, night(t, 1, nil, disk(63, 1, "u1")),
			night(t, 9, nil, disk(2048, 2, system)))
		require.NoError(t, err)
		got := changesOf(rows)["/lib/a.raw"]
		require.ElementsMatch(t, bytes.Split([]byte(want), []byte(";")), bytes.Split([]byte(got), []byte(";")))
	}
}

func TestParseSince(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"2026-11-01": "2026-11-01T00:00:00Z", "2026-11-01T06:00:00+01:00": "2026-11-01T05:00:00Z",
	} {
		got, err := ParseSince(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, in := range []string{"", "7d", "2026-13-01", "2026-11-01 06:00"} {
		_, err := ParseSince(in)
		require.ErrorIs(t, err, ondisk.ErrUsage)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// keptScan keeps the lines of a scan in a file.
func keptScan(t testing.TB, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(scan(t, args...).stdout), 0o600))
	return path
}

// TestReportOfShards compares the report of all shards with that of one scan: all rows, their order, and the sums.
func TestReportOfShards(t *testing.T) {
	t.Parallel()
	dir := newEveryKind(t).dir
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			disktest.Run(t, "sync", path) // so that what the file system has allocated is settled
		}
		return err
	}))
	var shards []string
	const n = 3
	for k := range n {
		shard := fmt.Sprintf("%d/%d", k+1, n)
		shards = append(shards, keptScan(t, fmt.Sprintf("%d.ndjson", k), "--shard", shard, dir))
	}
	whole := trueup(t, "scan", "-o", "csv", dir)
	merged := trueup(t, append([]string{"report", "-o", "csv"}, shards...)...)
	require.Equal(t, whole.code, merged.code, merged.stderr)
	require.Equal(t, whole.stdout, merged.stdout)

	sum, r := scan(t, dir).sum, readScan(t, trueup(t, append([]string{"report", "--json"}, shards...)...)).sum
	require.Equal(t,
		&results.Merged{Scans: n, Rows: sum.Images, Unknown: r.Merged.Unknown, Labels: []results.LabelSum{}},
		r.Merged)
	for _, s := range []*results.Summary{&sum, &r} { // what is of the run and not of the library
		s.Command, s.Paths, s.Started, s.Finished, s.Took = "", nil, "", "", 0
		s.Isolation, s.Merged = results.Isolation{}, nil
	}
	require.Equal(t, sum, r)
}

// TestReportOfACatalogue joins the rows of a catalogue with those of the lines that the same scan printed.
func TestReportOfACatalogue(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, 5)
	catalogue := filepath.Join(t.TempDir(), "library.db")
	lines := keptScan(t, "a.ndjson", "--catalog", catalogue, "--label", "datastore=d1", "--label", "host=a", dir)
	before := disktest.ReadFile(t, catalogue)
	s := readScan(t, trueup(t, "report", "--json", "datastore=d1", "host=b", catalogue, lines))
	require.Equal(t, 3, s.code, s.stderr)
	require.Len(t, s.rows, 5)
	for _, i := range s.rows {
		require.Equal(t, &results.Joined{By: "datastore", Rows: 2}, i.Joined)
		require.Equal(t, []string{"a", "b"}, i.Labels["host"])
	}
	require.Equal(t, before, disktest.ReadFile(t, catalogue))
	text := trueup(t, "report", "datastore=d1", "host=b", catalogue, lines)
	require.Contains(t, text.stdout, "Made of 1 scan and 1 catalogue.")
	require.Contains(t, text.stdout, "    host=b: 5 images, 5 misaligned, 0 below the boundary, 0 failed, ")
	for format, want := range map[string]string{
		"html": "<dd>5 images, 5 misaligned", "prometheus": `key="host",value="b",verdict="misaligned"} 5`,
		"junit": `tests="5" failures="5"`, "csv": ",datastore=d1 host=a host=b\r\n",
	} {
		r := trueup(t, "report", "-o", format, "datastore=d1", "host=b", catalogue, lines)
		require.Equal(t, 3, r.code, r.stderr)
		require.Contains(t, r.stdout, want, format)
	}
}

// A report never takes the place of what it is made of, and appears only when it is complete.
func TestReportFiles(t *testing.T) {
	t.Parallel()
	lines := keptScan(t, "a.ndjson", manyDisks(t, 1))
	r := trueup(t, "report", "--out", lines, lines)
	require.Equal(t, 64, r.code, r.stderr)
	folder := t.TempDir()
	out := filepath.Join(folder, "report.html")
	broken := hostFile(t, `{"schema":"trueup/9"}`+"\n")
	r = trueup(t, "report", "-o", "html", "--out", out, lines, broken)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, broken+`: line 1: schema "trueup/9", want "trueup/1"`)
	require.Empty(t, folderNames(t, folder))
	require.Equal(t, 3, trueup(t, "report", "-o", "html", "--out", out, lines).code)
	require.Equal(t, []string{"report.html"}, folderNames(t, folder))
	require.Equal(t, 0, trueup(t, "report", "--fail-on", "never", lines).code)
	var summary map[string]any
	again := hostFile(t, trueup(t, "report", "--json", lines).stdout)
	last := strings.Split(strings.TrimSpace(trueup(t, "report", "--json", again).stdout), "\n")
	require.NoError(t, json.Unmarshal([]byte(last[len(last)-1]), &summary))
	require.InDelta(t, 1, summary["misaligned"], 0, "a report can be read again")
}

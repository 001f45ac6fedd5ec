package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
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

// TestReportOfManyRows has more rows than fit into the memory that a report may take.
func TestReportOfManyRows(t *testing.T) {
	t.Parallel()
	s := scan(t, manyDisks(t, 1))
	row, sum, _ := strings.Cut(strings.TrimSuffix(s.stdout, "\n"), "\n")
	const n = 8000
	for _, of := range []string{"images", "misaligned"} {
		sum = strings.Replace(sum, `"`+of+`":1,`, fmt.Sprintf(`"%s":%d,`, of, n), 1)
	}
	var text strings.Builder
	for k := range n {
		text.WriteString(strings.ReplaceAll(row, "disk-000", fmt.Sprintf("disk-%d", k)) + "\n")
	}
	size := text.Len()
	lines := hostFile(t, text.String()+sum+"\n")
	m := launched(t, [][]string{{"report", "-o", "csv", "host=a", lines}})[0]
	require.Equal(t, 3, m.Code, "%s", m.Stderr)
	require.Equal(t, n+1, bytes.Count(m.Stdout, []byte("\n")))
	require.Less(t, m.RSS, int64(64<<20), "of %d bytes of rows", size)
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
	traced := disktest.Tool(t, "strace")
	r = run(t, traced, "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:signal=TERM:when=1",
		builtPath, "report", "-o", "html", "--out", out, lines)
	require.Equal(t, 3, r.code, "a signal that comes when all is written: %s", r.stderr)
	require.Equal(t, []string{"report.html"}, folderNames(t, folder))
	require.Equal(t, 0, trueup(t, "report", "--fail-on", "never", lines).code)
	var summary map[string]any
	again := hostFile(t, trueup(t, "report", "--json", lines).stdout)
	last := strings.Split(strings.TrimSpace(trueup(t, "report", "--json", again).stdout), "\n")
	require.NoError(t, json.Unmarshal([]byte(last[len(last)-1]), &summary))
	require.InDelta(t, 1, summary["misaligned"], 0, "a report can be read again")
}

// TestAction runs what the action for workflows runs, as a workflow would.
func TestAction(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir, temp := manyDisks(t, 2), t.TempDir()
	run := func(failOn string) (outputs map[string]string) {
		kept := filepath.Join(t.TempDir(), "output")
		cmd := exec.Command("bash", filepath.Join(root, "scripts/action.sh"))
		cmd.Env = append(os.Environ(), "ACTION="+root, "PATHS="+dir+"\n", "FAIL_ON="+failOn, "RUNNER_TEMP="+temp,
			"GITHUB_OUTPUT="+kept)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		outputs = map[string]string{}
		for line := range strings.Lines(string(disktest.ReadFile(t, kept))) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			outputs[key] = value
		}
		return outputs
	}
	for failOn, want := range map[string][2]string{"": {"3", "2"}, "never": {"0", "0"}} {
		out := run(failOn)
		require.Equal(t, want[0], out["exit-code"])
		require.Equal(t, []string{"junit.xml", "report.html", "report.txt", "results.ndjson"},
			folderNames(t, out["folder"]))
		require.Contains(t, string(disktest.ReadFile(t, filepath.Join(out["folder"], "junit.xml"))),
			`tests="2" failures="`+want[1]+`"`)
	}
	require.Equal(t, map[string]string{"exit-code": "64"}, run("nonsense"))
}

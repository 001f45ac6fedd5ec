package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
		s.Isolation, s.Merged, s.Whole = results.Isolation{}, nil, false
	}
	require.Equal(t, sum, r)
}

// TestTemplates prints a scan and its report by a template of the user, which is read before anything else.
func TestTemplates(t *testing.T) {
	t.Parallel()
	dir, work := manyDisks(t, 3), t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(work, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := file("good.tmpl", "{{range .images}}{{.verdict}} {{.exit_code}}\n{{end}}{{.summary.images}}\n")
	bad, wrong := file("bad.tmpl", "\n{{if}}"), file("wrong.tmpl", "\n\n{{range .images}}{{.verdcit}}{{end}}")
	want := strings.Repeat("misaligned 3\n", 3) + "3\n"
	r := trueup(t, "scan", "--template", good, dir)
	require.Equal(t, 3, r.code, r.stderr)
	require.Equal(t, want, r.stdout)
	lines, out := keptScan(t, "a.ndjson", dir), filepath.Join(work, "out")
	r = trueup(t, "report", "--quiet", "--template", good, "--out", out, lines)
	require.Equal(t, 3, r.code, r.stderr)
	require.Equal(t, want, string(disktest.ReadFile(t, out)))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--template", bad}, "bad.tmpl:2: missing value for if"},
		{[]string{"--template", wrong, "--out", filepath.Join(work, "none")}, `wrong.tmpl:3:19: executing`},
		{[]string{"--template", filepath.Join(work, "none")}, "none: no such file"},
		{[]string{"--template", file("large", strings.Repeat(" ", 1<<20+1))}, "large has more than 1 MiB"},
		{[]string{"--template", file("binary", "text\xff")}, "binary is no text in UTF-8"},
		{[]string{"--template", good, "-o", "csv"}, "--template and --output ask for two formats"},
		{[]string{"--template", good, "--json"}, "--template and --output ask for two formats"},
		{[]string{"--template", good, "--out", good}, "would overwrite --template"},
	} {
		r := trueup(t, append(append([]string{"report"}, c.args...), lines)...)
		require.Equal(t, 64, r.code, r.stderr)
		require.Contains(t, r.stderr, c.want)
		require.NotContains(t, r.stdout, "misaligned 3")
	}
	require.NoFileExists(t, filepath.Join(work, "none"))
}

// TestReportSince compares two scans, and the result with the changes that scan --since has found between them.
func TestReportSince(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, 4)
	then := keptScan(t, "then.ndjson", "--label", "host=a", dir)
	text := regexp.MustCompile(`"(started|finished)":"[^"]*"`).ReplaceAllString(string(disktest.ReadFile(t, then)),
		`"$1":"2026-01-02T03:04:05Z"`)
	require.NoError(t, os.WriteFile(then, []byte(text), 0o600))
	disk := func(n int) string { return filepath.Join(dir, "folder-00", fmt.Sprintf("disk-%03d.raw", n)) }
	exchanged := trueup(t, "replace", "--keep", "none", disk(0))
	require.Equal(t, 0, exchanged.code, exchanged.stderr)
	require.NoError(t, os.Remove(disk(1)))
	disktest.Run(t, "cp", disk(2), filepath.Join(dir, "new.raw"))
	now := keptScan(t, "now.ndjson", "--since", then, "--label", "host=a", dir)
	r := readScan(t, trueup(t, "report", "--json", "--since", "2026-02-01", then, now))
	require.Equal(t, 3, r.code, r.stderr)
	want := readScan(t, result{stdout: string(disktest.ReadFile(t, now)), code: 3}).sum
	require.Equal(t, &results.Changes{Since: "2026-02-01T00:00:00Z", New: 1, Changed: 1, Same: 2, Removed: 1},
		r.sum.Changes)
	want.Changes.Since = r.sum.Changes.Since
	require.Equal(t, want.Changes, r.sum.Changes)
	require.Equal(t, []int{want.Images, want.Aligned, want.Misaligned},
		[]int{r.sum.Images, r.sum.Aligned, r.sum.Misaligned})
	require.Equal(t, []int{4, 4}, []int{r.sum.Merged.Before.Images, r.sum.Merged.Before.Off})
	for format, want := range map[string]string{
		"text":       "Since 2026-02-01 00:00 UTC: 1 new, 1 changed, 2 as before, 1 removed.",
		"html":       "; before: 4 images, 4 misaligned",
		"prometheus": `_before{library="` + then + " " + now + `",verdict="misaligned"} 4`,
		"csv":        ",removed,",
	} {
		r := trueup(t, "report", "-o", format, "--since", "2026-02-01", then, now)
		require.Equal(t, 3, r.code, r.stderr)
		require.Contains(t, r.stdout, want, format)
	}
	early := trueup(t, "report", "--since", "2026-01-01", then, now)
	require.Equal(t, 64, early.code, early.stderr)
	require.Contains(t, early.stderr, "no scan had ended by then, the first did on 2026-01-02T03:04:05Z")
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
	m := launched(t, [][]string{{"report", "-o", "csv", "--since", "2100-01-01", "host=a", lines}})[0]
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

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// scanFormats are all that scan can print.
var scanFormats = []string{"text", "json", "csv", "html", "junit", "prometheus"}

// runTimes are what differs between two runs: when they were, and how long they took.
var runTimes = regexp.MustCompile(
	`(timestamp|duration)_seconds\{[^}]*\} \S+|duration_seconds":[\d.]+|(in|after) (less than 0.1 s|\d[\d.hm]* ` +
		`?s\b)|\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?`)

func withoutTimes(text string) string {
	return runTimes.ReplaceAllString(text, "TIME")
}

// --out changes where a report goes, and nothing else.
func TestScanReportFile(t *testing.T) {
	t.Parallel()
	k := newEveryKind(t)
	for _, format := range scanFormats {
		t.Run(format, func(t *testing.T) {
			args := []string{"scan", "-o", format, "--jobs", "1", k.dir}
			want := run(t, builtPath, args...)
			require.Equal(t, 1, want.code)
			require.Empty(t, want.stderr)
			out := filepath.Join(t.TempDir(), "report")
			require.NoError(t, os.WriteFile(out, []byte(strings.Repeat("an older and longer report\n", 10000)), 0o640))
			for _, more := range [][]string{{"--out", out}, {"--out", out, "-q"}} {
				r := run(t, builtPath, append(args, more...)...)
				require.Equal(t, 1, r.code)
				require.Empty(t, r.stdout+r.stderr)
				got := disktest.ReadFile(t, out)
				require.Equal(t, sortedIf(format == "json", withoutTimes(want.stdout)),
					sortedIf(format == "json", withoutTimes(string(got))))
				require.Equal(t, []string{"report"}, folderNames(t, filepath.Dir(out)))
			}
		})
	}
}

// sortedIf sorts lines whose order says nothing.
func sortedIf(sorts bool, text string) string {
	if !sorts {
		return text
	}
	return strings.Join(slices.Sorted(strings.SplitAfterSeq(text, "\n")), "")
}

// A report that was there survives a run that fails, and nothing is left beside it.
func TestScanReportSurvives(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(sampleDisk(t))
	folder := t.TempDir()
	out := filepath.Join(folder, "report")
	for _, format := range scanFormats {
		require.NoError(t, os.WriteFile(out, []byte("old"), 0o644))
		// A file may have 64 KiB and no more: the report does not fit. The signal of that is ignored, so that it is an
		// error.
		r := run(t, disktest.Tool(t, "sh"), "-c", `trap '' XFSZ; ulimit -f 0; exec "$@"`, "sh", builtPath, "scan", "-o",
			format, "--out", out, dir)
		require.Equal(t, 1, r.code, format)
		requireOneLine(t, r.stderr)
		text := disktest.ReadFile(t, out)
		require.Equal(t, "old", string(text), format)
		require.Equal(t, []string{"report"}, folderNames(t, folder))
	}
	r := trueup(t, "scan", "--out", filepath.Join(folder, "no", "report"), dir)
	require.Equal(t, 1, r.code)
	requireOneLine(t, r.stderr)
}

// A report that cannot be read is no success, and no standard output at all is no danger.
func TestScanReportCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(sampleDisk(t))
	before := hashFolder(t, dir)
	for _, format := range scanFormats {
		r := run(t, disktest.Tool(t, "sh"), "-c", `exec "$@" > /dev/full`, "sh", builtPath, "scan", "-o", format, dir)
		require.Equal(t, 1, r.code, format)
		requireOneLine(t, r.stderr)
		require.Contains(t, r.stderr, "no space left on device", format)
	}
	r := run(t, disktest.Tool(t, "sh"), "-c", `exec "$@" <&- >&- 2>&-`, "sh", builtPath, "scan", dir)
	require.Contains(t, []int{1, 3}, r.code)
	require.Equal(t, before, hashFolder(t, dir))
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// On a terminal there are colours, rows within its width, and a bar that is gone in the end.
func TestScanOnATerminal(t *testing.T) {
	t.Parallel()
	k := newEveryKind(t)
	script := disktest.Tool(t, "script")
	onTerminal := func(width int, env string, flags ...string) string {
		command := strings.Join(append([]string{
			"stty", "cols", fmt.Sprint(width), "&&", "env", "TERM=xterm", env,
			builtPath, "scan",
		}, append(flags, k.dir)...), " ")
		return run(t, script, "--quiet", "--return", "--command", command, "/dev/null").stdout
	}
	for _, width := range []int{80, 120} {
		text := onTerminal(width, "X=1")
		require.Contains(t, text, "\x1b[31m", "red")
		_, report, _ := strings.Cut(text, "\x1b[J")
		for line := range strings.Lines(colours.ReplaceAllString(report, "")) {
			// a command is one line, to be copied
			if line = strings.TrimRight(line, "\r\n"); !strings.HasPrefix(line, "  trueup ") {
				require.LessOrEqual(t, len([]rune(line)), width, line)
			}
		}
	}
	for _, plain := range []string{onTerminal(80, "NO_COLOR=1", "--no-progress"), onTerminal(80, "X=1", "--no-color",
		"--no-progress")} {
		require.NotContains(t, plain, "\x1b")
	}
	require.NotContains(t, trueup(t, "scan", k.dir).stdout, "\x1b", "a pipe")
}

// scanList runs a scan of the paths that a list on standard input has.
func scanList(t *testing.T, list string, args ...string) scanResult {
	t.Helper()
	cmd := exec.Command(builtPath, append([]string{"scan", "-o", "json", "--files-from", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(list)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return readScan(t, result{out.String(), errs.String(), cmd.ProcessState.ExitCode()})
}

func TestScanFilesFrom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	paths := []string{smallDisk(t, filepath.Join(dir, "a.raw"), 63), smallDisk(t, filepath.Join(dir, "line\nend.raw"),
		63), filepath.Join(dir, "none"), dir + "/sub"}
	require.NoError(t, os.Mkdir(paths[3], 0o755))
	smallDisk(t, filepath.Join(paths[3], "-x.raw"), 2048)
	want := map[string]string{
		"a.raw": "misaligned", "line\nend.raw": "misaligned", "none": "io",
		"sub/-x.raw": "aligned",
	}
	require.Equal(t, want, scanList(t, strings.Join(paths, "\x00")).words(dir))
	require.Equal(t, want, scanList(t, strings.Join(paths, "\x00")+"\x00").words(dir))

	lines := strings.Join(append(paths[:1:1], paths[2:]...), "\n")
	delete(want, "line\nend.raw")
	require.Equal(t, want, scanList(t, lines).words(dir))
	require.Equal(t, want, scanList(t, "\n"+lines+"\n\n", paths[0]).words(dir), "empty lines, and a path twice")
	require.Empty(t, scanList(t, "").rows, "an empty list is one of nothing")

	file := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(file, []byte(lines), 0o644))
	require.Equal(t, want, scan(t, "--files-from", file).words(dir))
}

func TestScanFilesFromManyNames(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, 200)
	var list strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&list, "%s/folder-%02d/disk-%03d.raw\n", dir, i/10, i)
	}
	file := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(file, []byte(list.String()), 0o644))
	// Its lines are those of other tests, and their schema takes long.
	m := launched(t, [][]string{{"scan", "-o", "json", "--files-from", file}})[0]
	require.Less(t, m.CPU, 20*time.Second, "a second, when each name is looked at once")
	require.Equal(t, 1, m.Code)
	r := result{stdout: string(m.Stdout)}
	require.Equal(t, 10_001, strings.Count(r.stdout, "\n"))
	require.Equal(t, 200, strings.Count(r.stdout, `"state":"judged"`))
	require.Equal(t, 9800, strings.Count(r.stdout, `"message":"no such file or directory; check the path"`))
}

// Globs are held against a name, a path below a root, and a path as it is shown; docs/scan-ignore.md says so.
func TestScanGlobs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a.raw", "b.img", "old/a.raw", "old/deep/c.raw", "x/archive/y/d.raw"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		smallDisk(t, filepath.Join(dir, name), 2048)
	}
	all := []string{"a.raw", "b.img", "old/a.raw", "old/deep/c.raw", "x/archive/y/d.raw"}
	for name, c := range map[string]struct {
		flags []string
		want  []string
	}{
		"all": {nil, all},
		"by name": {[]string{"--include", "*.raw"}, []string{
			"a.raw", "old/a.raw", "old/deep/c.raw",
			"x/archive/y/d.raw",
		}},
		"by several names": {
			[]string{"--include", "b.*", "--include", "c.*"},
			[]string{"b.img", "old/deep/c.raw"},
		},
		"below the root": {[]string{"--include", "old/*.raw"}, []string{"old/a.raw"}},
		"any folders": {[]string{"--exclude", "**/archive/**"}, []string{
			"a.raw", "b.img", "old/a.raw",
			"old/deep/c.raw",
		}},
		"a folder":                {[]string{"--exclude", "old/**"}, []string{"a.raw", "b.img", "x/archive/y/d.raw"}},
		"as it is shown":          {[]string{"--include", dir + "/old/**"}, []string{"old/a.raw", "old/deep/c.raw"}},
		"both, the exclusion won": {[]string{"--include", "a.raw", "--exclude", "old/**"}, []string{"a.raw"}},
		"nothing":                 {[]string{"--include", "*.vmdk"}, []string{}},
	} {
		s := scan(t, append(c.flags, dir)...)
		require.ElementsMatch(t, c.want, slices.Collect(maps.Keys(s.words(dir))), name)
	}
	named := scan(t, "--exclude", "*.img", filepath.Join(dir, "a.raw"), filepath.Join(dir, "b.img"))
	require.Equal(t, map[string]string{"a.raw": "aligned", "b.img": "aligned"}, named.words(dir),
		"who names a file wants it")
}

// The script does what the report says: when it has run, a scan finds the copies aligned.
func TestScanScript(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a.raw", "it's $HOME.raw", "line\nend.raw", "-f.raw"} {
		smallDisk(t, filepath.Join(dir, name), 63)
	}
	smallDisk(t, filepath.Join(dir, "fine.raw"), 2048)
	script := filepath.Join(t.TempDir(), "fix.sh")
	first := scan(t, "--script", script, dir)
	require.Equal(t, 4, first.sum.Fix.Images)
	info, err := os.Stat(script)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())
	before := hashFolder(t, dir)
	for range 2 { // the second time there is nothing to do
		cmd := exec.Command(script)
		cmd.Env = append(os.Environ(), "TRUEUP="+builtPath)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	after := scan(t, "--exclude", "fine.raw", "--include", "*-aligned.raw", dir)
	require.Equal(t, 0, after.code)
	require.Equal(t, 4, after.sum.Aligned)
	for name, state := range before {
		require.Equal(t, state, hashFolder(t, dir)[name], "%s changed", name)
	}
}

// What node_exporter and a CI server take.
func TestScanForOtherPrograms(t *testing.T) {
	t.Parallel()
	k := newEveryKind(t)
	metrics := run(t, builtPath, "scan", "-o", "prometheus", k.dir)
	require.Equal(t, 1, metrics.code)
	require.Regexp(t, `(?m)^trueup_images\{library="`+k.dir+`",verdict="failed"\} \d+$`, metrics.stdout)
	require.Regexp(t, `(?m)^trueup_last_run_complete\{.*\} 1$`, metrics.stdout)
	xml := filepath.Join(t.TempDir(), "junit.xml")
	require.Equal(t, 1, run(t, builtPath, "scan", "-o", "junit", "--out", xml, k.dir).code)
	disktest.Run(t, "xmllint", "--noout", xml)
	count := func(what string) string {
		return strings.TrimSpace(disktest.Output(t, "xmllint", "--xpath", "count(//testcase"+what+")", xml))
	}
	s := scan(t, k.dir)
	require.Equal(t, fmt.Sprint(s.sum.Images), count(""))
	require.Equal(t, fmt.Sprint(s.sum.Failed), count("[error]"))
	require.Equal(t, fmt.Sprint(s.sum.Misaligned+s.sum.Below), count("[failure]"))
}

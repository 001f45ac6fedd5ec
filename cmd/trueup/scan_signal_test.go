package main

import (
	"encoding/csv"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A signal ends the scan with a report of the images so far; --since reuses their rows.
func TestScanInterrupted(t *testing.T) {
	t.Parallel()
	for _, s := range endSignals {
		t.Run(s.String(), func(t *testing.T) {
			dir := manyDisks(t, someDisks)
			last := filepath.Join(t.TempDir(), "last.ndjson")
			args := []string{"-o", "json", "--jobs", "2", dir}
			disktest.WaitSettled(t, dir) // what is as young as the scan is read again
			l := startHeld(t, args...)
			l.middle(t, 20)
			l.freeze(t)
			l.signal(t, s)
			l.signal(t, syscall.SIGCONT)
			first := readScan(t, l.end(t))
			require.NoError(t, os.WriteFile(last, []byte(first.stdout), 0o600))
			require.Equal(t, 128+int(s), first.code)
			requireScanInterrupted(t, first.stderr)
			require.False(t, first.sum.Complete)
			require.GreaterOrEqual(t, len(first.rows), 20)
			require.Less(t, len(first.rows), someDisks)
			require.Equal(t, len(first.rows), first.sum.Images)

			second := scan(t, "--since", last, dir)
			require.Equal(t, 3, second.code)
			require.True(t, second.sum.Complete)
			require.Len(t, second.rows, someDisks)
			for path := range first.rows {
				require.Zero(t, second.rows[path].Read, "%s was finished, and is read again", path)
			}
			require.Positive(t, second.sum.Read)
		})
	}
}

// requireScanInterrupted requires that an interrupted scan says at once what it does, and at the end what it has done.
func requireScanInterrupted(t *testing.T, stderr string) {
	t.Helper()
	require.Regexp(t, "^trueup: interrupted: completing the report of what was looked at; once more to end at once\n"+
		"trueup: interrupted: [^\n]* looked at, and the report has those[^\n]*\n$", stderr)
}

// interruptedScan starts a scan of many disks with a report in a file, and interrupts it.
func interruptedScan(t *testing.T, dir, format string) (report string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "report")
	require.NoError(t, os.WriteFile(out, []byte("an older report\n"), 0o644))
	l := startScan(t, "-o", format, "--out", out, "--jobs", "2", dir)
	disktest.WaitFor(t, "some images", func() bool { return readCalls(t, l.workers(t)) > 1000 })
	l.freeze(t)
	l.signal(t, syscall.SIGTERM)
	l.signal(t, syscall.SIGCONT)
	r := l.end(t)
	require.Equal(t, 128+int(syscall.SIGTERM), r.code)
	require.Empty(t, r.stdout)
	requireScanInterrupted(t, r.stderr)
	require.Equal(t, []string{"report"}, folderNames(t, filepath.Dir(out)), "nothing is left beside the report")
	text := disktest.ReadFile(t, out)
	return string(text)
}

func TestScanInterruptedReports(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, 5*someDisks)
	for format, check := range map[string]func(t *testing.T, text string){
		"text": func(t *testing.T, text string) {
			t.Helper()
			require.Regexp(t, `(?m)^Interrupted after [\d,]+ (of [\d,]+ )?images?: this is incomplete\.$`, text)
		},
		"json": func(t *testing.T, text string) {
			t.Helper()
			s := readScan(t, result{stdout: text, code: 143})
			require.False(t, s.sum.Complete)
		},
		"csv": func(t *testing.T, text string) {
			t.Helper()
			rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
			require.NoError(t, err)
			require.Greater(t, len(rows), 1)
		},
		"junit": func(t *testing.T, text string) {
			t.Helper()
			var suites struct {
				Suites []struct {
					Cases []struct {
						Class string    `xml:"classname,attr"`
						Error *struct{} `xml:"error"`
					} `xml:"testcase"`
				} `xml:"testsuite"`
			}
			require.NoError(t, xml.Unmarshal([]byte(text), &suites))
			cut := 0
			for _, c := range suites.Suites[0].Cases {
				if c.Class == "trueup scan" && c.Error != nil {
					cut++
				}
			}
			require.Equal(t, 1, cut, "a case says that the run was interrupted")
		},
		"prometheus": func(t *testing.T, text string) {
			t.Helper()
			require.Regexp(t, `(?m)^trueup_last_run_complete\{.*\} 0$`, text)
			require.Regexp(t, `(?m)^trueup_last_run_exit_code\{.*\} 143$`, text)
		},
	} {
		t.Run(format, func(t *testing.T) { check(t, interruptedScan(t, dir, format)) })
	}
}

// The second signal ends at once, also while the first one waits for a reader that takes nothing.
func TestScanSecondSignal(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	l := startHeld(t, "-o", "json", "--jobs", "2", "--isolation", "none", dir)
	l.middle(t, 5)
	waitIdle(t, l.cmd.Process.Pid) // the pipe is full
	l.signal(t, syscall.SIGINT)
	disktest.WaitFor(t, "the answer to the first signal",
		func() bool { return strings.Contains(l.stderr.String(), "once more to end at once\n") })
	l.signal(t, syscall.SIGTERM)
	disktest.WaitClosed(t, "the end of the scan", l.ended)
	require.Equal(t, 128+int(syscall.SIGTERM), l.end(t).code)
}

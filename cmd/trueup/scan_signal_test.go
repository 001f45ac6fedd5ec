package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// someDisks are enough that a scan of them takes a while.
const someDisks = 300

// A killed worker costs only the image that it was reading.
func TestScanWorkersAreKilled(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	const step = someDisks / 6
	l := startHeld(t, "-o", "json", "--jobs", "2", dir)
	var pids []int
	for n := range 5 {
		l.middle(t, 1+n*step)
		frozen := l.freeze(t)
		l.signal(t, syscall.SIGCONT)
		l.allow(n*step + step)
		waitIdle(t, l.cmd.Process.Pid) // each worker has an image now, and does not continue
		for _, pid := range frozen {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		pids = append(pids, frozen...)
	}
	s := readScan(t, l.end(t))
	require.True(t, s.sum.Complete)
	require.Len(t, s.rows, someDisks, "every image has its row")
	require.Equal(t, 1, s.code)
	failed := 0
	for path, i := range s.rows {
		if off(i) {
			continue
		}
		require.Equal(t, results.Failed, i.State, path)
		require.Equal(t, "limit", i.Error.Code, "%s: %s", path, i.Error.Message)
		require.Contains(t, i.Error.Message, "killed from outside", path)
		failed++
	}
	require.Positive(t, failed, "no worker was killed at work")
	require.LessOrEqual(t, failed, len(pids), "one image for each worker at most")
	require.Equal(t, failed, s.sum.Failed)
	requireGone(t, pids)
}

// A worker gets neither memory nor files, as on an overloaded machine.
func TestScanWorkersAreStarved(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	for name, tc := range map[string]struct {
		limit, code string
	}{
		"no files":  {"--nofile=3:3", "io"},
		"no memory": {"--data=1:1", ""}, // which ends it: the reaction of the runtime depends on its state
	} {
		t.Run(name, func(t *testing.T) {
			l := startHeld(t, "-o", "json", "--jobs", "2", dir)
			l.middle(t, 5)
			starved := 0
			for _, pid := range l.workers() {
				if exec.Command(disktest.Tool(t, "prlimit"), "--pid", strconv.Itoa(pid), tc.limit).Run() == nil {
					starved++
				}
			}
			require.Positive(t, starved)
			s := readScan(t, l.end(t))
			require.True(t, s.sum.Complete)
			if tc.code == "" {
				require.LessOrEqual(t, s.sum.Failed+s.sum.UnreadableCount, starved,
					"one image for each worker at most: a new one has memory")
			}
			// An unreadable file without the name of an image has no row, but is counted as unreadable.
			require.Equal(t, someDisks, len(s.rows)+s.sum.UnreadableCount)
			require.Equal(t, map[bool]int{true: 3, false: 1}[s.sum.Failed+s.sum.UnreadableCount == 0], s.code)
			for path, i := range s.rows {
				if !off(i) {
					require.Equal(t, results.Failed, i.State, path)
					if tc.code != "" {
						require.Equal(t, tc.code, i.Error.Code, "%s: %s", path, i.Error.Message)
					}
				}
			}
		})
	}
}

// No process remains after any end of a scan. A stopped worker cannot end by itself.
func TestScanLeavesNoProcess(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	for name, s := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT} {
		for _, frozen := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", workers stopped"}[frozen], func(t *testing.T) {
				l := startHeld(t, "-o", "json", "--jobs", "2", dir)
				l.middle(t, 5)
				pids := l.workers()
				if frozen {
					pids = l.freeze(t)
				}
				l.signal(t, s)
				if frozen && s != syscall.SIGKILL { // which also ends stopped processes
					l.signal(t, syscall.SIGCONT)
				}
				l.end(t)
				requireGone(t, pids)
			})
		}
	}
	t.Run("a reader that wants no more", func(t *testing.T) {
		sh := `"$@" | head -n 2`
		r := run(t, disktest.Tool(t, "sh"), "-c", sh, "sh", builtPath, "scan", "-o", "json", "--jobs", "2", dir)
		require.Zero(t, r.code, r.stderr)
		disktest.WaitFor(t, "the end of the workers", func() bool {
			return exec.Command("pgrep", "-f", "^trueup-worker .*"+filepath.Base(dir)).Run() != nil
		})
	})
}

// A signal ends the scan with a report of the images so far; --since reuses their rows.
func TestScanInterrupted(t *testing.T) {
	t.Parallel()
	for _, s := range endSignals {
		t.Run(s.String(), func(t *testing.T) {
			dir := manyDisks(t, someDisks)
			last := filepath.Join(t.TempDir(), "last.ndjson")
			args := []string{"-o", "json", "--jobs", "2", dir}
			disktest.WaitSettled(t, dir) // images as recent as the scan are read again
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

// requireScanInterrupted requires that an interrupted scan reports its reaction at once, and its result at the end.
func requireScanInterrupted(t *testing.T, stderr string) {
	t.Helper()
	require.Regexp(t, "^trueup: interrupted: completing the report of the images inspected so far; "+
		"interrupt again to end at once\n"+
		"trueup: interrupted: [^\n]* looked at, and the report has those[^\n]*\n$", stderr)
}

// TestScanInterruptedReports requires that the report of an interrupted scan takes the place of an older one, and says
// what it is. internal/scan/results has each format say so.
func TestScanInterruptedReports(t *testing.T) {
	t.Parallel()
	dir, out := manyDisks(t, 5*someDisks), filepath.Join(t.TempDir(), "report")
	older := func() { require.NoError(t, os.WriteFile(out, []byte("an older report\n"), 0o644)) }
	older()
	l := startStopped(t, 5*someDisks, older, "-o", "json", "--out", out, dir)
	l.signal(t, syscall.SIGTERM)
	l.signal(t, syscall.SIGCONT)
	r := l.end(t)
	require.Equal(t, 128+int(syscall.SIGTERM), r.code)
	require.Empty(t, r.stdout)
	requireScanInterrupted(t, r.stderr)
	require.Equal(t, []string{"report"}, folderNames(t, filepath.Dir(out)), "nothing is left beside the report")
	s := readScan(t, result{stdout: string(disktest.ReadFile(t, out)), code: 128 + int(syscall.SIGTERM)})
	require.False(t, s.sum.Complete)
}

// The second signal ends the scan at once, even if the first one still waits for a reader that reads nothing.
func TestScanSecondSignal(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	l := startHeld(t, "-o", "json", "--jobs", "2", "--isolation", "none", dir)
	l.middle(t, 5)
	waitIdle(t, l.cmd.Process.Pid) // the pipe is full
	l.signal(t, syscall.SIGINT)
	disktest.WaitFor(t, "the answer to the first signal",
		func() bool { return strings.Contains(l.stderr.String(), "interrupt again to end at once\n") })
	l.signal(t, syscall.SIGTERM)
	disktest.WaitClosed(t, "the end of the scan", l.ended)
	require.Equal(t, 128+int(syscall.SIGTERM), l.end(t).code)
}

// TestScanSinceIsEnded ends scans that would replace the results that they read: those stay.
func TestScanSinceIsEnded(t *testing.T) {
	t.Parallel()
	dir, last := manyDisks(t, 5*someDisks), filepath.Join(t.TempDir(), "last.ndjson")
	scan(t, append(since(last), filepath.Join(dir, "folder-00"))...)
	before := disktest.ReadFile(t, last)
	restore := func() { require.NoError(t, os.WriteFile(last, before, 0o600)) }
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		l := startStopped(t, 5*someDisks, restore, append(since(last), "-o", "json", dir)...)
		l.signal(t, s)
		if s != syscall.SIGKILL { // which also ends a frozen process
			l.signal(t, syscall.SIGCONT)
		}
		r := l.end(t)
		require.Equal(t, 128+int(s), r.code, r.stderr)
		require.Equal(t, before, disktest.ReadFile(t, last), s)
		if s == syscall.SIGTERM {
			require.Contains(t, r.stderr, "interrupted: "+last+" is unchanged")
			require.Equal(t, []string{"last.ndjson"}, folderNames(t, filepath.Dir(last)))
		}
	}
	whole := scan(t, append(since(last), dir)...)
	require.Equal(t, []string{"last.ndjson"}, folderNames(t, filepath.Dir(last)), "what was killed left nothing")
	require.Len(t, whole.rows, 5*someDisks)
	require.Positive(t, whole.sum.Changes.Same)
}

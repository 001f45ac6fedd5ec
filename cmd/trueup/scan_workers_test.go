package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// someDisks are enough that a scan of them takes a while.
const someDisks = 300

// Workers that are killed cost the images that they were at, and nothing else.
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
		waitIdle(t, l.cmd.Process.Pid) // each worker has an image now, and does nothing with it
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

// A worker that gets neither memory nor files, as it is when a machine is short of them.
func TestScanWorkersAreStarved(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	for name, tc := range map[string]struct {
		limit, code string
	}{
		"no files":  {"--nofile=3:3", "io"},
		"no memory": {"--data=1:1", ""}, // which ends it: what the runtime does then depends on what it was at
	} {
		t.Run(name, func(t *testing.T) {
			l := startHeld(t, "-o", "json", "--jobs", "2", dir)
			l.middle(t, 5)
			starved := 0
			for _, pid := range l.workers(t) {
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
			// A file without the name of an image that cannot be opened is no row, but a place that could not be looked
			// at.
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

// No process is left, whatever a scan ends with. A worker that is stopped cannot end by itself.
func TestScanLeavesNoProcess(t *testing.T) {
	t.Parallel()
	dir := manyDisks(t, someDisks)
	for name, s := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "interrupted": syscall.SIGINT} {
		for _, frozen := range []bool{true, false} {
			t.Run(name+map[bool]string{true: ", workers stopped"}[frozen], func(t *testing.T) {
				l := startHeld(t, "-o", "json", "--jobs", "2", dir)
				l.middle(t, 5)
				pids := l.workers(t)
				if frozen {
					pids = l.freeze(t)
				}
				l.signal(t, s)
				if frozen && s != syscall.SIGKILL { // which also ends what is stopped
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

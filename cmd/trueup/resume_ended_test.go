package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// The tests here have copies that can go on, and the runs that go on, end at each operation of a file system, which
// counts them over all threads: by a kill, or by an error.

// through shows the folder of DEST through a file system with a journal.
func (c *resumeCase) through(t *testing.T, j *oddfs.Journal) {
	t.Helper()
	c.dest = filepath.Join(oddfs.Mount(t, c.behind, oddfs.Manners{Journal: j}), filepath.Base(c.dest))
}

// killAt runs a command that is killed in front of an operation, and reports whether it came there. One that did not
// has succeeded.
func (c *resumeCase) killAt(t *testing.T, j *oddfs.Journal, at int, args []string) (killed bool) {
	t.Helper()
	cmd := exec.Command(builtPath, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	var starting sync.Mutex
	starting.Lock()
	j.KillAt(at, func() {
		starting.Lock()
		defer starting.Unlock()
		_ = cmd.Process.Kill() // it waits for this operation, or is dead
	})
	err := cmd.Start()
	starting.Unlock()
	require.NoError(t, err)
	err = cmd.Wait()
	if killed = cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled(); !killed {
		require.NoError(t, err, "%s", &out)
	}
	disktest.WaitFor(t, "its files to be closed", j.Idle)
	j.Restart(0)
	return killed
}

// requireGoesOn requires that DEST is absent or complete, and completes it.
func (c *resumeCase) requireGoesOn(t *testing.T, at string) {
	t.Helper()
	name, left := filepath.Base(c.dest), sumsOf(t, c.behind)
	if left[name] != "" {
		for file, sum := range c.want {
			require.Equal(t, sum, left[file], "%s: DEST is there and %s is not complete: %v", at, file, left)
		}
	}
	if c.open() {
		r := trueup(t, c.resume()...)
		if r.code == 0 {
			require.FileExists(t, filepath.Join(c.behind, name), at)
		} else { // the journal may be of a run that had not begun
			require.Equal(t, 4, r.code, "%s, which left %v: %s", at, left, r.stderr)
			require.Contains(t, r.stderr, "nothing was begun", at)
			require.Len(t, left, 1, at)
			r = trueup(t, "undo", c.dest)
			require.Equal(t, 0, r.code, "%s: %s", at, r.stderr)
		}
	}
	if left[name] == "" && !c.open() && !slices.Contains(folderNames(t, c.behind), name) {
		r := trueup(t, c.align()...)
		require.Equal(t, 0, r.code, "%s: %s", at, r.stderr)
	}
	require.Equal(t, c.want, sumsOf(t, c.behind), "%s, which left %v", at, left)
}

// snapshot keeps the folder of DEST as it is, and returns what brings it back.
func (c *resumeCase) snapshot(t *testing.T) (restore func(t *testing.T)) {
	t.Helper()
	kept := t.TempDir()
	disktest.Run(t, "cp", "-a", "--sparse=always", c.behind+"/.", kept)
	return func(t *testing.T) {
		t.Helper()
		c.clear(t)
		disktest.Run(t, "cp", "-a", "--sparse=always", kept+"/.", c.behind)
	}
}

// endedDisk is a small disk with little on it: each of its copies is ended hundreds of times.
func endedDisk(t *testing.T) string {
	t.Helper()
	raw := madeDisks[2].make(t, t.TempDir())
	disktest.WriteAt(t, raw, 6<<20, noise("ended", 1<<20))
	return raw
}

// share returns the formats of a test, and that it takes one operation of so many. With TRUEUP_KILLS it takes all.
func share(of int) (every int, formats []string) {
	if os.Getenv("TRUEUP_KILLS") != "" {
		return 1, resumable
	}
	return of, resumable[:5]
}

// endedCopy is a copy that was killed.
type endedCopy struct {
	where string
	ready func(t *testing.T) // brings it back
}

// ended returns copies that were killed: in the middle of the data, in front of the name of DEST, and behind it.
func (c *resumeCase) ended(t *testing.T, j *oddfs.Journal) (out []endedCopy) {
	t.Helper()
	c.clear(t)
	j.Restart(0)
	require.Equal(t, 0, trueup(t, c.align()...).code)
	all := j.Changes()
	named := 1 + slices.Index(all, "rename2 "+filepath.Base(c.dest))
	require.Positive(t, named, "%q", all)
	for i, at := range []int{len(all) / 2, named, named + 1} {
		c.clear(t)
		require.True(t, c.killAt(t, j, at, c.align()))
		out = append(out, endedCopy{[]string{"data", "unnamed", "named"}[i], c.snapshot(t)})
	}
	return out
}

// TestKillAndResume kills a copy that can go on, and the run that goes on, in front of each operation that changes
// something in the folder of DEST. The next run ends in the bytes of a copy that nothing disturbed. Without
// TRUEUP_KILLS it is a share of the operations and formats.
func TestKillAndResume(t *testing.T) {
	t.Parallel()
	every, formats := share(23)
	source := endedDisk(t)
	for n, format := range formats {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			var j oddfs.Journal
			c := newResumeCase(t, format, source)
			c.through(t, &j)
			kills := map[string]int{}
			sweep := func(what string, ready func(t *testing.T), args []string) {
				for at := 1 + n%every; ; at += every {
					ready(t)
					if !c.killAt(t, &j, at, args) {
						return
					}
					kills[what]++
					c.requireGoesOn(t, fmt.Sprintf("%s, killed at operation %d", what, at))
				}
			}
			sweep("align", c.clear, c.align())
			for _, e := range c.ended(t, &j) {
				sweep("resume "+e.where, e.ready, c.resume())
			}
			t.Logf("kills: %v", kills)
			require.Positive(t, kills["align"])
			require.Positive(t, kills["resume data"])
		})
	}
}

// TestCallsOfAResumeFail has each operation of a copy that can go on, and of the run that goes on, fail. The run says
// so, DEST is absent or complete, and the next run completes it.
func TestCallsOfAResumeFail(t *testing.T) {
	t.Parallel()
	every, formats := share(61)
	errnos := []syscall.Errno{syscall.EIO, syscall.ENOSPC}
	if every > 1 {
		formats, errnos = formats[1:3], errnos[:1]
	}
	source := endedDisk(t)
	for n, format := range formats {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			for _, errno := range errnos {
				j := oddfs.Journal{Errno: errno}
				c := newResumeCase(t, format, source)
				c.through(t, &j)
				failed, i := map[string]int{}, n
				for _, e := range c.ended(t, &j) {
					if errno == syscall.ENOSPC && e.where != "data" {
						continue
					}
					j.EachFails(func(fails bool) {
						if i++; !fails || i%every == 0 {
							failed[e.where] += c.fails(t, &j, fails, e.ready, c.resume())
						}
					})
				}
				j.EachFails(func(fails bool) {
					if i++; !fails || i%every == 0 {
						failed["align"] += c.fails(t, &j, fails, c.clear, c.align())
					}
				})
				t.Logf("%v: %v", errno, failed)
				// A trial of links fails as on a file system without, and a read that ends early goes on where it
				// ended. That the removal of the journal may not be durable, and that a second name stays, are notes.
				j.RequireNoticed(t, map[string]int{
					"fsyncdir": 2, "link": 1, "lock": 2, "open": 10, "read": 1 << 10, "unlink": 3, "write": 1 << 10,
				})
			}
		})
	}
}

// fails runs a command of which an operation may fail, and returns how many runs failed.
func (c *resumeCase) fails(t *testing.T, j *oddfs.Journal, may bool, ready func(t *testing.T), args []string) int {
	t.Helper()
	ready(t)
	r := trueup(t, args...)
	at := fmt.Sprintf("%s, %q: %d %s%s", args[0], j.Failed(), r.code, r.stdout, r.stderr)
	require.NotContains(t, r.stderr, "goroutine ", at)
	if !may {
		require.Equal(t, 0, r.code, at)
		return 0
	}
	if r.code == 0 {
		j.Ignored()
	}
	j.Restart(0)
	if r.code == 0 && !c.open() { // a second name of a file may stay; the next run with this DEST would remove it
		for file := range c.want {
			first, err := os.Stat(filepath.Join(c.behind, file))
			require.NoError(t, err, at)
			second := filepath.Join(c.behind, "."+file+".partial")
			if st, err := os.Stat(second); err == nil && os.SameFile(first, st) {
				require.NoError(t, os.Remove(second))
			}
		}
	}
	c.requireGoesOn(t, at)
	return min(r.code, 1)
}

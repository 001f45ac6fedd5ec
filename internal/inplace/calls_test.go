package inplace

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/journal"
)

// request is a command, and the path of a disk.
type request struct{ Command, Path string }

// answerTo performs a request and returns the text of its error.
func answerTo(t *testing.T, r request) (said string) {
	t.Helper()
	f := &onFiles{t: t, dir: filepath.Dir(r.Path), path: r.Path, far: true}
	var err error
	switch r.Command {
	case "move":
		err = f.begin(-1)
	case "half":
		err = f.begin(1)
	default:
		err = f.again(r.Command, nil)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// snapshot reads the files of a folder.
func snapshot(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		out[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
	}
	return out
}

// putBack restores the files of a folder, and keeps the inodes of existing ones.
func (f *onFiles) putBack(was map[string][]byte) {
	f.t.Helper()
	for name := range snapshot(f.t, f.dir) {
		if _, ok := was[name]; !ok {
			require.NoError(f.t, os.Remove(filepath.Join(f.dir, name)))
		}
	}
	for name, b := range was {
		f.put(name, b)
	}
}

// TestEveryCallOfAMoveFails fails each file system call of a move, a resume and an undo in turn. The run reports the
// error, or ends as if nothing had failed. The disk is the old or the new one, or marked; then the next run completes
// it.
func TestEveryCallOfAMoveFails(t *testing.T) {
	if oddfs.Answered(t, func(r request) string { return answerTo(t, r) }) {
		return
	}
	t.Parallel()
	if disktest.Raced {
		t.Skip("its processes have one goroutine each")
	}
	// The last one resumes a move that has ended except for its journal, and whose descriptor was restored with its old
	// text.
	for _, command := range []string{"move", "resume", "undo", "resume at the end"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			var j oddfs.Journal
			f, asked := (&onFiles{t: t, far: true}).write(true), oddfs.Asker[request, string](t)
			ask := func(command, path string) string { return asked(request{command, path}) }
			old := snapshot(t, f.dir)
			path := filepath.Join(oddfs.Mount(t, f.dir, oddfs.Manners{Journal: &j}), filepath.Base(f.path))
			require.Empty(t, ask("move", path))
			moved := snapshot(t, f.dir)
			j.End()
			f.putBack(old)
			begun, want, last := old, moved, "unlink "+filepath.Base(path)+journal.Suffix
			switch command {
			case "resume", "undo":
				require.Contains(t, ask("half", path), "resume")
				begun = snapshot(t, f.dir)
			case "resume at the end":
				j.RestartFailing(last, 1)
				require.Contains(t, ask("move", path), "input/output error")
				f.put("vm.vmdk", old["vm.vmdk"])
				begun = snapshot(t, f.dir)
			}
			command, _, _ := strings.Cut(command, " ")
			if command == "undo" {
				want = old
			}
			n := 0
			j.EachFails(func(fails bool) {
				f.putBack(begun)
				said, failed := ask(command, path), j.Failed()
				now := snapshot(t, f.dir)
				if !fails {
					require.Empty(t, said)
					requireDurable(t, j.Changes())
				}
				if said == "" {
					j.Ignored()
					require.True(t, maps.EqualFunc(want, now, bytes.Equal), failed)
					return
				}
				j.End()
				n++
				f.requireGoesOn(ask, path, now, old, moved, n, failed+": "+said)
			})
			// Writers of a file are unknown if it cannot be opened to look for them, or has no leases.
			j.RequireNoticed(t, map[string]int{"lock": 10, "open": 2, "statfs": 2})
		})
	}
}

// requireDurable requires that files are flushed before names change, and folders after that.
func requireDurable(t *testing.T, done []string) {
	t.Helper()
	before := ""
	for i, op := range done {
		kind, _, _ := strings.Cut(op, " ")
		switch kind {
		case "rename2", "unlink":
			require.NotContains(t, []string{"write", "truncate"}, before, "%s: %v", op, done)
			require.Equal(t, "fsyncdir", done[i+1], "%s: %v", op, done)
		case "write", "truncate", "fsync":
			before = kind
		}
	}
	require.Contains(t, strings.Join(done, " "), "write fsync fsync", "both files of the disk")
}

// requireGoesOn requires of a failed run that the disk is the old one, or that the next run completes it.
func (f *onFiles) requireGoesOn(
	ask func(command, path string) string, path string, now, old, moved map[string][]byte, n int, at string,
) {
	t := f.t
	t.Helper()
	if _, open := now[filepath.Base(f.path)+journal.Suffix]; !open {
		require.True(t, maps.EqualFunc(old, now, bytes.Equal) || maps.EqualFunc(moved, now, bytes.Equal), at)
		return
	}
	disk := f.disk()
	marked := bytes.HasPrefix(disk, []byte(MarkText))
	require.True(t, marked || bytes.Equal(disk, f.old) || bytes.Equal(disk, f.want), at)
	said := ask([]string{"resume", "undo"}[n%2], path)
	if strings.Contains(said, errCommitted.Error()) {
		said = ask("resume", path)
	}
	if strings.Contains(said, "nothing to resume") {
		said = ask("undo", path)
	}
	require.Empty(t, said, at)
	now = snapshot(t, f.dir)
	require.True(t, maps.EqualFunc(old, now, bytes.Equal) || maps.EqualFunc(moved, now, bytes.Equal), at)
}

//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/sys"
)

// follower writes a program of the shell, and returns its path and that of the file which it may write.
func follower(t testing.TB, lines string) (program, seen string) {
	t.Helper()
	dir := t.TempDir()
	program, seen = filepath.Join(dir, "next"), filepath.Join(dir, "seen")
	text := "#!/bin/sh\nset -e\nseen=" + seen + "\n" + lines + "\n"
	require.NoError(t, os.WriteFile(program, []byte(text), 0o755))
	return program, seen
}

// The command sees what --json prints, when DEST is there, and prints to standard error.
func TestCommandAfterACopy(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 1)
	for _, command := range []string{"align", "convert"} {
		dest := filepath.Join(t.TempDir(), "dest.img")
		program, seen := follower(t, `cat > "$seen"; test -f "$2"; echo "got $1"`)
		r := trueup(t, command, "--json", "--after", program+" word "+dest, source, dest)
		require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
		got := disktest.ReadFile(t, seen)
		require.True(t, json.Valid(got))
		require.Equal(t, r.stdout, string(got))
		require.Equal(t, "got word\n", r.stderr)
	}
}

// A command that fails does not undo the copy, and a copy that fails has no command run.
func TestFailureAfterACopy(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 1)
	dest := filepath.Join(t.TempDir(), "dest.img")
	program, seen := follower(t, `: > "$seen"; exit 3`)
	r := trueup(t, "align", "--after", program, filepath.Dir(dest), dest)
	require.NotEqual(t, 0, r.code)
	require.NoFileExists(t, seen)
	for _, wrong := range []string{
		"", "  ", program + " 'a b'", program + " | cat",
		filepath.Join(t.TempDir(), "absent"),
	} {
		r := trueup(t, "align", "--after="+wrong, source, dest)
		require.Equal(t, 64, r.code, "%q: %s", wrong, r.stderr)
		requireOneLine(t, r.stderr)
		require.NoFileExists(t, dest)
	}
	r = trueup(t, "align", "--json", "--after", program, source, dest)
	require.Equal(t, 1, r.code, r.stderr)
	validate(t, r.stdout)
	require.Equal(t, "trueup: --after "+program+": exit status 3; "+dest+" itself is complete\n", r.stderr)
	require.FileExists(t, seen)
	require.FileExists(t, dest)
}

// Ctrl-C ends the command, with what that has started, and DEST stays.
func TestInterruptAfterACopy(t *testing.T) {
	t.Parallel()
	dest := filepath.Join(t.TempDir(), "dest.img")
	code, said := interruptedCommand(t, "align", noisyDisk(t, 1), dest)
	require.Equal(t, 1, code, said)
	require.Contains(t, said, "the command was interrupted; "+dest+" itself is complete")
	require.FileExists(t, dest)
}

// interruptedCommand interrupts a run when its command runs, and requires that the command ends.
func interruptedCommand(t *testing.T, args ...string) (code int, output string) {
	t.Helper()
	program, seen := follower(t, `echo $$ > "$seen.part"; mv "$seen.part" "$seen"; sleep 1000`)
	cmd := exec.Command(builtPath, append(args, "--after", program)...)
	var said lockedBuffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	var pid string
	disktest.WaitFor(t, "the command", func() bool {
		text, err := os.ReadFile(seen)
		pid = strings.TrimSpace(string(text))
		return err == nil
	})
	require.NoError(t, cmd.Process.Signal(sys.Interrupt))
	_ = cmd.Wait()
	_, _, alive := statOf(pid)
	require.False(t, alive, "the command still runs")
	return cmd.ProcessState.ExitCode(), said.String()
}

// TestCommandAfterEachRow requires that scan runs the command for each row, in the order of the rows, with the line
// that --json prints. One that fails is named, and ends the run with 1, whatever counts of images.
func TestCommandAfterEachRow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"a.raw", "b.raw", "c.raw"} {
		smallDisk(t, filepath.Join(dir, name), 63)
	}
	program, seen := follower(t, `cat >> "$seen"; echo ran`)
	r := trueup(t, "scan", "--json", "--after", program, dir)
	require.Equal(t, 3, r.code, r.stderr)
	rows := strings.SplitAfter(r.stdout, "\n")
	got := disktest.ReadFile(t, seen)
	require.Equal(t, strings.Join(rows[:3], ""), string(got))
	require.Equal(t, "ran\nran\nran\n", r.stderr)

	program, _ = follower(t, `if grep -q b.raw; then exit 7; fi`)
	r = trueup(t, "scan", "--json", "--fail-on", "never", "--after", program, dir)
	require.Equal(t, 1, r.code, r.stderr)
	for line := range strings.Lines(r.stdout) {
		validate(t, line)
	}
	b := filepath.Join(dir, "b.raw")
	require.Contains(t, r.stdout, `"after_failed":[{"path":"`+b+`","message":"exit status 7"}],"after_failures":1`)
	r = trueup(t, "scan", "--fail-on", "never", "--after", program, dir)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stdout, "The command of --after failed for 1 image:\n    "+b+": exit status 7\n")
	require.Equal(t, 64, trueup(t, "scan", "--after", program+" | cat", dir).code)
}

// Ctrl-C ends a command of scan, and what it has started.
func TestInterruptAfterARow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallDisk(t, filepath.Join(dir, "a.raw"), 63)
	code, said := interruptedCommand(t, "scan", dir)
	require.Equal(t, 130, code, said)
	require.Contains(t, said, "Interrupted")
}

// killedBefore are runs that are killed on their way, with the flags of strace for that.
var killedBefore = map[string][]string{
	"--resumable": {"-P", ".dest.img.partial", "-e", "trace=renameat2", "-e", "inject=renameat2:signal=KILL"},
	"--replace":   {"-e", "trace=renameat", "-e", "inject=renameat:signal=KILL:when=1"},
	"--in-place":  {"-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=6"},
}

// TestCommandAfterAKill kills runs that were to be followed by a command. resume says that it was not run, or runs the
// one that it is given, and so does an exchange that is given once more. undo runs none.
func TestCommandAfterAKill(t *testing.T) {
	t.Parallel()
	program, seen := follower(t, `cat > "$seen"`)
	for kind, inject := range killedBefore {
		for _, next := range []string{"resume", "resume --after", "undo", "again"} {
			disk := noisyDisk(t, 4)
			args, path := []string{"align", "-q", kind, "--after", program, disk}, disk
			if kind == "--resumable" {
				path = filepath.Join(t.TempDir(), "dest.img")
				args = append(args, path)
			}
			for range 20 { // see killLate
				if _ = underStrace(t, os.DevNull, inject, args).Run(); fileExists(path + ".trueup") {
					break
				}
			}
			require.NoFileExists(t, seen)
			command := append(strings.Fields(next), path)
			switch {
			case next == "resume --after":
				command = []string{"resume", "--json", "--after", program, path}
			case next == "again" && kind == "--replace":
				command = args
			case next == "again":
				continue
			}
			r := trueup(t, command...)
			require.Equal(t, 0, r.code, "%s %s: %s%s", kind, next, r.stdout, r.stderr)
			require.Equal(t, next == "resume", strings.Contains(strings.Join(strings.Fields(r.stdout), " "),
				`--after "`+program+`" of the run that was ended was not run`), "%s %s: %s", kind, next, r.stdout)
			got, err := os.ReadFile(seen)
			if next == "resume" || next == "undo" {
				require.ErrorIs(t, err, os.ErrNotExist)
				continue
			}
			require.NoError(t, err, "%s %s", kind, next)
			validate(t, string(got))
			require.NoError(t, os.Remove(seen))
		}
	}
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The tests here have calls of moves in place, of their resume and of their undo fail, and look at what is left.

// moveFaults are what a call meets, in the words of strace, each with what the run prints then: errors of a storage, a
// call that is interrupted, which is repeated, and signals that end a run.
var moveFaults = []struct {
	inject, says string
	code         int
}{
	{"error=EIO", "input/output error", 1},
	{"error=ENOSPC", "no space left on device", 1},
	{"error=EINTR", "interrupted system call", 1},
	{"signal=INT", "interrupted", 130},
	{"signal=TERM", "interrupted", 143},
}

// faultCalls are the system calls that fail: those that change something, and those that read the disk or look at it,
// but for those with which the runtime of Go begins.
const faultCalls = moveCalls + ",pread64,lseek,newfstatat"

// underStrace returns a run of trueup under strace, which writes to log.
func underStrace(t testing.TB, log string, args, command []string) *exec.Cmd {
	t.Helper()
	args = append([]string{"-f", "-qq", "-o", log}, args...)
	return exec.Command(disktest.Tool(t, "strace"), append(append(args, builtPath), command...)...)
}

// inTheMiddle makes the disk what it was before, and kills a move of it at a flush in the middle of its stretches.
func (c *moveCase) inTheMiddle(t testing.TB) {
	t.Helper()
	c.reset(t)
	_ = c.traced(t, os.DevNull, "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=8").Run()
	r := trueup(t, "inspect", c.path)
	require.Equal(t, 4, r.code, "the move did not begin: %s%s", r.stdout, r.stderr)
}

// TestCallsOfAMoveFail has calls of a move, of a resume and of an undo fail or be interrupted by a signal. The run says
// so, and the next one completes the move or takes it back. With TRUEUP_KILLS it is each call with each fault.
func TestCallsOfAMoveFail(t *testing.T) {
	t.Parallel()
	all, disks := os.Getenv("TRUEUP_KILLS") != "", map[string]diskFormat{"grows": formatFlat}
	if all {
		disks = map[string]diskFormat{"two ntfs and a hive": formatFlat, "gpt": formatRaw}
	}
	for name, f := range disks {
		for _, command := range []string{"align", "resume", "undo"} {
			t.Run(name+", "+command, func(t *testing.T) {
				t.Parallel()
				c := newMove(t, f, moveDisks[name](t))
				args := map[string][]string{"align": {"move", "-q", c.path}}[command]
				ready := c.reset
				if args == nil {
					args, ready = []string{command, c.path}, c.inTheMiddle
				}
				ready(t)
				log := filepath.Join(t.TempDir(), "all")
				text, err := underStrace(t, log, []string{"-e", "trace=" + faultCalls}, args).CombinedOutput()
				require.NoError(t, err, "%s", text)
				points, quiet, failed := callsIn(t, log), map[string]string{}, 0
				for i, p := range points {
					for k, fault := range moveFaults {
						some := (i*len(moveFaults)+k)%(len(points)*len(moveFaults)/3) == 7*len(command) ||
							k == 0 && p.call == "fsync" && p.number == 3 // no run survives a flush that fails
						if !all && !some || all && !p.worth(i, k) {
							continue
						}
						ready(t)
						inject := fmt.Sprintf("inject=%s:%s:when=%d", p.call, fault.inject, p.number)
						r := run(t, disktest.Tool(t, "strace"), underStrace(t, os.DevNull,
							[]string{"-e", "trace=" + p.call, "-e", inject}, args).Args[1:]...)
						at := fmt.Sprintf("%s, %s: %d %s%s", command, inject, r.code, r.stdout, r.stderr)
						require.Contains(t, []int{0, 1, 4, fault.code}, r.code, at)
						if r.code == 0 {
							c.requireEnd(t, command, at)
							continue
						}
						failed++
						require.NotRegexp(t, "goroutine |context canceled", r.stderr, at)
						if !strings.Contains(r.stderr, fault.says) {
							quiet[p.call+" "+fault.inject] = at
						}
						c.goesOn(t, []string{"resume", "undo"}[(i+k)%2], at)
					}
				}
				require.Positive(t, failed, "%d points", len(points))
				t.Logf("%d points, %d runs failed; without the cause: %q", len(points), failed, quiet)
			})
		}
	}
}

// worth reports whether a call is tried with fault number k: those that change something with all of them, the others,
// which are many, with one, and less often.
func (p callPoint) worth(i, k int) bool {
	if strings.Contains(moveCalls, p.call) && p.call != "close" {
		return true
	}
	return k == i%len(moveFaults) && (p.number <= 30 || p.number%8 == 0)
}

// requireEnd requires what a command that succeeded has to leave.
func (c *moveCase) requireEnd(t testing.TB, command, at string) {
	t.Helper()
	_, err := os.Stat(c.path + ".trueup")
	require.ErrorIs(t, err, os.ErrNotExist, at)
	if command == "undo" {
		c.requireOld(t)
		return
	}
	require.Equal(t, c.want, c.disk(t), at)
}

// TestMoveOnAFullFileSystem takes all space away in the middle of a move, before the journal has saved its second
// stretch. A resume and an undo fail and say why, and go on when there is room.
func TestMoveOnAFullFileSystem(t *testing.T) {
	t.Parallel()
	raw, folder := noisyDisk(t, 24), t.TempDir()
	dest := filepath.Join(t.TempDir(), "copy.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", raw, dest).code)
	script := `cd "$1" && cp "$3" disk && "$4" -f -qq -o /dev/null -e trace=fsync -e inject=fsync:signal=KILL:when=6 \
			"$2" move -q disk
		head -c 1G /dev/zero >fill 2>/dev/null; test -e disk.trueup || exit 99
		"$2" resume disk 2>&1; echo "full: $?"; "$2" undo disk 2>&1; echo "full: $?"
		"$2" inspect disk 2>&1; echo "inspect: $?"; rm fill; "$2" $5 disk 2>&1; echo "room: $?"; sha256sum disk`
	for name, on := range smallStorages {
		for end, want := range map[string]string{"resume": sha256Of(t, dest), "undo": sha256Of(t, raw)} {
			r := on(t, 66, folder, "sh", "-c", script, "sh", folder, builtPath, raw, disktest.Tool(t, "strace"), end)
			said := strings.Join(strings.Fields(r.stdout), " ")
			require.Equal(t, 2, strings.Count(said, "no space left on device; the disk is in the middle of the move"),
				"%s: %s%s", name, r.stdout, r.stderr)
			require.Equal(t, 2, strings.Count(said, "full: 1"), r.stdout)
			require.Contains(t, said, "inspect: 4", r.stdout)
			require.Contains(t, said, "room: 0 "+want, r.stdout)
		}
	}
}

// TestMoveIsAlone stops a move in its middle, and starts every command that could disturb it: each is refused, and the
// move comes to its end.
func TestMoveIsAlone(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatFlat, moveDisks["grows"](t))
	log := filepath.Join(t.TempDir(), "log")
	cmd := c.traced(t, log, "-e", "trace=fsync", "-e", "inject=fsync:signal=STOP:when=8")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	disktest.WaitFor(t, "the move to be stopped", func() bool {
		b, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(b), "stopped by SIGSTOP")
	})
	for _, command := range [][]string{
		{"resume"},
		{"undo"},
		{"finish"},
		{"move"},
		{"inspect"},
		{"replace"},
	} {
		r := trueup(t, append(command, c.path)...)
		require.Contains(t, []int{1, 4}, r.code, "%q: %s%s", command, r.stdout, r.stderr)
		require.Contains(t, r.stderr, "another run of trueup", "%q", command)
	}
	require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGCONT))
	require.NoError(t, cmd.Wait())
	c.requireMoved(t)
}

// TestJournalCannotBeSeen has the look at the name of a journal fail: that is no disk without one.
func TestJournalCannotBeSeen(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatRaw, noisyDisk(t, 4))
	c.reset(t)
	for _, command := range []string{"inspect", "plan", "undo"} {
		r := run(t, disktest.Tool(t, "strace"), underStrace(t, os.DevNull, []string{
			"-P", filepath.Base(c.path) + ".trueup", "-e", "trace=newfstatat,openat", "-e",
			"inject=newfstatat,openat:error=EIO",
		}, []string{command, c.path}).Args[1:]...)
		require.Equal(t, 1, r.code, "%s: %s%s", command, r.stdout, r.stderr)
		require.Contains(t, r.stderr, "input/output error", command)
		requireOneLine(t, r.stderr)
	}
	c.requireOld(t)
}

// TestJournalElsewhere keeps the journal in another folder. The disk names it in the middle of the move.
func TestJournalElsewhere(t *testing.T) {
	t.Parallel()
	for _, f := range []diskFormat{formatRaw, formatFlat} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			c := newMove(t, f, twoNTFS(t))
			journal := filepath.Join(t.TempDir(), "journal")
			move := []string{"move", "-q", "--journal", journal, c.path}
			for _, command := range []string{"resume", "undo"} {
				c.reset(t)
				_ = exec.Command(disktest.Tool(t, "strace"), append([]string{
					"-f", "-qq", "-o", os.DevNull, "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=9",
					builtPath,
				}, move...)...).Run()
				require.FileExists(t, journal)
				shown := c.path
				if f == formatFlat {
					r := trueup(t, command, c.path)
					require.Equal(t, 4, r.code, r.stderr)
					require.Contains(t, r.stderr, `a move in place has left "`+c.path+`.moving"`)
					shown += ".moving"
				}
				r := trueup(t, "inspect", shown)
				require.Equal(t, 4, r.code, r.stdout)
				require.Contains(t, r.stderr, fmt.Sprintf("trueup %s %s --journal %s", command, c.path, journal))
				require.NotEqual(t, 0, trueup(t, move...).code)
				requireOthersStay(t, c, journal)
				r = trueup(t, command, c.path, "--journal", journal)
				require.Equal(t, 0, r.code, r.stderr)
				require.NoFileExists(t, journal)
				if command == "undo" {
					c.requireOld(t)
				} else {
					c.requireMoved(t)
				}
			}
			c.reset(t)
			require.Zero(t, trueup(t, move...).code)
			c.requireMoved(t)
			require.NoFileExists(t, journal)
		})
	}
}

package exchange_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/exchange"
)

// childEnv makes the test a process that runs one command: its name, the kind of the disk, and its folder. It does
// everything on its first thread, so that its calls can be counted.
const childEnv = "TRUEUP_TEST_EXCHANGE"

func init() { //nolint:gochecknoinits // the first thread can only be kept here
	if os.Getenv(childEnv) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	args := strings.Split(os.Getenv(childEnv), "\n")
	if len(args) != 3 {
		os.Exit(m.Run())
	}
	k := kinds[args[1]]
	var err error
	if args[0] == "publish" {
		var r *exchange.Result
		if r, err = k.publish(args[2]); err == nil {
			for _, n := range r.Notes {
				fmt.Fprintln(os.Stdout, n.Code)
			}
		}
	} else {
		err = k.command(args[2], args[0], false)
	}
	if err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child returns a process that runs a step, started by a program with arguments.
func child(step, kind, dir string, below ...string) *exec.Cmd {
	args := append(slices.Clone(below), os.Args[0])
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join([]string{step, kind, dir}, "\n"))
	return cmd
}

// changing matches the calls by which a step changes something, as a pattern of strace, and close, after the last.
const changing = "trace=/^(openat|pwrite64|write|ftruncate|fsync|rename|renameat|renameat2|link|linkat|" +
	"unlink|unlinkat|fchmod|fchown|fsetxattr|fcntl|close)$"

var traced = regexp.MustCompile(`(?m)^(\d+) +(\w+)\((.*)$`)

// point is a call of a step: its name and its number among calls of that name.
type point struct {
	call   string
	number int
}

// points lists the calls of a step, beginning with its first call on the journal.
func points(t *testing.T, strace, step, kind, dir string) (out []point) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	b, err := child(step, kind, dir, strace, "-f", "-o", log, "-e", changing).CombinedOutput()
	require.NoError(t, err, "%s", b)
	text := disktest.ReadFile(t, log)
	seen, first, begun := map[string]int{}, "", false
	for _, m := range traced.FindAllStringSubmatch(string(text), -1) {
		if first == "" {
			first = m[1]
		}
		if m[1] != first {
			continue
		}
		seen[m[2]]++
		if begun = begun || strings.Contains(m[3], ".trueup"); begun {
			out = append(out, point{m[2], seen[m[2]]})
		}
	}
	require.Greater(t, len(out), 5)
	return out
}

// killAt kills a step before a call.
func killAt(t *testing.T, strace, step, kind, dir string, p point) {
	t.Helper()
	inject := fmt.Sprintf("inject=%s:signal=KILL:when=%d", p.call, p.number)
	cmd := child(step, kind, dir, strace, "-f", "-o", "/dev/null", "-e", "trace="+p.call, "-e", inject)
	err := cmd.Run()
	require.Error(t, err, "%v of %s was not reached", p, step)
	require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
}

// everyKill kills each step at all of its calls instead of a sample.
const everyKill = "TRUEUP_KILLS"

// TestKilledAtEveryCall kills an exchange, and each command that completes or undoes it, before its system calls. The
// path of the disk always leads to one of the two disks, whole. Then a resume completes the exchange, and an undo
// restores each byte.
func TestKilledAtEveryCall(t *testing.T) {
	t.Parallel()
	strace := disktest.Tool(t, "strace")
	disktest.Tool(t, "qemu-img")
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	every := 24
	if disktest.Exhaustive {
		every = 12
	}
	if os.Getenv(everyKill) != "" {
		every = 1
	}
	for _, name := range []string{"raw", "flat", "split", "ova", "ovf", "raw by", "split by"} {
		k := kinds[name]
		for _, step := range []string{"publish", "resume", "undo", "finish"} {
			t.Run(name+" "+step, func(t *testing.T) {
				t.Parallel()
				ready := func() (dir string, before map[string]string) {
					switch dir, before = k.fresh(t); step {
					case "publish":
					case "resume":
						killAt(t, strace, "publish", name, dir, point{"renameat", 1})
					default:
						k.published(t, dir)
					}
					return dir, before
				}
				dir, _ := ready()
				all := points(t, strace, step, name, dir)
				kills := 0
				for i, p := range all {
					if i%every != len(name+step)%every {
						continue
					}
					for _, next := range map[string][]string{
						"publish": {"resume", "undo"}, "resume": {"resume", "undo"}, "undo": {"undo"},
						"finish": {"finish"},
					}[step] {
						dir, before := ready()
						killAt(t, strace, step, name, dir, p)
						k.requireGoesOn(t, dir, before, next, fmt.Sprintf("%s killed at %v", step, p))
						kills++
					}
				}
				t.Logf("%d calls, %d kills", len(all), kills)
			})
		}
	}
}

// requireGoesOn requires a whole disk at the path, and that a command completes or undoes the exchange.
func (k kind) requireGoesOn(t *testing.T, dir string, before map[string]string, command, when string) {
	t.Helper()
	left := disktest.Names(t, dir)
	require.Contains(t, []string{"old", "new"}, shows(t, filepath.Join(dir, k.main)), "%s: %q", when, left)
	err := k.command(dir, command, false)
	if errors.Is(err, fs.ErrNotExist) { // without a journal, before or after the exchange
		now := sums(t, dir)
		for n, sum := range before {
			if command != "finish" {
				require.Equal(t, sum, now[n], "%s: %s", when, n)
			}
		}
		return
	}
	require.NoError(t, err, "%s: %q", when, left)
	switch command {
	case "resume":
		k.requireExchanged(t, dir)
	case "undo":
		require.Equal(t, before, sums(t, dir), when)
	case "finish":
		require.ElementsMatch(t, k.new, disktest.Names(t, dir), when)
		require.Equal(t, "new", shows(t, filepath.Join(dir, k.main)), when)
	}
}

// A copy that was written under its own name, after a kill with a journal, neither gets the names of the disk nor is
// removed.
func TestCopyWrittenAfterAKill(t *testing.T) {
	t.Parallel()
	strace := disktest.Tool(t, "strace")
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	for _, name := range []string{"raw by", "split by"} {
		k := kinds[name]
		dir, _ := k.fresh(t)
		killAt(t, strace, "publish", name, dir, point{"linkat", 1})
		written := filepath.Join(dir, k.copyName(k.new[len(k.new)-1]))
		disktest.WriteAt(t, written, 0, []byte("guest"))
		before := sums(t, dir)
		for _, command := range []string{"resume", "undo"} {
			err := k.command(dir, command, false)
			require.ErrorContains(t, err, "was written since the exchange began", command)
			require.Equal(t, before, sums(t, dir))
		}
		require.NoError(t, os.Rename(written, filepath.Join(dir, "mine")))
		err := k.command(dir, "undo", false)
		require.NoError(t, err)
		require.Equal(t, "old", shows(t, filepath.Join(dir, k.main)))
		require.FileExists(t, filepath.Join(dir, "mine"))
	}
}

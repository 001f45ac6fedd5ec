//go:build !windows

package store

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// childEnv makes the test a process that writes the simulated disk to a device. It does everything on its first thread,
// so that its calls can be counted.
const childEnv = "TRUEUP_TEST_DEVICE"

func init() { //nolint:gochecknoinits // the first thread can only be kept here
	if os.Getenv(childEnv) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	path := os.Getenv(childEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := writeDevice(path); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// writeDevice writes to a device like a job, with the edges of the simulation.
func writeDevice(path string) error {
	d, err := Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	claimed, err := d.Create(Options{Disk: disk.Range{Len: d.Size}, Stop: func() error { return nil }})
	if err != nil {
		return err
	}
	o := newOutput(d.Path, claimed.m, d.Size, d.Sector, simEdges)
	o.dir, o.base, o.reread = claimed.dir, claimed.base, claimed.reread
	return errors.Join(copyTo(o, wanted()), o.Discard())
}

// changing matches calls that change a device, reading those that read it back, as patterns of strace.
const changing, reading = "pwrite64|ioctl|fsync|fallocate", "|pread64"

var traced = regexp.MustCompile(`(?m)^(\d+) +(\w+)\(`)

// onLoop is a loop device.
type onLoop struct{ strace, path, file string }

func newLoop(t *testing.T) onLoop {
	t.Helper()
	l := onLoop{strace: disktest.Tool(t, "strace"), file: filepath.Join(t.TempDir(), "device")}
	require.NoError(t, os.WriteFile(l.file, noise(1), 0o600))
	l.path = disktest.LoopDevice(t, l.file)
	return l
}

// write writes the device in a process under strace, and returns its result.
func (l onLoop) write(log, calls string, more ...string) (ended syscall.WaitStatus, said string) {
	args := append([]string{"-f", "-qq", "-o", log, "-P", l.path, "-e", "trace=" + calls}, more...)
	cmd := exec.Command(l.strace, append(args, os.Args[0])...)
	cmd.Env = append(os.Environ(), childEnv+"="+l.path)
	out, _ := cmd.CombinedOutput() // its end says the same
	return cmd.ProcessState.Sys().(syscall.WaitStatus), string(out)
}

// calls lists the calls of an undisturbed run: their names, each with its number.
func (l onLoop) calls(t *testing.T, pattern string) (out [][2]string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	ended, said := l.write(log, "/^("+pattern+")$")
	require.Zero(t, ended, said)
	text := disktest.ReadFile(t, log)
	seen, first := map[string]int{}, ""
	for _, m := range traced.FindAllStringSubmatch(string(text), -1) {
		if first == "" {
			first = m[1]
		}
		require.Equal(t, first, m[1], "a call of another thread")
		seen[m[2]]++
		out = append(out, [2]string{m[2], fmt.Sprint(seen[m[2]])})
	}
	require.Greater(t, len(out), 10)
	return out
}

// share returns the calls that a test tries: all with TRUEUP_KILLS.
func share(of int) int {
	if os.Getenv("TRUEUP_KILLS") != "" {
		return 1
	}
	return of
}

// is classifies the content of the device. reset restores the old content first.
func (l onLoop) is(t *testing.T) string {
	t.Helper()
	disktest.Run(t, "blockdev", "--flushbufs", l.path)
	now := disktest.ReadFile(t, l.file)
	return state(now, noise(1))
}

func (l onLoop) reset(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(l.path, os.O_WRONLY|syscall.O_SYNC, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(noise(1), 0)
	require.NoError(t, errors.Join(err, f.Close()))
}

// TestKilledAtEveryCall kills a copy onto a device before each of its system calls: the device is unchanged, marked or
// complete, and the next run completes it.
func TestKilledAtEveryCall(t *testing.T) {
	t.Parallel()
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	l := newLoop(t)
	all, seen, every := l.calls(t, changing), map[string]int{}, share(9)
	for i := 0; i < len(all); i += every {
		l.reset(t)
		call, number := all[i][0], all[i][1]
		ended, said := l.write(os.DevNull, call, "-e", "inject="+call+":signal=KILL:when="+number)
		require.Equal(t, syscall.SIGKILL, ended.Signal(), "%v: %s", all[i], said)
		is := l.is(t)
		require.NotEqual(t, "broken", is, "killed at %v", all[i])
		seen[is]++
		ended, said = l.write(os.DevNull, "none")
		require.Zero(t, ended, "killed at %v: %s", all[i], said)
		require.Equal(t, "complete", l.is(t), "killed at %v", all[i])
	}
	t.Logf("%d calls, %v", len(all), seen)
	require.Positive(t, seen["marked"])
}

// TestEveryCallFails fails each system call of a copy to a device: the run reports it, the device is unchanged or
// marked, and the next run completes it. A failing call that is not needed leaves it complete.
func TestEveryCallFails(t *testing.T) {
	t.Parallel()
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	l := newLoop(t)
	all, seen, every := l.calls(t, changing+reading), map[string]int{}, share(9)
	for i, c := range all {
		for k, errno := range []string{"EIO", "ENOSPC"} {
			if (2*i+k)%every != 0 {
				continue
			}
			l.reset(t)
			at := fmt.Sprintf("%v fails with %s", c, errno)
			ended, said := l.write(os.DevNull, c[0], "-e", "inject="+c[0]+":error="+errno+":when="+c[1])
			require.False(t, ended.Signaled(), at)
			is := l.is(t)
			if ended == 0 {
				require.Equal(t, "ioctl", c[0], at)
				require.Equal(t, "complete", is, at)
			} else {
				require.Contains(t, []string{"old", "marked"}, is, "%s: %s", at, said)
			}
			seen[is]++
			ended, said = l.write(os.DevNull, "none")
			require.Zero(t, ended, "%s: %s", at, said)
			require.Equal(t, "complete", l.is(t), at)
		}
	}
	t.Logf("%d calls, %v", len(all), seen)
	require.Positive(t, seen["marked"])
}

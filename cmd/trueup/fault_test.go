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
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// fault is one align that meets trouble, and what is around it.
type fault struct {
	source, dest string
	before       map[string]string // the source's folder
}

// newFault is about a source in a folder of its own; DEST goes to another folder.
func newFault(t testing.TB, source string) fault {
	t.Helper()
	return fault{
		source, filepath.Join(t.TempDir(), "aligned"+filepath.Ext(source)),
		hashFolder(t, filepath.Dir(source)),
	}
}

// partial is the name of DEST until it is complete.
func (f fault) partial() string {
	return filepath.Join(filepath.Dir(f.dest), "."+filepath.Base(f.dest)+".partial")
}

// args is the command line of the align.
func (f fault) args(flags ...string) []string {
	return append([]string{"align", f.source, f.dest, "--json"}, flags...)
}

// requireUndone requires that the align left nothing behind and changed nothing.
func (f fault) requireUndone(t testing.TB) {
	t.Helper()
	require.Empty(t, folderNames(t, filepath.Dir(f.dest)), "DEST and partial files must be absent")
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)), "SOURCE changed")
}

// requireError requires an exit with 1 that says why, in JSON and on standard error, and nothing of a success.
func (f fault) requireError(t testing.TB, r result, code string) {
	t.Helper()
	require.Equal(t, 1, r.code, "%s%s", r.stdout, r.stderr)
	require.Equal(t, code, errorCode(t, r), r.stderr)
	requireOneLine(t, r.stderr)
	f.requireUndone(t)
}

// errorCode is the code of a JSON error, which its schema has approved.
func errorCode(t testing.TB, r result) string {
	t.Helper()
	validate(t, r.stdout)
	answer := parseFailure(t, r)
	require.NotNil(t, answer.Error, r.stdout)
	return answer.Error.Code
}

func requireOneLine(t testing.TB, stderr string) {
	t.Helper()
	require.Regexp(t, `^trueup: [^\n]+\n$`, stderr)
}

// requireNext requires that the next align succeeds and that its result is right.
func (f fault) requireNext(t testing.TB, flags ...string) {
	t.Helper()
	r := trueup(t, f.args(flags...)...)
	require.Equal(t, 0, r.code, r.stderr)
	r = trueup(t, "verify", f.source, f.dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)), "SOURCE changed")
}

// run runs any program to its end. A program that a signal ended has the code 128 and that signal, as in a shell.
func run(t testing.TB, name string, args ...string) result {
	t.Helper()
	r, state := end(t, exec.Command(name, args...))
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		r.code = 128 + int(status.Signal())
	}
	return r
}

// noisyDisk is a raw disk with a partition at LBA 63 that has no zeros: a byte of it that is lost is seen. It takes an
// align some time, when it is large.
func noisyDisk(t testing.TB, mebibytes int) string {
	t.Helper()
	sectors := mebibytes << 11
	disk := tableforge.NewMBR(sectors, tableforge.Slot{
		Type: 0x83, Start: trackSectors,
		Sectors: uint32(sectors - 2*trackSectors),
	})
	disk.Put(trackSectors*sectorSize, noise("noisy disk", (sectors-2*trackSectors)*sectorSize))
	path := filepath.Join(t.TempDir(), "noisy.raw")
	disk.Write(t, path)
	return path
}

// running is an align that goes on beside the test.
type running struct {
	fault
	cmd            *exec.Cmd
	stdout, stderr lockedBuffer
	ended          chan struct{}
}

// start starts an align.
func (f fault) start(t testing.TB, flags ...string) *running {
	t.Helper()
	return f.startAs(t, append([]string{builtPath}, f.args(flags...)...))
}

// startAs starts a command that does the align.
func (f fault) startAs(t testing.TB, command []string) *running {
	t.Helper()
	r := &running{fault: f, cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	require.NoError(t, r.cmd.Start())
	go func() {
		_ = r.cmd.Wait() // wait reads the state
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it has ended, unless the test failed
		<-r.ended
	})
	return r
}

// pause starts an align and stops it in the middle.
func (f fault) pause(t testing.TB, flags ...string) *running {
	t.Helper()
	r := f.start(t, flags...)
	r.stop(t)
	return r
}

// stop stops an align in the middle: its partial file is there and has bytes, and DEST is not there.
func (r *running) stop(t testing.TB) {
	t.Helper()
	disktest.WaitFor(t, "a partial file", func() bool {
		info, err := os.Stat(r.partial())
		return err == nil && info.Size() > 0
	})
	r.stopNow(t)
}

// stopAfter stops an align that has written so many bytes. It reports false for one that ended before it was stopped.
func (r *running) stopAfter(t testing.TB, bytes int64) bool {
	t.Helper()
	ended := false
	disktest.WaitFor(t, fmt.Sprintf("%d written bytes", bytes),
		func() bool {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", r.cmd.Process.Pid))
			ended = err != nil
			return ended || ioCount(t, text, "wchar") >= bytes
		})
	if ended || r.cmd.Process.Signal(syscall.SIGSTOP) != nil {
		return false
	}
	_, err := os.Stat(r.partial())
	return err == nil
}

func (r *running) stopNow(t testing.TB) {
	t.Helper()
	r.signal(t, syscall.SIGSTOP)
	require.FileExists(t, r.partial(), "the align was faster than the test")
}

// procIO is one of the numbers that the kernel counts of a process. Spec: proc(5), /proc/PID/io.
func procIO(t testing.TB, pid int, name string) int64 {
	t.Helper()
	return ioCount(t, disktest.ReadFile(t, fmt.Sprintf("/proc/%d/io", pid)), name)
}

func ioCount(t testing.TB, text []byte, name string) (n int64) {
	t.Helper()
	_, rest, ok := strings.Cut(string(text), name+": ")
	require.True(t, ok, "%s", text)
	_, err := fmt.Sscan(rest, &n)
	require.NoError(t, err)
	return n
}

func (r *running) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(s))
}

// wait returns the end of the align.
func (r *running) wait(t testing.TB) result {
	t.Helper()
	disktest.WaitClosed(t, "the end of the align", r.ended)
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return result{r.stdout.String(), r.stderr.String(), code}
}

// injection is what strace does to system calls of one name.
type injection struct {
	call, spec string // "fsync", "error=EIO:when=2+"; calls are counted for each thread
	path       string // only calls on this file
}

// inject runs an align into a fault and tells how often that struck.
func (f fault) inject(t testing.TB, i injection, flags ...string) (r result, struck int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	args := []string{"-f", "-qq", "-o", log, "-e", "trace=" + i.call, "-e", fmt.Sprintf("inject=%s:%s", i.call, i.spec)}
	if i.path != "" {
		args = append(args, "-P", i.path)
	}
	r = run(t, disktest.Tool(t, "strace"), append(append(args, builtPath), f.args(flags...)...)...)
	text := disktest.ReadFile(t, log)
	return r, strings.Count(string(text), "(INJECTED)")
}

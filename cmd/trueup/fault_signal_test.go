package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// endSignals lists signals that end programs: from a key, a service manager, or a closed terminal.
var endSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// TestSignalInTheMiddle interrupts a copy with --force: the old DEST exists while the new one is written, and stays.
func TestSignalInTheMiddle(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 64))
	require.NoError(t, os.WriteFile(f.dest, []byte("precious"), 0o644))
	r := f.pause(t, "--force")
	require.Equal(t, "precious", string(disktest.ReadFile(t, f.dest)))
	r.signal(t, syscall.SIGINT)
	r.signal(t, syscall.SIGCONT)
	require.Equal(t, 128+int(syscall.SIGINT), r.wait(t).code)
	f.requirePrecious(t)
}

// requireInterrupted requires that a run reports its reaction to a signal at once, and leaves nothing behind.
func (f fault) requireInterrupted(t testing.TB, r result, s syscall.Signal) {
	t.Helper()
	require.Equal(t, 128+int(s), r.code, r.stderr)
	require.Equal(t, "interrupted", errorCode(t, r))
	require.Equal(t, "trueup: interrupted: removing the unfinished copy; interrupt again to end at once\n"+
		"trueup: interrupted; no copy was made, and the source is unchanged\n", r.stderr)
	f.requireUndone(t)
}

// TestSignalAlongTheCopy ends an align with a signal at several moments of the copy, and at its beginning, where
// nothing needs removal.
func TestSignalAlongTheCopy(t *testing.T) {
	t.Parallel()
	const mebibytes, moments = 32, 12
	source := noisyDisk(t, mebibytes)
	// stopAfter stops an align after it has written this many bytes. It reports false if the align ended before.
	stopAfter := func(r *running, bytes int64) bool {
		ended := false
		disktest.WaitFor(t, fmt.Sprintf("%d written bytes", bytes), func() bool {
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
	for i := range moments {
		s := endSignals[i%len(endSignals)]
		f := newFault(t, source)
		r := f.start(t)
		if i == 0 {
			r.signal(t, s)
			require.Equal(t, 128+int(s), r.wait(t).code)
			f.requireUndone(t)
			continue
		}
		for !stopAfter(r, int64(i)*mebibytes<<20/moments) { // the align was faster than the test
			require.Equal(t, 0, r.wait(t).code)
			f = newFault(t, source)
			r = f.start(t)
		}
		r.signal(t, s)
		r.signal(t, syscall.SIGCONT)
		f.requireInterrupted(t, r.wait(t), s)
		f.requireNext(t)
	}
}

// TestSignalAtTheEnd sends a signal when the copy is done, and its report waits for a reader: it succeeds.
func TestSignalAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, s := range endSignals {
		f := newFault(t, sampleDisk(t))
		report, full, err := os.Pipe()
		require.NoError(t, err)
		defer report.Close()
		size, err := unix.FcntlInt(full.Fd(), unix.F_GETPIPE_SZ, 0)
		require.NoError(t, err)
		n, err := full.Write(make([]byte, size)) // the pipe is full until it is read
		require.NoError(t, err)
		require.Equal(t, size, n)
		cmd := exec.Command(builtPath, f.args()...)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &stderr
		require.NoError(t, cmd.Start())
		require.NoError(t, full.Close())
		disktest.WaitFor(t, "DEST", func() bool { _, err := os.Stat(f.dest); return err == nil })
		waitIdle(t, cmd.Process.Pid)
		require.NoError(t, cmd.Process.Signal(s))
		_, err = io.Copy(io.Discard, report)
		require.NoError(t, err)
		require.NoError(t, cmd.Wait(), stderr.String())
		require.Empty(t, stderr.String())
		f.requireNext(t, "--force")
	}
}

// TestSignalThatIsIgnored runs align under nohup, where it outlives its terminal.
func TestSignalThatIsIgnored(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 64))
	nohup := []string{disktest.Tool(t, "sh"), "-c", `trap '' HUP; exec "$@"`, "sh", builtPath}
	r := f.startAs(t, append(nohup, f.args()...))
	require.True(t, r.stop(t), "the align was faster than the test")
	r.signal(t, syscall.SIGHUP)
	r.signal(t, syscall.SIGCONT)
	require.Equal(t, 0, r.wait(t).code)
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
}

// TestTwoRunsMeet starts the second run between the creation of the first one's partial file and its lock. The first
// one gives up, since its file has been removed, and the second one publishes its own.
func TestTwoRunsMeet(t *testing.T) {
	t.Parallel()
	f := newFault(t, sampleDisk(t))
	// The call for the lock is interrupted before it takes effect, and the run is stopped there. Each thread counts its
	// own calls. With -D, the started process is trueup itself.
	stopping := []string{
		disktest.Tool(t, "strace"), "-D", "-f", "-qq", "-o", "/dev/null",
		"-e", "trace=fcntl", "-e", "inject=fcntl:error=EINTR:signal=SIGSTOP:when=1", "-P", f.partial(), builtPath,
	}
	first := f.startAs(t, append(stopping, f.args()...))
	disktest.WaitFor(t, "a partial file", func() bool { _, err := os.Stat(f.partial()); return err == nil })
	second := trueup(t, f.args()...)
	require.Equal(t, 0, second.code, second.stderr)
	disktest.WaitFor(t, "the end of the first run", func() bool {
		_ = first.cmd.Process.Signal(syscall.SIGCONT) // it has ended or is stopped, or soon will be
		select {
		case <-first.ended:
			return true
		default:
			return false
		}
	})
	end := first.wait(t)
	require.Equal(t, 4, end.code, end.stderr)
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
	require.Equal(t, []string{"aligned.vmdk"}, folderNames(t, filepath.Dir(f.dest)))
}

// TestSourceChanges changes the source during the copy. internal/image tests each kind of change.
func TestSourceChanges(t *testing.T) {
	t.Parallel()
	original := noisyDisk(t, 64)
	for name, change := range map[string]func(path string) error{
		"a byte is written": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("changed"), 50<<20)
			return errors.Join(err, f.Close())
		},
		"a hole is punched": func(path string) error {
			return exec.Command("fallocate", "--punch-hole", "--offset", "40M", "--length", "1M", path).Run()
		},
	} {
		t.Run(name, func(t *testing.T) {
			source := filepath.Join(t.TempDir(), "source.raw")
			disktest.Run(t, "cp", original, source)
			f := newFault(t, source)
			r := f.pause(t)
			require.NoError(t, change(source))
			f.before = hashFolder(t, filepath.Dir(source))
			r.signal(t, syscall.SIGCONT)
			f.requireError(t, r.wait(t), "changed")
		})
	}
}

// holdOpen keeps an image open in QEMU until the test ends.
func holdOpen(t *testing.T, format, path string, flags ...string) {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "qemu-io"), append(flags, "-f", format, path)...)
	keys, err := cmd.StdinPipe()
	require.NoError(t, err)
	screen, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = keys.Close() // qemu-io ends with its input
		_, _ = io.Copy(io.Discard, screen)
		require.NoError(t, cmd.Wait())
	})
	_, err = io.ReadFull(screen, make([]byte, len("qemu-io>"))) // it shows its prompt after it has taken the locks
	require.NoError(t, err)
}

// TestSourceInQEMU requires that the disk of a running virtual machine is refused as busy. A machine that only reads
// the disk is accepted.
func TestSourceInQEMU(t *testing.T) {
	t.Parallel()
	raw := formatSparse.rawOf(t, sampleDisk(t))
	for _, format := range []diskFormat{formatRaw, formatSparse, formatFlat} {
		t.Run(format.name, func(t *testing.T) {
			f := newFault(t, format.convert(t, raw, t.TempDir(), "disk", "ide"))
			t.Run("writing", func(t *testing.T) {
				holdOpen(t, format.container, f.source)
				f.before = hashFolder(t, filepath.Dir(f.source)) // QEMU may change a VMDK when it opens it
				for _, args := range [][]string{f.args("--allow-unbootable", "--force"), {"plan", f.source, "--json"}} {
					r := trueup(t, args...)
					require.Equal(t, 4, r.code, "trueup %q\n%s", args, r.stderr)
					require.Equal(t, "busy", errorCode(t, r))
					requireOneLine(t, r.stderr)
					require.Regexp(t, `QEMU.*byte 101.*; \w.* (down|remove|resume|lock)`, r.stderr, "reason and remedy")
					f.requireUndone(t)
				}
				require.Contains(t, trueup(t, "inspect", f.source).stdout, "QEMU")
			})
			f.before = hashFolder(t, filepath.Dir(f.source))
			t.Run("reading", func(t *testing.T) {
				holdOpen(t, format.container, f.source, "-r")
				f.requireNext(t)
			})
		})
	}
}

// SIGQUIT ends a working program by SIGABRT, never with an exit code of a verdict.
func TestQuitIsNoVerdict(t *testing.T) {
	t.Parallel()
	raw := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(raw, noise("quit", 1<<20), 0o600))
	s := serving(t, "--as-is", raw)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGQUIT))
	<-s.done
	status := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled(), "exit status %d", status.ExitStatus())
	require.Equal(t, syscall.SIGABRT, status.Signal())
}

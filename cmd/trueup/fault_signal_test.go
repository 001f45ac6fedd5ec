package main

import (
	"bytes"
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

// endSignals are what ends programs: a key, a service manager, a terminal that goes away.
var endSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// A signal in the middle of a copy.
func TestSignalInTheMiddle(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 64)
	for _, s := range endSignals {
		t.Run(s.String(), func(t *testing.T) {
			f := newFault(t, source)
			r := f.pause(t)
			r.signal(t, s)
			r.signal(t, syscall.SIGCONT)
			f.requireInterrupted(t, r.wait(t), s)
			f.requireNext(t)
		})
	}
}

// requireInterrupted requires that a run says at once what it does with a signal, and leaves nothing behind.
func (f fault) requireInterrupted(t testing.TB, r result, s syscall.Signal) {
	t.Helper()
	require.Equal(t, 128+int(s), r.code, r.stderr)
	require.Equal(t, "interrupted", errorCode(t, r))
	require.Equal(t, "trueup: interrupted: removing the unfinished copy; once more to end at once\n"+
		"trueup: interrupted; no copy was made, and the source is unchanged\n", r.stderr)
	f.requireUndone(t)
}

// TestSignalAlongTheCopy is the same at moments along the copy, and at its begin, where there is nothing to end.
func TestSignalAlongTheCopy(t *testing.T) {
	t.Parallel()
	const mebibytes, moments = 32, 12
	source := noisyDisk(t, mebibytes)
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
		for !r.stopAfter(t, int64(i)*mebibytes<<20/moments) { // the align was faster than the test
			require.Equal(t, 0, r.wait(t).code)
			f = newFault(t, source)
			r = f.start(t)
		}
		r.signal(t, s)
		r.signal(t, syscall.SIGCONT)
		f.requireInterrupted(t, r.wait(t), s)
	}
}

// TestSignalAtTheEnd comes when the copy is done, and its report waits for a reader: it was a success.
func TestSignalAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, s := range endSignals {
		f := newFault(t, sampleDisk(t))
		report, full := fullPipe(t)
		cmd := exec.Command(builtPath, f.args()...)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &stderr
		require.NoError(t, cmd.Start())
		require.NoError(t, full.Close())
		disktest.WaitFor(t, "DEST", func() bool { _, err := os.Stat(f.dest); return err == nil })
		waitIdle(t, cmd.Process.Pid)
		require.NoError(t, cmd.Process.Signal(s))
		_, err := io.Copy(io.Discard, report)
		require.NoError(t, err)
		require.NoError(t, cmd.Wait(), stderr.String())
		require.Empty(t, stderr.String())
		f.requireNext(t, "--force")
	}
}

// fullPipe is a pipe that takes nothing until it is read.
func fullPipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	size, err := unix.FcntlInt(w.Fd(), unix.F_GETPIPE_SZ, 0)
	require.NoError(t, err)
	n, err := w.Write(make([]byte, size))
	require.NoError(t, err)
	require.Equal(t, size, n)
	return r, w
}

// TestSignalThatIsIgnored is about a run under nohup, which outlives its terminal.
func TestSignalThatIsIgnored(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 64))
	nohup := []string{disktest.Tool(t, "sh"), "-c", `trap '' HUP; exec "$@"`, "sh", builtPath}
	r := f.startAs(t, append(nohup, f.args()...))
	r.stop(t)
	r.signal(t, syscall.SIGHUP)
	r.signal(t, syscall.SIGCONT)
	require.Equal(t, 0, r.wait(t).code)
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
}

// A report that cannot be read is no success.
func TestReportCannotBeWritten(t *testing.T) {
	t.Parallel()
	source, same := sampleDisk(t), filepath.Join(t.TempDir(), "same.img")
	disktest.Run(t, "cp", "--sparse=always", source, same)
	sh := disktest.Tool(t, "sh")
	for _, args := range [][]string{{"inspect", source}, {"plan", source}, {"verify", source, same}, {"version"}} {
		for _, format := range []string{"text", "json"} {
			r := run(t, sh, append([]string{"-c", `exec "$@" > /dev/full`, "sh", builtPath, "-o", format}, args...)...)
			require.Equal(t, 1, r.code, "trueup %q", args)
			requireOneLine(t, r.stderr)
			require.Contains(t, r.stderr, "no space left on device")
		}
	}
	f := newFault(t, source)
	r := run(t, sh, append([]string{"-c", `exec "$@" > /dev/full`, "sh", builtPath}, f.args()...)...)
	require.Equal(t, 1, r.code)
	requireOneLine(t, r.stderr)
	require.Equal(t, 0, trueup(t, "verify", source, f.dest).code, "the copy was done; only the report is lost")
}

// TestClosedOutput starts with the standard descriptors closed, so that the first files that are opened could take
// their numbers, and a report could go into an image. Go opens /dev/null in their place, so the report is lost, and
// nothing else.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	f := newFault(t, sampleDisk(t))
	r := run(t, disktest.Tool(t, "sh"), append([]string{"-c", `exec "$@" <&- >&- 2>&-`, "sh", builtPath},
		f.args()...)...)
	require.Equal(t, 0, r.code)
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)), "SOURCE changed")
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
	require.Equal(t, []string{"aligned.vmdk"}, folderNames(t, filepath.Dir(f.dest)))
}

// Two runs that write one DEST. The lock of the first dies with it.
func TestTwoRunsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 64))
	first := f.pause(t)
	for _, flags := range [][]string{nil, {"--force"}} {
		r := trueup(t, f.args(flags...)...)
		require.Equal(t, 4, r.code, r.stderr)
		require.Equal(t, "busy", errorCode(t, r))
		requireOneLine(t, r.stderr)
	}
	first.signal(t, syscall.SIGCONT)
	require.Equal(t, 0, first.wait(t).code)
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)

	require.NoError(t, os.Remove(f.dest))
	killed := f.pause(t)
	killed.signal(t, syscall.SIGKILL)
	<-killed.ended
	f.requireNext(t)
	require.Equal(t, []string{"aligned.raw"}, folderNames(t, filepath.Dir(f.dest)))
}

// TestTwoRunsMeet has the second run come between the creation of the first one's partial file and its lock. The first
// one goes back, since the file that it has is not there any more, and what the second one publishes is its own.
func TestTwoRunsMeet(t *testing.T) {
	t.Parallel()
	f := newFault(t, sampleDisk(t))
	// The call for the lock is interrupted before it does anything, and the run is stopped there; each thread counts
	// its own calls. With -D the process that is started is trueup itself.
	stopping := []string{
		disktest.Tool(t, "strace"), "-D", "-f", "-qq", "-o", "/dev/null",
		"-e", "trace=fcntl", "-e", "inject=fcntl:error=EINTR:signal=SIGSTOP:when=1", "-P", f.partial(), builtPath,
	}
	first := f.startAs(t, append(stopping, f.args()...))
	disktest.WaitFor(t, "a partial file", func() bool { _, err := os.Stat(f.partial()); return err == nil })
	second := trueup(t, f.args()...)
	require.Equal(t, 0, second.code, second.stderr)
	disktest.WaitFor(t, "the end of the first run", func() bool {
		_ = first.cmd.Process.Signal(syscall.SIGCONT) // it has ended, or is stopped, or will be
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

package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// signalLimit is how long a run may go on after a signal.
const signalLimit = 2 * time.Second

// endSignals are what ends programs: a key, a service manager, a terminal that goes away.
var endSignals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// F12: a signal in the middle of a copy.
func TestSignalInTheMiddle(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 64)
	for _, s := range endSignals {
		t.Run(s.String(), func(t *testing.T) {
			f := newFault(t, source)
			r := f.pause(t)
			r.signal(t, s)
			r.signal(t, syscall.SIGCONT)
			end := r.wait(t, signalLimit)
			f.requireError(t, end, errorCode(t, end))
			require.Contains(t, end.stderr, "interrupted")
			f.requireNext(t)
		})
	}
}

// TestSignalAtAnyMoment is the same at random moments, in the first and in the last of which there is nothing to end.
func TestSignalAtAnyMoment(t *testing.T) {
	f := newFault(t, noisyDisk(t, 16))
	start := time.Now()
	f.requireNext(t)
	usual := time.Since(start) / 2 // the other half is the verify
	want := sha256Of(t, f.dest)
	moments := rand.New(rand.NewPCG(killSeed, killSeed))
	interrupted := 0
	for i := range 30 {
		require.NoError(t, os.RemoveAll(f.dest))
		s := endSignals[i%len(endSignals)]
		r := f.start(t)
		time.Sleep(time.Duration((float64(i) + moments.Float64()) / 30 * float64(usual)))
		_ = r.cmd.Process.Signal(s) // it may have ended
		switch end := r.wait(t, signalLimit); end.code {
		case 0:
			require.Equal(t, want, sha256Of(t, f.dest))
		case 128 + int(s): // it came before the program was ready to receive signals
			f.requireUndone(t)
		default:
			interrupted++
			f.requireError(t, end, errorCode(t, end))
		}
	}
	require.GreaterOrEqual(t, interrupted, 5, "too few signals came in the middle")
	require.NoError(t, os.RemoveAll(f.dest))
	f.requireNext(t)
}

// TestSignalAtTheEnd comes when the copy is done and said so: it was a success.
func TestSignalAtTheEnd(t *testing.T) {
	for _, s := range endSignals {
		f := newFault(t, sampleDisk(t))
		slow := []string{ // -D: the program has the number that the signal goes to
			disktest.Tool(t, "strace"), "-D", "-f", "-qq", "-o", "/dev/null",
			"-e", "trace=exit_group", "-e", "inject=exit_group:delay_enter=2000000", builtPath,
		}
		r := f.startAs(t, append(slow, f.args()...))
		require.Eventually(t, func() bool { _, err := os.Stat(f.dest); return err == nil }, 10*time.Second, time.Millisecond)
		time.Sleep(300 * time.Millisecond)
		r.signal(t, s)
		end := r.wait(t, 10*time.Second)
		require.Equal(t, 0, end.code, end.stderr)
		f.requireNext(t, "--force")
	}
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
	require.Equal(t, 0, r.wait(t, 10*time.Second).code)
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
}

// F13: a report that nobody can read is no success.
func TestReportCannotBeWritten(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	sh := disktest.Tool(t, "sh")
	for _, args := range [][]string{{"inspect", source}, {"plan", source}, {"verify", source, source}, {"version"}} {
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

// TestClosedOutput starts with the standard descriptors closed, so that the first files that are opened could take their
// numbers, and a report could go into an image.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	f := newFault(t, sampleDisk(t))
	r := run(t, disktest.Tool(t, "sh"), append([]string{"-c", `exec "$@" <&- >&- 2>&-`, "sh", builtPath}, f.args()...)...)
	require.Contains(t, []int{0, 1}, r.code)
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)), "SOURCE changed")
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
	require.Equal(t, []string{"aligned.vmdk"}, folderNames(t, filepath.Dir(f.dest)))
}

// F27: two runs that write one DEST. The lock of the first dies with it.
func TestTwoRunsAtOnce(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 64))
	first := f.pause(t)
	for _, flags := range [][]string{nil, {"--force"}} {
		start := time.Now()
		r := trueup(t, f.args(flags...)...)
		require.Less(t, time.Since(start), time.Second)
		require.Equal(t, 4, r.code, r.stderr)
		require.Equal(t, "busy", errorCode(t, r))
		requireOneLine(t, r.stderr)
	}
	first.signal(t, syscall.SIGCONT)
	require.Equal(t, 0, first.wait(t, 10*time.Second).code)
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)

	require.NoError(t, os.Remove(f.dest))
	killed := f.pause(t)
	killed.signal(t, syscall.SIGKILL)
	<-killed.ended
	f.requireNext(t)
	require.Equal(t, []string{"aligned.raw"}, folderNames(t, filepath.Dir(f.dest)))
}

// TestTwoRunsMeet has the second run come between the creation of the first one's partial file and its lock. One of the
// two must go back, and what the other one publishes must be its own.
func TestTwoRunsMeet(t *testing.T) {
	f := newFault(t, sampleDisk(t))
	slow := []string{
		disktest.Tool(t, "strace"), "-f", "-qq", "-o", "/dev/null",
		"-e", "trace=flock", "-e", "inject=flock:delay_enter=500000:when=1", builtPath,
	}
	first := f.startAs(t, append(slow, f.args()...))
	require.Eventually(t, func() bool { _, err := os.Stat(f.partial()); return err == nil }, 5*time.Second, time.Millisecond)
	second := trueup(t, f.args()...)
	end := first.wait(t, 10*time.Second)
	require.ElementsMatch(t, []int{0, 4}, []int{end.code, second.code}, "%s%s", end.stderr, second.stderr)
	require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
	require.Equal(t, []string{"aligned.vmdk"}, folderNames(t, filepath.Dir(f.dest)))
}

package disktest

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// Patience bounds a wait for an event that comes, and for a program that ends. It ends a test that hangs, also on a
// machine that is busy with other work, and asserts no speed.
const Patience = 15 * time.Minute

// pollEvery is the pause between two looks at something that cannot be waited for.
const pollEvery = time.Millisecond

// WaitFor waits until there reports true.
func WaitFor(t testing.TB, what string, there func() bool) {
	t.Helper()
	for began := time.Now(); !there(); time.Sleep(pollEvery) {
		if time.Since(began) > Patience {
			t.Fatalf("waited %v for %s", Patience, what)
		}
	}
}

// WaitClosed waits until a channel is closed.
func WaitClosed(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(Patience):
		t.Fatalf("waited %v for %s", Patience, what)
	}
}

// stampStep is more than two steps of the clock that time stamps of files come from: 10 ms on Linux at most.
const stampStep = 25 * time.Millisecond

// WaitSettled waits until the clock is past the time stamps that a file gets now. What was written before is then older
// than whatever begins afterwards.
func WaitSettled(t testing.TB, dir string) {
	t.Helper()
	f, err := os.CreateTemp(dir, ".stamp-")
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	os.Remove(f.Name())
	step := stampStep
	if info.ModTime().Nanosecond() == 0 {
		step = 3 * time.Second // stamps of whole seconds, or of two
	}
	past := info.ModTime().Add(step)
	WaitFor(t, "a step of the clock", func() bool { return time.Now().After(past) })
}

// DefaultSignals lets the programs that a test starts have the usual dispositions of the signals that end programs. The
// tests may run under nohup, or in the background of a shell: those have them ignored, and a child inherits that.
func DefaultSignals() {
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} { // the runtime keeps no other one ignored
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s) // caught is not ignored, and is reset when a program starts
		}
	}
}

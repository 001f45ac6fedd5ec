package disktest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// leakPatience limits the wait for goroutines that are about to end.
const leakPatience = time.Minute

// LeakTestMain runs the tests of a package, fails if goroutines are left, and ends the process.
func LeakTestMain(m *testing.M) {
	ofThisMachine()
	code := m.Run()
	left := goroutines()
	for began := time.Now(); code == 0 && len(left) > 0; left = goroutines() {
		if time.Since(began) > leakPatience {
			fmt.Fprintf(os.Stderr, "%d goroutines are left:\n\n%s\n", len(left), strings.Join(left, "\n\n"))
			code = 1
		}
		time.Sleep(pollEvery)
	}
	os.Exit(code)
}

// goroutines returns the stacks of all goroutines except the caller's and those of os/signal, which never end.
func goroutines() []string {
	text := make([]byte, 4<<20)
	stacks := strings.Split(string(text[:runtime.Stack(text, true)]), "\n\n")
	return slices.DeleteFunc(stacks[1:], func(stack string) bool {
		return strings.Contains(stack, "os/signal.loop") || strings.Contains(stack, "runtime.ensureSigM")
	})
}

// OpenFiles returns the paths of the files that the process has open.
func OpenFiles(t testing.TB) (paths []string) {
	t.Helper()
	for _, fd := range Names(t, "/proc/self/fd") {
		// The folder itself was open while it was read.
		if path, err := os.Readlink("/proc/self/fd/" + fd); err == nil && strings.HasPrefix(path, "/") {
			paths = append(paths, path)
		}
	}
	return paths
}

package cli

import (
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// abortOnCrash makes SIGABRT the end of a fatal error of Go's runtime, of a panic in a goroutine, and of SIGQUIT: their usual exit
// status is 2, which is a verdict here. A core file would hold parts of the image, so none is left.
func abortOnCrash() {
	debug.SetTraceback("crash")
	var core unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &core) == nil {
		core.Cur = 0
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &core) // lowering is always allowed
	}
}

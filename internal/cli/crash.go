package cli

import (
	"runtime/debug"

	"github.com/trueup/trueup/internal/sys"
)

// abortOnCrash makes SIGABRT the end of a fatal error of Go's runtime, of a panic in a goroutine, and of SIGQUIT: their usual exit
// status is 2, which is a verdict here. A core file would hold parts of the image, so none is left.
func abortOnCrash() {
	debug.SetTraceback("crash")
	sys.NoCore()
}

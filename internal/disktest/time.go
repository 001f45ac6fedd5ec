//go:build linux || windows

package disktest

import (
	"runtime"
	"time"
)

// ProcessorTime returns the processor time that f takes in its goroutine, as Scaled. Other work of the process does not
// count.
func ProcessorTime(f func()) time.Duration {
	spent := Spent()
	f()
	return spent()
}

// Spent returns a function that returns, once, the processor time that the goroutine has used since, as Scaled.
func Spent() func() time.Duration {
	runtime.LockOSThread()
	before := threadTime()
	return func() time.Duration {
		defer runtime.UnlockOSThread()
		return Scaled(threadTime() - before)
	}
}

// Allocated returns how many bytes of memory a function has asked for, together with all that runs beside it.
func Allocated(run func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

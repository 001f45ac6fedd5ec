package sandbox

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// killed reports whether SIGKILL ended a process.
func killed(state *os.ProcessState) bool {
	return state.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// peak returns the most memory that a process had, in bytes.
func peak(state *os.ProcessState) int64 {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return int64(usage.Maxrss) << 10 //nolint:unconvert // a number of 32 bits elsewhere
}

// watchCPU ends the worker on SIGXCPU, which Go's runtime would ignore.
func watchCPU() {
	over := make(chan os.Signal, 1)
	signal.Notify(over, unix.SIGXCPU)
	go func() {
		<-over
		os.Exit(exitCPU)
	}()
}

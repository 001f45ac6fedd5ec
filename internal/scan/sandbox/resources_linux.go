package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// limitResources sets the limits of the process. Those that cannot be set are noted one by one.
func (i *Isolation) limitResources(l Limits, used int64, known error) {
	memory := known
	if memory == nil {
		memory = limitMemory(l.Data, used)
	}
	lacking := false
	for _, limit := range []struct {
		what string
		err  error
	}{
		{"open files", lower(unix.RLIMIT_NOFILE, int64(l.Files))},
		{"size of files", lower(unix.RLIMIT_FSIZE, 0)},
		{"core", lower(unix.RLIMIT_CORE, 0)},
		{"computing", renewCPU(l.CPU)},
		{"memory", memory},
	} {
		if limit.err != nil {
			i.lacks(layerLimits+", "+limit.what, limit.err)
			lacking = true
		}
	}
	if !lacking {
		i.Layers = append(i.Layers, layerLimits)
	}
}

// lower sets a limit for good. One that is lower already stays.
func lower(resource int, most int64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return err
	}
	limit.Max = min(limit.Max, uint64(most)) //nolint:gosec // limits are positive
	limit.Cur = min(limit.Cur, limit.Max)
	return unix.Setrlimit(resource, &limit)
}

// soft is the memory that Go keeps to as long as it can, in bytes: with the program and its stacks less than 64 MiB.
const soft = 44 << 20

// limitMemory bounds the memory that the process may write. A build may have more before its first request, such as the
// shadow memory of the race detector; then the limit is for the rest. Go's own limit, far below, makes it collect
// garbage often before the kernel refuses.
func limitMemory(most, used int64) error {
	debug.SetMemoryLimit(min(most/2, soft))
	if used > most/2 {
		most += used
	}
	return lower(unix.RLIMIT_DATA, most)
}

// dataUsed returns the bytes that count for RLIMIT_DATA.
func dataUsed() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	kib, ok := statusNumber(status, "VmData")
	if !ok {
		return 0, errors.New("/proc/self/status has no VmData")
	}
	return kib << 10, nil
}

// renewCPU gives the process so much computing time from now on, rounded up to whole seconds, as the kernel counts. The
// hard limit stays, since an ordinary user could not raise it for the next request.
func renewCPU(most time.Duration) error {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return fmt.Errorf("computing time used: %w", err)
	}
	until := time.Duration(used.Utime.Nano()+used.Stime.Nano()) + most
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CPU, &limit); err != nil {
		return fmt.Errorf("limit of computing time: %w", err)
	}
	limit.Cur = min(limit.Max, uint64((until+time.Second-1)/time.Second)) //nolint:gosec // not negative
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &limit); err != nil {
		return fmt.Errorf("limit of computing time: %w", err)
	}
	return nil
}

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

package sandbox

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is this very program, even when its file was replaced or removed since it was started.
func self() (string, error) { return "/proc/self/exe", nil }

// setApart puts a worker into a process group of its own: Ctrl-C at a terminal goes to the parent alone, which then
// ends its workers.
func setApart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// endGroup waits for the end of a process and then ends the processes that it may have started.
func endGroup(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR { //nolint:revive // waits
	}
	_ = unix.Kill(-pid, unix.SIGKILL)
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

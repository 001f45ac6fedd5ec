package sys

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Self returns this very program, even when its file was replaced or removed since it was started.
func Self() (string, error) { return "/proc/self/exe", nil }

// Tie puts a program that the calling goroutine starts into a process group of its own, and has the kernel kill it when
// this one dies. The kernel goes by the thread that started it: release gives that up.
func Tie(cmd *exec.Cmd) (release func()) {
	runtime.LockOSThread()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	return runtime.UnlockOSThread
}

// Apart puts a program into a process group of its own: Ctrl-C at a terminal goes to this one alone.
func Apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// TerminateGroup asks a program that was put apart to end, and all that it started. It must not have been waited for.
func TerminateGroup(cmd *exec.Cmd) error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }

// KillGroup ends a program that was put apart, and all that it started. It must not have been waited for.
func KillGroup(cmd *exec.Cmd) error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }

// EndGroup waits for the end of a process and then kills what it may have started.
func EndGroup(pid int) {
	_ = again(func() error { return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
	_ = unix.Kill(-pid, unix.SIGKILL)
}

// nobody is the user, and the group, that have no files. Spec: Linux, include/linux/highuid.h, DEFAULT_OVERFLOWUID.
const nobody = 65534

// Unprivileged has root start a program as the user nobody, with the right to use KVM. dir becomes that user's.
func Unprivileged(cmd *exec.Cmd, dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	c := &syscall.Credential{Uid: nobody, Gid: nobody}
	if st, err := os.Stat("/dev/kvm"); err == nil {
		c.Groups = []uint32{st.Sys().(*syscall.Stat_t).Gid}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c}
	return os.Chown(dir, nobody, nobody)
}

// Work returns the time that a thread of a process had on a processor, or all of its threads where thread is 0; false
// if that is not known. Spec: Linux, Documentation/scheduler/sched-stats.rst, schedstat.
func Work(pid, thread int) (ran time.Duration, known bool) {
	which := "*"
	if thread != 0 {
		which = strconv.Itoa(thread)
	}
	names, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/" + which + "/schedstat")
	if err != nil {
		return 0, false
	}
	for _, name := range names {
		b, err := os.ReadFile(name) //nolint:gosec // of the kernel
		if err != nil {
			continue // the thread has ended
		}
		first, _, _ := strings.Cut(string(b), " ")
		if n, err := strconv.ParseInt(first, 10, 64); err == nil {
			ran, known = ran+time.Duration(n), true
		}
	}
	return ran, known
}

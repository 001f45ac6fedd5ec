package sandbox_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// How a parent runs that has an older kernel, as far as its calls tell.
const (
	noLandlock     = "no-landlock"
	landlockOff    = "landlock-switched-off"
	landlockErrata = "landlock-without-errata"
	noSeccomp      = "no-seccomp"
	nothing        = "no-landlock-no-seccomp"
	filteredSelf   = "with-a-filter-of-its-own"
	oldLandlock    = "landlock-version-" // and a number
	abandoned      = "abandoned"         // starts a request that never ends, and waits to be killed
)

// without are the calls that a parent lacks.
var without = map[string][]seccomp.SyscallGroup{
	noLandlock:  {lacking(unix.ENOSYS, "landlock_create_ruleset")},
	landlockOff: {lacking(unix.EOPNOTSUPP, "landlock_create_ruleset")},
	landlockErrata: {{
		NamesWithCondtions: []seccomp.NameWithConditions{{
			Name: "landlock_create_ruleset",
			Conditions: seccomp.ArgumentConditions{
				{Argument: 2, Operation: seccomp.Equal, Value: unix.LANDLOCK_CREATE_RULESET_ERRATA},
			},
		}},
		Action: seccomp.ActionErrno | seccomp.Action(unix.EINVAL),
	}},
	noSeccomp:    {lacking(unix.ENOSYS, "seccomp")},
	nothing:      {lacking(unix.ENOSYS, "landlock_create_ruleset", "seccomp")},
	filteredSelf: {lacking(unix.ENOSYS, "add_key")},
}

func lacking(errno unix.Errno, names ...string) seccomp.SyscallGroup {
	return seccomp.SyscallGroup{Names: names, Action: seccomp.ActionErrno | seccomp.Action(errno)}
}

// observed is what a parent tells of its worker.
type observed struct {
	Isolation sandbox.Isolation
	Pid       int
	Answers   map[string]string
}

// parent is the process that the tests start with such a kernel.
func parent(how string) error {
	runtime.LockOSThread()
	if err := age(how); err != nil {
		return err
	}
	ctx := context.Background()
	w, err := sandbox.Start(ctx, sandbox.Options{Args: []string{asWorker}, Level: sandbox.Sandbox})
	if err != nil {
		return err
	}
	o := observed{Isolation: w.Isolation(), Answers: map[string]string{}}
	for _, request := range []string{"pid", "read /etc/passwd", "socket", "append /dev/null", "cut /dev/null"} {
		answer, err := w.Call(ctx, []byte(request))
		if err != nil {
			return err
		}
		o.Answers[request] = string(answer)
	}
	if o.Pid, err = strconv.Atoi(o.Answers["pid"]); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return err
	}
	if how == abandoned {
		_, err = w.Call(ctx, []byte("sleep"))
		return err
	}
	return w.Close()
}

// age takes calls from this thread and what it starts.
func age(how string) error {
	if version, ok := strings.CutPrefix(how, oldLandlock); ok {
		n, err := strconv.ParseInt(version, 10, 64)
		if err != nil {
			return err
		}
		return answerVersion(n)
	}
	groups, ok := without[how]
	if !ok {
		return nil
	}
	return seccomp.LoadFilter(seccomp.Filter{
		NoNewPrivs: true,
		Policy:     seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: groups},
	})
}

// notice and reply are struct seccomp_notif and seccomp_notif_resp of linux/seccomp.h.
type notice struct {
	ID          uint64
	Pid, Flags  uint32
	Number      int32
	Arch        uint32
	Instruction uint64
	Arguments   [6]uint64
}

type reply struct {
	ID    uint64
	Value int64
	Error int32
	Flags uint32
}

// answerVersion has landlock_create_ruleset say another version of itself, for this thread and what it starts.
func answerVersion(version int64) error {
	p := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{
		{Names: []string{"landlock_create_ruleset"}, Action: seccomp.ActionUserNotify},
	}}
	instructions, err := p.Assemble()
	if err != nil {
		return err
	}
	raw, err := bpf.Assemble(instructions)
	if err != nil {
		return err
	}
	code := make([]unix.SockFilter, 0, len(raw))
	for _, r := range raw {
		code = append(code, unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K})
	}
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return errno
	}
	go answerAll(listener, version)
	return nil
}

// answerAll answers questions for the version, and lets the kernel do the rest.
func answerAll(listener uintptr, version int64) {
	for {
		var n notice
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue
		}
		r := reply{ID: n.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if n.Arguments[2] == unix.LANDLOCK_CREATE_RULESET_VERSION {
			r = reply{ID: n.ID, Value: version}
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
	}
}

// observe runs a parent and reads what it tells.
func observe(t *testing.T, how string) (observed, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", asParent, how)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	text, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		require.NoError(t, errors.Join(err, cmd.Wait()), said.String())
	}
	var o observed
	require.NoError(t, json.Unmarshal(text, &o))
	return o, cmd
}

// What a kernel lacks is left out and said, and the rest holds.
func TestOldKernels(t *testing.T) {
	newest := full(t).Isolation().Layers[1]
	old := func(n int) string { return fmt.Sprint(oldLandlock, n) }
	const privileges, calls, limits = "no-new-privs", "seccomp", "rlimits"
	for how, c := range map[string]struct {
		layers         []string
		note           string
		read           string // the end of what comes of reading a file that is no root
		socket, append string
	}{
		"as it is":   {[]string{privileges, newest, calls, limits}, "", permission, operation, operation},
		filteredSelf: {[]string{privileges, newest, calls, limits}, "", permission, operation, operation},
		noLandlock: {
			[]string{privileges, calls, limits},
			"landlock: the kernel has none", "done", operation,
			operation,
		},
		landlockOff: {
			[]string{privileges, calls, limits},
			"landlock: the kernel has it switched off", "done", operation,
			operation,
		},
		landlockErrata: {[]string{privileges, "landlock-5", calls, limits}, "", permission, operation, operation},
		old(1):         {[]string{privileges, "landlock-1", calls, limits}, "", permission, operation, operation},
		old(3):         {[]string{privileges, "landlock-3", calls, limits}, "", permission, operation, operation},
		noSeccomp: {
			[]string{privileges, newest, limits},
			"seccomp: the kernel has none", permission, "done",
			permission,
		},
		nothing: {
			[]string{privileges, limits},
			"landlock: the kernel has none; seccomp: the kernel has none", "done",
			"done", "done",
		},
	} {
		t.Run(how, func(t *testing.T) {
			o, cmd := observe(t, how)
			require.NoError(t, cmd.Wait())
			require.Equal(t, c.layers, o.Isolation.Layers)
			require.Equal(t, sandbox.Sandbox, o.Isolation.Wanted)
			achieved := sandbox.Process
			if c.note == "" {
				achieved = sandbox.Sandbox
			}
			require.Equal(t, achieved, o.Isolation.Achieved)
			if c.note != "" || !disktest.Raced {
				require.True(t, strings.HasPrefix(o.Isolation.Note, c.note) && (c.note != "" || o.Isolation.Note == ""),
					o.Isolation.Note)
			}
			for request, want := range map[string]string{
				"read /etc/passwd": c.read, "socket": c.socket, "append /dev/null": c.append,
			} {
				require.True(t, strings.HasSuffix(o.Answers[request], want), "%s: %s, want %s", request,
					o.Answers[request], want)
			}
		})
	}
}

// A parent that is killed takes its workers along, in the middle of a request.
func TestWorkersEndWithTheirParent(t *testing.T) {
	o, cmd := observe(t, abandoned)
	require.NoError(t, unix.Kill(o.Pid, 0))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	gone(t, o.Pid)
}

// gone waits for the end of a process that is no child of ours. As a zombie it has ended, too.
func gone(t *testing.T, pid int) {
	t.Helper()
	disktest.WaitFor(t, "the end of the process", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

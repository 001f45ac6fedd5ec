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
	"time"
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

// A layer that the kernel lacks is left out and reported, and the other layers hold.
func TestOldKernels(t *testing.T) {
	newest := full(t).Isolation().Layers[1]
	old := func(n int) string { return fmt.Sprint(oldLandlock, n) }
	const privileges, calls, limits = "no-new-privs", "seccomp", "rlimits"
	for how, c := range map[string]struct {
		layers         []string
		note           string
		read           string // the end of what comes of reading a file that is not a root
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

// gone waits for the end of a process that is not a child of ours. As a zombie it has ended, too.
func gone(t *testing.T, pid int) {
	t.Helper()
	disktest.WaitFor(t, "the end of the process", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// start runs a worker of the tests until the end of one.
func start(t *testing.T, o sandbox.Options) *sandbox.Worker {
	t.Helper()
	o.Args = []string{asWorker}
	if o.Level == "" {
		o.Level = sandbox.Sandbox
	}
	w, err := sandbox.Start(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// ask sends a request that is answered.
func ask(t *testing.T, w *sandbox.Worker, request string) string {
	t.Helper()
	answer, err := w.Call(t.Context(), []byte(request))
	require.NoError(t, err)
	return string(answer)
}

// dies sends a request of which the worker dies.
func dies(t *testing.T, w *sandbox.Worker, request string) *sandbox.Death {
	t.Helper()
	_, err := w.Call(t.Context(), []byte(request))
	var death *sandbox.Death
	require.ErrorAs(t, err, &death)
	require.False(t, death.Idle)
	require.NotContains(t, death.Text, "\n")
	return death
}

func TestAnswers(t *testing.T) {
	raw, err := json.Marshal(hello{Echo: "> "})
	require.NoError(t, err)
	w := start(t, sandbox.Options{Hello: raw})
	require.Equal(t, "> one", ask(t, w, "echo one"))
	require.Equal(t, "> ", ask(t, w, "echo "))
	require.Equal(t, "> two", ask(t, w, "echo two"))
	long := strings.Repeat("x", 1<<20)
	answer := ask(t, w, "echo "+long)
	require.Len(t, answer, len("> ")+len(long), "longer than what a pipe holds")
	require.Equal(t, strings.Count(long, "x"), strings.Count(answer, "x"))
}

// What a worker dies of is named, in both levels, and another worker works.
func TestDeaths(t *testing.T) {
	small := sandbox.Limits{CPU: time.Second, Wall: 5 * time.Minute, Answer: 1 << 20}
	brief := sandbox.Limits{Wall: 2 * time.Second}
	for name, c := range map[string]struct {
		request string
		limits  sandbox.Limits
		cause   sandbox.Cause
		text    string // somewhere in what is said of it
	}{
		"panic": {"panic the footer\nis 7", small, sandbox.Crash, "panic: the footer"},
		"index outside a slice": {
			"index", small, sandbox.Crash,
			"panic: runtime error: slice bounds out of range",
		},
		"exit":                            {"exit", small, sandbox.Crash, "exit status 3"},
		"killed from outside":             {"signal", small, sandbox.Killed, "killed from outside (signal 9)"},
		"endless loop":                    {"spin", small, sandbox.CPU, "longer than 1s"},
		"endless sleep":                   {"sleep", brief, sandbox.Time, "no answer within 2s"},
		"memory in small pieces":          {"hog", small, sandbox.Memory, "256 MiB"},
		"memory in one piece":             {"huge", small, sandbox.Memory, "256 MiB"},
		"endless recursion":               {"stack", small, sandbox.Memory, "256 MiB"},
		"no frame on the pipe":            {"garbage", small, sandbox.Crash, "not a frame: begins with 0x68656c6c"},
		"pipe closed":                     {"closed", small, sandbox.Crash, "file already closed"},
		"answer over the limit":           {"long", small, sandbox.Crash, "answer of 2097152 bytes, at most 1048576"},
		"frame that announces too much":   {"lie", small, sandbox.Crash, "4294967295 bytes, at most 1048576"},
		"a lot of control codes and exit": {"shout", small, sandbox.Crash, "exit status 4: [2Jnoise"},
	} {
		for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
			t.Run(name+", "+string(level), func(t *testing.T) {
				t.Parallel()
				if c.cause == sandbox.Memory && disktest.Raced {
					t.Skip("the race detector has taken more memory than the limit")
				}
				w := start(t, sandbox.Options{Level: level, Limits: c.limits})
				require.Equal(t, "before", ask(t, w, "echo before"))
				death := dies(t, w, c.request)
				require.Equal(t, c.cause, death.Cause, "%v", death)
				require.Contains(t, death.Text, c.text)
				require.LessOrEqual(t, len(death.Text), 400)

				_, err := w.Call(t.Context(), []byte("echo again"))
				var again *sandbox.Death
				require.ErrorAs(t, err, &again)
				require.True(t, again.Idle, "what is asked of a dead worker is not what it died of")

				require.Equal(t, "next", ask(t, start(t, sandbox.Options{Level: level}), "echo next"))
			})
		}
	}
}

// A worker that dies of a request has answered the one before it, and cannot have begun the one behind it.
func TestDeathWithTwoRequests(t *testing.T) {
	w := start(t, sandbox.Options{})
	answer, err := w.Call(t.Context(), []byte("echo before"), []byte("exit"))
	require.NoError(t, err)
	require.Equal(t, "before", string(answer))
	_, err = w.Call(t.Context(), []byte("echo behind"))
	var death *sandbox.Death
	require.ErrorAs(t, err, &death)
	require.False(t, death.Idle)
	require.Contains(t, death.Text, "exit status 3")
	_, err = w.Call(t.Context())
	require.ErrorAs(t, err, &death)
}

// A worker has its next request before it ends the first one, and answers both in order.
func TestTwoRequests(t *testing.T) {
	w := start(t, sandbox.Options{})
	answer, err := w.Call(t.Context(), []byte("echo 0"), []byte("echo 1"))
	require.NoError(t, err)
	require.Equal(t, "0", string(answer))
	for i := 1; i < 10; i++ {
		answer, err = w.Call(t.Context(), fmt.Appendf(nil, "echo %d", i+1))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i), string(answer))
	}
	answer, err = w.Call(t.Context())
	require.NoError(t, err)
	require.Equal(t, "10", string(answer))
}

func TestComputingTimeIsRenewed(t *testing.T) {
	w := start(t, sandbox.Options{Limits: sandbox.Limits{CPU: time.Second}})
	for range 4 { // 2.8 s in all
		require.Equal(t, "burnt", ask(t, w, "burn"))
	}
}

// pidOf is the process of a worker.
func pidOf(t *testing.T, w *sandbox.Worker) int {
	t.Helper()
	pid, err := strconv.Atoi(ask(t, w, "pid"))
	require.NoError(t, err)
	return pid
}

// whenAtWork does something when a worker that had nothing to do uses the processor.
func whenAtWork(t *testing.T, pid int, do func()) {
	t.Helper()
	defer do()
	before := processorTime(pid)
	disktest.WaitFor(t, "a worker at work", func() bool { return processorTime(pid) > before+5 })
}

// processorTime is that of a process, in ticks of 10 ms. Spec: proc(5), /proc/PID/stat, utime.
func processorTime(pid int) (ticks int) {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
	if _, fields, ok := strings.Cut(string(stat), ") "); ok {
		ticks, _ = strconv.Atoi(strings.Fields(fields)[11])
	}
	return ticks
}

func TestCancel(t *testing.T) {
	w := start(t, sandbox.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	pid := pidOf(t, w)
	go whenAtWork(t, pid, cancel)
	_, err := w.Call(ctx, []byte("spin"))
	require.ErrorIs(t, err, context.Canceled)

	w = start(t, sandbox.Options{})
	_, err = w.Call(ctx, []byte("echo x"))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, "y", ask(t, w, "echo y"), "nothing was sent, and the worker lives")
}

// A worker that ended while it was asked nothing did not die of the next request.
func TestDeathBetweenRequests(t *testing.T) {
	w := start(t, sandbox.Options{})
	pid := pidOf(t, w)
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	disktest.WaitFor(t, "a parent that has taken notice",
		func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	_, err := w.Call(t.Context(), []byte("echo x"))
	var death *sandbox.Death
	require.ErrorAs(t, err, &death)
	require.True(t, death.Idle)
	require.Equal(t, sandbox.Killed, death.Cause)
}

func TestStartFails(t *testing.T) {
	raw, err := json.Marshal(hello{Fail: "no\x1b such\nthing"})
	require.NoError(t, err)
	for name, c := range map[string]struct {
		options sandbox.Options
		want    string
	}{
		"refused by its start": {
			sandbox.Options{Args: []string{asWorker}, Level: sandbox.Sandbox, Hello: raw},
			"start of a worker: no  such",
		},
		"not a worker": {
			sandbox.Options{Args: []string{"-test.run=^$"}, Level: sandbox.Process},
			"start of a worker: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sandbox.Start(t.Context(), c.options)
			require.ErrorContains(t, err, c.want)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sandbox.Start(ctx, sandbox.Options{Args: []string{asWorker}, Level: sandbox.Process})
	require.Equal(t, context.Canceled, err, "no process was started")
}

// It has nothing of its parent's environment, neither names nor secrets.
func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET", "x")
	w := start(t, sandbox.Options{})
	require.Equal(t, "GOMAXPROCS=1\nGOTRACEBACK=single\nTZ=\n/", ask(t, w, "environment"))
}

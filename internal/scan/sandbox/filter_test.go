package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elastic/go-seccomp-bpf/arch"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// simulation runs the filter like the kernel, on struct seccomp_data. The simulated machine reads words in network
// order.
type simulation struct {
	t  *testing.T
	vm *bpf.VM
	id arch.AuditArch
}

const testPid = 9 // the number of mmap, too

func simulate(t *testing.T, a *arch.Info, p policy) simulation {
	t.Helper()
	var raw []bpf.RawInstruction
	for _, i := range filter(a, p) {
		raw = append(raw, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	require.LessOrEqual(t, len(raw), 4096, "BPF_MAXINSNS")
	program, known := bpf.Disassemble(raw)
	require.True(t, known)
	vm, err := bpf.NewVM(program)
	require.NoError(t, err)
	return simulation{t: t, vm: vm, id: a.ID}
}

// call returns the result of a call: 0, or the error.
func (s simulation) call(number uint32, arguments ...uint64) unix.Errno {
	s.t.Helper()
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data, number)
	binary.BigEndian.PutUint32(data[4:], uint32(s.id))
	for i, argument := range arguments {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(argument))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(argument>>32))
	}
	out, err := s.vm.Run(data)
	require.NoError(s.t, err)
	if out == unix.SECCOMP_RET_ALLOW {
		return 0
	}
	require.Equal(s.t, uint32(unix.SECCOMP_RET_ERRNO), uint32(out)&unix.SECCOMP_RET_ACTION_FULL)
	return unix.Errno(out & unix.SECCOMP_RET_DATA)
}

var architectures = map[string]*arch.Info{
	"amd64": arch.X86_64, "arm64": arch.AARCH64, "386": arch.I386,
	"arm": arch.ARM,
}

// policies lists all policies of the program.
var policies = map[string]policy{
	"worker": worker(testPid), "command": command(testPid),
	"parent of workers": parentOfWorkers(),
}

// Each call of each architecture is refused or not, according to its name, except for calls with conditions.
func TestEachCallOfTheFilter(t *testing.T) {
	for name, a := range architectures {
		for of, p := range policies {
			t.Run(name+", "+of, func(t *testing.T) {
				s := simulate(t, a, p)
				conditional := map[string]bool{}
				for _, c := range p.checks {
					conditional[c.call] = true
				}
				counts := map[unix.Errno]int{}
				for call, number := range a.SyscallNames {
					want := unix.Errno(0)
					switch {
					case conditional[call]:
						continue
					case slices.Contains(absent, call):
						want = unix.ENOSYS
					case slices.Contains(p.refused, call):
						want = unix.EPERM
					}
					got := s.call(uint32(number), 9, 9, 9, 9)
					require.Equal(t, want, got, call)
					counts[got]++
				}
				require.Greater(t, counts[0], 100)
				require.Greater(t, counts[unix.EPERM], 80)
				require.Equal(t, len(absent), counts[unix.ENOSYS])
			})
		}
	}
}

// A name that no architecture has would protect from nothing.
func TestNamesOfCallsExist(t *testing.T) {
	all := map[string]bool{}
	for _, a := range architectures {
		for name := range maps.Keys(a.SyscallNames) {
			all[name] = true
		}
	}
	for _, p := range policies {
		seen := map[string]bool{}
		for _, name := range slices.Concat(p.refused, absent) {
			require.True(t, all[name], name)
			require.False(t, seen[name], "%s is there twice", name)
			seen[name] = true
		}
		for _, c := range p.checks {
			require.True(t, all[c.call], c.call)
			require.False(t, seen[c.call], "%s is refused as a whole", c.call)
		}
	}
}

func TestArgumentsOfTheFilter(t *testing.T) {
	s := simulate(t, arch.X86_64, policies["worker"])
	const high = 1 << 40 // what the kernel does not look at
	for name, c := range map[string]struct {
		call      string
		arguments []uint64
		want      unix.Errno
	}{
		"open to read":                {"open", []uint64{1, unix.O_RDONLY | unix.O_CLOEXEC}, 0},
		"open to write":               {"open", []uint64{1, unix.O_WRONLY}, unix.EPERM},
		"openat to read":              {"openat", []uint64{3, 1, unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW}, 0},
		"openat of a folder":          {"openat", []uint64{3, 1, unix.O_RDONLY | unix.O_DIRECTORY}, 0},
		"openat to read and write":    {"openat", []uint64{3, 1, unix.O_RDWR}, unix.EPERM},
		"openat to cut":               {"openat", []uint64{3, 1, unix.O_TRUNC}, unix.EPERM},
		"openat that may make a file": {"openat", []uint64{3, 1, unix.O_CREAT}, unix.EPERM},
		"openat with high bits":       {"openat", []uint64{3, 1, high | unix.O_WRONLY}, unix.EPERM},
		"a thread of Go": {
			"clone", []uint64{
				unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND |
					unix.CLONE_SYSVSEM | unix.CLONE_THREAD,
			}, 0,
		},
		"a process":                  {"clone", []uint64{uint64(unix.SIGCHLD)}, unix.EPERM},
		"a thread with a namespace":  {"clone", []uint64{unix.CLONE_THREAD | unix.CLONE_NEWNET}, unix.EPERM},
		"signal to itself":           {"tgkill", []uint64{testPid, 10, 23}, 0},
		"signal to its own thread":   {"kill", []uint64{testPid, 15}, 0},
		"signal to another":          {"kill", []uint64{1, 15}, unix.EPERM},
		"signal to all":              {"kill", []uint64{1<<64 - 1, 9}, unix.EPERM},
		"signal to another's thread": {"tgkill", []uint64{10, 10, 23}, unix.EPERM},
		"its own limits":             {"prlimit64", []uint64{0, 7}, 0},
		"the limits of another":      {"prlimit64", []uint64{1, 7}, unix.EPERM},
		"memory":                     {"mmap", []uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE}, 0},
		"memory of a file":           {"mmap", []uint64{0, 4096, unix.PROT_READ, unix.MAP_PRIVATE}, 0},
		"shared memory": {
			"mmap",
			[]uint64{0, 4096, unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED},
			unix.EPERM,
		},
		"shared memory to read":    {"mmap", []uint64{0, 4096, unix.PROT_READ, unix.MAP_SHARED_VALIDATE}, unix.EPERM},
		"memory for code":          {"mmap", []uint64{0, 4096, unix.PROT_READ | unix.PROT_EXEC}, unix.EPERM},
		"memory that becomes code": {"mprotect", []uint64{0, 4096, unix.PROT_EXEC}, unix.EPERM},
		"size of a disk":           {"ioctl", []uint64{3, unix.BLKGETSIZE64}, 0},
		"sectors of a disk":        {"ioctl", []uint64{3, unix.BLKSSZGET}, 0},
		"discard on a disk":        {"ioctl", []uint64{3, unix.BLKDISCARD}, unix.EPERM},
		"typing into a terminal":   {"ioctl", []uint64{0, unix.TIOCSTI}, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			number, ok := arch.X86_64.SyscallNames[c.call]
			require.True(t, ok)
			require.Equal(t, c.want, s.call(uint32(number), c.arguments...))
		})
	}
	const read, x32 = 0, 0x40000000
	require.Equal(t, unix.Errno(0), s.call(read))
	require.Equal(t, unix.ENOSYS, s.call(x32|read))

	other := s
	other.id = arch.I386.ID
	for number := range uint32(600) {
		require.Equal(t, unix.EPERM, other.call(number), "a call of 386")
	}
}

// What writes files and starts nothing, and what starts workers.
func TestArgumentsOfOtherFilters(t *testing.T) {
	process := []uint64{uint64(unix.SIGCHLD) | unix.CLONE_VM | unix.CLONE_VFORK}
	for name, c := range map[string]struct {
		call            string
		arguments       []uint64
		command, parent unix.Errno
	}{
		"openat to write":      {"openat", []uint64{3, 1, unix.O_RDWR | unix.O_CREAT}, 0, 0},
		"rename":               {"renameat2", nil, 0, 0},
		"handle of a file":     {"open_by_handle_at", nil, unix.EPERM, unix.EPERM},
		"a process":            {"clone", process, unix.EPERM, 0},
		"a namespace":          {"clone", []uint64{unix.CLONE_NEWNET | unix.CLONE_THREAD}, unix.EPERM, unix.EPERM},
		"a program":            {"execve", nil, unix.EPERM, 0},
		"a socket":             {"socket", nil, unix.EPERM, unix.EPERM},
		"signal to a worker":   {"kill", []uint64{1<<64 - 10, 9}, unix.EPERM, 0},
		"signal of a worker":   {"tgkill", []uint64{10, 10, 23}, unix.EPERM, 0},
		"memory for code":      {"mmap", []uint64{0, 4096, unix.PROT_EXEC}, unix.EPERM, 0},
		"width of a terminal":  {"ioctl", []uint64{1, unix.TIOCGWINSZ}, 0, 0},
		"typing":               {"ioctl", []uint64{1, unix.TIOCSTI}, unix.EPERM, unix.EPERM},
		"pasting":              {"ioctl", []uint64{1, unix.TIOCLINUX}, unix.EPERM, unix.EPERM},
		"a shared mapping":     {"mmap", []uint64{0, 4096, unix.PROT_READ, unix.MAP_SHARED}, 0, 0},
		"looking into another": {"ptrace", nil, unix.EPERM, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			number, ok := arch.X86_64.SyscallNames[c.call]
			require.True(t, ok)
			require.Equal(t, c.command, simulate(t, arch.X86_64, policies["command"]).call(uint32(number),
				c.arguments...))
			require.Equal(t, c.parent,
				simulate(t, arch.X86_64, policies["parent of workers"]).call(uint32(number), c.arguments...))
		})
	}
}

// The messages of Go's runtime are those of go1.26, observed with limits or read in malloc.go, mem_linux.go and
// os_linux.go.
func TestCauseByLastWords(t *testing.T) {
	limits := Limits{Data: 64 << 20, CPU: time.Second}
	exit := errors.New("exit status 2")
	for name, c := range map[string]struct {
		said  string
		cause Cause
		text  string
	}{
		"panic": {
			"a word before\npanic: seven is [recovered]\n\ngoroutine 1", Crash,
			"panic: seven is [recovered]",
		},
		"panic of memory": {"panic: out of memory, says the file\n", Crash, "panic: out of memory, says the file"},
		"heap": {
			"runtime: out of memory: cannot allocate 4194304-byte block (71303168 in use)\nfatal error: " +
				"out of memory\n", Memory,
			"wanted more than 64 MiB of memory: runtime: out of memory: cannot allocate 4194304-byte block (71303168 " +
				"in use)",
		},
		"tables of the runtime": {
			"fatal error: runtime: cannot allocate memory\n", Memory,
			"wanted more than 64 MiB of memory: fatal error: runtime: cannot allocate memory",
		},
		"thread without memory": {
			"runtime: failed to create new OS thread (have 5 already; errno=12)\n", Memory,
			"wanted more than 64 MiB of memory: runtime: failed to create new OS thread (have 5 already; errno=12)",
		},
		"no thread": {
			"runtime: failed to create new OS thread (have 5 already; errno=11)\nruntime: may need to increase max " +
				"user processes (ulimit -u)\nfatal error: newosproc\n", Threads,
			"runtime: failed to create new OS thread (have 5 already; errno=11)",
		},
		"no thread of C, or no memory": {
			"runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\n", Memory,
			"wanted more than 64 MiB of memory: runtime/cgo: pthread_create failed: Resource temporarily unavailable",
		},
		"deadlock": {
			"fatal error: all goroutines are asleep - deadlock!\n", Crash,
			"fatal error: all goroutines are asleep - deadlock!",
		},
		"nothing":  {"", Crash, "exit status 2"},
		"codes":    {"\x1b]0;x\x07\xff\u009b\r\n", Crash, "exit status 2: ]0;x \uFFFD"},
		"too long": {"panic: " + strings.Repeat("x", 5000), Crash, "panic: " + strings.Repeat("x", 293) + "…"},
	} {
		t.Run(name, func(t *testing.T) {
			d := causeOfDeath(exit, c.said, limits)
			require.Equal(t, c.cause, d.Cause)
			require.Equal(t, c.text, d.Text)
		})
	}
}

// A fault in the runtime is due to memory if the process had used much of it, and otherwise an error of ours.
func TestFaultOfTheRuntime(t *testing.T) {
	const said = "fatal error: unexpected signal during runtime execution\n[signal SIGSEGV: segmentation violation " +
		"code=0x1 addr=0x0 pc=0x0]\n"
	exit := exec.Command("sh", "-c", "exit 2").Run()
	require.Error(t, exit)
	require.Equal(t, Memory, causeOfDeath(exit, said, Limits{Data: 4 << 10}).Cause)
	require.Equal(t, Crash, causeOfDeath(exit, said, Limits{Data: 1 << 40}).Cause)
	require.Equal(t, Crash, causeOfDeath(errors.New("exit status 2"), said, Limits{Data: 4 << 10}).Cause)
}

func TestWordsAreBounded(t *testing.T) {
	var w words
	for range 100 {
		n, err := w.Write([]byte(strings.Repeat("0123456789", 10)))
		require.NoError(t, err)
		require.Equal(t, 100, n)
	}
	require.Equal(t, strings.Repeat("0123456789", 410)[:4096], w.String())
	w.forget()
	require.Empty(t, w.String())
}

func TestKeepDescriptors(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD, stdio)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, keepDescriptors())
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, unix.FD_CLOEXEC, flags)
}

func TestFrames(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	for _, size := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 300_000} {
		payload := make([]byte, size)
		_, _ = random.Read(payload)
		var pipe bytes.Buffer
		require.NoError(t, writeFrame(&pipe, 7, payload))
		require.Equal(t, size+12, pipe.Len())
		got, err := readFrame(&pipe, 7, int64(size))
		require.NoError(t, err)
		require.True(t, bytes.Equal(payload, got), "%d bytes", size)
	}
}

func TestNotAFrame(t *testing.T) {
	header := "\x1etu\n\x00\x00\x00\x07\x00\x00\x00\x04"
	for name, c := range map[string]struct {
		pipe string
		want error
	}{
		"nothing":                  {"", io.EOF},
		"half a header":            {header[:6], io.ErrUnexpectedEOF},
		"half a payload":           {header + "ab", io.ErrUnexpectedEOF},
		"text":                     {"panic: something", errFrame},
		"of another request":       {"\x1etu\n\x00\x00\x00\x08\x00\x00\x00\x04abcd", errFrame},
		"one byte more than asked": {"\x1etu\n\x00\x00\x00\x07\x00\x00\x00\x05abcde", errFrame},
		"four GiB":                 {"\x1etu\n\x00\x00\x00\x07\xff\xff\xff\xff", errFrame},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readFrame(bytes.NewReader([]byte(c.pipe)), 7, 4)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// What is announced and does not come costs no memory.
func TestAnnouncedFrameTakesNoMemory(t *testing.T) {
	pipe := []byte("\x1etu\n\x00\x00\x00\x07\x3f\xff\xff\xff" + "begin")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readFrame(bytes.NewReader(pipe), 7, 1<<30)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// FuzzReadFrame: what a worker that was taken over could send is refused or has the length that was allowed.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x1etu\n\x00\x00\x00\x07\x00\x00\x00\x04abcd"), int64(4))
	f.Add([]byte("\x1etu\n\x00\x00\x00\x07\xff\xff\xff\xffabcd"), int64(1<<40))
	f.Fuzz(func(t *testing.T, pipe []byte, most int64) {
		payload, err := readFrame(bytes.NewReader(pipe), 7, most)
		if err == nil {
			require.LessOrEqual(t, int64(len(payload)), most)
			require.True(t, bytes.HasSuffix(pipe[:frameHeader+len(payload)], payload), "not what came")
		}
	})
}

// Settled returns an isolation with the level that follows from its layers.
func Settled(i Isolation) Isolation {
	i.setLevel()
	return i
}

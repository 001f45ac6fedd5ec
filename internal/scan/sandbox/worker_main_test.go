package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// The test binary is its own worker, and a parent of workers that lacks something. These are its first arguments then.
const (
	asWorker = "sandbox-test-worker"
	asParent = "sandbox-test-parent"
	confined = "sandbox-test-confined"
)

func TestMain(m *testing.M) {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	switch role {
	case asWorker:
		if err := sandbox.Serve(os.Stdin, os.Stdout, begin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case asParent:
		if err := parent(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case confined:
		if err := confine(os.Args[2], os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		disktest.LeakTestMain(m)
	}
}

// hello is what the tests ask of a worker's start.
type hello struct {
	Fail string // the start fails with this
	Echo string // answers begin with this
}

func begin(raw []byte) (sandbox.Handle, error) {
	var h hello
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &h); err != nil {
			return nil, err
		}
	}
	if h.Fail != "" {
		return nil, errors.New(h.Fail)
	}
	return func(request []byte) []byte {
		do, with, _ := strings.Cut(string(request), " ")
		if do == "echo" {
			return append([]byte(h.Echo), with...)
		}
		if misdeed, ok := misdeeds[do]; ok {
			return misdeed(with)
		}
		deed, ok := deeds[do]
		if !ok {
			panic("unknown request " + do)
		}
		if err := deed(with); err != nil {
			return []byte(err.Error())
		}
		return []byte("done")
	}, nil
}

// sink keeps what would otherwise be optimised away.
var sink [][]byte

// misdeeds are what no worker survives.
var misdeeds = map[string]func(with string) []byte{
	"panic":  func(with string) []byte { panic(with) },
	"index":  func(string) []byte { return make([]byte, 0)[len(sink):][:1:2] },
	"exit":   func(string) []byte { os.Exit(3); return nil },
	"signal": func(string) []byte { _ = unix.Kill(os.Getpid(), unix.SIGKILL); select {} },
	"spin": func(string) []byte {
		for n := int64(0); ; n++ {
			if n < 0 {
				return nil
			}
		}
	},
	"sleep": func(string) []byte { time.Sleep(time.Hour); return nil },
	"hog": func(string) []byte {
		for {
			piece := make([]byte, 1<<20)
			for i := 0; i < len(piece); i += 4096 {
				piece[i] = 1
			}
			sink = append(sink, piece)
		}
	},
	"huge": func(string) []byte { sink = append(sink, make([]byte, 1<<30)); return nil },
	"stack": func(string) []byte {
		debug.SetMaxStack(1 << 30) // as on processors of 64 bits
		var down func(n int) int
		down = func(n int) int { return down(n+1) + n }
		return []byte{byte(down(0))}
	},
	"garbage": func(string) []byte { _, _ = os.Stdout.WriteString("hello, I am no frame"); return nil },
	"closed":  func(string) []byte { _ = os.Stdout.Close(); return nil },
	"long":    func(string) []byte { return make([]byte, 2<<20) },
	"lie": func(string) []byte {
		_, _ = os.Stdout.Write([]byte{0x1e, 't', 'u', '\n', 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff})
		select {}
	},
	"shout": func(string) []byte {
		_, _ = os.Stderr.Write(bytes.Repeat([]byte("\x1b[2Jnoise\x07 "), 1<<16))
		os.Exit(4)
		return nil
	},
	"child": func(string) []byte { // one that outlives its maker and has its pipes
		cmd := exec.Command("/bin/sleep", "3600")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return []byte(err.Error())
		}
		return fmt.Append(nil, cmd.Process.Pid)
	},
	"pid": func(string) []byte { return fmt.Append(nil, os.Getpid()) },
	"environment": func(string) []byte {
		dir, _ := os.Getwd()
		return []byte(strings.Join(append(os.Environ(), dir), "\n"))
	},
	"burn": func(string) []byte {
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
			sink = sink[:0]
		}
		return []byte("burnt")
	},
}

// deeds are what a worker in a sandbox may or may not do. They give the refusal.
var deeds = map[string]func(with string) error{
	"read":   func(with string) error { _, err := os.ReadFile(with); return err },
	"list":   func(with string) error { _, err := os.ReadDir(with); return err },
	"create": func(with string) error { return closing(os.Create(with)) },
	"append": func(with string) error { return closing(os.OpenFile(with, os.O_WRONLY|os.O_APPEND, 0)) },
	// Opened for reading, and cut to nothing all the same.
	"cut":      func(with string) error { return closing(os.OpenFile(with, os.O_RDONLY|os.O_TRUNC, 0)) },
	"truncate": func(with string) error { return os.Truncate(with, 0) },
	"mkdir":    func(with string) error { return os.Mkdir(filepath.Join(with, "new"), 0o700) },
	"remove":   os.Remove,
	"chmod":    func(with string) error { return os.Chmod(with, 0o777) },
	"touch":    func(with string) error { return os.Chtimes(with, time.Now(), time.Now()) },
	"tmpfile":  func(with string) error { return descriptor(unix.Open(with, unix.O_TMPFILE|unix.O_RDWR, 0o600)) },
	"exec": func(with string) error {
		process, err := os.StartProcess(with, []string{with}, &os.ProcAttr{})
		if err != nil {
			return err
		}
		_, err = process.Wait()
		return err
	},
	"execself": func(with string) error { return syscall.Exec(with, []string{with}, nil) },
	"fork": func(string) error {
		_, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		return number(errno)
	},
	"clone3": func(string) error {
		_, _, errno := syscall.RawSyscall(unix.SYS_CLONE3, 0, 0, 0)
		return number(errno)
	},
	"socket":     func(string) error { return descriptor(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)) },
	"unixsocket": func(string) error { return descriptor(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)) },
	"kill": func(with string) error {
		var pid int
		if _, err := fmt.Sscan(with, &pid); err != nil {
			return err
		}
		return unix.Kill(pid, 0)
	},
	"ptrace":  func(string) error { return unix.PtraceAttach(os.Getppid()) },
	"unshare": func(string) error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"uring":   func(string) error { return call(unix.SYS_IO_URING_SETUP, 1) },
	"mount":   func(string) error { return unix.Mount("none", "/", "tmpfs", 0, "") },
	"code": func(string) error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		return err
	},
	"ioctl": func(string) error {
		_, err := unix.IoctlGetInt(0, unix.TIOCINQ)
		return err
	},
	"sectors": func(with string) error { // as a disk is asked for them
		fd, err := unix.Open(with, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		_, err = unix.IoctlGetInt(fd, unix.BLKSSZGET)
		return errors.Join(err, unix.Close(fd))
	},
	// What could be done with descriptors of the parent.
	"pread": func(with string) error {
		_, err := unix.Pread(inherited(with), make([]byte, 1), 0)
		return err
	},
	"send": func(with string) error {
		_, err := unix.Write(inherited(with), []byte("x"))
		return err
	},
	"overwrite": func(with string) error {
		page, err := unix.Mmap(inherited(with), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			page[0] = 'X'
		}
		return err
	},
	"share": func(with string) error { // a mapping that mprotect could make writable
		fd, err := unix.Open(with, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		_, err = unix.Mmap(fd, 0, 1, unix.PROT_READ, unix.MAP_SHARED)
		return errors.Join(err, unix.Close(fd))
	},
	"limits": func(string) error {
		return unix.Prlimit(os.Getppid(), unix.RLIMIT_NOFILE, nil, &unix.Rlimit{})
	},
	"files": func(with string) error {
		for {
			if _, err := unix.Open(with, unix.O_RDONLY, 0); err != nil {
				return err
			}
		}
	},
}

// inherited is the number of a descriptor that the parent names.
func inherited(with string) int {
	fd, err := strconv.Atoi(with)
	if err != nil {
		panic(err)
	}
	return fd
}

func closing(file *os.File, err error) error {
	if err == nil {
		err = file.Close()
	}
	return err
}

func descriptor(fd int, err error) error {
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

func call(trap, argument uintptr) error {
	_, _, errno := unix.Syscall(trap, argument, 0, 0)
	return number(errno)
}

func number(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

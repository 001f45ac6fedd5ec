// Package sys wraps the operating system: opening folders and files without following links, file identity, locks,
// holes, free space, renames that never replace a file, folder flushes, limits and signals. Other packages import
// neither golang.org/x/sys nor syscall. Files with build tags hold the differences between systems; a new system needs
// only such a file. If a system lacks a function, it returns an error for Unsupported, or its documented cautious
// result.
//
// Calls interrupted by a signal are repeated, as in package os. These signals come from the Go runtime, which preempts
// threads with them. FUSE and network file systems let them interrupt calls that a local disk would finish.
package sys

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
)

// ID identifies a file on this machine: its file system number and its inode number.
type ID struct{ Device, Inode uint64 }

// Info is the metadata of a file.
type Info struct {
	ID                // zero if the system does not report it
	Mode              fs.FileMode
	Node              uint64 // number of the device for a device node; otherwise 0
	Size              int64  // bytes
	Allocated         int64  // bytes allocated on its file system
	Links             uint64
	Modified, Changed int64 // ns since 1970; Changed also covers changes of mode, owner and links
}

// Same reports whether both describe the same file.
func (i Info) Same(other Info) bool { return i.ID == other.ID && i.ID != ID{} }

// LockKind is the kind of a file lock.
type LockKind int

// Kinds of locks.
const (
	Unlocked LockKind = iota
	Shared
	Exclusive
)

// lockByte is the byte that Lock locks. It is far past the maximum file size, because SMB and Windows deny access to
// locked bytes.
const lockByte = 1 << 62

// AtWork reports whether another run has locked the file.
func (f *File) AtWork() bool {
	err := f.Lock(Shared)
	if err == nil {
		_ = f.Lock(Unlocked) // closing the file releases it, too
	}
	return Locked(err)
}

// Release releases all locks of an open file, and closes it: once, because Linux frees the descriptor even if a signal
// interrupts the call.
func Release(f *os.File) error {
	_ = FromOS(f).Unlock() // closing the file releases them, too
	if err := f.Close(); !Interrupted(err) {
		return err
	}
	return nil
}

// Drive describes an open disk that was named by its Windows name.
type Drive struct {
	Name    string // base name: PhysicalDrive0
	Size    int64  // bytes
	Sector  int64  // read alignment in bytes
	Offline bool   // not in use by Windows
	Fixed   bool   // the medium is not removable
}

// IsDrive reports whether a path is the Windows name of a disk. It is false on other systems.
func IsDrive(path string) bool {
	_, ok := driveName(path)
	return ok && runtime.GOOS == "windows"
}

// driveNames is the folder of device names. Source: Naming Files, Paths, and Namespaces (Microsoft).
const driveNames, drivePrefix = `\\.\`, "PhysicalDrive"

// driveName returns the base name of the disk at a path.
func driveName(path string) (string, bool) {
	name, ok := strings.CutPrefix(strings.ReplaceAll(path, "/", `\`), driveNames)
	if !ok || len(name) < len(drivePrefix) || !strings.EqualFold(name[:len(drivePrefix)], drivePrefix) {
		return "", false
	}
	number := name[len(drivePrefix):]
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != number {
		return "", false
	}
	return drivePrefix + number, true
}

// Interrupt is the signal of Ctrl-C.
const Interrupt = syscall.SIGINT

// Terminate is the signal to end a program.
const Terminate = syscall.SIGTERM

// EndSignals returns the signals that ask a program to end.
func EndSignals() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}

// ExitCode returns the shell's exit code for a program ended by a signal.
func ExitCode(s os.Signal) int {
	number, _ := s.(syscall.Signal)
	return 128 + int(number)
}

// Writer is a process with a file open for writing.
type Writer struct {
	PID     int    // 0 means the kernel, through loop device Program
	Program string // truncated by the system to a few characters
	File    Info
}

// System errors for results of lookups in this program.
const (
	ErrNotExist = syscall.ENOENT
	ErrExist    = syscall.EEXIST
	ErrLoop     = syscall.ELOOP
	ErrAgain    = syscall.EAGAIN
)

// isAny reports whether err matches one of the errors in some.
func isAny(err error, some ...error) bool {
	return slices.ContainsFunc(some, func(e error) bool { return errors.Is(err, e) })
}

// Cause returns the cause of a file or program error, without the name. The caller adds the name.
func Cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if p, ok := errors.AsType[*exec.Error](err); ok {
		return p.Err
	}
	return err
}

// Output runs a program and returns its standard output, and the end of its standard error. Both are limited to most
// bytes, and a longer standard output is an error. The program runs in its own process group, which is killed with this
// program and with the context.
func Output(ctx context.Context, cmd *exec.Cmd, most int) (out, said []byte, err error) {
	o, s := bounded{most: most}, Tail{Most: most}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &o, &s, dying
	cmd.Cancel = func() error { return KillGroup(cmd) }
	release := Tie(cmd)
	defer release()
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case o.over:
		err = fmt.Errorf("it printed more than %d bytes", most)
	}
	return o.kept, s.kept, err
}

// dying limits the wait for the pipes of a killed program.
const dying = 10 * time.Second

// bounded keeps written bytes up to a limit. A bytes.Buffer would not do, because io.Copy would read past the limit.
type bounded struct {
	kept []byte
	most int
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > b.most-len(b.kept) {
		b.over = true
		return 0, io.ErrShortWrite // closes the pipe
	}
	b.kept = append(b.kept, p...)
	return len(p), nil
}

// Tail keeps the last written bytes, at most Most. Safe for concurrent use.
type Tail struct {
	Most int

	mu   sync.Mutex
	kept []byte
}

func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	p = p[max(0, n-t.Most):]
	t.kept = append(t.kept[max(0, len(t.kept)+len(p)-t.Most):], p...)
	return n, nil
}

func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept))
}

// Tool returns the path of a program that the user may have to install. debian is its Debian package, or "" for a
// program that the user names.
func Tool(name, debian string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	why := Cause(err)
	if debian == "" || !errors.Is(err, exec.ErrNotFound) {
		return "", ondisk.In(ondisk.ErrUnsupported, "%s: %w", name, why)
	}
	return "", ondisk.In(ondisk.ErrUnsupported, "%s: not installed; on Debian: apt install %s", name, debian)
}

// FromSystem reports whether an error comes from the operating system.
func FromSystem(err error) bool {
	_, ok := errors.AsType[syscall.Errno](err)
	return ok
}

// Unsupported reports whether an error means that a file system does not support a call, or an option of it.
func Unsupported(err error) bool {
	return isAny(err, unsupported...) || errors.Is(err, errors.ErrUnsupported)
}

// NoLocks reports whether an error means that a file system does not support locks.
func NoLocks(err error) bool { return errors.Is(err, syscall.ENOLCK) || Unsupported(err) }

// Locked reports whether an error means that another program holds the lock.
func Locked(err error) bool { return isAny(err, locked...) }

// NotShared reports whether another program has a file open without sharing it.
func NotShared(err error) bool { return isAny(err, notShared...) }

// Full reports whether an error means that a file system or a quota is full.
func Full(err error) bool { return isAny(err, full...) }

// NoServer reports whether no program listens at a socket.
func NoServer(err error) bool { return isAny(err, syscall.ECONNREFUSED) }

// Denied reports whether an error means that the user lacks permission for a file.
func Denied(err error) bool { return isAny(err, denied...) }

// NotFolder reports whether an error means that a name on the path to a file is a link or a file.
func NotFolder(err error) bool { return isAny(err, syscall.ENOTDIR, syscall.ELOOP, syscall.EMLINK) }

// TooLong reports whether a name is too long for a file.
func TooLong(err error) bool { return isAny(err, tooLong...) }

// Interrupted reports whether an error means that a signal interrupted a call.
func Interrupted(err error) bool { return errors.Is(err, syscall.EINTR) }

// Claimed reports whether an error means that the kernel holds a device for another use.
func Claimed(err error) bool { return errors.Is(err, syscall.EBUSY) }

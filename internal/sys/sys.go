// Package sys is the room for what the operating system does: open folders and files without following links, identity,
// locks, holes, free space, names that replace nothing, flushes of folders, limits and signals. Other packages import
// neither golang.org/x/sys nor syscall. What differs between systems is in files with build tags: a further system is
// one more of these. What a system cannot do is an error that Unsupported knows, or the cautious answer that the
// function names.
//
// Calls that a signal interrupted are repeated, as os does. The signals are Go's own: it stops threads with them, and
// file systems in user space and on a network let them interrupt calls that a local disk would finish.
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

// ID identifies a file on this machine: the number of its file system, and that of the file in it.
type ID struct{ Device, Inode uint64 }

// Info is what a file system stores about a file.
type Info struct {
	ID                // zero where the system does not say it
	Mode              fs.FileMode
	Node              uint64 // number of the device that a device node stands for; else 0
	Size              int64  // bytes
	Allocated         int64  // bytes that the file takes on its file system
	Links             uint64
	Modified, Changed int64 // ns since 1970; Changed also when the mode, the owner or the links change
}

// Same reports whether both are of one file.
func (i Info) Same(other Info) bool { return i.ID == other.ID && i.ID != ID{} }

// LockKind is a lock that a file has.
type LockKind int

// Kinds of locks.
const (
	Unlocked LockKind = iota
	Shared
	Exclusive
)

// lockByte is the byte that Lock locks, far behind what a file can hold: SMB and Windows keep others from reading and
// writing what is locked.
const lockByte = 1 << 62

// Drive describes a disk that Windows has opened.
type Drive struct {
	Name    string // without folders: PhysicalDrive0
	Size    int64  // bytes
	Sector  int64  // bytes that a read has to be aligned to
	Offline bool   // Windows does not use the disk
	Fixed   bool   // its medium is not removable
}

// IsDrive reports whether a path is the name that Windows has for a disk. On other systems none is.
func IsDrive(path string) bool {
	_, ok := driveName(path)
	return ok && runtime.GOOS == "windows"
}

// driveNames is the folder of names of devices. Source: Naming Files, Paths, and Namespaces (Microsoft).
const driveNames, drivePrefix = `\\.\`, "PhysicalDrive"

// driveName returns the name of the disk that a path names, without the folder.
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

// Terminate is the signal that asks a program to end.
const Terminate = syscall.SIGTERM

// BrokenPipe is the signal of a write to a pipe whose reader is gone.
const BrokenPipe = syscall.SIGPIPE

// EndSignals returns the signals that ask a program to end.
func EndSignals() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
}

// ExitCode returns the exit code of shells for a program that a signal has ended.
func ExitCode(s os.Signal) int {
	number, _ := s.(syscall.Signal)
	return 128 + int(number)
}

// Writer is a process that has a file open for writing.
type Writer struct {
	PID     int    // 0: the kernel, by the loop device Program
	Program string // as the system shows it, at most a few letters
	File    Info
}

// Errors of the system for what a look-up finds before it asks the system.
const (
	ErrNotExist = syscall.ENOENT
	ErrExist    = syscall.EEXIST
	ErrLoop     = syscall.ELOOP
	ErrAgain    = syscall.EAGAIN
)

// isAny reports whether an error is one of some.
func isAny(err error, some ...error) bool {
	return slices.ContainsFunc(some, func(e error) bool { return errors.Is(err, e) })
}

// Cause returns an error of the file system or of a program to start without its name, which the caller gives.
func Cause(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	if p, ok := errors.AsType[*exec.Error](err); ok {
		return p.Err
	}
	return err
}

// Ask runs a program to its end, and returns its standard output, at most so many bytes, since more are an error, and
// as many bytes of the end of its standard error. It is in a group of its own, which dies with this program, and with
// the context.
func Ask(ctx context.Context, cmd *exec.Cmd, most int) (out, said []byte, err error) {
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

// dying is how long the pipes of a program that was ended are waited for.
const dying = 10 * time.Second

// bounded keeps what is written to it, up to a bound. It is no bytes.Buffer, which io.Copy would have read past that.
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

// Tail keeps the end of what is written to it, at most so many bytes. Safe for concurrent use.
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

// Tool returns the path of a program that the user may have to install: debian is the package that has it; it is empty
// for a program that the user names.
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

// Unsupported reports whether an error says that a file system does not know a call, or an option of it.
func Unsupported(err error) bool {
	return isAny(err, unsupported...) || errors.Is(err, errors.ErrUnsupported)
}

// NoLocks reports whether an error says that a file system knows no locks.
func NoLocks(err error) bool { return errors.Is(err, syscall.ENOLCK) || Unsupported(err) }

// Locked reports whether an error says that another program has the lock.
func Locked(err error) bool { return isAny(err, locked...) }

// NotShared reports whether an error says that another program has a file open, and does not share it.
func NotShared(err error) bool { return isAny(err, notShared...) }

// Full reports whether an error says that a file system or a quota has no room left.
func Full(err error) bool { return isAny(err, full...) }

// Denied reports whether an error says that this user lacks the right to a file.
func Denied(err error) bool { return isAny(err, denied...) }

// NotFolder reports whether an error says that a name on the way to a file is a link or a file.
func NotFolder(err error) bool { return isAny(err, syscall.ENOTDIR, syscall.ELOOP, syscall.EMLINK) }

// TooLong reports whether an error says that no file can have a name so long.
func TooLong(err error) bool { return isAny(err, tooLong...) }

// Interrupted reports whether an error says that a signal interrupted a call.
func Interrupted(err error) bool { return errors.Is(err, syscall.EINTR) }

// Claimed reports whether an error says that the kernel keeps a device for another use.
func Claimed(err error) bool { return errors.Is(err, syscall.EBUSY) }

//go:build linux && !386

package oddfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// file is an open file. Its locks belong to its own descriptor of the underlying file.
type file struct {
	*fs.LoopbackFile
	f    *os.File
	s    *server
	ino  uint64
	read atomic.Pointer[syscall.Flock_t] // the last read lock
}

// newFile is an open file of the server.
func newFile(f *os.File, s *server) (*file, syscall.Errno) {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fs.ToErrno(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Leases && s.named[st.Ino] {
		_ = f.Close()
		return nil, syscall.EINVAL
	}
	s.opens[st.Ino]++
	s.Journal.opened(1)
	return &file{LoopbackFile: fs.NewLoopbackFileFromOS(f), f: f, s: s, ino: st.Ino}, 0
}

// Release is the end of the last descriptor.
func (f *file) Release(ctx context.Context) syscall.Errno {
	f.s.mu.Lock()
	if f.s.opens[f.ino]--; f.s.opens[f.ino] == 0 {
		delete(f.s.named, f.ino)
	}
	f.s.mu.Unlock()
	errno := f.LoopbackFile.Release(ctx)
	f.s.Journal.opened(-1)
	return errno
}

// part returns the number of n bytes that are read or written at once.
func (f *file) part(n int) int {
	if f.s.Short {
		return (n + 2) / 3
	}
	return n
}

// barred reports whether a lock of another descriptor prevents a read or write.
func (f *file) barred(kind int16, off int64, n int) bool {
	l := unix.Flock_t{Type: kind, Start: off, Len: int64(n)}
	return f.s.Mandatory && unix.FcntlFlock(f.f.Fd(), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// Read reads.
func (f *file) Read(_ context.Context, p []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := f.s.begin("read", ""); errno != 0 {
		return nil, errno
	}
	if f.barred(unix.F_RDLCK, off, len(p)) {
		return nil, syscall.EACCES
	}
	n, err := f.f.ReadAt(p[:f.part(len(p))], off)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fs.ToErrno(err)
	}
	return fuse.ReadResultData(p[:n]), 0
}

// Write writes.
func (f *file) Write(ctx context.Context, p []byte, off int64) (uint32, syscall.Errno) {
	if f.s.isFull() {
		return 0, syscall.ENOSPC
	}
	if f.s.Wrote != nil {
		f.s.Wrote(f.ino, processOf(ctx))
	}
	if errno := f.s.begin("write", ""); errno != 0 {
		return 0, errno
	}
	if f.barred(unix.F_WRLCK, off, len(p)) {
		return 0, syscall.EACCES
	}
	n, err := f.f.WriteAt(p[:f.part(len(p))], off)
	return uint32(n), fs.ToErrno(err)
}

func (s *server) isFull() bool { return s.Full != nil && s.Full.Load() }

// processOf returns the process waiting for a call. The kernel passes its thread.
func processOf(ctx context.Context) (pid int) {
	caller, _ := fuse.FromContext(ctx)
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", caller.Pid))
	_, after, _ := strings.Cut(string(b), "\nTgid:")
	_, _ = fmt.Sscan(after, &pid)
	return pid
}

// Flush is called by close(2).
func (f *file) Flush(ctx context.Context) syscall.Errno {
	if errno := f.s.begin("flush", ""); errno != 0 {
		return errno
	}
	return f.LoopbackFile.Flush(ctx)
}

// Fsync flushes for the record of power cuts only: the underlying file must survive programs, not a loss of power.
func (f *file) Fsync(context.Context, uint32) syscall.Errno {
	if errno := f.s.begin("fsync", ""); errno != 0 {
		return errno
	}
	return f.s.Power.flush(f)
}

// Setlk takes or releases a lock.
func (f *file) Setlk(_ context.Context, _ uint64, lk *fuse.FileLock, flags uint32) syscall.Errno {
	if errno := f.s.begin("lock", ""); errno != 0 {
		return errno
	}
	var l syscall.Flock_t
	lk.ToFlockT(&l)
	read := f.read.Load()
	same := read != nil && l.Start < read.Start+max(read.Len, 1) && read.Start < l.Start+max(l.Len, 1)
	switch {
	case l.Type == unix.F_RDLCK:
		f.read.Store(&l)
	case l.Type == unix.F_UNLCK && same:
		f.read.Store(nil)
	case l.Type == unix.F_WRLCK && same && f.s.NoUpgrade:
		return syscall.EACCES
	}
	x := unix.Flock_t{Type: l.Type, Start: l.Start, Len: l.Len}
	if flags&fuse.FUSE_LK_FLOCK != 0 || f.s.LocksWhole {
		x.Start, x.Len = 0, 0
	}
	return fs.ToErrno(unix.FcntlFlock(f.f.Fd(), unix.F_OFD_SETLK, &x))
}

// Setlkw does not wait: a test would.
func (f *file) Setlkw(ctx context.Context, owner uint64, lk *fuse.FileLock, flags uint32) syscall.Errno {
	return f.Setlk(ctx, owner, lk, flags)
}

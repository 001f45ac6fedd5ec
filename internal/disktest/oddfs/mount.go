//go:build linux && !386

package oddfs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// Mount mounts a folder until the test ends. If the machine denies it, the test is skipped.
func Mount(t testing.TB, behind string, m Manners) (mounted string) {
	t.Helper()
	s := &server{Manners: m, calls: map[string]int{}, opens: map[uint64]int{}, named: map[uint64]bool{}}
	if err := m.Power.begin(behind); err != nil {
		t.Fatal(err)
	}
	root := &fs.LoopbackRoot{Path: behind}
	root.RootNode = s.node(root)
	mounted = t.TempDir()
	place, end, err := attach(t, mounted)
	if err != nil {
		t.Skipf("no file system in user space can be mounted here: %v", err)
	}
	if end != nil {
		t.Cleanup(end)
	}
	mount, err := fs.Mount(place, root.RootNode, &fs.Options{MountOptions: fuse.MountOptions{
		Name: "oddfs", DisableXAttrs: true, EnableLocks: true, MaxWrite: maxTransfer, MaxReadAhead: noReadAhead,
	}})
	if err != nil {
		t.Skipf("no file system in user space can be served here: %v", err)
	}
	if end == nil {
		t.Cleanup(func() {
			if err := mount.Unmount(); err != nil {
				t.Errorf("unmount: %v", err)
			}
		})
	}
	if err := unpolled(mounted); err != nil {
		t.Fatalf("poll: %v", err)
	}
	return mounted
}

// unpolled lets the kernel poll one file, and learn that polls are not supported. Go polls each file that it opens, in
// a call that no other thread of the process can overtake. The library does that itself, but not for a mount that it
// gets as a descriptor.
func unpolled(mounted string) error {
	fd, err := unix.Open(mounted+"/.go-fuse-epoll-hack", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return errors.Join(err, unix.Close(fd))
}

// maxTransfer is the maximum number of bytes per call.
const maxTransfer = 128 << 10

// noReadAhead, in bytes, is less than a page, so that the kernel only reads requested pages. Otherwise the number of
// reads differs between runs. 0 is the kernel's default.
const noReadAhead = 1

// attach mounts as root. For an ordinary user, fusermount3 does it later, and end is nil. The descriptor must not be
// inherited by programs of tests: a mount exists as long as any process has it.
func attach(t testing.TB, mounted string) (place string, end func(), err error) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	if os.Geteuid() != 0 {
		disktest.Tool(t, "fusermount3")
		return mounted, nil, unix.Close(fd)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=%d", fd, maxTransfer)
	if err := unix.Mount("oddfs", mounted, "fuse.oddfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return "", nil, errors.Join(err, unix.Close(fd))
	}
	return fmt.Sprintf("/dev/fd/%d", fd), func() {
		if err := unix.Unmount(mounted, unix.MNT_FORCE|unix.MNT_DETACH); err != nil { // even if files are still open
			t.Errorf("unmount: %v", err)
		}
	}, nil
}

// server is the common state of all files of a mount.
type server struct {
	Manners

	mu    sync.Mutex
	calls map[string]int
	opens map[uint64]int  // open descriptors by inode
	named map[uint64]bool // open files that got a second name
}

// begin returns the error of an operation that is not performed, or 0.
func (s *server) begin(op, name string) syscall.Errno {
	if errno := s.Journal.note(op, name); errno != 0 {
		return errno
	}
	for _, key := range []string{op, op + " " + name} {
		if errno := s.Fail[key]; errno != 0 {
			return errno
		}
	}
	s.Power.before(op)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[op]++
	// The kernel restarts locks itself, and returns its own errno 512 to programs if there was no signal.
	if n := s.calls[op]; s.Interrupted && op != "lock" && n&(n-1) == 0 {
		return syscall.EINTR
	}
	return 0
}

// end returns the reported error of an operation that was performed.
func (s *server) end(op, name string, errno syscall.Errno) syscall.Errno {
	for _, key := range []string{op, op + " " + name} {
		if lost := s.Lost[key]; errno == 0 && lost != 0 {
			return lost
		}
	}
	return errno
}

// link records another name of an open file.
func (s *server) link(ino uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opens[ino] > 0 {
		s.named[ino] = true
	}
}

func (s *server) node(root *fs.LoopbackRoot) *node {
	return &node{LoopbackNode: fs.LoopbackNode{RootData: root}, s: s}
}

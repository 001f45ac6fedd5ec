//go:build linux && !386

// Package oddfs is a file system with the manners of others: networks, shared folders of hypervisors, drivers in user
// space. It shows a folder, and does less with it, or else, than a disk's own file system would.
//
// A test runs programs on it and looks at the folder behind it: a process that uses its own mount can wait for itself,
// even for the moment in which a child of it changes to a folder there (exec.Cmd.Dir).
package oddfs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// Manners lists what a file system does differently. The zero value is a good one.
type Manners struct {
	// Fail has the error of an operation: "link", "rename" without flags, "rename2" with some, "lock", "fsyncdir",
	// "statfs", "chmod", "unlink", "create". A name behind it means that file only: "unlink .x.partial".
	Fail map[string]syscall.Errno
	// Lost has the error of an operation that was carried out all the same, as when the answer of a server is lost.
	Lost map[string]syscall.Errno
	// Interrupted has the first, second, fourth, eighth … operation of a kind fail with EINTR: ever fewer, since a call
	// that needs several of them would be interrupted for ever otherwise.
	Interrupted bool
	// Short has reads and writes do a part of what is asked.
	Short bool
	// Caseless finds a file by its name in another case.
	Caseless bool
	// Mandatory locks keep other descriptors from what is locked. Those of flock(2) lock the whole file, as on SMB.
	Mandatory bool
	// Capacity is how many bytes there are, 0: as many as behind it. Then a file gets its room with its size, as on
	// FAT.
	Capacity int64
	// NoUpgrade has a lock for reading bar a lock for writing by the same descriptor, as on SMB.
	NoUpgrade bool
	// Leases has a file that gets a second name not be opened again as long as it is open, as on SMB with leases.
	Leases bool
	// LocksWhole has any lock lock the whole file.
	LocksWhole bool
	// Full is set while there is no room for bytes that are written.
	Full *atomic.Bool
	// Wrote receives the inode and the process of each write.
	Wrote func(inode uint64, pid int)
	// Journal notes the operations; nil: none does.
	Journal *Journal
}

// Journal lists operations, and has one of them fail, or the program be killed at one.
type Journal struct {
	Errno syscall.Errno // of the operation that fails; 0: EIO

	mu      sync.Mutex
	fail    int
	done    []string
	killAt  int // among the operations that change something
	kill    func()
	changes int
	open    int                     // descriptors
	ignored map[string]map[int]bool // calls of a kind, by their numbers
}

// Restart empties the journal. The operation with the number fail, counted from 1, will fail; 0: none.
func (j *Journal) Restart(fail int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail, j.done, j.killAt, j.changes = fail, nil, 0, 0
}

// KillAt empties the journal. Before the operation with the number at, counted from 1 among those that change
// something, kill is called. Neither that one nor a later one is carried out until the next start.
func (j *Journal) KillAt(at int, kill func()) {
	j.Restart(0)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.killAt, j.kill = at, kill
}

// Changes are the operations since the last start that change something.
func (j *Journal) Changes() []string {
	return slices.DeleteFunc(j.Done(), func(op string) bool {
		kind, _, _ := strings.Cut(op, " ")
		return !slices.Contains(changing, kind)
	})
}

// Idle reports whether no file is open. The kernel closes those of a program that was killed a moment after its end.
func (j *Journal) Idle() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.open == 0
}

// opened notes descriptors that were opened, or closed if n is negative.
func (j *Journal) opened(n int) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open += n
}

// Done are the operations since the last start: their kinds, and names where they have some.
func (j *Journal) Done() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.done)
}

// changing are the operations that change something. A lock is one: others meet it.
var changing = []string{
	"create", "write", "truncate", "chmod", "fsync", "fsyncdir", "link", "unlink", "rename", "rename2", "lock",
}

// note adds an operation, and returns its error: 0 if it is carried out.
func (j *Journal) note(op, name string) syscall.Errno {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = append(j.done, strings.TrimSpace(op+" "+name))
	if slices.Contains(changing, op) {
		j.changes++
		if j.killAt > 0 && j.changes == j.killAt {
			j.kill()
		}
		if j.killAt > 0 && j.changes >= j.killAt {
			return syscall.EIO
		}
	}
	if len(j.done) == j.fail {
		return cmp.Or(j.Errno, syscall.EIO)
	}
	return 0
}

// Mount shows the folder behind until the test ends. A machine that denies it skips the test.
func Mount(t testing.TB, behind string, m Manners) (mounted string) {
	t.Helper()
	s := &server{Manners: m, calls: map[string]int{}, opens: map[uint64]int{}, named: map[uint64]bool{}}
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

// unpolled has the kernel ask once whether a file there is ready, and learn that such questions are not answered. Go
// asks for each file that it opens, in a call that no other thread of the process can overtake. The library asks
// itself, but not of a mount that it gets as a descriptor.
func unpolled(mounted string) error {
	fd, err := unix.Open(mounted+"/.go-fuse-epoll-hack", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return errors.Join(err, unix.Close(fd))
}

// maxTransfer is how many bytes a call can have.
const maxTransfer = 128 << 10

// noReadAhead, in bytes, is less than a page: the kernel reads what is asked for. Otherwise it asks for more when it
// has the time, and how many reads there are differs from run to run. 0 stands for the kernel's own choice.
const noReadAhead = 1

// attach mounts as root does it. For an ordinary user fusermount3 does it later, and end is nil. The descriptor must
// not get to the programs that tests start: a mount lives as long as any process has it.
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
		if err := unix.Unmount(mounted, unix.MNT_FORCE|unix.MNT_DETACH); err != nil { // whatever has a file open still
			t.Errorf("unmount: %v", err)
		}
	}, nil
}

// server is what all files of a mount have in common.
type server struct {
	Manners

	mu    sync.Mutex
	calls map[string]int
	opens map[uint64]int  // open descriptors by inode
	named map[uint64]bool // files that are open, and got a second name
}

// begin is the error with which an operation ends before it was carried out, 0 for none.
func (s *server) begin(op, name string) syscall.Errno {
	if errno := s.Journal.note(op, name); errno != 0 {
		return errno
	}
	for _, key := range []string{op, op + " " + name} {
		if errno := s.Fail[key]; errno != 0 {
			return errno
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[op]++
	// The kernel restarts locks itself, and gives programs an errno of its own, 512, when there was no signal.
	if n := s.calls[op]; s.Interrupted && op != "lock" && n&(n-1) == 0 {
		return syscall.EINTR
	}
	return 0
}

// end is the error that is reported of an operation that was carried out.
func (s *server) end(op, name string, errno syscall.Errno) syscall.Errno {
	for _, key := range []string{op, op + " " + name} {
		if lost := s.Lost[key]; errno == 0 && lost != 0 {
			return lost
		}
	}
	return errno
}

// link notes another name of a file that is open.
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

// Package oddfs is a file system with the manners of others: networks, shared folders of hypervisors, drivers in user
// space. It shows a folder, and does less with it, or else, than a disk's own file system would.
//
// A test runs programs on it and looks at the folder after it: a process that uses its own mount can wait for itself,
// even for the moment in which a child of it changes to a folder there (exec.Cmd.Dir).
package oddfs

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Manners lists what a file system does differently. The zero value is a good one.
type Manners struct {
	// Fail has the error of an operation: "link", "rename" without flags, "rename2" with some, "lock", "fsyncdir",
	// "statfs", "chmod", "unlink", "create". A name after it means that file only: "unlink .x.partial".
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
	// Capacity is how many bytes there are, 0: as many as after it. Then a file gets its room with its size, as on FAT.
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

// Failing has operations, in turn with their errors, fail.
func Failing(pairs ...any) Manners {
	m := Manners{Fail: map[string]syscall.Errno{}}
	for i := 0; i < len(pairs); i += 2 {
		m.Fail[pairs[i].(string)] = pairs[i+1].(syscall.Errno)
	}
	return m
}

// Journal lists operations, and has one of them fail, or the program be killed at one.
type Journal struct {
	Errno syscall.Errno // of the operation that fails; 0: EIO

	mu      sync.Mutex
	fail    int
	failing string // operation that fails once, whatever its number
	before  int    // operations with the same text that do not fail, before it
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
	j.fail, j.failing, j.before, j.done, j.killAt, j.changes = fail, "", 0, nil, 0, 0
}

// RestartFailing empties the journal. The operation with this text and the number nth among these, counted from 1,
// fails, wherever it comes: the kernel has lookups and attributes answered as it likes, so that numbers among all
// differ between runs of a busy machine.
func (j *Journal) RestartFailing(operation string, nth int) {
	j.Restart(0)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failing, j.before = operation, nth-1
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
	if j.failing != "" && j.done[len(j.done)-1] == j.failing {
		if j.before == 0 {
			j.failing, j.fail = "", len(j.done)
		}
		j.before--
	}
	if len(j.done) == j.fail {
		return cmp.Or(j.Errno, syscall.EIO)
	}
	return 0
}

// Package oddfs is a file system with the manners of others: networks, shared folders of hypervisors, drivers in user
// space. It shows a folder, and does less with it, or else, than a disk's own file system would.
//
// A test runs programs on it and looks at the folder behind it: a process that uses its own mount can wait for itself,
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
	fail    int  // number of the operation that fails
	failing call // that fails, whatever its number; without a file: of any
	failed  call // that has failed
	done    []call
	counts  map[call]int // by operation and file, and by operation
	killAt  int          // among the operations that change something
	kill    func()
	changes int
	open    int // descriptors
	ignored map[string]bool
}

// call is an operation. The kernel has lookups and attributes answered as it likes, and goroutines overtake each other:
// file and nth, the number among the operations of this kind on this file, are the same in each run.
type call struct {
	op   string // kind, and the name that it has as an argument
	file string // path of its file, or that name
	nth  int    // from 1
}

// of is the operation with its file.
func (c call) of() string { return kindOf(c.op) + " " + c.file }

func kindOf(op string) string {
	kind, _, _ := strings.Cut(op, " ")
	return kind
}

// Restart empties the journal. The operation with the number fail, counted from 1, will fail; 0: none.
func (j *Journal) Restart(fail int) { j.restart(fail, call{}) }

// RestartFailing empties the journal. The operation with this text and the number nth among these, counted from 1,
// fails, wherever it comes: the kernel has lookups and attributes answered as it likes, so that numbers among all
// differ between runs of a busy machine.
func (j *Journal) RestartFailing(operation string, nth int) {
	j.restart(0, call{op: operation, nth: nth})
}

func (j *Journal) restart(fail int, failing call) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail, j.failing, j.failed, j.done, j.counts = fail, failing, call{}, nil, map[call]int{}
	j.killAt, j.changes = 0, 0
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
		return !slices.Contains(changing, kindOf(op))
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
	var done []string
	for _, c := range j.done {
		done = append(done, c.op)
	}
	return done
}

// changing are the operations that change something. A lock is one: others meet it.
var changing = []string{
	"create", "write", "truncate", "chmod", "fsync", "fsyncdir", "link", "unlink", "rename", "rename2", "lock",
}

// note adds an operation, and returns its error: 0 if it is carried out.
func (j *Journal) note(op, name, file string) syscall.Errno {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	c := call{op: strings.TrimSpace(op + " " + name), file: cmp.Or(name, file, ".")}
	anyFile := call{op: c.op}
	if j.counts == nil {
		j.counts = map[call]int{}
	}
	j.counts[anyFile]++
	j.counts[c]++
	anyFile.nth, c.nth = j.counts[anyFile], j.counts[c]
	j.done = append(j.done, c)
	if slices.Contains(changing, op) {
		j.changes++
		if j.killAt > 0 && j.changes == j.killAt {
			j.kill()
		}
		if j.killAt > 0 && j.changes >= j.killAt {
			return syscall.EIO
		}
	}
	if len(j.done) == j.fail || c == j.failing || anyFile == j.failing {
		j.failed = c
		return cmp.Or(j.Errno, syscall.EIO)
	}
	return 0
}

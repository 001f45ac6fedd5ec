// Package oddfs is a file system that behaves like others: network file systems, shared folders of hypervisors,
// user-space drivers. It shows a folder, with fewer or different functions than a local file system.
//
// A test runs programs on it and examines the underlying folder: a process that uses its own mount can deadlock, even
// while its child changes to a folder there (exec.Cmd.Dir).
package oddfs

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Manners lists deviations of a file system. The zero value has none.
type Manners struct {
	// Fail maps operations to errors: "link", "rename" without flags, "rename2" with flags, "lock", "fsyncdir",
	// "statfs", "chmod", "unlink", "create". A name after it restricts it to that file: "unlink .x.partial".
	Fail map[string]syscall.Errno
	// Lost maps operations to errors although they were performed, as when the reply of a server is lost.
	Lost map[string]syscall.Errno
	// Interrupted fails the first, second, fourth, eighth … operation of a kind with EINTR: fewer and fewer, since a
	// call that needs several of them would otherwise be interrupted for ever.
	Interrupted bool
	// Short performs reads and writes only partially.
	Short bool
	// Caseless finds a file by its name in another case.
	Caseless bool
	// Mandatory makes locks exclude other descriptors from the locked bytes. Those of flock(2) lock the whole file,
	// like on SMB.
	Mandatory bool
	// Capacity is the number of bytes, 0 for that of the underlying file system. Then a file gets its space with its
	// size, like on FAT.
	Capacity int64
	// NoUpgrade makes a read lock exclude a write lock of the same descriptor, like on SMB.
	NoUpgrade bool
	// Leases prevents opening a file with a second name again while it is open, like on SMB with leases.
	Leases bool
	// LocksWhole makes any lock cover the whole file.
	LocksWhole bool
	// Full is set while there is no space for written bytes.
	Full *atomic.Bool
	// Wrote receives the inode and the process of each write.
	Wrote func(inode uint64, pid int)
	// Journal records the operations; may be nil.
	Journal *Journal
	// Power records the files after each possible power cut; may be nil.
	Power *Power
}

// Failing makes operations fail, in turn with their errors.
func Failing(pairs ...any) Manners {
	m := Manners{Fail: map[string]syscall.Errno{}}
	for i := 0; i < len(pairs); i += 2 {
		m.Fail[pairs[i].(string)] = pairs[i+1].(syscall.Errno)
	}
	return m
}

// Journal lists operations, and can make one of them fail.
type Journal struct {
	Errno syscall.Errno // of the operation that fails; 0: EIO

	mu      sync.Mutex
	fail    int
	failing string // operation that fails once, at any number
	before  int    // preceding operations with the same text, which succeed
	done    []string
	open    int                     // descriptors
	idle    *sync.Cond              // a descriptor was closed; nil: nobody has waited yet
	ignored map[string]map[int]bool // calls of a kind, by their numbers
}

// Restart clears the journal. The operation with the number fail, counted from 1, will fail; 0: none.
func (j *Journal) Restart(fail int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail, j.failing, j.before, j.done = fail, "", 0, nil
}

// RestartFailing clears the journal. The operation with this text and the number nth among these, counted from 1, fails
// at any position: the kernel repeats lookups and attribute requests at its own discretion, so that numbers among all
// operations differ between runs of a busy machine.
func (j *Journal) RestartFailing(operation string, nth int) {
	j.Restart(0)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failing, j.before = operation, nth-1
}

// Changes returns the operations with an effect since the last start.
func (j *Journal) Changes() []string {
	return slices.DeleteFunc(j.Done(), func(op string) bool {
		kind, _, _ := strings.Cut(op, " ")
		return !slices.Contains(changing, kind)
	})
}

// End waits until no file is open, and clears the journal. The kernel tells a file system of a closed file, and with it
// of the end of its locks, only after the program has gone on.
func (j *Journal) End() {
	j.mu.Lock()
	if j.idle == nil {
		j.idle = sync.NewCond(&j.mu)
	}
	for j.open > 0 {
		j.idle.Wait()
	}
	j.mu.Unlock()
	j.Restart(0)
}

// opened counts opened descriptors, or closed ones if n is negative.
func (j *Journal) opened(n int) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.open += n
	if j.idle != nil {
		j.idle.Broadcast()
	}
}

// Done returns the operations since the last start: their kinds, with names if they have some.
func (j *Journal) Done() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.done)
}

// changing lists the operations with an effect. A lock is one, because it affects others.
var changing = []string{
	"create", "write", "truncate", "chmod", "fsync", "fsyncdir", "link", "unlink", "rename", "rename2", "lock",
}

// note records an operation, and returns its error, or 0 if it is performed.
func (j *Journal) note(op, name string) syscall.Errno {
	if j == nil {
		return 0
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done = append(j.done, strings.TrimSpace(op+" "+name))
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

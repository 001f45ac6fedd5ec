// Package sys is the room for what the operating system does: open folders and files without following links, identity,
// locks, holes, free space, names that replace nothing, flushes of folders, limits and signals. Other packages import
// neither golang.org/x/sys nor syscall. What differs between systems is in files with build tags: a further system is
// one more of these. What a system cannot do is an error that Unsupported knows, or the cautious answer that the
// function names.
//
// Calls that a signal interrupted are repeated, as os does. The signals are Go's own: it stops threads with them, and
// file systems in user space and on a network let them interrupt calls that a local disk would finish.
package sys

import "io/fs"

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

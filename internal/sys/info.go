package sys

import "io/fs"

// ID identifies a file on this machine: the number of its file system, and that of the file in it.
type ID struct{ Device, Inode uint64 }

// Info is what a file system stores about a file.
type Info struct {
	ID
	Mode              fs.FileMode
	Size              int64 // bytes
	Allocated         int64 // bytes that the file takes on its file system
	Links             uint64
	Modified, Changed int64 // ns since 1970; Changed also when the mode, the owner or the links change
}

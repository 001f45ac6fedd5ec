//go:build linux || darwin || freebsd

package sys

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// kinds are the types of files that have a name in fs.FileMode. Any other counts as a regular file.
var kinds = map[uint32]fs.FileMode{
	unix.S_IFLNK: fs.ModeSymlink, unix.S_IFIFO: fs.ModeNamedPipe, unix.S_IFSOCK: fs.ModeSocket,
	unix.S_IFDIR: fs.ModeDir, unix.S_IFCHR: fs.ModeDevice | fs.ModeCharDevice, unix.S_IFBLK: fs.ModeDevice,
}

// special are the bits of a mode beside the permissions.
var special = map[uint32]fs.FileMode{
	unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid,
	unix.S_ISVTX: fs.ModeSticky,
}

// info translates what stat(2) returns. The types of its fields differ between systems.
func info(st *unix.Stat_t) Info {
	mode := uint32(st.Mode)
	i := Info{
		ID:   ID{uint64(st.Dev), uint64(st.Ino)},
		Mode: fs.FileMode(mode&0o777) | kinds[mode&unix.S_IFMT],
		Size: st.Size, Allocated: st.Blocks * 512, Links: uint64(st.Nlink),
		Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano(),
	}
	if i.Mode&fs.ModeDevice != 0 {
		i.Node = uint64(st.Rdev)
	}
	for bit, name := range special {
		if mode&bit != 0 {
			i.Mode |= name
		}
	}
	return i
}

// stat fills in what a call returns.
func stat(call func(st *unix.Stat_t) error) (Info, error) {
	var st unix.Stat_t
	if err := again(func() error { return call(&st) }); err != nil {
		return Info{}, err
	}
	return info(&st), nil
}

// Stat follows links.
func Stat(path string) (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Stat(path, st) })
}

// Lstat returns the information on a link itself.
func Lstat(path string) (Info, error) {
	return stat(func(st *unix.Stat_t) error { return unix.Lstat(path, st) })
}

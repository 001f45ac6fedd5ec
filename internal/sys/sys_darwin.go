package sys

import "golang.org/x/sys/unix"

func renameNew(dir int, from, to string) error {
	return unix.RenameatxNp(dir, from, dir, to, unix.RENAME_EXCL)
}

// flush reaches the medium, which fsync does not on this system.
func flush(dir int) error {
	_, err := unix.FcntlInt(uintptr(dir), unix.F_FULLFSYNC, 0)
	return err
}

// Extent returns how many of limit bytes from off on have one state, and whether they are a hole. Everything is data:
// the ranges that APFS returns for a file written a moment ago are not reliable.
func (*File) Extent(_, limit int64) (n int64, hole bool) { return limit, false }

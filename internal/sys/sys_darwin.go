package sys

import "golang.org/x/sys/unix"

func renameNew(dir int, from, to string) error {
	return unix.RenameatxNp(dir, from, dir, to, unix.RENAME_EXCL)
}

// flush flushes to the medium. On this system fsync does not.
func flush(dir int) error {
	_, err := unix.FcntlInt(uintptr(dir), unix.F_FULLFSYNC, 0)
	return err
}

// Extent reports everything as data. The ranges that APFS returns for a newly written file are not reliable.
func (*File) Extent(_, limit int64) (n int64, hole bool) { return limit, false }

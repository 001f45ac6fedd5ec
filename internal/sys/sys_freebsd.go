package sys

import "golang.org/x/sys/unix"

// renameNew is not supported: callers use links instead.
func renameNew(int, string, string) error { return needsLinux("a rename that never overwrites") }

func flush(dir int) error { return unix.Fsync(dir) }

package sys

import "golang.org/x/sys/unix"

var (
	locked = []error{unix.EAGAIN, unix.EACCES}
	full   = []error{unix.ENOSPC, unix.EDQUOT}
)

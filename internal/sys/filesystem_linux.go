package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fsIocGetUUID is FS_IOC_GETFSUUID, _IOR(0x15, 0, struct fsuuid2), where reading has the bit 31. It has another one on
// MIPS, PowerPC and SPARC, where the call is refused. Spec: include/uapi/linux/fs.h of Linux 6.9.
const fsIocGetUUID = 0x80111500

// FileSystem returns the UUID of the file system of a folder, empty where that is not known: before Linux 6.9, and for
// most network file systems. A UUID of zeros counts as unknown.
func FileSystem(folder string) string {
	fd, err := value(func() (int, error) {
		return unix.Open(folder, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return ""
	}
	f := &File{fd: fd}
	defer unix.Close(fd)
	var answer struct {
		Len  uint8
		UUID [16]byte
	}
	err = f.ioctl(fsIocGetUUID, unsafe.Pointer(&answer))
	u := answer.UUID
	if err != nil || int(answer.Len) != len(u) || u == [16]byte{} {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

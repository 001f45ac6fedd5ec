package sys

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ownSums are attributes with a checksum of their own file. Spec: Linux, include/uapi/linux/xattr.h.
var ownSums = []string{"security.ima", "security.evm"}

// Adopt gives f the owner, the permissions and the extended attributes of another file, with them access lists and the
// SELinux label. lost are attributes that the file system does not keep.
func (f *File) Adopt(from *File) (lost []string, err error) {
	var is, was unix.Stat_t
	err = again(func() error { return errors.Join(unix.Fstat(f.fd, &is), unix.Fstat(from.fd, &was)) })
	if err == nil && (is.Uid != was.Uid || is.Gid != was.Gid) {
		err = again(func() error { return unix.Fchown(f.fd, int(was.Uid), int(was.Gid)) })
	}
	if err != nil {
		return nil, err
	}
	names, err := attributes(from.fd)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		switch err := copyAttribute(f.fd, from.fd, name); {
		case errors.Is(err, unix.ENOTSUP):
			lost = append(lost, name)
		case err != nil:
			return nil, err
		}
	}
	return lost, f.Chmod(info(&was).Mode)
}

// attributes lists the names of the attributes of a file; none where the file system knows none.
func attributes(fd int) ([]string, error) {
	list := make([]byte, 64<<10) // XATTR_LIST_MAX
	n, err := value(func() (int, error) { return unix.Flistxattr(fd, list) })
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	return slices.DeleteFunc(strings.Split(string(list[:max(n, 0)]), "\x00"), func(name string) bool {
		return name == "" || slices.Contains(ownSums, name)
	}), err
}

// copyAttribute copies an attribute, unless the file has it already.
func copyAttribute(to, from int, name string) error {
	var had, wanted [64 << 10]byte // XATTR_SIZE_MAX
	n, err := value(func() (int, error) { return unix.Fgetxattr(from, name, wanted[:]) })
	if err != nil {
		return err
	}
	m, err := value(func() (int, error) { return unix.Fgetxattr(to, name, had[:]) })
	if err == nil && bytes.Equal(had[:m], wanted[:n]) {
		return nil
	}
	return again(func() error { return unix.Fsetxattr(to, name, wanted[:n], 0) })
}

// Exchange gives two files each other's name, at once.
func (d *Folder) Exchange(a, b string) error {
	return again(func() error { return unix.Renameat2(d.fd, a, d.fd, b, unix.RENAME_EXCHANGE) })
}

// Immovable reports whether a file can neither be renamed nor get a second name, nor a folder lose one: it is immutable
// or takes data at its end only (chattr +i, +a).
func (f *File) Immovable() bool {
	var st unix.Statx_t
	err := again(func() error { return unix.Statx(f.fd, "", unix.AT_EMPTY_PATH, 0, &st) })
	return err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0
}

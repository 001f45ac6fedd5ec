package image

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// folder is an open directory: the only place where the files of an image may lie. Names are looked up through its
// handle, so a folder that is renamed or replaced meanwhile cannot lead elsewhere.
type folder struct {
	fd    int
	alias map[string]string // names that stand under another name until they are published
}

func openFolder(path string) (*folder, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &folder{fd: fd}, nil
}

func (d *folder) Close() error { return unix.Close(d.fd) }

// checkName refuses, before any look-up, what is not the plain name of a file in the folder.
func checkName(name string) error {
	var bad string
	switch {
	case name == "":
		bad = "is empty"
	case len(name) > 255:
		bad = fmt.Sprintf("has %d bytes, at most 255 are allowed", len(name))
	case name == "." || name == "..":
		bad = "is a folder"
	case strings.ContainsAny(name, `/\`):
		bad = "leaves the image's folder"
	case strings.Contains(name, ":"):
		bad = "has a colon: a drive, a URL or a stream"
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '"' }) || !utf8.ValidString(name):
		bad = "has characters that no file name of an image has"
	default:
		return nil
	}
	return fmt.Errorf("file name %.256q %s: %w, want a plain name in the same folder", name, bad, ondisk.ErrReference)
}

// open is the gate for names that stand in an image.
func (d *folder) open(name string) (driver.File, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return d.openAny(name, ondisk.ErrReference)
}

// openAny opens a regular file that is no link. It looks before it opens, since opening a device can have effects, and
// opens without blocking, since a FIFO would wait for a writer. kind is the class of the error for anything else.
func (d *folder) openAny(name string, kind error) (*file, error) {
	real := name
	if a, ok := d.alias[name]; ok {
		real = a
	}
	var st unix.Stat_t
	if err := unix.Fstatat(d.fd, real, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, fmt.Errorf("file %.256q: %w", name, err)
	}
	if err := wantRegular(name, st.Mode, kind); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(d.fd, real, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open file %.256q: %w", name, err)
	}
	f := &file{fd: fd, name: name, real: real, dir: d}
	if err := unix.Fstat(fd, &f.stat); err != nil {
		return nil, errors.Join(fmt.Errorf("file %.256q: %w", name, err), f.Close())
	}
	if err := wantRegular(name, f.stat.Mode, kind); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func wantRegular(name string, mode uint32, class error) error {
	kinds := map[uint32]string{
		unix.S_IFLNK: "a symbolic link", unix.S_IFIFO: "a FIFO", unix.S_IFSOCK: "a socket",
		unix.S_IFCHR: "a character device", unix.S_IFBLK: "a block device", unix.S_IFDIR: "a folder",
	}
	if kind, ok := kinds[mode&unix.S_IFMT]; ok {
		return fmt.Errorf("file %.256q is %s: %w, want a regular file", name, kind, class)
	}
	return nil
}

// file is an open regular file. It does not use os.File: pread on a plain descriptor needs no lock and no poller.
type file struct {
	fd         int
	name, real string
	dir        *folder
	stat       unix.Stat_t
}

func (f *file) Name() string { return f.name }
func (f *file) Size() int64  { return f.stat.Size }
func (f *file) Close() error { return unix.Close(f.fd) }

// ID is device and inode.
func (f *file) ID() string { return fmt.Sprintf("%d:%d", f.stat.Dev, f.stat.Ino) }

// Allocated is how many bytes the file takes on its file system.
func (f *file) Allocated() int64 { return f.stat.Blocks * 512 }

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(f.fd, p[done:], off+int64(done))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return done, fmt.Errorf("read %s at byte %d: %w", f.name, off+int64(done), err)
		case n == 0 && off+int64(done) < f.stat.Size:
			return done, fmt.Errorf("file %.256q %w: it ends at byte %d, and had %d bytes", f.name, ErrChanged, off+int64(done), f.stat.Size)
		case n == 0:
			return done, io.EOF
		default:
			done += n
		}
	}
	return done, nil
}

// Extent asks the file system for holes. Where it cannot tell, everything is data, which is slow and right.
func (f *file) Extent(off, limit int64) (disk.Extent, error) {
	whole := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	data, err := unix.Seek(f.fd, off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		whole.Zero = true // no data behind off
		return whole, nil
	}
	if err != nil {
		return whole, nil //nolint:nilerr // the file system knows no holes
	}
	if data > off {
		whole.Zero = true
		whole.Len = min(limit, data-off)
		return whole, nil
	}
	hole, err := unix.Seek(f.fd, off, unix.SEEK_HOLE)
	if err == nil && hole > off {
		whole.Len = min(limit, hole-off)
	}
	return whole, nil
}

// ErrChanged is returned for a source that was written, truncated or replaced while it was read.
var ErrChanged = errors.New("changed while it was read")

// unchanged compares the file with what it was when it was opened, by its handle and by its name.
func (f *file) unchanged() error {
	var now, named unix.Stat_t
	if err := unix.Fstat(f.fd, &now); err != nil {
		return fmt.Errorf("file %.256q: %w", f.name, err)
	}
	if err := unix.Fstatat(f.dir.fd, f.real, &named, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("file %.256q %w: %w", f.name, ErrChanged, err)
	}
	old := f.stat
	if named.Ino != old.Ino || named.Dev != old.Dev {
		return fmt.Errorf("file %.256q %w: another file has its name", f.name, ErrChanged)
	}
	if now.Size != old.Size || now.Mtim != old.Mtim || now.Ctim != old.Ctim {
		return fmt.Errorf("file %.256q %w: size, times or links differ; stop what writes to it and run again", f.name, ErrChanged)
	}
	return nil
}

package image

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// part is one file under construction. Errors of writing are those of the output.
type part struct {
	*os.File
	final string
}

func partialName(name string) string { return "." + name + ".partial" }

// WriteAt, Truncate and Sync say which file has the problem.
func (p *part) WriteAt(b []byte, off int64) (int, error) {
	n, err := p.File.WriteAt(b, off)
	return n, p.wrap("write", err)
}

// Truncate sets the size.
func (p *part) Truncate(size int64) error { return p.wrap("set size of", p.File.Truncate(size)) }

// Sync makes the bytes durable. A sync that failed once is never repeated: the kernel forgets what it could not write.
func (p *part) Sync() error { return p.wrap("sync", p.File.Sync()) }

func (p *part) wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		err = pe.Err
	}
	return ondisk.In(ErrOutput, "%s %s: %w", verb, p.final, err)
}

// newPart creates the partial file of a name. One that is left from a killed run is removed, one that is in use is not:
// the lock dies with its process.
func (o *Output) newPart(name string) (*part, error) {
	partial := partialName(name)
	if len(partial) > 255 {
		return nil, ondisk.In(ErrOutput, "%s: the name is too long", name)
	}
	if err := o.dir.removeStale(partial); err != nil {
		return nil, err
	}
	const flags = unix.O_RDWR | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := sys.Openat(o.dir.fd, partial, flags, 0o666)
	if errors.Is(err, unix.EEXIST) {
		return nil, usedByOther(partial)
	}
	if err != nil {
		return nil, ondisk.In(ErrOutput, "create %s: %w", partial, err)
	}
	p := &part{os.NewFile(uintptr(fd), partial), name}
	// Whoever may not read the source may not read the copy.
	var st unix.Stat_t
	if err := sys.Fstat(fd, &st); err == nil && st.Mode&0o777&^o.mode != 0 {
		err = sys.Fchmod(fd, st.Mode&o.mode&0o777)
		if err != nil {
			return nil, errors.Join(ondisk.In(ErrOutput, "permissions of %s: %w", partial, err), p.Close())
		}
	}
	// Before the lock another run could take the file for a stale one, remove it and put its own in its place.
	if err := sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil || !o.dir.leadsTo(partial, fd) {
		return nil, errors.Join(usedByOther(partial), p.Close())
	}
	o.parts = append(o.parts, p)
	return p, nil
}

func usedByOther(partial string) error {
	return fmt.Errorf("%s: %w by another run of trueup that writes the same DEST", partial, ondisk.ErrBusy)
}

// leadsTo tells whether a name is that of an open file.
func (d *folder) leadsTo(name string, fd int) bool {
	var named, open unix.Stat_t
	return sys.Fstatat(d.fd, name, &named, unix.AT_SYMLINK_NOFOLLOW) == nil && sys.Fstat(fd, &open) == nil &&
		named.Dev == open.Dev && named.Ino == open.Ino
}

// removeStale removes what a killed run left under a partial name.
func (d *folder) removeStale(partial string) error {
	fd, err := sys.Openat(d.fd, partial, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return ondisk.In(ErrOutput, "stale %s: %w; remove it by hand", partial, err)
	}
	defer sys.Close(fd)
	if err := sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return usedByOther(partial)
	}
	if !d.leadsTo(partial, fd) {
		return nil // another run has removed it meanwhile
	}
	if err := sys.Unlinkat(d.fd, partial); err != nil && !errors.Is(err, unix.ENOENT) {
		return ondisk.In(ErrOutput, "remove stale %s: %w", partial, err)
	}
	return nil
}

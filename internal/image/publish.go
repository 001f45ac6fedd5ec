package image

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

func (d *folder) exists(name string) bool {
	var st unix.Stat_t
	return sys.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// Free is the space in bytes that an ordinary user can still take where the output goes.
func (o *Output) Free() (int64, error) {
	var st unix.Statfs_t
	if err := sys.Fstatfs(o.dir.fd, &st); err != nil {
		return 0, ondisk.In(ErrOutput, "free space: %w", err)
	}
	return ondisk.I64(st.Bavail) * st.Bsize, nil
}

// Reopen opens what was written, through a handle of its own, as a later reader will.
func (o *Output) Reopen() (*Image, error) {
	if o.again != nil {
		return o.again()
	}
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	img, err := openIn(d, o.base, Options{Format: o.Format, SectorSize: o.sector})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	img.Path = o.base
	return img, nil
}

// reader is the folder as it will be: the partial files stand there under their final names.
func (o *Output) reader() (*folder, error) {
	fd, err := sys.Dup(o.dir.fd)
	if err != nil {
		return nil, fmt.Errorf("reopen %s: %w", o.base, err)
	}
	d := newFolder(fd)
	d.alias = map[string]string{}
	for _, p := range o.parts {
		d.alias[p.final] = partialName(p.final)
	}
	return d, nil
}

// Files are the final names, the named one first.
func (o *Output) Files() []string {
	var out []string
	for _, p := range o.parts {
		out = append(out, p.final)
	}
	return out
}

// Publish gives the files their names: the second ones first, then the one that users name, so that DEST is absent or
// complete at every moment. Then the folder is synced.
func (o *Output) Publish() error {
	for i, p := range o.parts[1:] {
		if err := o.dir.link(partialName(p.final), p.final); err != nil {
			return errors.Join(err, o.unlink(o.parts[1:1+i])) // this one's name is another's
		}
	}
	if len(o.parts) > 1 {
		if err := o.syncFolder(); err != nil {
			return errors.Join(err, o.unpublish())
		}
	}
	for _, n := range o.replace {
		// The extents that DEST uses now get the mark of a file that waits for its removal, in case this run is killed before
		// it can remove them. A file system without links leaves them to the user then.
		_ = sys.Linkat(o.dir.fd, n, replacedName(n))
	}
	if err := o.dir.rename(partialName(o.base), o.base, o.force); err != nil {
		return errors.Join(err, o.unpublish())
	}
	if err := o.syncFolder(); err != nil {
		return errors.Join(err, o.retract())
	}
	for _, p := range o.parts[1:] {
		_ = sys.Unlinkat(o.dir.fd, partialName(p.final)) // the second link; the next run would remove it too
	}
	o.removeReplaced()
	return o.close()
}

// removeReplaced removes the extents of the image that DEST replaced, unless another descriptor uses them. Failing leaves a
// file too many, which loses nothing.
func (o *Output) removeReplaced() {
	for _, n := range o.replace {
		if named, err := o.dir.named(n); err == nil && !named {
			_ = sys.Unlinkat(o.dir.fd, n)
		}
		_ = sys.Unlinkat(o.dir.fd, replacedName(n))
	}
}

// named tells whether any VMDK of the folder uses a file.
func (d *folder) named(name string) (bool, error) {
	neighbours, err := d.namesIn(name)
	// Other programs follow paths, and some of them names in another case.
	uses := func(extent string) bool {
		return strings.EqualFold(lastName(extent), name)
	}
	for _, n := range neighbours {
		if n.Broken || slices.ContainsFunc(n.Extents, uses) || slices.ContainsFunc(n.Parents, uses) {
			return true, err
		}
	}
	return false, err
}

// retract takes DEST back when its name might not survive a loss of power. An image that DEST replaced cannot come back, so
// that the new one stays then: it is complete.
func (o *Output) retract() error {
	if o.force {
		return nil
	}
	if err := sys.Unlinkat(o.dir.fd, o.base); err != nil && !errors.Is(err, unix.ENOENT) {
		return publishError(o.base, err)
	}
	return o.unpublish()
}

// link gives a second name that must be free. File systems without links rename: there, a kill before the next step
// leaves a file that the next run reports.
func (d *folder) link(from, to string) error {
	err := sys.Linkat(d.fd, from, to)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EMLINK) {
		return d.rename(from, to, false)
	}
	return publishError(to, err)
}

// rename replaces only when it may.
func (d *folder) rename(from, to string, replace bool) error {
	if replace {
		return publishError(to, sys.Renameat(d.fd, from, to))
	}
	err := sys.Renameat2(d.fd, from, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		if err = sys.Linkat(d.fd, from, to); err == nil {
			err = sys.Unlinkat(d.fd, from)
		}
	}
	return publishError(to, err)
}

func publishError(name string, err error) error {
	if err == nil {
		return nil
	}
	return ondisk.In(ErrOutput, "publish %s: %w", name, err)
}

// unpublish takes back the names of second files when DEST could not get its own.
func (o *Output) unpublish() error {
	for _, n := range o.replace {
		_ = sys.Unlinkat(o.dir.fd, replacedName(n)) // the mark, see Publish
	}
	return o.unlink(o.parts[1:])
}

// unlink takes back the final names of parts that have them.
func (o *Output) unlink(parts []*part) error {
	for _, p := range parts {
		if err := sys.Unlinkat(o.dir.fd, p.final); err != nil && !errors.Is(err, unix.ENOENT) {
			return publishError(p.final, err)
		}
	}
	return nil
}

func (o *Output) syncFolder() error {
	if err := sys.Fsync(o.dir.fd); err != nil {
		return ondisk.In(ErrOutput, "sync folder: %w", err)
	}
	return nil
}

// Discard removes what was written. It is harmless after Publish.
func (o *Output) Discard() error {
	if o.dir == nil {
		return nil
	}
	var errs []error
	for _, p := range o.parts {
		if err := sys.Unlinkat(o.dir.fd, partialName(p.final)); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, ondisk.In(ErrOutput, "remove %s: %w", partialName(p.final), err))
		}
	}
	return errors.Join(append(errs, o.close())...)
}

func (o *Output) close() error {
	var errs []error
	for _, p := range o.parts {
		errs = append(errs, p.Close())
	}
	errs = append(errs, o.dir.Close())
	o.parts, o.dir = nil, nil
	return errors.Join(errs...)
}

package image

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// besideNames are the names that the second file of an image can have.
func besideNames(base string) (name, other string) {
	ext := filepath.Ext(base)
	stem := strings.TrimSuffix(base, ext)
	return stem + "-flat" + ext, stem + "-1-flat" + ext
}

// beside creates the second file of an image: NAME-flat.vmdk. With --force the one that DEST uses now must live until the
// descriptor has been exchanged, so the new one takes the other of two names.
func (o *Output) beside(src *Image) (driver.WriteFile, string, error) {
	name, other := besideNames(o.base)
	if err := checkName(other); err != nil {
		return nil, "", fmt.Errorf("%w: DEST would need a second file: %w", ErrUsage, err)
	}
	if slices.Contains(o.old, name) {
		name, other = other, name
	}
	if o.dir.exists(name) {
		return nil, "", fmt.Errorf("%s: %w exists and does not belong to %s; remove it or choose another name", name, ErrOutput, o.base)
	}
	if err := o.checkFree(name, src); err != nil {
		return nil, "", err
	}
	p, err := o.newPart(name)
	return p, name, err
}

func (d *folder) exists(name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// sameFile tells whether two names exist and are links to one file.
func (d *folder) sameFile(a, b string) bool {
	var x, y unix.Stat_t
	return unix.Fstatat(d.fd, a, &x, unix.AT_SYMLINK_NOFOLLOW) == nil && unix.Fstatat(d.fd, b, &y, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		x.Ino == y.Ino && x.Dev == y.Dev
}

// filesOf names the files that the image base uses; none when it is absent or no image.
func (d *folder) filesOf(base string) []string {
	img, err := openIn(&folder{fd: d.fd}, base, Options{})
	if err != nil {
		return nil
	}
	defer img.closeFiles() //nolint:errcheck // read-only
	var names []string
	for _, f := range img.files {
		names = append(names, f.name)
	}
	return names
}

// removeLeft removes the second files that killed runs have left, whatever this run writes. It holds the lock of DEST's
// partial file by now.
func (o *Output) removeLeft() error {
	name, other := besideNames(o.base)
	for _, n := range []string{name, other} {
		if err := o.removeUnpublished(n); err != nil {
			return err
		}
		if err := o.dir.removeStale(partialName(n)); err != nil {
			return err
		}
	}
	return nil
}

// removeUnpublished removes the second file of a run that was killed between giving it its name and giving DEST its
// own: such a file still has its partial name as a second link, and the present DEST does not use it.
func (o *Output) removeUnpublished(name string) error {
	if !o.dir.sameFile(name, partialName(name)) || slices.Contains(o.old, name) {
		return nil
	}
	if err := unix.Unlinkat(o.dir.fd, name, 0); err != nil {
		return fmt.Errorf("remove unfinished %s: %w: %w", name, ErrOutput, err)
	}
	return nil
}

// Free is the space in bytes that an ordinary user can still take where the output goes.
func (o *Output) Free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(o.dir.fd, &st); err != nil {
		return 0, fmt.Errorf("free space: %w: %w", ErrOutput, err)
	}
	return ondisk.I64(st.Bavail) * st.Bsize, nil
}

// Reopen opens what was written, through a handle of its own, as a later reader will.
func (o *Output) Reopen() (*Image, error) {
	fd, err := unix.Dup(o.dir.fd)
	if err != nil {
		return nil, fmt.Errorf("reopen %s: %w", o.base, err)
	}
	d := &folder{fd: fd, alias: map[string]string{}}
	for _, p := range o.parts {
		d.alias[p.final] = partialName(p.final)
	}
	img, err := openIn(d, o.base, Options{Format: o.Format})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	img.Path = o.base
	return img, nil
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
	for _, p := range o.parts[1:] {
		if err := o.dir.link(partialName(p.final), p.final); err != nil {
			return err
		}
	}
	if len(o.parts) > 1 {
		if err := o.syncFolder(); err != nil {
			return errors.Join(err, o.unpublish())
		}
	}
	if o.replace != "" {
		// The extent that DEST uses now gets the mark of a file that waits for its removal, in case this run is killed before
		// it can remove it. A file system without links leaves it to the user then.
		_ = unix.Linkat(o.dir.fd, o.replace, o.dir.fd, partialName(o.replace), 0)
	}
	if err := o.dir.rename(partialName(o.base), o.base, o.force); err != nil {
		return errors.Join(err, o.unpublish())
	}
	if err := o.syncFolder(); err != nil {
		return errors.Join(err, o.retract())
	}
	for _, p := range o.parts[1:] {
		_ = unix.Unlinkat(o.dir.fd, partialName(p.final), 0) // the second link; the next run would remove it too
	}
	if o.replace != "" {
		_ = unix.Unlinkat(o.dir.fd, o.replace, 0) // nothing names it any more
		_ = unix.Unlinkat(o.dir.fd, partialName(o.replace), 0)
	}
	return o.close()
}

// retract takes DEST back when its name might not survive a loss of power. An image that DEST replaced cannot come back, so
// that the new one stays then: it is complete.
func (o *Output) retract() error {
	if o.force {
		return nil
	}
	if err := unix.Unlinkat(o.dir.fd, o.base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return publishError(o.base, err)
	}
	return o.unpublish()
}

// link gives a second name that must be free. File systems without links rename: there, a kill before the next step
// leaves a file that the next run reports.
func (d *folder) link(from, to string) error {
	err := unix.Linkat(d.fd, from, d.fd, to, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EMLINK) {
		return d.rename(from, to, false)
	}
	return publishError(to, err)
}

// rename replaces only when it may.
func (d *folder) rename(from, to string, replace bool) error {
	if replace {
		return publishError(to, unix.Renameat(d.fd, from, d.fd, to))
	}
	err := unix.Renameat2(d.fd, from, d.fd, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		if err = unix.Linkat(d.fd, from, d.fd, to, 0); err == nil {
			err = unix.Unlinkat(d.fd, from, 0)
		}
	}
	return publishError(to, err)
}

func publishError(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("publish %s: %w: %w", name, ErrOutput, err)
}

// unpublish takes back the names of second files when DEST could not get its own.
func (o *Output) unpublish() error {
	if o.replace != "" {
		_ = unix.Unlinkat(o.dir.fd, partialName(o.replace), 0) // the mark, see Publish
	}
	for _, p := range o.parts[1:] {
		if err := unix.Unlinkat(o.dir.fd, p.final, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return publishError(p.final, err)
		}
	}
	return nil
}

func (o *Output) syncFolder() error {
	err := unix.Fsync(o.dir.fd)
	for errors.Is(err, unix.EINTR) {
		err = unix.Fsync(o.dir.fd)
	}
	if err != nil {
		return fmt.Errorf("sync folder: %w: %w", ErrOutput, err)
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
		if err := unix.Unlinkat(o.dir.fd, partialName(p.final), 0); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove %s: %w: %w", partialName(p.final), ErrOutput, err))
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

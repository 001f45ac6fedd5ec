package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// manners are what the file system of DEST can do. Those of networks, of shared folders and in user space lack much of what a disk's
// own has.
type manners struct {
	noLocks     bool  // another run with the same DEST would not be noticed
	links       error // why a file gets no second name; nil: it does
	noExclusive bool  // a rename always replaces
}

// notes are what the user should know of the place where DEST goes, each once.
type notes struct{ list []ondisk.Issue }

func (n *notes) add(code, remedy, format string, args ...any) {
	if n == nil || slices.ContainsFunc(n.list, func(i ondisk.Issue) bool { return i.Code == code }) {
		return
	}
	n.list = append(n.list, ondisk.Issue{Code: code, Effect: ondisk.Note, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

// Notes are what the file system of DEST lacked, and how the output got along without it.
func (o *Output) Notes() []ondisk.Issue { return o.notes.list }

// refuses reports whether an error says that a file system does not know a call, or an option of it.
func refuses(err error) bool {
	return slices.ContainsFunc([]error{unix.EINVAL, unix.ENOSYS, unix.EOPNOTSUPP, unix.EPERM}, func(e error) bool { return errors.Is(err, e) })
}

// lockByte is the byte that is locked, far behind what a file can hold: SMB keeps others from reading and writing what is locked.
const lockByte = 1 << 62

// lockFile sets or releases the lock of a file that a run writes.
func lockFile(fd, command int, kind int16) error {
	return sys.Lock(fd, command, &unix.Flock_t{Type: kind, Start: lockByte, Len: 1})
}

// locked reports whether an error says that another has the lock.
func locked(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) }

// lock takes the lock that says that a run writes a partial file.
func (o *Output) lock(fd int, partial string) error {
	if o.manners.noLocks {
		return nil
	}
	err := lockFile(fd, unix.F_OFD_SETLK, unix.F_WRLCK)
	switch {
	case err == nil:
		return nil
	case locked(err):
		return usedByOther(o.shown(partial))
	case errors.Is(err, unix.ENOLCK) || refuses(err):
		o.manners.noLocks = true
		o.notes.add("dest-no-locks", "do not run two copies to the same DEST at once",
			"the file system knows no locks (%v): another run that writes the same DEST goes unnoticed", err)
		return nil
	}
	return ondisk.In(ErrOutput, "lock %s: %w", o.shown(partial), err)
}

// try finds out, on the first file while it is empty, whether the file system can do what the output will need: a refusal must not
// come after hours of copying. Nothing is left of it.
func (o *Output) try(p *part) error {
	if err := o.tryNames(p.final); err != nil {
		return err
	}
	if err := o.tryReading(p); err != nil {
		return err
	}
	if err := p.Sync(); err != nil {
		return err
	}
	return o.syncFolder()
}

// tryReading reads through another descriptor, as the proof will. Where a lock forbids that, it is released.
func (o *Output) tryReading(p *part) error {
	err := o.dir.readable(partialName(p.final))
	if err == nil || o.manners.noLocks {
		return p.wrap("read back", err)
	}
	free := lockFile(int(p.Fd()), unix.F_OFD_SETLK, unix.F_UNLCK)
	if free != nil || o.dir.readable(partialName(p.final)) != nil {
		return p.wrap("read back", err)
	}
	o.manners.noLocks = true
	o.notes.add("dest-no-locks", "do not run two copies to the same DEST at once",
		"the file system keeps a locked file from being read (%v), so nothing is locked: another run that writes the same DEST goes unnoticed", err)
	return nil
}

// readable opens a file and reads from it.
func (d *folder) readable(name string) error {
	fd, err := sys.Openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = sys.Pread(fd, make([]byte, 1), 0)
	return errors.Join(err, sys.Close(fd))
}

// trialNames are names that a file has for a moment, to try links and renames.
func trialNames(final string) (first, second string) {
	return "." + final + ".trial", "." + final + ".moved"
}

// tryNames tries a second name and a rename that replaces nothing, with a file that serves for nothing else: a server of SMB that gave
// a lease for a file under one name can refuse to open it under another.
func (o *Output) tryNames(final string) error {
	first, second := trialNames(final)
	for _, n := range []string{first, second} {
		if err := o.dir.removeTrial(n); err != nil {
			return err
		}
	}
	fd, err := sys.Openat(o.dir.fd, first, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return ondisk.In(ErrOutput, "create %s: %w", o.shown(first), err)
	}
	_ = sys.Close(fd) // nothing was written
	if o.manners.links = sys.Linkat(o.dir.fd, first, second); o.manners.links == nil {
		_ = sys.Unlinkat(o.dir.fd, second) // what stays there fails the rename
	}
	err = sys.Renameat2(o.dir.fd, first, second, unix.RENAME_NOREPLACE)
	if refuses(err) {
		o.manners.noExclusive = true
		err = sys.Renameat(o.dir.fd, first, second)
	}
	if err != nil {
		err = ondisk.In(ErrOutput, "rename %s, to try what DEST will need: %w", o.shown(first), err)
	}
	for _, n := range []string{first, second} {
		if gone := sys.Unlinkat(o.dir.fd, n); gone != nil && !errors.Is(gone, unix.ENOENT) {
			err = errors.Join(err, ondisk.In(ErrOutput, "remove %s: %w", o.shown(n), gone))
		}
	}
	return err
}

// removeTrial removes what a killed run left under a trial name. A file with bytes in it is the user's.
func (d *folder) removeTrial(name string) error {
	var st unix.Stat_t
	err := sys.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > 0) {
		return ondisk.In(ErrOutput, "%s exists, and its name is needed; rename it", name)
	}
	if err == nil {
		err = sys.Unlinkat(d.fd, name)
	}
	if err != nil {
		return ondisk.In(ErrOutput, "remove stale %s: %w", name, err)
	}
	return nil
}

// permit sets permissions. A file system that keeps none gives those that it was mounted with.
func (o *Output) permit(p *part, mode uint32) error {
	err := sys.Fchmod(int(p.Fd()), mode)
	if refuses(err) {
		o.notes.add("dest-permissions", "see to it that only those can reach DEST who may read it",
			"the file system sets no permissions of files (%v): %s does not have those of SOURCE", err, p.shown)
		return nil
	}
	return p.wrap("permissions of", err)
}

// CheckUpgrade fails where a lock for reading cannot become one for writing in the folder of a file, as databases need it. SMB knows no
// such change. Other troubles are left to the database.
func CheckUpgrade(path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".trueup-*")
	if err != nil {
		return nil
	}
	defer os.Remove(f.Name())
	defer f.Close()
	fd := int(f.Fd())
	// Locks of the process, as SQLite has them: Linux upgrades those of a descriptor on SMB.
	if lockFile(fd, unix.F_SETLK, unix.F_RDLCK) != nil || !locked(lockFile(fd, unix.F_SETLK, unix.F_WRLCK)) {
		return nil
	}
	return ondisk.In(ErrOutput, "%s: locks of this file system cannot be upgraded, which a database needs; "+
		"mount it with nobrl if it is SMB, or keep the file on a local disk", path)
}

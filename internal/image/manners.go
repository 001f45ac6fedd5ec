package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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

// lock takes the lock that says that a run writes a partial file.
func (o *Output) lock(f *sys.File, partial string) error {
	if o.manners.noLocks {
		return nil
	}
	err := f.Lock(sys.Exclusive)
	switch {
	case err == nil:
		return nil
	case sys.Locked(err):
		return usedByOther(o.shown(partial))
	case sys.NoLocks(err):
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
	free := sys.Of(p.File).Lock(sys.Unlocked)
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
	f, err := d.at.Open(name)
	if err != nil {
		return err
	}
	_, err = f.Pread(make([]byte, 1), 0)
	return errors.Join(err, f.Close())
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
	f, err := o.dir.at.Create(first, 0o600)
	if err != nil {
		return ondisk.In(ErrOutput, "create %s: %w", o.shown(first), err)
	}
	_ = f.Close() // nothing was written
	if o.manners.links = o.dir.at.Link(first, second); o.manners.links == nil {
		_ = o.dir.at.Remove(second) // what stays there fails the rename
	}
	err = o.dir.at.RenameNew(first, second)
	if sys.Unsupported(err) {
		o.manners.noExclusive = true
		err = o.dir.at.Rename(first, second)
	}
	if err != nil {
		err = ondisk.In(ErrOutput, "rename %s, to try what DEST will need: %w", o.shown(first), err)
	}
	for _, n := range []string{first, second} {
		if gone := o.dir.at.Remove(n); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, ondisk.In(ErrOutput, "remove %s: %w", o.shown(n), gone))
		}
	}
	return err
}

// removeTrial removes what a killed run left under a trial name. A file with bytes in it is the user's.
func (d *folder) removeTrial(name string) error {
	st, err := d.at.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (!st.Mode.IsRegular() || st.Size > 0) {
		return ondisk.In(ErrOutput, "%s exists, and its name is needed; rename it", name)
	}
	if err == nil {
		err = d.at.Remove(name)
	}
	if err != nil {
		return ondisk.In(ErrOutput, "remove stale %s: %w", name, err)
	}
	return nil
}

// permit sets permissions. A file system that keeps none gives those that it was mounted with.
func (o *Output) permit(p *part, mode fs.FileMode) error {
	err := sys.Of(p.File).Chmod(mode)
	if sys.Unsupported(err) {
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
	if sys.UpgradesLocks(f) {
		return nil
	}
	return ondisk.In(ErrOutput, "%s: locks of this file system cannot be upgraded, which a database needs; "+
		"mount it with nobrl if it is SMB, or keep the file on a local disk", path)
}

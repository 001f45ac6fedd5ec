package store

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// limits are what the file system of DEST lacks. Those of networks, shared folders and user space lack much.
type limits struct {
	noLocks     bool  // another run with the same DEST would not be noticed
	links       error // why a file gets no second name; nil: it does
	noExclusive bool  // a rename always replaces
}

// notes collect what the user should know about the place of DEST, each once.
type notes struct{ list []ondisk.Issue }

func (n *notes) add(code, remedy, format string, args ...any) {
	if n == nil || slices.ContainsFunc(n.list, func(i ondisk.Issue) bool { return i.Code == code }) {
		return
	}
	n.list = append(n.list,
		ondisk.Issue{Code: code, Effect: ondisk.Note, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

// Notes returns what the file system of DEST lacked, and how the output got along without it.
func (o *Output) Notes() []ondisk.Issue { return o.notes.list }

// lock takes the lock by which a run marks the partial file that it writes.
func (o *Output) lock(f *sys.File, partial string) error {
	if o.limits.noLocks {
		return nil
	}
	err := f.Lock(sys.Exclusive)
	switch {
	case err == nil:
		return nil
	case sys.Locked(err):
		return usedByOther(o.shown(partial))
	case sys.NoLocks(err):
		o.limits.noLocks = true
		o.notes.add("dest-no-locks", "do not run two copies to the same DEST at once",
			"the file system knows no locks (%v): another run that writes the same DEST goes unnoticed", err)
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "lock %s: %w", o.shown(partial), err)
}

// tryFileSystem finds out, on the first file while it is empty, whether the file system can do what the output will
// need: a refusal must not come after hours of copying. Nothing is left of it.
func (o *Output) tryFileSystem(p *partialFile) error {
	if err := o.tryNames(p.final); err != nil {
		return err
	}
	if err := o.tryReading(p); err != nil {
		return err
	}
	if err := p.wrap("sync", p.File.Sync()); err != nil {
		return err
	}
	return o.syncFolder()
}

// tryReading reads through another descriptor, as the proof will. Where a lock forbids that, it is released.
func (o *Output) tryReading(p *partialFile) error {
	err := readable(o.dir, partialName(p.final))
	if err == nil {
		return nil
	}
	_ = sys.Of(p.File).Lock(sys.Unlocked) // whether it helps is what is tried next
	if readable(o.dir, partialName(p.final)) != nil {
		return p.wrap("read back", err)
	}
	o.limits.noLocks = true
	o.notes.add("dest-no-locks", "do not run two copies to the same DEST at once",
		"the file system keeps a locked file from being read (%v), so nothing is locked: another run that writes the "+
			"same DEST goes unnoticed", err)
	return nil
}

// readable opens a file and reads from it.
func readable(d *gate.Folder, name string) error {
	f, err := d.At.Open(name)
	if err != nil {
		return err
	}
	_, err = f.Pread(make([]byte, 1), 0)
	return errors.Join(err, f.Close())
}

// trialNames are names that a file has for a moment, to try links and renames.
func trialNames(final string) (first, second string) {
	return "." + final + journal.Trial, "." + final + journal.Moved
}

// tryNames tries a second name and a rename that replaces nothing, with a file that serves for nothing else: a server
// of SMB that gave a lease for a file under one name can refuse to open it under another.
func (o *Output) tryNames(final string) error {
	first, second := trialNames(final)
	for _, n := range []string{first, second} {
		if err := removeTrial(o.dir, n); err != nil {
			return err
		}
	}
	f, err := o.dir.At.Create(first, 0o600)
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "create %s: %w", o.shown(first), err)
	}
	_ = f.Close() // nothing was written
	if o.limits.links = o.dir.At.Link(first, second); o.limits.links == nil {
		_ = o.dir.At.Remove(second) // what stays there fails the rename
	}
	err = o.dir.At.RenameNew(first, second)
	if sys.Unsupported(err) {
		o.limits.noExclusive = true
		err = o.dir.At.Rename(first, second)
	}
	if err != nil {
		err = ondisk.In(ondisk.ErrOutput, "rename %s, to try what DEST will need: %w", o.shown(first), err)
	}
	for _, n := range []string{first, second} {
		if gone := o.dir.At.Remove(n); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, ondisk.In(ondisk.ErrOutput, "remove %s: %w", o.shown(n), gone))
		}
	}
	return err
}

// removeTrial removes what a killed run left under a trial name. A file with bytes in it is the user's.
func removeTrial(d *gate.Folder, name string) error {
	st, err := d.At.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (!st.Mode.IsRegular() || st.Size > 0) {
		return ondisk.In(ondisk.ErrOutput, "%s exists, and its name is needed; rename it", name)
	}
	if err == nil {
		err = d.At.Remove(name)
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "remove stale %s: %w", name, err)
	}
	return nil
}

// permit sets permissions. A file system that keeps none gives those that it was mounted with.
func (o *Output) permit(p *partialFile, mode fs.FileMode) error {
	err := sys.Of(p.File).Chmod(mode)
	if sys.Unsupported(err) {
		o.notes.add("dest-permissions", "make sure that DEST can only be reached by users that may read it",
			"the file system sets no permissions of files (%v): %s does not have those of SOURCE", err, p.shown)
		return nil
	}
	return p.wrap("permissions of", err)
}

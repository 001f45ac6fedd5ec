package store

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// partialFile is one file under construction. Its errors are of the class ErrOutput.
type partialFile struct {
	*os.File
	final string
	shown string      // the final name, with the folder as typed
	mode  fs.FileMode // permissions that it will have

	early   atomic.Int64 // bytes written since WriteBack
	passing bool         // the kernel drops from memory what the storage has
	turn    sync.Mutex   // to write: the kernel lets one at a time, and the others would spin
}

func partialName(name string) string { return "." + name + journal.Partial }

// earlyBytes is the number of written bytes after which the storage begins to write them.
const earlyBytes = 32 * units.MiB

// WriteAt, Truncate and Sync name the file in their errors.
func (p *partialFile) WriteAt(b []byte, off int64) (int, error) {
	p.turn.Lock()
	n, err := p.File.WriteAt(b, off)
	p.turn.Unlock()
	if err == nil {
		p.wrote(n)
	}
	return n, p.wrap("write", err)
}

// wrote has the storage write while the disk is read. The kernel begins by itself when a tenth of the memory waits to
// be written, and the flush at the end would wait for nearly all of a copy.
func (p *partialFile) wrote(n int) {
	if p.early.Add(int64(n)) >= earlyBytes {
		p.early.Store(0)
		sys.Of(p.File).WriteBack(0, math.MaxInt64)
		if p.passing {
			_ = sys.Of(p.File).Forget() // it stays in memory
		}
	}
}

func (p *partialFile) Truncate(size int64) error {
	return p.wrap("set size of", p.File.Truncate(size))
}

// Sync makes the bytes durable. A sync that failed once is never repeated: the kernel forgets what it could not write.
func (p *partialFile) Sync() error {
	return p.wrap("sync", p.File.Sync())
}

// Close is never repeated: the descriptor is gone whatever a signal did.
func (p *partialFile) Close() error {
	if err := p.File.Close(); !sys.Interrupted(err) {
		return p.wrap("close", err)
	}
	return nil
}

func (p *partialFile) wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "%s %s: %w", verb, p.shown, sys.Cause(err))
}

// newPart creates the partial file of a name. One that is left from a killed run is removed, one that is in use is not:
// the lock dies with its process.
func (o *Parts) newPart(name string) (*partialFile, error) {
	partial := partialName(name)
	if len(partial) > 255 {
		return nil, ondisk.In(ondisk.ErrOutput, "%s: the name is too long", o.shown(name))
	}
	if o.dir.Exists(partial) {
		if err := o.refuseOther(name); err != nil {
			return nil, err
		}
	}
	if err := o.removeStale(partial); err != nil {
		return nil, err
	}
	f, err := o.dir.At.Create(partial, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil, usedByOther(o.shown(partial))
	}
	if err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "create %s: %w", o.shown(partial), err)
	}
	p := &partialFile{File: f, final: name, shown: o.shown(name)}
	if err := o.begin(p, partial); errors.Is(err, ondisk.ErrBusy) {
		return nil, errors.Join(err, p.Close()) // the other run removes it, and may have put its own in its place
	} else if err != nil {
		return nil, errors.Join(err, o.dir.At.Remove(partial), p.Close())
	}
	return p, nil
}

// begin gives a new file its lock and permissions. Without the lock another run could take the file for a stale one,
// remove it and put its own in its place.
func (o *Parts) begin(p *partialFile, partial string) error {
	f := sys.Of(p.File)
	st, err := f.Stat()
	if err != nil {
		return p.wrap("look at", err)
	}
	// The copy is readable to no user that cannot read the source. Until it has its name, its owner may write it, as
	// locks need.
	p.mode = st.Mode.Perm() & o.mode
	if st.Mode.Perm()&^o.mode != 0 {
		if err := o.permit(p, p.mode|0o600); err != nil {
			return err
		}
	}
	if !o.dense {
		f.Sparse()
	}
	if err := o.lock(f, partial); err != nil {
		return err
	}
	if !o.dir.LeadsTo(partial, f) {
		return usedByOther(o.shown(partial))
	}
	if len(o.parts) == 0 {
		if err := o.tryFileSystem(p); err != nil {
			return err
		}
	}
	o.parts = append(o.parts, p)
	return nil
}

// hyperV are formats of Hyper-V, which opens no file that is sparse: "Virtual hard disk files must be uncompressed and
// unencrypted and must not be sparse" (0xC03A001A).
var hyperV = map[string]bool{"vhd": true, "vhdx": true}

func usedByOther(shown string) error {
	return fmt.Errorf("%s: %w by another run of trueup that writes the same DEST", shown, ondisk.ErrBusy)
}

// removeStale removes what a killed run left under a partial name.
func (o *Parts) removeStale(partial string) error {
	f, err := openStale(o.dir, partial)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, ondisk.ErrBusy) {
		return usedByOther(o.shown(partial))
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "stale %s: %w; remove it by hand", o.shown(partial), err)
	}
	defer f.Close()
	if err := o.lock(f, partial); err != nil {
		return err
	}
	if o.limits.noLocks {
		return ondisk.In(ondisk.ErrOutput, "%s exists, and the file system knows no locks that would show whether a "+
			"run writes it; remove it if none does", o.shown(partial))
	}
	if !o.dir.LeadsTo(partial, f) {
		return nil // another run has removed it meanwhile
	}
	if err := o.dir.At.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ondisk.In(ondisk.ErrOutput, "remove stale %s: %w", o.shown(partial), err)
	}
	return nil
}

// openStale opens what a killed run may have left for writing, since locks of NFS want that. Just before it gives a
// file its name a run takes away the right to write that SOURCE does not give: its owner gets that back, unless the
// file is locked.
func openStale(d *gate.Folder, name string) (*sys.File, error) {
	f, err := d.At.OpenToWrite(name)
	switch {
	case sys.NotShared(err):
		return nil, usedByOther(name)
	case !sys.Denied(err):
		return f, err
	}
	found, readErr := d.At.Open(name)
	if readErr != nil {
		return nil, err
	}
	defer found.Close()
	st, statErr := found.Stat()
	if statErr != nil || !st.Mode.IsRegular() {
		return nil, err
	}
	if sys.Locked(found.Lock(sys.Shared)) {
		return nil, usedByOther(name)
	}
	_ = found.Chmod(st.Mode.Perm() | 0o600) // where that fails, so does the next call
	f, err = d.At.OpenToWrite(name)
	// A second name of the file, which may be the user's, keeps its rights.
	if back := found.Chmod(st.Mode); back != nil && err == nil {
		f.Close()
		return nil, back
	}
	return f, err
}

// limits are what the file system of DEST lacks. Those of networks, shared folders and user space lack much.
type limits struct {
	noLocks     bool  // another run with the same DEST would not be noticed
	links       error // why a file gets no second name; nil: it does
	noExclusive bool  // a rename always replaces
}

// notes collect what the user should know about the place of DEST, each once.
type notes struct{ list []ondisk.Issue }

func (n *notes) add(code, remedy, format string, args ...any) {
	if slices.ContainsFunc(n.list, func(i ondisk.Issue) bool { return i.Code == code }) {
		return
	}
	n.list = append(n.list,
		ondisk.Issue{Code: code, Effect: ondisk.Note, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

// Notes returns what the file system of DEST lacked, and how the output got along without it.
func (o *Parts) Notes() []ondisk.Issue { return o.notes.list }

// lock takes the lock by which a run marks the partial file that it writes.
func (o *Parts) lock(f *sys.File, partial string) error {
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
func (o *Parts) tryFileSystem(p *partialFile) error {
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
func (o *Parts) tryReading(p *partialFile) error {
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
func (o *Parts) tryNames(final string) error {
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
func (o *Parts) permit(p *partialFile, mode fs.FileMode) error {
	err := sys.Of(p.File).Chmod(mode)
	if sys.Unsupported(err) {
		o.notes.add("dest-permissions", "make sure that DEST can only be reached by users that may read it",
			"the file system sets no permissions of files (%v): %s does not have those of SOURCE", err, p.shown)
		return nil
	}
	return p.wrap("permissions of", err)
}

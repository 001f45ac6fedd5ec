package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/trueup/trueup/internal/image"
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
		if err := o.checkOpen(name); err != nil {
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

// UnknownRoom is the free space of a file system that does not say how much it has.
const UnknownRoom = math.MaxInt64

// Free returns the space in bytes that an ordinary user can still take where the output goes.
func (o *Parts) Free() (int64, error) {
	free, known, err := o.dir.At.Free()
	if err != nil {
		return 0, ondisk.In(ondisk.ErrOutput, "free space: %w", err)
	}
	if !known {
		o.notes.add("dest-room-unknown", "", "the file system does not say how much room it has: whether the copy "+
			"fits shows when it is written")
		return UnknownRoom, nil
	}
	return free, nil
}

// Room returns what was free before the files of the output had a size: FAT and exFAT give a file its room with that.
func (o *Output) Room() int64 { return o.room }

// Reopen opens what was written, through a handle of its own, as a later reader will.
func (o *Output) Reopen() (*image.Image, error) { return o.again() }

// image opens the image that was written.
func (o *Parts) image(format string, sector int64) (*image.Image, error) {
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	img, err := image.OpenIn(d, o.base, image.Options{Format: format, SectorSize: sector})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	img.Path = o.base
	return img, nil
}

// reader returns the folder as it will be: the partial files stand there under their final names.
func (o *Parts) reader() (*gate.Folder, error) {
	d, err := o.dir.Again()
	if err != nil {
		return nil, fmt.Errorf("reopen %s: %w", o.path, err)
	}
	d.Alias = map[string]string{}
	for _, p := range o.parts {
		d.Alias[p.final] = partialName(p.final)
	}
	for _, name := range o.hidden {
		d.Alias[name] = partialName(name) // a name of no file
	}
	return d, nil
}

// Files returns the final names, the named one first.
func (o *Parts) Files() []string {
	var out []string
	for _, p := range o.parts {
		out = append(out, p.final)
	}
	return out
}

// Sum is the SHA-256 of a file.
type Sum struct {
	File   string // its final name
	SHA256 [sha256.Size]byte
}

// Sums reads all files as they lie on the storage now, the named one first. begin receives how many bytes there are,
// add how many were read.
func (o *Parts) Sums(ctx context.Context, begin, add func(n int64)) ([]Sum, error) {
	var total int64
	for _, p := range o.parts {
		st, err := p.Stat()
		if err != nil {
			return nil, p.wrap("read", err)
		}
		total += st.Size()
	}
	begin(total)
	var out []Sum
	buf := make([]byte, units.MiB)
	for _, p := range o.parts {
		h := sha256.New()
		for at := int64(0); ; {
			n, err := p.ReadAt(buf, at)
			h.Write(buf[:n])
			at += int64(n)
			add(int64(n))
			if errors.Is(err, io.EOF) {
				break
			}
			if err = cmp.Or(ctx.Err(), p.wrap("read", err)); err != nil {
				return nil, err
			}
		}
		out = append(out, Sum{p.final, [sha256.Size]byte(h.Sum(nil))})
	}
	return out, nil
}

// SHA256Sums lists digests as sha256sum does, of files in a folder as the user wrote it. Where a name holds a backslash
// or ends a line, its line begins with a backslash, and the name is escaped (GNU coreutils, cksum output modes).
func SHA256Sums(folder string, sums []Sum) string {
	var out strings.Builder
	escape := strings.NewReplacer("\\", `\\`, "\n", `\n`, "\r", `\r`)
	for _, s := range sums {
		name := folder + s.File
		if escaped := escape.Replace(name); escaped != name {
			out.WriteByte('\\')
			name = escaped
		}
		fmt.Fprintf(&out, "%x  %s\n", s.SHA256, name)
	}
	return out.String()
}

// Publish gives the files their names: the second ones first, then the one that users name, so that DEST is absent or
// complete at every moment. Then the folder is synced. After an error nothing has its name; what fails when DEST has it
// is a note.
func (o *Parts) Publish() error {
	for _, p := range o.parts {
		if p.mode&0o600 == 0o600 {
			continue
		}
		if err := o.permit(p, p.mode); err != nil {
			return err
		}
	}
	for i, p := range o.parts[1:] {
		if err := o.link(p); err != nil {
			return errors.Join(err, o.unlink(o.parts[1:1+i])) // this one's name is another's
		}
	}
	if len(o.parts) > 1 {
		if err := o.syncFolder(); err != nil {
			return errors.Join(err, o.unpublish())
		}
	}
	for _, n := range o.replace {
		// The extents that DEST uses now get the mark of a file that waits for its removal, in case this run is killed
		// before it can remove them. A file system without links leaves them to the user then.
		_ = o.dir.At.Link(n, replacedName(n))
	}
	if err := o.rename(o.parts[0], o.force); err != nil {
		return errors.Join(err, o.unpublish())
	}
	if err := o.syncFolder(); err != nil {
		return errors.Join(err, o.retract())
	}
	for _, p := range o.parts[1:] {
		o.removePartialName(partialName(p.final))
	}
	o.removeReplaced()
	if err := o.close(); err != nil { // all bytes were synced and read again before
		o.notes.add("dest-close", "", "%v; the copy itself is complete and verified", err)
	}
	return nil
}

// removeReplaced removes the extents of the image that DEST replaced, unless another descriptor uses them. Failing
// leaves a file too many, which loses nothing.
func (o *Parts) removeReplaced() {
	for _, n := range o.replace {
		if named, err := image.IsNamed(o.dir, n); err == nil && !named {
			_ = o.dir.At.Remove(n)
		}
		_ = o.dir.At.Remove(replacedName(n))
	}
}

// retract takes DEST back when its name might not survive a loss of power. An image that DEST replaced cannot come
// back, so that the new one stays then: it is complete.
func (o *Parts) retract() error {
	if o.force {
		return nil
	}
	if err := o.dir.At.Remove(o.base); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ondisk.In(ondisk.ErrOutput, "%s stands under its name, complete, and cannot be taken away: %w; remove "+
			"it by hand", o.path, err)
	}
	return o.unpublish()
}

// link gives a part its name, which must be free, as a second one. File systems without links rename: there, a kill
// before the next step leaves a file that the next run reports.
func (o *Parts) link(p *partialFile) error {
	if o.limits.links != nil {
		o.notes.add("dest-no-links", "", "the file system has no hard links (%v): a run that is killed in its last "+
			"moment could leave %s behind without %s",
			o.limits.links, p.shown, o.path)
		return o.rename(p, false)
	}
	return o.nameError(p, o.dir.At.Link(partialName(p.final), p.final))
}

// rename gives a part its name in place of the partial one, and replaces only when it may.
func (o *Parts) rename(p *partialFile, replace bool) error {
	from, at := partialName(p.final), o.dir.At
	switch {
	case replace:
		return o.nameError(p, at.Rename(from, p.final))
	case !o.limits.noExclusive:
		return o.nameError(p, at.RenameNew(from, p.final))
	case o.limits.links == nil:
		err := o.nameError(p, at.Link(from, p.final))
		if err == nil {
			o.removePartialName(from)
		}
		return err
	}
	o.notes.add("dest-look-and-rename", "", "the file system has neither hard links (%v) nor a rename that replaces "+
		"nothing: a file that another program named %s in the last moment would be replaced", o.limits.links, p.shown)
	if _, err := at.Lstat(p.final); !errors.Is(err, fs.ErrNotExist) {
		return publishError(p.shown, cmp.Or[error](err, sys.ErrExist))
	}
	return o.nameError(p, at.Rename(from, p.final))
}

// nameError returns the error of a call that gave a part its name, unless the part has it. A server can have carried
// out what it reports as failed, or as done before when a call was repeated.
func (o *Parts) nameError(p *partialFile, err error) error {
	if err != nil && o.dir.LeadsTo(p.final, sys.Of(p.File)) {
		o.removePartialName(partialName(p.final))
		return nil
	}
	return publishError(p.shown, err)
}

// removePartialName removes a partial name that is no longer needed.
func (o *Parts) removePartialName(partial string) {
	if err := o.dir.At.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.notes.add("dest-leftover", "remove it by hand", "%s, a second name of a file of the copy, could not "+
			"be removed: %v",
			o.shown(partial), err)
	}
}

func publishError(name string, err error) error {
	if err == nil {
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "publish %s: %w", name, err)
}

// unpublish takes back the names of second files when DEST could not get its own.
func (o *Parts) unpublish() error {
	for _, n := range o.replace {
		_ = o.dir.At.Remove(replacedName(n)) // the mark, see Publish
	}
	return o.unlink(o.parts[1:])
}

// unlink takes back the final names of parts that have them.
func (o *Parts) unlink(parts []*partialFile) error {
	for _, p := range parts {
		if err := o.dir.At.Remove(p.final); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return publishError(p.shown, err)
		}
	}
	return nil
}

func (o *Parts) syncFolder() error {
	err := o.dir.At.Sync()
	if sys.Unsupported(err) {
		o.notes.add("dest-folder-not-synced", "sync or unmount the file system before the machine is switched off",
			"the file system cannot make names of files durable (%v): a loss of power soon after the run "+
				"could lose DEST", err)
		return nil
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "sync folder: %w", err)
	}
	return nil
}

// EachFile passes the files of an output, the one that users name first, with the names that they will have and have.
func (o *Parts) EachFile(each func(final, partial string, f *sys.File) error) error {
	for _, p := range o.parts {
		if err := each(p.final, partialName(p.final), sys.Of(p.File)); err != nil {
			return err
		}
	}
	return nil
}

// Release closes the files and leaves them under the names that they have. Discard is harmless after that.
func (o *Parts) Release() error {
	if o.dir == nil {
		return nil
	}
	return o.close()
}

// Discard removes what was written. It is harmless after Publish.
func (o *Parts) Discard() error {
	if o.dir == nil {
		return nil
	}
	var errs []error
	for _, p := range o.parts {
		if err := o.dir.At.Remove(partialName(p.final)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, ondisk.In(ondisk.ErrOutput, "remove %s: %w", o.shown(partialName(p.final)), err))
		}
	}
	return errors.Join(append(errs, o.close())...)
}

func (o *Parts) close() error {
	var errs []error
	for _, p := range o.parts {
		errs = append(errs, p.Close())
	}
	_ = o.dir.Close() // its names are durable, or do not matter
	o.parts, o.dir = nil, nil
	return errors.Join(errs...)
}

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

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// partialFile is a file under construction. Its errors are of class ErrOutput.
type partialFile struct {
	*os.File
	final string
	shown string      // the final name, in the folder as typed
	mode  fs.FileMode // final permissions

	early   atomic.Int64 // bytes written since WriteBack
	passing bool         // drop written data from memory
	turn    sync.Mutex   // for writing: the kernel admits one writer at a time, and the others would spin
}

func partialName(name string) string { return "." + name + journal.Partial }

// earlyBytes is the number of written bytes after which write-back starts.
const earlyBytes = 32 * units.MiB

// WriteAt, Truncate and Sync add the file name to their errors.
func (p *partialFile) WriteAt(b []byte, off int64) (int, error) {
	p.turn.Lock()
	n, err := p.File.WriteAt(b, off)
	p.turn.Unlock()
	if err == nil {
		p.wrote(n)
	}
	return n, p.wrap("write", err)
}

// wrote starts write-back while the source is read. The kernel itself starts only when a tenth of the memory is dirty,
// so the final flush would have to write nearly all of a copy.
func (p *partialFile) wrote(n int) {
	if p.early.Add(int64(n)) >= earlyBytes {
		p.early.Store(0)
		sys.FromOS(p.File).WriteBack(0, math.MaxInt64)
		if p.passing {
			_ = sys.FromOS(p.File).Forget() // on error the pages stay in memory
		}
	}
}

func (p *partialFile) Truncate(size int64) error {
	return p.wrap("set size of", p.File.Truncate(size))
}

// Sync makes the file durable. A failed sync is never repeated, because the kernel drops pages that it could not write.
func (p *partialFile) Sync() error {
	return p.wrap("sync", p.File.Sync())
}

func (p *partialFile) Close() error { return p.wrap("close", sys.Release(p.File)) }

func (p *partialFile) wrap(verb string, err error) error {
	return ondisk.OutputError(sys.Cause(err), "%s %s", verb, p.shown)
}

// newPart creates the partial file of a name. It removes a leftover of a killed run, but not a file in use. Locks
// distinguish the two, because a lock ends with its process.
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
		return nil, errors.Join(err, p.Close()) // the other run removes it, and may already have created its own
	} else if err != nil {
		return nil, errors.Join(err, o.dir.At.Remove(partial), p.Close())
	}
	return p, nil
}

// begin sets the lock and permissions of a new file. Without the lock, another run could remove it as stale and create
// its own.
func (o *Parts) begin(p *partialFile, partial string) error {
	f := sys.FromOS(p.File)
	st, err := f.Stat()
	if err != nil {
		return p.wrap("look at", err)
	}
	// No user without read access to the source gets access to the copy. Until publication the owner can write it, as
	// required for locks.
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

// hyperV lists formats of Hyper-V, which cannot open sparse files: "Virtual hard disk files must be uncompressed and
// unencrypted and must not be sparse" (0xC03A001A).
var hyperV = map[string]bool{"vhd": true, "vhdx": true}

func usedByOther(shown string) error {
	return fmt.Errorf("%s: %w by another run of trueup that writes the same DEST", shown, ondisk.ErrBusy)
}

// removeStale removes the leftover of a killed run under a partial name.
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
		return ondisk.In(ondisk.ErrOutput, "%s exists, and without file locks trueup cannot tell whether another "+
			"run is writing it; remove it if none is", o.shown(partial))
	}
	if !o.dir.LeadsTo(partial, f) {
		return nil // another run has removed it in the meantime
	}
	return ondisk.OutputError(o.dir.Remove(partial), "remove stale %s", o.shown(partial))
}

// openStale opens a leftover of a killed run for writing, as required for NFS locks. Before publication a run removes
// write permission if SOURCE lacks it. openStale restores the owner's permission, unless the file is locked.
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
	if found.AtWork() {
		return nil, usedByOther(name)
	}
	_ = found.Chmod(st.Mode.Perm() | 0o600) // if it fails, the next call fails, too
	f, err = d.At.OpenToWrite(name)
	// Another hard link, possibly the user's, keeps its permissions.
	if back := found.Chmod(st.Mode); back != nil && err == nil {
		f.Close()
		return nil, back
	}
	return f, err
}

// limits lists missing capabilities of DEST's file system. File systems of networks, shared folders and user space lack
// many.
type limits struct {
	noLocks     bool  // another run with the same DEST goes unnoticed
	links       error // why files cannot have hard links, or nil
	noExclusive bool  // rename always replaces
}

// notes collects notes about DEST's file system for the user, each code once.
type notes struct{ list []ondisk.Issue }

func (n *notes) add(code, remedy, format string, args ...any) {
	if slices.ContainsFunc(n.list, func(i ondisk.Issue) bool { return i.Code == code }) {
		return
	}
	n.list = append(n.list,
		ondisk.Issue{Code: code, Effect: ondisk.Note, Text: fmt.Sprintf(format, args...), Remedy: remedy})
}

// Notes returns the missing capabilities of DEST's file system and their consequences.
func (o *Parts) Notes() []ondisk.Issue { return o.notes.list }

// lock locks a partial file to mark it as being written.
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
			"the file system has no file locks (%v): another run with the same DEST would go unnoticed", err)
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "lock %s: %w", o.shown(partial), err)
}

// tryFileSystem tests the required capabilities of the file system on the first, still empty file, because an error
// must not come after hours of copying. It leaves no files behind.
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

// tryReading reads through another descriptor, like the later verification. If a lock prevents that, it releases the
// lock.
func (o *Parts) tryReading(p *partialFile) error {
	err := readable(o.dir, partialName(p.final))
	if err == nil {
		return nil
	}
	_ = sys.FromOS(p.File).Unlock() // the next read shows whether this helps
	if readable(o.dir, partialName(p.final)) != nil {
		return p.wrap("read back", err)
	}
	o.limits.noLocks = true
	o.notes.add("dest-no-locks", "do not run two copies to the same DEST at once",
		"the file system does not allow reads of a locked file (%v), so nothing is locked: another run with the "+
			"same DEST would go unnoticed", err)
	return nil
}

// readable opens a file and reads a byte.
func readable(d *gate.Folder, name string) error {
	f, err := d.At.Open(name)
	if err != nil {
		return err
	}
	_, err = f.Pread(make([]byte, 1), 0)
	return errors.Join(err, f.Close())
}

// tryNames tests a hard link and an exclusive rename, on a file for this purpose only: an SMB server that gave a lease
// for a file under one name may refuse to open it under another.
func (o *Parts) tryNames(final string) error {
	first, second := "."+final+journal.Trial, "."+final+journal.Moved
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
		_ = o.dir.At.Remove(second) // a leftover fails the rename
	}
	err = o.dir.At.RenameNew(first, second)
	if sys.Unsupported(err) {
		o.limits.noExclusive = true
		err = o.dir.At.Rename(first, second)
	}
	err = ondisk.OutputError(err, "rename %s, to try what DEST will need", o.shown(first))
	for _, n := range []string{first, second} {
		err = errors.Join(err, ondisk.OutputError(o.dir.Remove(n), "remove %s", o.shown(n)))
	}
	return err
}

// removeTrial removes the leftover of a killed run under a trial name. It refuses a file with content, because that
// belongs to the user.
func removeTrial(d *gate.Folder, name string) error {
	st, err := d.At.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && (!st.Mode.IsRegular() || st.Size > 0) {
		return ondisk.In(ondisk.ErrOutput, "%s exists, but trueup needs this name; rename the file", name)
	}
	if err == nil {
		err = d.At.Remove(name)
	}
	return ondisk.OutputError(err, "remove stale %s", name)
}

// permit sets permissions. File systems without permissions use their mount options instead.
func (o *Parts) permit(p *partialFile, mode fs.FileMode) error {
	err := sys.FromOS(p.File).Chmod(mode)
	if sys.Unsupported(err) {
		o.notes.add("dest-permissions", "make sure that only users with permission to read SOURCE can reach DEST",
			"the file system has no file permissions (%v): %s does not get those of SOURCE", err, p.shown)
		return nil
	}
	return p.wrap("permissions of", err)
}

// UnknownRoom is the free space of a file system that does not report it.
const UnknownRoom = math.MaxInt64

// Free returns the space in bytes that is free for an ordinary user in the folder of the output.
func (o *Parts) Free() (int64, error) {
	free, known, err := o.dir.At.Free()
	if err != nil {
		return 0, ondisk.In(ondisk.ErrOutput, "free space: %w", err)
	}
	if !known {
		o.notes.add("dest-room-unknown", "", "the file system does not report its free space, so the copy may not fit")
		return UnknownRoom, nil
	}
	return free, nil
}

// Room returns the space that was free before the files of the output got their sizes, because FAT and exFAT allocate
// the whole size at once.
func (o *Output) Room() int64 { return o.room }

// Reopen opens the written image through a handle of its own, like a later reader.
func (o *Output) Reopen() (*image.Image, error) { return o.again() }

// image opens the written image. A raw disk begins at an offset.
func (o *Parts) image(format string, sector, offset int64) (*image.Image, error) {
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	place := disk.Range{Off: offset}
	img, err := image.OpenIn(d, o.base, image.Options{Format: format, SectorSize: sector, Place: place})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	img.Path = o.base
	return img, nil
}

// reader returns the folder with partial files under their final names.
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
		d.Alias[name] = partialName(name) // a missing file
	}
	return d, nil
}

// Files returns the final names, the file named by the user first.
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

// Sums returns the digests of all files as stored, the file named by the user first. begin receives the total size, add
// the number of bytes read.
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

// SHA256Sums formats digests like sha256sum. folder is a prefix of the names as the user wrote it. Lines with a
// backslash or a line break in the name begin with a backslash, and the name is escaped (GNU coreutils, cksum output
// modes).
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

// Publish gives the files their final names: the file named by the user last, so that DEST is absent or complete at
// every moment. Then it syncs the folder. After an error no file has its final name. Failures after DEST has its
// name become notes.
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
			return errors.Join(err, o.unlink(o.parts[1:1+i])) // the name of this part belongs to another file
		}
	}
	if len(o.parts) > 1 {
		if err := o.syncFolder(); err != nil {
			return errors.Join(err, o.unpublish())
		}
	}
	for _, n := range o.replace {
		// The current extents of DEST get a mark for removal, in case this run is killed before it removes them. On a
		// file system without links they are then left to the user.
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

// removeReplaced removes the extents of the replaced image, unless another descriptor uses them. A failure leaves an
// unused file, but loses no data.
func (o *Parts) removeReplaced() {
	for _, n := range o.replace {
		if named, err := image.IsNamed(o.dir, n); err == nil && !named {
			_ = o.dir.At.Remove(n)
		}
		_ = o.dir.At.Remove(replacedName(n))
	}
}

// retract removes DEST's name if it might not survive a power loss. A replaced image cannot be restored, so with
// --force the new one stays: it is complete.
func (o *Parts) retract() error {
	if o.force {
		return nil
	}
	if err := o.dir.Remove(o.base); err != nil {
		return ondisk.In(ondisk.ErrOutput, "%s is complete, but could not be removed again: %w; remove it by "+
			"hand", o.path, err)
	}
	return o.unpublish()
}

// link gives a part its final name, which must be free, as a second link. Without hard links it renames the part: a
// kill before the next step then leaves a file that the next run reports.
func (o *Parts) link(p *partialFile) error {
	if o.limits.links != nil {
		o.notes.add("dest-no-links", "", "the file system has no hard links (%v): a run killed at its very end "+
			"could leave %s without %s", o.limits.links, p.shown, o.path)
		return o.rename(p, false)
	}
	return o.nameError(p, o.dir.At.Link(partialName(p.final), p.final))
}

// rename replaces the partial name of a part by its final name. Without replace, it refuses an existing file.
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
	o.notes.add("dest-look-and-rename", "", "the file system has neither hard links (%v) nor a rename that never "+
		"overwrites: a file that another program creates as %s meanwhile would be overwritten", o.limits.links, p.shown)
	if _, err := at.Lstat(p.final); !errors.Is(err, fs.ErrNotExist) {
		return ondisk.OutputError(cmp.Or[error](err, sys.ErrExist), "publish %s", p.shown)
	}
	return o.nameError(p, at.Rename(from, p.final))
}

// nameError returns the error of a call that named a part, or nil if the part has its name anyway. A server may report
// failure for a completed call, or "exists" for a repeated one.
func (o *Parts) nameError(p *partialFile, err error) error {
	if err != nil && o.dir.LeadsTo(p.final, sys.FromOS(p.File)) {
		o.removePartialName(partialName(p.final))
		return nil
	}
	return ondisk.OutputError(err, "publish %s", p.shown)
}

// removePartialName removes a partial name that is no longer needed.
func (o *Parts) removePartialName(partial string) {
	if err := o.dir.Remove(partial); err != nil {
		o.notes.add("dest-leftover", "remove it by hand", "%s, a second name of a file of the copy, could not "+
			"be removed: %v", o.shown(partial), err)
	}
}

// unpublish removes the names of further files if DEST could not get its own.
func (o *Parts) unpublish() error {
	for _, n := range o.replace {
		_ = o.dir.At.Remove(replacedName(n)) // the mark for removal, see Publish
	}
	return o.unlink(o.parts[1:])
}

// unlink removes the final names of parts.
func (o *Parts) unlink(parts []*partialFile) error {
	for _, p := range parts {
		if err := o.dir.Remove(p.final); err != nil {
			return ondisk.OutputError(err, "publish %s", p.shown)
		}
	}
	return nil
}

func (o *Parts) syncFolder() error {
	err := o.dir.At.Sync()
	if sys.Unsupported(err) {
		o.notes.add("dest-folder-not-synced", "sync or unmount the file system before you switch the machine off",
			"the file system cannot sync folders (%v): a power loss soon after the run could lose DEST", err)
		return nil
	}
	return ondisk.OutputError(err, "sync folder")
}

// EachFile calls each for the files of an output, with their final and current names. The file named by the user comes
// first.
func (o *Parts) EachFile(each func(final, partial string, f *sys.File) error) error {
	for _, p := range o.parts {
		if err := each(p.final, partialName(p.final), sys.FromOS(p.File)); err != nil {
			return err
		}
	}
	return nil
}

// Release closes the files and keeps their current names. Calling Discard afterwards has no effect.
func (o *Parts) Release() error {
	if o.dir == nil {
		return nil
	}
	return o.close()
}

// Discard removes the written files. It has no effect after Publish.
func (o *Parts) Discard() error {
	if o.dir == nil {
		return nil
	}
	var errs []error
	for _, p := range o.parts {
		partial := partialName(p.final)
		errs = append(errs, ondisk.OutputError(o.dir.Remove(partial), "remove %s", o.shown(partial)))
	}
	return errors.Join(append(errs, o.close())...)
}

func (o *Parts) close() error {
	var errs []error
	for _, p := range o.parts {
		errs = append(errs, p.Close())
	}
	_ = o.dir.Close() // its names are durable, or unimportant
	o.parts, o.dir = nil, nil
	return errors.Join(errs...)
}

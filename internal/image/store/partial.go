package store

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"github.com/trueup/trueup/internal/image/driver"
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

// Share takes over a stretch of a file of SOURCE, whose blocks both files then have.
func (p *partialFile) Share(from driver.File, off, n, at int64) error {
	if f, ok := from.(*gate.File); ok {
		return f.ShareTo(sys.Of(p.File), off, n, at)
	}
	return errors.ErrUnsupported
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
func (o *Output) newPart(name string) (*partialFile, error) {
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
func (o *Output) begin(p *partialFile, partial string) error {
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
	if !hyperV[o.Format] {
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
func (o *Output) removeStale(partial string) error {
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

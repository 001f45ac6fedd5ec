package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/unfinished"
	"github.com/trueup/trueup/internal/units"
)

// flushEach is the number of written bytes after which files are flushed. While one worker flushes, the others write as
// much again: a loss of power costs a lasting copy twice this at most.
const flushEach = 32 * units.MiB

// lasting holds what stays of a run that is ended: the files of DEST and a journal. The run that goes on makes all
// writes of the first one again, in the same places, and leaves out those whose bytes stand there: it trusts nothing.
type lasting struct {
	work  *unfinished.Held // nil: not begun
	order []byte
	going bool // with the files of an earlier run
	kept  bool // what is written stays when the run is ended

	room      int64 // that the files of the earlier run take, bytes
	mu        sync.Mutex
	parts     []*partialFile
	unflushed atomic.Int64 // bytes
	stood     atomic.Int64 // bytes that were not written again
	written   atomic.Int64 // bytes
}

func lastingOf(o CreateOptions) *lasting {
	if o.Order == nil {
		return nil
	}
	return &lasting{work: o.Going, order: o.Order, going: o.Going != nil, kept: o.Going != nil}
}

// last writes the journal of a run whose files are to last.
func (o *Output) last(opts CreateOptions) (err error) {
	if opts.Order == nil || opts.Going != nil {
		return nil
	}
	o.lasting.work, err = unfinished.Begin(o.dir, o.base, o.path, unfinished.Copy, opts.Order, 0)
	return err
}

// Keep has the files stay from now on when the run is ended, if they can be gone on with. With spoiled they go all the
// same, unless an earlier run made them.
func (o *Output) Keep(spoiled bool) {
	if l := o.lasting; l != nil {
		l.kept = l.going || !spoiled
	}
}

// Counts returns how many bytes of its files a lasting copy found written, and how many it wrote.
func (o *Output) Counts() (stood, written int64) {
	if o.lasting == nil {
		return 0, 0
	}
	return o.lasting.stood.Load(), o.lasting.written.Load()
}

// Kept reports whether a run that is ended leaves its files.
func (o *Output) Kept() bool { return o.lasting != nil && o.lasting.kept }

func (l *lasting) goesOn() bool { return l != nil && l.going }

// has returns the room that the files of an earlier run take.
func (l *lasting) has() int64 {
	if l == nil {
		return 0
	}
	return l.room
}

func (l *lasting) add(p *partialFile) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parts = append(l.parts, p)
}

// wrote flushes all files when much was written since the last time.
func (l *lasting) wrote(p *partialFile, n int) error {
	p.dirty.Store(true)
	l.written.Add(int64(n))
	if l.unflushed.Add(int64(n)) < flushEach {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unflushed.Load() < flushEach {
		return nil // another worker did it
	}
	l.unflushed.Store(0)
	for _, part := range l.parts {
		if !part.dirty.Swap(false) {
			continue
		}
		if err := part.File.Sync(); err != nil {
			return err
		}
	}
	return nil
}

// complete notes that DEST is about to get its name.
func (l *lasting) complete() error {
	if l == nil {
		return nil
	}
	return l.work.Enter(unfinished.Complete)
}

// remove removes the journal.
func (l *lasting) remove() error {
	if l == nil || l.work == nil {
		return nil
	}
	return l.work.Remove()
}

func (l *lasting) close() error {
	if l == nil || l.work == nil {
		return nil
	}
	return l.work.Close()
}

// adopt opens the partial file of a name that an earlier run has left; nil without one to go on with.
func (o *Output) adopt(name string) (*partialFile, error) {
	partial := partialName(name)
	if !o.lasting.goesOn() {
		return nil, nil //nolint:nilnil // it is created
	}
	f, err := openStale(o.dir, partial)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // the run was ended before it made the file
	case errors.Is(err, ondisk.ErrBusy):
		return nil, usedByOther(o.shown(partial))
	case err != nil:
		return nil, ondisk.In(ondisk.ErrOutput, "go on with %s: %w", o.shown(partial), err)
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode.IsRegular():
		err = fmt.Errorf("%w: it is no plain file; remove it by hand", ondisk.ErrReference)
	case st.Links > 1: // all names that this program gives are gone by now
		err = fmt.Errorf("%w: it has a second name, under which it would be written, too; remove one of them by hand",
			ondisk.ErrReference)
	}
	if err != nil {
		return nil, errors.Join(ondisk.In(ondisk.ErrOutput, "go on with %s: %w", o.shown(partial), err), f.Close())
	}
	p := &partialFile{File: f.Handed(partial), final: name, shown: o.shown(name), lasting: o.lasting, adopted: true}
	if err := o.begin(p, partial); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	o.lasting.room += st.Allocated
	// What the earlier run could not write may still stand in memory: what is compared comes from the storage.
	if err := errors.Join(p.File.Sync(), sys.Of(p.File).Forget()); err != nil {
		return nil, p.wrap("sync", err) // Discard closes it
	}
	return p, nil
}

// stands returns how many of these bytes, from the first on, an adopted file has at their place already.
func (p *partialFile) stands(b []byte, off int64) (n int, err error) {
	if !p.adopted {
		return 0, nil
	}
	for end := off + int64(len(b)); ; {
		was := p.end.Load()
		if was >= end || p.end.CompareAndSwap(was, end) {
			break
		}
	}
	buf := compared.Get().(*[comparedSize]byte)
	defer compared.Put(buf)
	defer func() { p.lasting.stood.Add(int64(n)) }()
	for n < len(b) {
		want := b[n:min(len(b), n+comparedSize)]
		got, err := p.ReadAt(buf[:len(want)], off+int64(n))
		if err != nil && !errors.Is(err, io.EOF) {
			return n, err
		}
		if got < len(want) || !bytes.Equal(buf[:got], want) {
			return n, nil
		}
		n += got
	}
	return n, nil
}

// comparedSize is how many bytes are compared at once.
const comparedSize = 64 * int(units.KiB)

var compared = sync.Pool{New: func() any { return new([comparedSize]byte) }}

// trim takes away what an adopted file has behind its end.
func (p *partialFile) trim() error {
	if !p.adopted {
		return nil
	}
	st, err := p.Stat()
	if err == nil && st.Size() > p.end.Load() {
		err = p.File.Truncate(p.end.Load())
	}
	return err
}

// Settle ends the work on a copy whose run was ended: it completes one that has its name, and reports that. Otherwise
// undo removes all files of it.
func Settle(w *unfinished.Held, undo bool) (complete bool, err error) {
	o := &Output{path: w.Work.Path, base: w.Base, notes: &notes{}, dir: w.Dir, stale: true}
	partial := partialName(o.base)
	named := w.Work.Phase == unfinished.Complete && o.dir.Exists(o.base)
	complete = named && (!o.dir.Exists(partial) || o.dir.SameFile(partial, o.base))
	switch {
	case complete:
		o.stale = false
		err = errors.Join(o.findReplaced(&gate.Opened{}), o.removeLeft(), o.removeStale(partial))
	case undo:
		err = errors.Join(o.removeStale(partial), o.removeLeft()) // the descriptor first: it names the others
		first, second := trialNames(o.base)
		_, _ = removeTrial(o.dir, first), removeTrial(o.dir, second) // one with bytes in it is the user's
	default:
		return false, nil
	}
	if err == nil {
		err = w.Remove()
	}
	return complete, err
}

package inplace

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/unfinished"
	"github.com/trueup/trueup/internal/units"
)

// hidden ends the name that a descriptor has during a move.
const hidden = image.Moving

// ErrMiddle marks an error that leaves the disk in the middle of a move.
var ErrMiddle = errors.New("the disk is in the middle of the move")

// Move is a move that is to begin.
type Move struct {
	Image *image.Image
	Plan  *plan.Plan
	Path  string // as the user names the disk
	// Look reads the result before the first sector is written; its error ends the move.
	Look  func(d disk.Disk) error
	Moves func() // called before the first byte is written; may be nil

	Options
}

// Suitable refuses an image whose disk cannot be moved in its place, and returns what the image has around it then.
func Suitable(img *image.Image, size int64) (a driver.Around, err error) {
	switch {
	case img.Packaged():
		return a, unsuitable("it is a disk of a package, which has its place and its digest there")
	case img.Child || len(img.Chain) > 0:
		return a, unsuitable("it is a snapshot, and a part of the disk lies in its parent")
	case img.Around == nil:
		return a, unsuitable("a move in place needs files that hold the disk byte for byte (raw, flat VMDK or fixed VHD), "+
			"and this is %s %s", img.Format, img.Subformat)
	}
	user, err := img.OtherUser()
	if err != nil {
		return a, err
	}
	if user != "" {
		return a, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("%q in the same folder names a file of this disk", user),
			Remedy: "remove what needs the old disk first, or make a copy",
		}
	}
	if a, err = img.Around(size); err != nil {
		return a, unsuitable("%v", err)
	}
	return a, nil
}

// Run moves the disk: it is in its new state then, or as it was, or in the middle of the move, and the error says so.
func (m *Move) Run(ctx context.Context) error {
	img := m.Image
	around, err := Suitable(img, m.Plan.Size)
	if err != nil {
		return err
	}
	tail := int64(len(around.Tail))
	parts, err := partsOf(img, tail)
	if err != nil {
		return err
	}
	f, err := openFiles(img.Dir, parts)
	if err != nil {
		return err
	}
	defer f.Close() // what counts was synced
	if err := img.Unchanged(); err != nil {
		return err
	}
	p, err := NewPlan(ctx, m.Plan, f, m.Plan.OldSize+tail, around.Tail, m.Options)
	if err != nil {
		return err
	}
	p.ID, p.Files, p.Text = rand.Text(), parts, around.Text
	if p.Text != nil {
		if p.OldText, err = textOf(img.Dir, img.Base); err != nil {
			return err
		}
	}
	blob, err := p.encode()
	if err != nil {
		return err
	}
	if err := room(img, p, int64(len(blob))); err != nil {
		return err
	}
	if err := errors.Join(img.Unchanged(), ctx.Err()); err != nil {
		return err
	}
	if m.Moves != nil {
		m.Moves()
	}
	// One thread makes all calls that change something, in their order, so that they can be traced and stopped one by one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, err := unfinished.Begin(img.Dir, img.Base, m.Path, unfinished.InPlace, blob, p.area())
	if err != nil {
		return err
	}
	defer w.Close() // the journal is durable, or removed
	return m.end(ctx, &work{w, p, f})
}

// end moves, and takes all back while nothing was moved.
func (m *Move) end(ctx context.Context, w *work) error {
	err := w.hide()
	var x *mover
	if err == nil {
		x, err = open(w.plan, w.files, w, m.Options)
	}
	if err == nil {
		x.look = m.Look
		err = x.finish(ctx)
	}
	switch {
	case err == nil:
		return w.complete()
	case x == nil || x.state() == before:
		if back := w.back(); back != nil { // an interrupt does not hide it
			return middle(fmt.Errorf("%s; the move could not be taken back: %w", err.Error(), back), m.Path)
		}
		return err
	}
	return middle(err, m.Path)
}

func middle(err error, path string) error {
	path = shell.Quote(path)
	return fmt.Errorf("%w; %w: trueup resume %s goes on, trueup undo %s takes it back", err, ErrMiddle, path, path)
}

// room refuses a move whose journal or growth has no room.
func room(img *image.Image, p *Plan, blob int64) error {
	need := blob + p.area() + units.MiB + p.End - p.OldEnd
	free, known, err := img.Dir.At.Free()
	if err == nil && known && free < need {
		return ondisk.In(ondisk.ErrOutput, "the move needs %s (%d bytes) for its journal and for what the disk grows, and %s "+
			"(%d bytes) are free beside the disk; make room", units.Format(need), need, units.Format(free), free)
	}
	return err
}

// work is a move with its journal and files.
type work struct {
	*unfinished.Held
	plan  *Plan
	files *files
}

// hide gives a descriptor the name that it has during the move.
func (w *work) hide() error {
	if w.plan.Text == nil {
		return nil
	}
	if err := w.Dir.At.RenameNew(w.Base, w.Base+hidden); err != nil {
		return ondisk.In(ondisk.ErrOutput, "rename %s to %s: %w", w.Base, w.Base+hidden, err)
	}
	return w.SyncFolder()
}

// textOf reads a descriptor.
func textOf(d *gate.Folder, name string) ([]byte, error) {
	f, err := d.OpenAny(name, ondisk.ErrUnsupported)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.NewSectionReader(f, 0, min(f.Size(), units.MiB)))
}

// hideAgain hides a descriptor that got its name back in the middle of the move. Its new text is written at the end, as
// for any other.
func (w *work) hideAgain() error {
	if w.plan.Text == nil || w.Dir.Exists(w.Base+hidden) {
		return nil
	}
	return w.hide()
}

// show gives the descriptor its name again, with text where that is not nil.
func (w *work) show(text []byte) error {
	if w.plan.Text == nil {
		return nil
	}
	name := w.Base + hidden
	if text != nil && !w.Dir.Exists(name) {
		// It has its name: a run was killed right after it renamed it, or it was renamed by hand.
		if old, err := textOf(w.Dir, w.Base); err == nil && bytes.Equal(old, w.plan.OldText) {
			if err := w.hide(); err != nil {
				return err
			}
		}
	}
	f, err := w.Dir.At.OpenToWrite(name)
	if errors.Is(err, fs.ErrNotExist) && w.Dir.Exists(w.Base) {
		return nil // it has it
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "open %s: %w", name, err)
	}
	file := f.Handed(name)
	if text != nil {
		if _, err = file.WriteAt(text, 0); err == nil {
			err = file.Truncate(int64(len(text)))
		}
		if err == nil {
			err = file.Sync()
		}
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = w.Dir.At.RenameNew(name, w.Base)
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "give %s its name again: %w", w.Base, err)
	}
	return w.SyncFolder()
}

// complete ends a move that has come to its end.
func (w *work) complete() error { return w.showAndRemove(w.plan.Text) }

// back ends a move that is undone, or that had not begun.
func (w *work) back() error {
	x, err := open(w.plan, w.files, w, Options{})
	if err == nil {
		err = x.undo(context.Background())
	}
	if err != nil {
		return err
	}
	return w.showAndRemove(nil)
}

// showAndRemove removes the journal when the descriptor has its name.
func (w *work) showAndRemove(text []byte) error {
	if err := w.show(text); err != nil {
		return err
	}
	return w.Remove()
}

// again opens what a run has left.
func again(h *unfinished.Held) (*work, error) {
	p, err := decodePlan(h.Plan())
	if err != nil {
		return nil, err
	}
	f, err := openFiles(h.Dir, p.Files)
	if err != nil {
		return nil, err
	}
	if f.end != p.OldEnd && f.end != p.End {
		return nil, errors.Join(fmt.Errorf("the disk ends at byte %d, want %d or %d: %w", f.end, p.OldEnd, p.End,
			ondisk.ErrChanged), f.Close())
	}
	return &work{h, p, f}, nil
}

// Resume goes on with a move that was interrupted. One that had moved nothing is taken back.
func Resume(ctx context.Context, h *unfinished.Held, look func(disk.Disk) error, o Options) (d unfinished.Done, err error) {
	w, err := again(h)
	if err != nil {
		return d, err
	}
	defer w.files.Close() // what counts was synced
	x, err := open(w.plan, w.files, w, o)
	if err != nil && x != nil && x.begun {
		err = middle(err, h.Work.Path)
	}
	if err != nil {
		return d, err
	}
	switch x.state() {
	case before:
		return unfinished.Done{Text: "nothing was moved yet, and the disk is as it was; start the move again"}, w.back()
	case undone:
		return unfinished.Done{Text: "the move was undone already, and the disk is as it was"}, w.back()
	case between, behind:
		if err := w.hideAgain(); err != nil {
			return d, err
		}
	case after:
	}
	x.look = look
	if err := x.finish(ctx); err != nil {
		return d, middle(err, h.Work.Path)
	}
	return unfinished.Done{Text: "the move in place is complete, and every byte that moved was compared"}, w.complete()
}

// Undo takes a move back that was interrupted.
func Undo(ctx context.Context, h *unfinished.Held, o Options) (d unfinished.Done, err error) {
	w, err := again(h)
	if err != nil {
		return d, err
	}
	defer w.files.Close() // what counts was synced
	x, err := open(w.plan, w.files, w, o)
	if err == nil {
		err = x.undo(ctx)
	}
	if errors.Is(err, errCommitted) {
		return d, &ondisk.Refusal{
			Code: "unfinished", Reason: err.Error(), Remedy: "give trueup resume " + shell.Quote(h.Work.Path),
		}
	}
	if err != nil {
		return d, middle(err, h.Work.Path)
	}
	return unfinished.Done{Text: "the disk is what it was before the move, byte for byte"}, w.showAndRemove(nil)
}

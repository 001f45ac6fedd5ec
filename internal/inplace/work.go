package inplace

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"runtime"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// hidden is the suffix of the name of a descriptor during a move.
const hidden = image.Moving

// ErrMiddle marks an error that leaves the disk in the middle of a move.
var ErrMiddle = errors.New("the disk is in the middle of the move")

// Move holds the input of a new move.
type Move struct {
	Image *image.Image
	Plan  *plan.Plan
	Path  string // path of the disk as the user wrote it
	// Device is the block device of the disk, if any. Its journal then has a path of its own.
	Device  Device
	Journal string // absolute path; by default beside the disk
	// BIOS is the geometry that the BIOS must report, or zero if nothing depends on it.
	BIOS  driver.Geometry
	Moves func() // called before the first byte is written; may be nil

	Options
}

// Device is a block device that this run has claimed.
type Device interface {
	medium
	Path() string // absolute, as the user wrote it
	ID() string   // persistent system ID; may be empty
	Reread()      // makes the kernel reread the partition table
}

// medium is the storage of a disk, open for writing.
type medium interface {
	Storage
	End() int64 // end of the storage, in bytes
	Close() error
}

// Suitable returns an error for an image whose disk cannot be moved in place. Otherwise it returns the metadata around
// the disk for the new size. For bios, see driver.Options.
func Suitable(img *image.Image, size int64, bios driver.Geometry) (a driver.Around, err error) {
	switch {
	case img.Packaged():
		return a, unsuitable("it is a disk of a package, which stores its position and its digest")
	case img.Child || len(img.Chain) > 0:
		return a, unsuitable("it is a snapshot, and part of the disk is in its parent")
	case img.MapsDevice:
		return a, &ondisk.Refusal{
			Code: "unsupported", Reason: "it maps a device, so reads of its file may come from that device",
			Remedy: "write a copy: trueup align SOURCE DEST",
		}
	case img.Around == nil && img.Format == "raw":
		return a, unsuitable("its file ends within a sector, and a move in place needs whole sectors")
	case img.Around == nil:
		return a, unsuitable("a move in place needs files that hold the disk byte for byte (raw, flat VMDK or "+
			"fixed VHD), and this disk is %s %s", img.Format, img.Subformat)
	case !utf8.ValidString(img.Base): // the journal stores it as JSON
		return a, unsuitable("its name %q is not UTF-8", img.Base)
	}
	if img.OnDevice() {
		return a, onDevice(img, size)
	}
	if err := claimed(img); err != nil {
		return a, err
	}
	user, err := img.OtherUser()
	if err != nil {
		return a, err
	}
	if user != "" {
		return a, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("%q in the same folder refers to a file of this disk", user),
			Remedy: "remove that image first, or make a copy",
		}
	}
	if a, err = img.Around(size, bios); err != nil {
		return a, unsuitable("%v", err)
	}
	return a, nil
}

// claimed refuses an image if the unfinished work of another disk needs one of its files, such as a kept original.
func claimed(img *image.Image) error {
	var names []string
	for _, f := range img.Handles {
		names = append(names, f.Name())
	}
	c, err := journal.Claiming(img.Dir, names...)
	if c == nil {
		return err
	}
	return c.Refusal(fmt.Sprintf("its file %.256q cannot be changed", c.File), img.Path)
}

// onDevice returns an error if the device does not hold the disk byte for byte, or would have to grow.
func onDevice(img *image.Image, size int64) error {
	switch have := img.Disk.Size(); {
	case img.Format != raw.Format.Name:
		return unsuitable("the device holds a %s file, not the disk itself", img.Format)
	case size > have:
		return &ondisk.Refusal{
			Code: "output", Reason: fmt.Sprintf("the device is too small: the moved disk needs %d bytes, and it has %d",
				size, have),
			Remedy: "enlarge the device, or make a copy",
		}
	}
	return nil
}

// Run moves the disk. Afterwards it is in its new state, in its original state, or in the middle of the move; the error
// distinguishes these.
func (m *Move) Run(ctx context.Context) error {
	img := m.Image
	around, err := Suitable(img, m.Plan.Size, m.BIOS)
	if err != nil {
		return err
	}
	f, parts, err := m.open(int64(len(around.Tail)))
	if err != nil {
		return err
	}
	defer f.Close() // all important data was synced
	if err := img.Unchanged(); err != nil {
		return err
	}
	p, err := NewPlan(ctx, m.Plan, f, img.Disk.SectorSize(), m.Plan.OldSize+int64(len(around.Tail)), around.Tail,
		m.Options)
	if err != nil {
		return err
	}
	p.ID, p.Files, p.Text, p.Journal = rand.Text(), parts, around.Text, m.Journal
	if err := m.place(p); err != nil {
		return err
	}
	blob, err := p.encode()
	if err != nil {
		return err
	}
	if err := m.room(p, int64(len(blob))); err != nil {
		return err
	}
	if err := errors.Join(img.Unchanged(), ctx.Err()); err != nil {
		return err
	}
	if m.Moves != nil {
		m.Moves()
	}
	// One thread makes all changes in order, so that they can be traced and stopped one by one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, err := journal.BeginIn(m.Journal, img.Dir, img.Base, m.Path, journal.InPlace, blob, p.area())
	if err != nil {
		return err
	}
	defer w.Close() // the journal is durable, or removed
	return m.end(ctx, &work{w, p, f})
}

// place records the location of the disk in the plan: a device, or a file with its folder and its descriptor.
func (m *Move) place(p *Plan) (err error) {
	if m.Device != nil {
		p.Device, p.DeviceID = m.Device.Path(), m.Device.ID()
	} else {
		folder, err := m.Image.Dir.At.Stat(".")
		if err != nil {
			return err
		}
		p.Base, p.Folder = m.Image.Base, folder.Inode
	}
	if p.Text != nil {
		p.OldText, err = textOf(m.Image.Dir, m.Image.Base)
	}
	return err
}

// open opens the storage of the disk for writing.
func (m *Move) open(tail int64) (medium, []Part, error) {
	if m.Device != nil {
		return m.Device, nil, nil
	}
	parts, err := partsOf(m.Image, tail)
	if err != nil {
		return nil, nil, err
	}
	f, err := openFiles(m.Image.Dir, m.Image.Base, parts, m.Looped)
	return f, parts, err
}

// end carries out the move. On an error before the mark is on the disk, it undoes everything.
func (m *Move) end(ctx context.Context, w *work) error {
	err := w.hide()
	var x *mover
	if err == nil {
		x, err = open(w.plan, w.disk, w, m.Options)
	}
	if err == nil {
		err = x.finish(ctx)
	}
	switch {
	case err == nil:
		return w.complete()
	case x == nil || x.state() == before:
		if back := w.back(); back != nil { // an interrupt does not stop it
			return middle(notBack(err, back), &w.Work, x)
		}
		return err
	}
	return middle(err, &w.Work, x)
}

// middle adds the commands that continue or undo the move to an error. x is nil if nothing has moved yet.
func middle(err error, w *journal.Work, x *mover) error {
	on := w.Command("resume") + " completes it"
	if x == nil || x.state() != behind {
		on += fmt.Sprintf(", %s reverses it", w.Command("undo"))
	}
	if errors.Is(err, context.Canceled) {
		return stopped{fmt.Errorf("%w: %s", ErrMiddle, on)}
	}
	return fmt.Errorf("%w; %w: %s", err, ErrMiddle, on)
}

// stopped is context.Canceled with another message.
type stopped struct{ error }

// Is reports whether target is context.Canceled, the error of a stopped move.
func (stopped) Is(target error) bool { return target == context.Canceled }

// Unwrap returns the error with the message.
func (s stopped) Unwrap() error { return s.error }

// notBack returns the error of a move that ended with err and could not be undone.
func notBack(err, back error) error {
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("the interrupted move could not be reversed: %w", back)
	}
	return fmt.Errorf("%w; the move could not be reversed: %w", err, back)
}

// room returns an error if there is no room for the journal or for the growth of the disk, or if a power cut would lose
// the journal.
func (m *Move) room(p *Plan, blob int64) error {
	journal, grows, beside := blob+p.area()+units.MiB, p.End-p.OldEnd, m.Image.Dir.At
	if m.Journal == "" {
		return hasRoom(beside, journal+grows, "for its journal and for the growth of the disk", "beside the disk")
	}
	dir, err := gate.OpenFolder(filepath.Dir(m.Journal))
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "folder of the journal %s: %w", m.Journal, gate.PlainError(err))
	}
	defer dir.Close()
	if err = m.lasts(dir.At); err == nil {
		err = hasRoom(dir.At, journal, "for its journal", "in the folder of "+m.Journal)
	}
	if err == nil && grows > 0 {
		err = hasRoom(beside, grows, "for the growth of the disk", "beside the disk")
	}
	return err
}

func hasRoom(d *sys.Folder, need int64, what, where string) error {
	free, known, err := d.Free()
	if err == nil && known && free < need {
		return ondisk.In(ondisk.ErrOutput, "the move needs %s (%d bytes) %s, and %s (%d bytes) are free %s; make room",
			units.Format(need), need, what, units.Format(free), free, where)
	}
	return err
}

// lasts returns an error if the journal would be in memory, but the disk survives a power cut.
func (m *Move) lasts(d *sys.Folder) error {
	inMemory, err := d.InMemory()
	if !inMemory {
		return err
	}
	there, err := d.Stat(".")
	if err == nil && m.Device == nil {
		var disk sys.Info
		if disk, err = m.Image.Dir.At.Stat("."); err == nil && disk.Device == there.Device {
			return nil
		}
	}
	return errors.Join(err, &ondisk.Refusal{
		Code: "output", Reason: fmt.Sprintf("the journal %s would be in memory, and lost if the power fails",
			m.Journal),
		Remedy: "name a file on persistent storage",
	})
}

// work is a move with its journal and files.
type work struct {
	*journal.Held
	plan *Plan
	disk medium
}

// hide renames a descriptor to its name during the move.
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

// hideAgain hides a descriptor that got its name back in the middle of the move. Its new text is written at the end.
func (w *work) hideAgain() error {
	if w.plan.Text == nil || w.Dir.Exists(w.Base+hidden) {
		return nil
	}
	return w.hide()
}

// show gives the descriptor its name back, after writing text unless that is nil.
func (w *work) show(text []byte) error {
	if w.plan.Text == nil {
		return nil
	}
	name := w.Base + hidden
	if text != nil && !w.Dir.Exists(name) {
		// It has its name already: a run was killed after the rename, or the user renamed it.
		old, err := textOf(w.Dir, w.Base)
		if err == nil && bytes.Equal(old, w.plan.OldText) {
			err = w.hide()
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	f, err := w.Dir.At.OpenToWrite(name)
	if errors.Is(err, fs.ErrNotExist) && w.Dir.Exists(w.Base) {
		return nil // it has its name already
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "open %s: %w", name, err)
	}
	file := f.OSFile(name)
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
		return ondisk.In(ondisk.ErrOutput, "restore the name of %s: %w", w.Base, err)
	}
	return w.SyncFolder()
}

// complete ends a finished move and removes its journal.
func (w *work) complete() error { return w.showAndRemove(w.plan.Text) }

// back ends a move in which nothing has moved, or everything is undone: it restores the old disk, and removes the
// journal.
func (w *work) back() error {
	x, err := open(w.plan, w.disk, w, Options{Progress: diskcopy.Unwatched{}})
	if err == nil {
		err = x.undo(context.Background())
	}
	if err != nil {
		return err
	}
	return w.showAndRemove(nil)
}

// showAndRemove gives the descriptor its name back, then removes the journal.
func (w *work) showAndRemove(text []byte) error {
	if err := w.show(text); err != nil {
		return err
	}
	if d, ok := w.disk.(Device); ok {
		d.Reread()
	}
	return w.Remove()
}

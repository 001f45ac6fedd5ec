package inplace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Again continues or undoes an interrupted move.
type Again struct {
	Held   *journal.Held
	Device Device // nil for a disk in files
	Force  bool   // Undo removes the journal of a disk that is no longer in the middle of the move

	Options

	plan *Plan
}

// open opens the interrupted move.
func (a *Again) open() (_ *work, _ *mover, err error) {
	if a.plan, err = decodePlan(a.Held.Plan()); err != nil {
		return nil, nil, err
	}
	p := a.plan
	on, err := a.medium(p)
	if err != nil {
		return nil, nil, err
	}
	w := &work{a.Held, p, on}
	if end := on.End(); end != p.OldEnd && end != p.End {
		err = ondisk.In(ondisk.ErrChanged, "the disk ends at byte %d; it ended at %d before the move, and should "+
			"end at %d after it", end, p.OldEnd, p.End)
	}
	var x *mover
	if err == nil {
		x, err = open(p, on, w, a.Options)
	}
	if err != nil && x != nil && x.marked {
		err = middle(err, &a.Held.Work, x)
	}
	if err != nil {
		return nil, nil, errors.Join(err, on.Close())
	}
	return w, x, nil
}

// medium opens the storage of the disk.
func (a *Again) medium(p *Plan) (medium, error) {
	switch {
	case p.Device == "" && a.Device != nil:
		return nil, ondisk.In(ondisk.ErrUsage, "the journal is of a disk in files, not of device %s", a.Device.Path())
	case p.Device != "" && a.Device == nil:
		return nil, ondisk.In(ondisk.ErrUsage, "the journal belongs to the device %s; name that device", p.Device)
	case p.Device == "" && len(p.Files) == 0:
		return nil, fmt.Errorf("plan of the journal: it names no file: %w", ondisk.ErrFormat)
	case p.Base != "" && p.Base != a.Held.Base:
		return nil, ondisk.In(ondisk.ErrUsage, "the journal belongs to the disk %q, not to %q; name that disk", p.Base,
			a.Held.Base)
	case p.Device == "":
		return a.files(p)
	}
	marked, err := p.marks(a.Device)
	same := p.DeviceID == a.Device.ID()
	if p.DeviceID == "" {
		same = p.Device == a.Device.Path()
	}
	if err == nil && !marked && !same {
		err = ondisk.In(ondisk.ErrUsage, "the journal belongs to the device %s, not to %s, whose first sector is "+
			"not the mark of the move; name the right device", p.Device, a.Device.Path())
	}
	return a.Device, err
}

// files opens the files of the disk. It accepts files with other inodes, as after a copy to other storage, only under
// three conditions: the first sector is the mark of this move; the journal lies beside the files, or they are in the
// folder of the plan; and the original first file is not in that folder under another name with the mark.
func (a *Again) files(p *Plan) (medium, error) {
	f, err := openFiles(a.Held.Dir, a.Held.Base, p.Files, a.Looped)
	if err != nil || f.other == "" {
		return f, err
	}
	marked, err := p.marks(f)
	var aside string
	if err == nil {
		aside, err = a.marked(p, func(name string, is sys.Info) bool {
			return name != p.Files[0].Name && is.Inode == p.Files[0].Inode
		})
	}
	folder, statErr := a.Held.Dir.At.Stat(".")
	err = errors.Join(err, statErr)
	came := a.Held.Work.Journal == "" || folder.Inode == p.Folder
	if err == nil && (!marked || aside != "" || !came) {
		err = anotherFile(f.other)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Resume completes the move. It refuses a move of which nothing is left to complete, because success would mean that
// the disk is moved.
func (a *Again) Resume(ctx context.Context) (d journal.Done, err error) {
	w, x, err := a.open()
	if err != nil {
		_, err = a.refuseMissing(err)
		return d, err
	}
	defer w.disk.Close() // all important data was synced
	switch x.state() {
	case undone:
		return d, a.nothing("the move was undone", "removes the journal")
	case before:
		return d, a.nothing("nothing was moved", "removes the journal; then start the move again")
	case between, behind:
		if err := w.hideAgain(); err != nil {
			return d, err
		}
	case after:
	}
	if err := x.finish(ctx); err != nil {
		return d, middle(err, &a.Held.Work, x)
	}
	return journal.Done{Text: "the move is complete, and every moved byte was compared"}, w.complete()
}

// nothing returns the refusal of a move that cannot continue, because the disk has its original bytes.
func (a *Again) nothing(why, undo string) error {
	return &ondisk.Refusal{
		Code: "unfinished", Reason: why + ", so there is nothing to resume",
		Remedy: a.Held.Work.Command("undo") + " restores the disk and " + undo,
	}
}

// Undo restores the original state of the disk.
func (a *Again) Undo(ctx context.Context) (d journal.Done, err error) {
	w, x, err := a.open()
	if err != nil {
		if free, err := a.refuseMissing(err); !free || !a.Force {
			return d, err
		}
		return a.drop()
	}
	defer w.disk.Close() // all important data was synced
	err = x.undo(ctx)
	if errors.Is(err, errCommitted) {
		return d, &ondisk.Refusal{
			Code: "unfinished", Reason: err.Error(), Remedy: "run " + a.Held.Work.Command("resume"),
		}
	}
	if err != nil {
		return d, middle(err, &a.Held.Work, x)
	}
	return journal.Done{Text: "the disk is byte for byte as before the move"}, w.showAndRemove(nil)
}

// refuseMissing returns the refusal of another disk, or of a disk without the mark of the move. why is the reason. free
// reports whether the disk is no longer in the middle of the move, so that the journal can be removed.
func (a *Again) refuseMissing(why error) (free bool, err error) {
	if !errors.Is(why, ondisk.ErrChanged) && !errors.Is(why, fs.ErrNotExist) {
		return false, why
	}
	p, dir := a.plan, a.Held.Dir
	name, err := a.moving(p)
	work := &a.Held.Work
	folder, statErr := dir.At.Stat(".")
	switch err = errors.Join(err, statErr); {
	case err != nil:
		return false, errors.Join(why, err)
	case p.Journal != "" && p.Device == "" && p.Folder != folder.Inode:
		return false, &ondisk.Refusal{
			Code: "unfinished", Reason: fmt.Sprintf("%v, and the journal belongs to a disk in another folder", why),
			Remedy: "name the disk on which the move began; if that disk is no longer in the middle of the move, " +
				"remove the journal by hand",
		}
	case name != "":
		return false, &ondisk.Refusal{
			Code:   "unfinished",
			Reason: fmt.Sprintf("%v, and %q is in the middle of a move", why, name),
			Remedy: fmt.Sprintf("restore %q to its state at the interruption, then run %s", name,
				work.Command("resume")),
		}
	case p.Device == "" && !dir.Exists(a.Held.Base) && !dir.Exists(p.Files[0].Name):
		return false, &ondisk.Refusal{
			Code:   "unfinished",
			Reason: fmt.Sprintf("%q is missing, and is unusable without this journal", p.Files[0].Name),
			Remedy: fmt.Sprintf("move it back here, then run %s; if the disk no longer exists, remove the journal "+
				"by hand", work.Command("resume")),
		}
	}
	return true, &ondisk.Refusal{
		Code: "unfinished", Reason: why.Error(),
		Remedy: fmt.Sprintf("if the disk was restored from a backup, %s --force leaves the disk as it is and "+
			"removes the journal, with the bytes that it saved from the old disk", work.Command("undo")),
	}
}

// drop removes the journal of a disk that is not in the middle of the move.
func (a *Again) drop() (d journal.Done, err error) {
	d.Text = "the disk is left as it is, and the journal is removed"
	d.Notes = []ondisk.Issue{{
		Code: "journal-removed", Effect: ondisk.Warn, Text: "the journal held bytes saved from the old disk",
		Remedy: "check that the disk is the one restored from a backup",
	}}
	if d.Removed, err = a.stale(a.plan); err == nil {
		err = a.Held.Remove()
	}
	return d, err
}

// moving returns the file in the folder, or the device, that is in the middle of the move, even if it was renamed.
func (a *Again) moving(p *Plan) (string, error) {
	if p.Device != "" {
		b := make([]byte, markSize)
		if err := ondisk.ReadFull(a.Device, b, 0); !bytes.HasPrefix(b, []byte(MarkText)) {
			return "", err // unreadable bytes stay zero
		}
		return a.Device.Path(), nil
	}
	return a.marked(p, func(name string, is sys.Info) bool {
		return name == p.Files[0].Name || is.Inode == p.Files[0].Inode
	})
}

// marked returns the first file of the folder, among those selected by which, that has the mark of a move. It returns
// an empty string if there is none.
func (a *Again) marked(p *Plan, which func(name string, is sys.Info) bool) (string, error) {
	at, first := a.Held.Dir, p.Files[0]
	names, err := at.Names(func(name string) bool {
		st, err := at.At.Lstat(name)
		return err == nil && st.Mode.IsRegular() && which(name, st)
	})
	for _, name := range names {
		f, err := at.OpenAny(name, ondisk.ErrReference)
		if err != nil {
			return "", err
		}
		b := make([]byte, markSize)
		err = ondisk.ReadFull(f, b, first.At)
		if err = errors.Join(f.Close(), notShort(err)); err != nil || bytes.HasPrefix(b, []byte(MarkText)) {
			return name, err
		}
	}
	return "", err
}

// notShort drops the error of a file that is too short for a mark.
func notShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// stale removes the hidden descriptor if the disk has another one. Otherwise it renames the hidden one back.
func (a *Again) stale(p *Plan) (removed []string, err error) {
	dir, base, name := a.Held.Dir, a.Held.Base, a.Held.Base+hidden
	if p.Text == nil || !dir.Exists(name) {
		return nil, nil
	}
	if !dir.Exists(base) {
		err = dir.At.RenameNew(name, base)
	} else if old, readErr := textOf(dir, name); readErr == nil && bytes.Equal(old, p.OldText) {
		removed, err = []string{name}, dir.At.Remove(name)
	}
	if err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "descriptor %s: %w", name, err)
	}
	return removed, a.Held.SyncFolder()
}

// again makes the first sector durable before the journal changes or is removed. It writes the sector again: after a
// failed flush in the previous run, the kernel may hold it in its cache as a clean page and flush nothing.
func (m *mover) again(first []byte) error {
	now := make([]byte, markSize)
	if err := ondisk.ReadFull(m.disk, now, 0); err != nil {
		return err
	}
	if bytes.Equal(now, first) { // otherwise the disk is in use and was written by others
		if _, err := m.disk.WriteAt(first, 0); err != nil {
			return err
		}
	}
	return m.disk.Sync()
}

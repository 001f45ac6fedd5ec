package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// Files are all names that the files of an exchange have or had.
func Files(h *journal.Held) ([]string, error) {
	x, err := begun(h)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range slices.Concat(x.Old, x.New) {
		out = append(out, string(f.Name), string(f.Other))
	}
	return out, nil
}

// Options of Undo, Resume and Finish.
type Options struct {
	Force    bool              // go on although the bytes written since are lost
	Judge    bool              // change nothing: the error is why it would be refused
	Search   []string          // further folders in which, and below, overlays of the disks are looked for
	Progress diskcopy.Progress // of reading the disk that stays; nil: nobody watches
}

// Resume completes an interrupted exchange.
func Resume(ctx context.Context, h *journal.Held, o Options) (journal.Done, error) {
	x, err := begun(h)
	if err == nil {
		err = x.mayResume(ctx, o)
	}
	if err == nil && !o.Judge {
		if err = x.forward(); err != nil {
			err = unfinishedError(h.Work.Path, err)
		}
	}
	if err != nil {
		return journal.Done{}, err
	}
	return journal.Done{
		Text:  fmt.Sprintf("the exchange is complete, and the original is kept as %v", x.Old[0].Other),
		Files: names(x.New),
	}, nil
}

// mayResume refuses to give the path to an outdated copy: while the path led to the source, a guest may have written to
// it.
func (x *run) mayResume(ctx context.Context, o Options) error {
	if err := x.copyIdle(); err != nil {
		return err
	}
	if x.d.is(x.New[0].Name, x.New[0]) {
		return x.copyStands(ctx, o)
	}
	if err := x.free(string(x.Old[0].Name), names(slices.Concat(x.Old, x.New)), string(x.Old[0].Other)); err != nil {
		return err
	}
	for _, f := range x.Old {
		if x.d.there(f) && !x.d.intact(f) {
			return &ondisk.Refusal{
				Code: "changed", Reason: fmt.Sprintf("%v was written since its copy was made, by a guest or another "+
					"program, and the copy lacks that", f.Name),
				Remedy: x.Work.Command("undo") + " keeps what was written; align it again then",
			}
		}
	}
	return x.copyStands(ctx, o)
}

// copyIdle refuses a copy that still has names of its own, and that was written under them since the exchange began, or
// is open for writing.
func (x *run) copyIdle() error {
	for _, f := range slices.Concat(x.New, x.Left) {
		at := f.Other
		if len(at) == 0 {
			at = f.Name
		}
		if x.Work.Phase != journal.Begun || f.unnamed() || !x.d.is(at, f) {
			continue
		}
		written := !x.d.same(at, f)
		if open, err := x.d.OpenAny(string(at), ondisk.ErrReference); err == nil {
			written = written || open.Written()
			_ = open.Close() // it was read
		}
		if written {
			return &ondisk.Refusal{
				Code: "changed",
				Reason: fmt.Sprintf("%v, a file of the copy, was written since the exchange began, or is open for "+
					"writing", at),
				Remedy: "end what writes it; what was written is lost if you move the file away and run trueup undo",
			}
		}
	}
	return nil
}

// copyStands refuses to complete an exchange by a copy that is not the one that was written.
func (x *run) copyStands(ctx context.Context, o Options) error {
	n := x.New[0]
	if n.Disks == nil || !x.d.is(n.Name, n) && !x.d.is(n.Other, n) {
		return nil // of an earlier version; or the steps say which file is another
	}
	err := x.copySide(x.d).promised(ctx, x.d, Options{Progress: o.Progress})
	if err == nil || ctx.Err() != nil { // which says nothing of the disk
		return ctx.Err()
	}
	return &ondisk.Refusal{
		Code: "format", Reason: err.Error(), Remedy: "bring the original back: " + x.Work.Command("undo"),
	}
}

// Undo brings the original back. What was written to the disk since the exchange is lost with it, which o has to
// accept.
func Undo(ctx context.Context, h *journal.Held, o Options) (journal.Done, error) {
	x, err := begun(h)
	if err == nil {
		err = x.mayUndo(ctx, o)
	}
	if err != nil || o.Judge {
		return journal.Done{}, err
	}
	d := journal.Done{
		Text: "the original is back under its own names", Files: names(x.Old),
		Notes: slices.Concat(x.odd(x.Old), x.notes),
	}
	if d.Removed, err = x.back(); err != nil {
		return d, fmt.Errorf("%w; give the undo again when the cause is removed", err)
	}
	return d, nil
}

// mayUndo refuses an undo by which something is lost or breaks, or that could not come to its end. One that was begun
// is looked at again where the path still leads to the copy, since a guest can have been started from it.
func (x *run) mayUndo(ctx context.Context, o Options) error {
	if err := x.present(); err != nil {
		return err
	}
	if err := x.copyIdle(); err != nil {
		return err
	}
	if x.Work.Phase == journal.Undoing && !x.leadsToCopy() {
		return nil
	}
	if err := x.free(string(x.New[0].Name), names(x.New), string(x.Old[0].Other)); err != nil {
		return err
	}
	if x.Work.Phase == journal.Kept { // what a guest writes to it now, nothing has judged
		if err := x.free(string(x.Old[0].Other), x.kept(), string(x.New[0].Name)); err != nil {
			return err
		}
	}
	if err := x.overlaysOfUndo(o); err != nil {
		return err
	}
	if err := x.originalStands(ctx, o); err != nil {
		return err
	}
	if odd := x.odd(x.Old); len(odd) > 0 && x.Work.Phase == journal.Kept && !o.Force {
		return &ondisk.Refusal{
			Code: "changed", Reason: odd[0].Text + ", and an undo removes the aligned disk for it",
			Remedy: "compare the two disks; give --force to bring the original back, or keep the aligned disk: " +
				x.Work.Command("finish", "--force"),
		}
	}
	for _, f := range x.New {
		pending := x.Work.Phase == journal.Begun && x.d.same(f.Other, f)
		if o.Force || pending || x.d.same(f.Name, f) {
			continue
		}
		if there, err := x.d.stands(f.Name); err != nil {
			return err
		} else if !there {
			continue // an undo loses nothing of it
		}
		if x.Work.Phase != journal.Kept && !x.d.is(f.Name, f) {
			continue // the copy is not complete, or an undo has begun to remove it
		}
		remedy := "give --force to lose it"
		if x.Work.Phase == journal.Kept {
			remedy += "; or keep the disk, with trueup finish"
		}
		return &ondisk.Refusal{
			Code: "changed", Reason: fmt.Sprintf("%v was written since the exchange, by a guest or another program, "+
				"and an undo loses that", f.Name),
			Remedy: remedy,
		}
	}
	return nil
}

// originalStands refuses to remove the copy where the original is not what it was.
func (x *run) originalStands(ctx context.Context, o Options) error {
	original := x.originalSide(x.d, x.Work.Phase)
	err := original.whole(x.d)
	if err == nil && original.disks != nil { // journals of earlier versions have none
		err = original.promised(ctx, x.d, o)
	}
	if err == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	r := &ondisk.Refusal{
		Code: "format", Reason: err.Error() + ", and the aligned disk is all there is",
		Remedy: "restore the bytes of the original from a backup, then give the undo again",
	}
	if x.Work.Phase == journal.Kept {
		r.Remedy = "keep the aligned disk: " + x.Work.Command("finish", "--force")
	}
	return r
}

// leadsToCopy reports whether the path still leads to the copy in an undo. The first file of the source, which the undo
// writes anew, can have got the inode of the copy's, unless that has a second name.
func (x *run) leadsToCopy() bool {
	n, o := x.New[0], x.Old[0]
	return x.d.is(n.Name, n) &&
		(!x.several() || x.d.is(n.Other, n) || !x.d.holds(o.Name, o.Was) && !x.d.holds(o.Name, o.Kept))
}

// present refuses an undo where a file of the original has none of its names.
func (x *run) present() error {
	for _, f := range x.Old {
		if f.text() || x.d.there(f) || x.d.is(x.New[0].Other, f) {
			continue
		}
		err := gone(f)
		switch {
		case x.Work.Phase != journal.Kept:
		case x.d.has(f.Other):
			err = ondisk.In(ondisk.ErrChanged, "%v is another file than the one that was kept, as after a copy of the "+
				"folder: rename it to %v by hand if it is the original; %s removes the journal, and no file that it "+
				"does not know", f.Other, f.Name, x.Work.Command("finish", "--force"))
		default:
			err = fmt.Errorf("%w; if it was removed, keep the disk: %s", err, x.Work.Command("finish", "--force"))
		}
		return err
	}
	for _, f := range x.Old[1:] {
		ours := slices.Contains(names(x.New), string(f.Name)) || x.d.named(f)
		if !ours && x.d.has(f.Name) {
			return foreign(f.Name)
		}
	}
	return nil
}

// free refuses a disk that a program has open, or that something beside it needs. but is another name of the disk. Its
// own files need it under the other names that the exchange gives them, too: a VMDK names itself.
func (x *run) free(base string, files []string, but string) error {
	own := []string{base, but}
	for _, f := range slices.Concat(x.Old, x.New) {
		if x.d.is(f.Other, f) {
			own = append(own, string(f.Other))
		}
	}
	user, err := otherUser(x.Dir, files, own...)
	if err != nil {
		return err
	}
	if user != "" {
		return &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("%q needs the disk %q", user, base),
			Remedy: "remove it, or consolidate it first",
		}
	}
	return x.idle(base)
}

// idle refuses a disk or a package at a name that a program has open.
func (x *run) idle(base string) error {
	busy, err := x.eachAt(base, func(img *image.Image) ([]ondisk.Issue, error) { return img.UsedBy(x.Writers) })
	if err == nil && len(busy) > 0 {
		err = &ondisk.Refusal{Code: "busy", Reason: busy[0].Text, Remedy: busy[0].Remedy}
	}
	return err
}

// odd returns a warning for each file of the source that is gone or was written since the exchange.
func (x *run) odd(files []file) (out []ondisk.Issue) {
	for _, f := range files {
		text := "the original's file %v was written since the exchange"
		switch {
		case f.text():
			if x.Work.Phase != journal.Kept || x.d.holds(f.Other, f.Kept) {
				continue
			}
			if !x.d.has(f.Other) {
				text = "the original's file %v is gone"
			}
		case x.d.intact(f):
			continue
		case x.d.there(f):
		case x.d.has(f.Other):
			text = "%v is another file than the one that was kept"
		default:
			text = "the original's file %v is gone"
		}
		out = append(out, ondisk.Issue{
			Code: "original-changed", Effect: ondisk.Warn, Text: fmt.Sprintf(text, f.Other),
		})
	}
	return out
}

// Finish removes the original of a complete exchange.
func Finish(ctx context.Context, h *journal.Held, o Options) (journal.Done, error) {
	again := h.Work.Phase == journal.Finishing // an earlier run may have removed files
	x, err := begun(h)
	if err == nil && (h.Work.Phase != journal.Finishing || x.keeps(x.d)) {
		if err = x.mayFinish(ctx, o); err == nil && !o.Judge {
			err = x.Enter(journal.Finishing)
		}
	}
	if o.Judge {
		return journal.Done{}, err
	}
	d := journal.Done{Text: "the original is removed, and the aligned disk stays", Files: nil}
	if err == nil {
		d.Files, d.Notes = names(x.New), x.notes
		err = errors.Join(x.dropOriginal(&d), x.SyncFolder())
		d.Removed = x.removed
	}
	if len(d.Removed) == 0 && !again {
		d.Text = "no file of the original was there any more; the journal is removed, and the aligned disk stays"
	}
	if err == nil {
		err = x.Remove()
	}
	return d, err
}

// kept returns the names under which the files of the original are kept.
func (x *run) kept() (out []string) {
	for _, f := range x.Old {
		out = append(out, string(f.Other))
	}
	return out
}

// mayFinish refuses to remove an original that is all there is, or that something needs.
func (x *run) mayFinish(ctx context.Context, o Options) error {
	orig := string(x.Old[0].Other)
	if err := x.free(orig, x.kept(), string(x.Old[0].Name)); err != nil {
		return err
	}
	if err := x.overlaysOfFinish(o); err != nil {
		return err
	}
	if err := x.stands(ctx, o); err != nil {
		return err
	}
	if odd := x.odd(x.Old); len(odd) > 0 && !o.Force {
		return &ondisk.Refusal{Code: "changed", Reason: odd[0].Text, Remedy: "give --force to remove it all the same"}
	}
	for _, s := range x.Old[0].Disks {
		if s.Lost != "" && !o.Force {
			return &ondisk.Refusal{
				Code: "reference", Reason: "the original is kept: " + s.Lost,
				Remedy: "save the snapshots first (qemu-img convert -l), or lose them: " +
					x.Work.Command("finish", "--force"),
			}
		}
	}
	return nil
}

// stands refuses a path that does not lead to the aligned disk, or to one that uses files of the original.
func (x *run) stands(ctx context.Context, o Options) error {
	side := x.copySide(x.d)
	side.alias = nil // all names are those of the disk
	err := side.promised(ctx, x.d, o)
	var set *gate.Opened
	if err == nil {
		set, err = x.openDisk(side.base)
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r := &ondisk.Refusal{
			Code: "format", Reason: err.Error() + ", and the original is all there is",
			Remedy: "bring the original back: " + x.Work.Command("undo", "--force"),
		}
		if !o.Force {
			r.Remedy += "; or give --force, if this disk is the one that is to stay"
		}
		return r
	}
	defer set.Close()
	for _, f := range set.Handles {
		if slices.ContainsFunc(x.Old, func(o file) bool { return o.Inode == f.Info.Inode && o.Inode != 0 }) {
			return &ondisk.Refusal{
				Code: "reference", Reason: fmt.Sprintf("the disk uses %q, a file of the original", f.Name()),
				Remedy: "bring the original back: " + x.Work.Command("undo", "--force"),
			}
		}
	}
	return nil
}

// openDisk opens all files of a disk or a package.
func (x *run) openDisk(base string) (*gate.Opened, error) {
	dir, err := x.Dir.Again()
	if err != nil {
		return nil, err
	}
	p, disks, err := openPackage(dir, base)
	for _, img := range disks {
		err = errors.Join(err, img.Close())
	}
	if p != nil && err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if p != nil {
		return p.Opened(), nil
	}
	if dir, err = x.Dir.Again(); err != nil {
		return nil, err
	}
	img, err := image.OpenIn(dir, base, x.copySide(x.d).options())
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &img.Opened, nil
}

// dropOriginal removes the files of the original. What has only the name of one is not its file, and stays.
func (x *run) dropOriginal(d *journal.Done) error {
	another := false
	for _, f := range x.Old {
		if !f.text() {
			if err := x.drop(f.Other, f); err != nil {
				return err
			}
			another = another || x.d.has(f.Other)
		}
	}
	for _, f := range x.Old { // one that names another file is not the original's, although it has the same bytes
		if f.text() && !another && x.d.holds(f.Other, f.Kept) {
			if err := x.d.remove(f.Other); err != nil {
				return err
			}
			x.removed = append(x.removed, string(f.Other))
		}
	}
	for _, f := range x.Old {
		if x.d.has(f.Other) {
			d.Notes = append(d.Notes, ondisk.Issue{
				Code: "original-changed", Effect: ondisk.Warn, Remedy: "remove it by hand if it is not needed",
				Text: fmt.Sprintf("%v is not the file that was kept under this name, and stays", f.Other),
			})
		}
	}
	return nil
}

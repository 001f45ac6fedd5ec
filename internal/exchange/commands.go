package exchange

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// Files returns all past and present names of the files of an exchange.
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
	Force    bool              // continue although later changes are lost
	Judge    bool              // only check: return the error of a refusal, or nil
	Search   []string          // further folders in which, and below which, to search overlays of the disks
	Progress diskcopy.Progress // of reading the disk that stays; may be nil
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
	if err := x.stranger(); err != nil {
		return unfinishedError(x.Work.Path, err)
	}
	if !x.d.is(x.New[0].Name, x.New[0]) {
		if err := x.free(x.Old[0].Name, names(slices.Concat(x.Old, x.New)), o, ""); err != nil {
			return err
		}
		if f := x.d.written(x.Old); f != nil {
			return &ondisk.Refusal{
				Code: "changed", Reason: fmt.Sprintf("%v was written after its copy was made, by a guest or "+
					"another program, and the copy lacks these changes", f.Name),
				Remedy: x.Work.Command("undo") + " keeps these changes; then align the disk again",
			}
		}
	}
	if x.New[0].Disks == nil || !x.d.there(x.New[0]) {
		return nil // an earlier version has none; for a missing file the steps return the error
	}
	_, err := x.judged(ctx, x.copySide(x.d), Options{Progress: o.Progress}, "", "restore the original: "+
		x.Work.Command("undo"))
	return err
}

// judged refuses a disk that does not match its description in the journal, and returns its files. but is appended to
// the reason.
func (x *run) judged(ctx context.Context, s side, o Options, but, remedy string) ([]*gate.File, error) {
	files, err := s.promised(ctx, x.d, o)
	if err == nil || ctx.Err() != nil { // an interrupt is no error of the disk
		return files, ctx.Err()
	}
	return nil, &ondisk.Refusal{Code: "format", Reason: err.Error() + but, Remedy: remedy}
}

// copyIdle refuses a copy that still has its old names, if it was written since the exchange began, or is open for
// writing.
func (x *run) copyIdle() error {
	for _, f := range slices.Concat(x.New, x.Left) {
		at := f.Other
		if len(at) == 0 {
			at = f.Name
		}
		if x.Work.Phase != journal.Begun || f.unnamed() || !x.d.is(at, f) {
			continue
		}
		open, _ := x.d.writable(at) // for an unreadable file, same compares its time
		if open || !x.d.same(at, f) {
			return &ondisk.Refusal{
				Code: "changed",
				Reason: fmt.Sprintf("%v, a file of the copy, was written since the exchange began, or is open for "+
					"writing", at),
				Remedy: "end that program; to discard its changes, move the file away and run trueup undo",
			}
		}
	}
	return nil
}

// Undo restores the original. The changes to the disk since the exchange are lost; o must permit that.
func Undo(ctx context.Context, h *journal.Held, o Options) (journal.Done, error) {
	x, err := begun(h)
	if err == nil {
		err = x.mayUndo(ctx, o)
	}
	if err != nil || o.Judge {
		return journal.Done{}, err
	}
	d := journal.Done{
		Text: "the original has its own names again", Files: names(x.Old),
		Notes: slices.Concat(x.changedFiles(), x.notes),
	}
	if d.Removed, err = x.back(); err != nil {
		return d, fmt.Errorf("%w; remove the cause, then run undo again", err)
	}
	return d, nil
}

// mayUndo returns an error if an undo would lose data, break another image, or could not be completed. It checks a
// begun undo again if the path still leads to the copy, because a guest may have been started from it.
func (x *run) mayUndo(ctx context.Context, o Options) error {
	if err := x.present(); err != nil {
		return err
	}
	if err := x.copyIdle(); err != nil {
		return err
	}
	if err := x.stranger(); err != nil && x.Work.Phase != journal.Kept && !o.Force {
		return fmt.Errorf("%w; add --force to discard it", err)
	}
	if x.Work.Phase == journal.Undoing && !x.leadsToCopy() {
		return nil
	}
	mixes, loses := "", ""
	if x.keeps(x.d) { // otherwise the copy is not, or no longer, a disk
		x.elsewhere(o, "an overlay in another folder that was made after the exchange would mix the new layout "+
			"with the old one")
		mixes = "add --force if it was made before the exchange and needs the original"
		loses = "add --force if you will rebase it onto the disk at its old name (qemu-img rebase -u)"
	}
	err := x.free(x.New[0].Name, names(x.New), o, mixes)
	if err == nil && (x.Work.Phase == journal.Kept || loses != "") { // no other check covers writes of a guest
		err = x.free(x.Old[0].Other, x.kept(), o, loses)
	}
	if err == nil {
		err = x.originalStands(ctx, o)
	}
	if found := x.changedFiles(); err == nil && len(found) > 0 && x.Work.Phase == journal.Kept && !o.Force {
		err = &ondisk.Refusal{
			Code: "changed", Reason: found[0].Text + ", and undo would replace the aligned disk with it",
			Remedy: "compare the two disks; add --force to restore the original, or keep the aligned disk: " +
				x.Work.Command("finish", "--force"),
		}
	}
	if err == nil && !o.Force {
		err = x.copyUnwritten()
	}
	return err
}

// stranger refuses to continue in the middle of an exchange or undo if another file has a name that a step would
// replace.
func (x *run) stranger() error {
	for _, f := range slices.Concat(x.Old, x.New) {
		ours := func(o file) bool { return string(o.Name) == string(f.Name) && x.d.holdsName(o) }
		if x.d.has(f.Name) && !slices.ContainsFunc(slices.Concat(x.Old, x.New), ours) {
			return foreignError(f.Name)
		}
		if f.text() && x.d.has(f.Other) && !x.d.holds(f.Other, f.Kept) {
			return foreignError(f.Other)
		}
	}
	return nil
}

// copyUnwritten refuses to remove a copy that was written since the exchange. In the middle of an exchange or undo it
// ignores other files with these names.
func (x *run) copyUnwritten() error {
	for _, f := range x.New {
		there, err := x.d.exists(f.Name)
		if err != nil {
			return err
		}
		if !there || x.d.same(f.Name, f) || x.Work.Phase != journal.Kept && !x.d.is(f.Name, f) {
			continue
		}
		remedy := "add --force to continue anyway"
		if x.Work.Phase == journal.Kept {
			remedy += ", or keep the disk with trueup finish"
		}
		return &ondisk.Refusal{
			Code: "changed", Reason: fmt.Sprintf("%v was written after the exchange, by a guest or another "+
				"program, and undo would discard these changes", f.Name),
			Remedy: remedy,
		}
	}
	return nil
}

// originalStands refuses to remove the copy if the original has changed.
func (x *run) originalStands(ctx context.Context, o Options) error {
	remedy := "restore the original from a backup, then run undo again"
	if x.Work.Phase == journal.Kept {
		remedy = "keep the aligned disk: " + x.Work.Command("finish", "--force")
	}
	_, err := x.judged(ctx, x.originalSide(x.d, x.Work.Phase), o, ", and the aligned disk is the only copy", remedy)
	return err
}

// leadsToCopy reports whether the path still leads to the copy during an undo. The inode alone is not sufficient: the
// undo rewrites the first file of the source, which can reuse the inode of the copy unless that has a second name.
func (x *run) leadsToCopy() bool {
	n, o := x.New[0], x.Old[0]
	return x.d.is(n.Name, n) &&
		(!x.several() || x.d.is(n.Other, n) || !x.d.holds(o.Name, o.Was) && !x.d.holds(o.Name, o.Kept))
}

// present returns an error if a file of the original has none of its names.
func (x *run) present() error {
	for _, f := range x.Old {
		if f.text() || x.d.there(f) || x.d.is(x.New[0].Other, f) {
			continue
		}
		err := missingError(f)
		switch {
		case x.Work.Phase != journal.Kept:
		case x.d.has(f.Other):
			err = ondisk.In(ondisk.ErrChanged, "%v is not the file that was kept, perhaps because the folder was "+
				"copied: rename it to %v by hand if it is the original; %s then removes the journal and no other "+
				"file", f.Other, f.Name, x.Work.Command("finish", "--force"))
		default:
			err = fmt.Errorf("%w; if the file was removed, keep the disk: %s", err, x.Work.Command("finish", "--force"))
		}
		return err
	}
	for _, f := range x.Old[1:] {
		ours := slices.Contains(names(x.New), string(f.Name)) || x.d.named(f)
		if !ours && x.d.has(f.Name) {
			return foreignError(f.Name)
		}
	}
	return nil
}

// changedFiles returns a warning for each file of the original that is missing or was written since the exchange.
func (x *run) changedFiles() (out []ondisk.Issue) {
	for _, f := range x.Old {
		text := "%v, a file of the original, was written after the exchange"
		switch {
		case f.text() && (x.Work.Phase != journal.Kept || x.d.holds(f.Other, f.Kept)), !f.text() && x.d.intact(f):
			continue
		case !f.text() && x.d.there(f):
		case !x.d.has(f.Other):
			text = "%v, a file of the original, is missing"
		case !f.text():
			text = "%v is not the file that was kept"
		}
		out = append(out, ondisk.Issue{
			Code: "original-changed", Effect: ondisk.Warn, Text: fmt.Sprintf(text, f.Other),
		})
	}
	return out
}

// Finish removes the original after a complete exchange.
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
		d.Text = "no file of the original was left; the journal is removed, and the aligned disk stays"
	}
	if err == nil {
		err = x.Remove()
	}
	return d, err
}

// kept returns the second names of the original's files.
func (x *run) kept() (out []string) {
	for _, f := range x.Old {
		out = append(out, string(f.Other))
	}
	return out
}

// mayFinish returns an error if the original must stay: if the aligned disk is missing or faulty, if another image
// needs the original, or, without o.Force, if the original has changed or has data that the copy lacks.
func (x *run) mayFinish(ctx context.Context, o Options) error {
	loses := ""
	if slices.ContainsFunc(x.Old, func(f file) bool { return x.d.is(f.Other, f) }) { // otherwise nothing is removed
		x.elsewhere(o, "an overlay of the original in another folder has lost its base")
		loses = "add --force to continue anyway"
	}
	if err := x.free(x.Old[0].Other, x.kept(), o, loses); err != nil {
		return err
	}
	if err := x.copyStands(ctx, o); err != nil {
		return err
	}
	if found := x.changedFiles(); len(found) > 0 && !o.Force {
		return &ondisk.Refusal{Code: "changed", Reason: found[0].Text, Remedy: "add --force to remove it anyway"}
	}
	for _, s := range x.Old[0].Disks {
		if s.Lost != "" && !o.Force {
			return &ondisk.Refusal{
				Code: "reference", Reason: "the original is kept: " + s.Lost,
				Remedy: "save the snapshots first (qemu-img convert -l), or discard them: " +
					x.Work.Command("finish", "--force"),
			}
		}
	}
	return nil
}

// copyStands refuses a path that does not lead to the aligned disk, or leads to a disk that uses files of the original.
func (x *run) copyStands(ctx context.Context, o Options) error {
	side := x.copySide(x.d)
	side.alias = nil // all names belong to the disk
	back := "restore the original: " + x.Work.Command("undo", "--force")
	remedy := back
	if !o.Force {
		remedy += "; or add --force if this disk is the one to keep"
	}
	files, err := x.judged(ctx, side, o, ", and the original is the only copy", remedy)
	for _, f := range files {
		if slices.ContainsFunc(x.Old, func(o file) bool { return o.Inode == f.Info.Inode && o.Inode != 0 }) {
			return &ondisk.Refusal{
				Code: "reference", Reason: fmt.Sprintf("the disk uses %q, a file of the original", f.Name()),
				Remedy: back,
			}
		}
	}
	return err
}

// dropOriginal removes the files of the original. It keeps other files that only have their names.
func (x *run) dropOriginal(d *journal.Done) error {
	another := false
	for _, f := range x.Old {
		if !f.text() {
			if err := x.removeFile(f.Other, f); err != nil {
				return err
			}
			another = another || x.d.has(f.Other)
		}
	}
	for _, f := range x.Old { // a text that names another file is not the original's, even with the same bytes
		switch {
		case f.text() && !another && x.d.holds(f.Other, f.Kept):
			if err := x.d.remove(f.Other); err != nil {
				return err
			}
			x.removed = append(x.removed, string(f.Other))
		case x.d.has(f.Other):
			d.Notes = append(d.Notes, ondisk.Issue{
				Code: "original-changed", Effect: ondisk.Warn, Remedy: "remove it by hand if it is not needed",
				Text: fmt.Sprintf("%v is not the file that was kept under this name, and is not removed", f.Other),
			})
		}
	}
	return nil
}

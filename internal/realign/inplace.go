package realign

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/inplace"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// MoveInPlace moves the partitions inside of the disk. After that it is as planned, or as it was, or in the middle of
// the move; Middle tells that error from others.
func (j *Job) MoveInPlace(ctx context.Context, s *Source, p *plan.Plan) (w Written, err error) {
	if err := s.onDevice(j.Device); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	if err := s.staysAsShown(); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	view, err := s.View(p)
	if err == nil { // what a run that goes on will ask, which has no more than the disk and the journal
		err = promised(s.Image.Disk, view)
	}
	if err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	start := time.Now()
	j.begun()
	j.watch()
	m := inplace.Move{
		Image: s.Image, Plan: p, Path: s.Path(), Options: j.inPlace(), Moves: j.Moves, Journal: j.Journal,
		BIOS: s.bios(s.Image.Format),
		Look: func(_, now disk.Disk) error { return s.keeps(p, now) },
	}
	if j.Device != nil {
		if m.Device, err = j.Device.Disk(); err != nil {
			return w, fmt.Errorf("%s: %w", s.Path(), err)
		}
	}
	if err := m.Run(ctx); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	w = Written{Format: s.Image.Format, Subformat: s.Image.Subformat, Took: Since(start)}
	for _, f := range s.Image.Files() {
		w.Files = append(w.Files, f.Name)
	}
	for _, x := range p.Moves {
		w.Copied += x.Len
	}
	w.Notes = s.elsewhere("move", "nothing brings the old layout back but a backup")
	return w, nil
}

// keeps checks that a disk is what the plan promises.
func (s *Source) keeps(p *plan.Plan, now disk.Disk) error {
	after, err := layout.Read(now, s.geometry())
	if err != nil {
		return err
	}
	return verify.Promise(p, s.Layout, after)
}

func (j *Job) inPlace() inplace.Options {
	o := inplace.Options{Jobs: j.Jobs, Progress: j.add, Looped: j.Looped}
	o.Begin = func(phase string, total int64) { j.phase(phase)(total) }
	return o
}

// goOnInPlace completes a move that was interrupted, or takes it back.
func (j *Job) goOnInPlace(ctx context.Context, h *journal.Held, undo bool) (journal.Done, error) {
	j.begun()
	j.watch()
	a := inplace.Again{Held: h, Look: promised, Force: j.Force, Forward: true, Options: j.inPlace()}
	if j.Device != nil {
		var err error
		if a.Device, err = j.Device.Disk(); err != nil {
			return journal.Done{}, err
		}
	}
	if undo {
		return a.Undo(ctx)
	}
	return a.Resume(ctx)
}

// promised reads a disk as it was and as it is, and checks what the plan that leads from one to the other promises.
func promised(old, now disk.Disk) error {
	before, err := layout.Read(old, table.Geometry{})
	if err != nil {
		return err
	}
	after, err := layout.Read(now, table.Geometry{})
	if err != nil {
		return err
	}
	starts, err := verify.Starts(before, after)
	if err != nil {
		return err
	}
	p, err := at(before, old, starts, after, nil)
	if err != nil {
		return err
	}
	return verify.Promise(p, before, after)
}

// onDevice refuses a disk on a device that was not claimed.
func (s *Source) onDevice(d *Device) error {
	switch on := s.Image.OnDevice(); {
	case on && d == nil:
		return ondisk.In(ondisk.ErrUsage, "it lies on a block device; name the device itself, with --journal FILE")
	case d != nil && !d.Is(&s.Image.Opened):
		return ondisk.In(ondisk.ErrUsage, "the disk is not the device %s alone; name the device as a raw disk", d.Path)
	}
	return nil
}

// JournalFile returns the absolute path of the journal of a disk, empty for none. It must not be the disk itself, nor
// anything but a file.
func JournalFile(journal, disk string) (string, error) {
	if journal == "" {
		return "", nil
	}
	path, err := filepath.Abs(journal)
	if err != nil {
		return "", ondisk.In(ondisk.ErrUsage, "--journal %s: %w", journal, err)
	}
	st, err := sys.Stat(path)
	if err != nil { // it need not be there
		return path, nil //nolint:nilerr // opening it says the same
	}
	switch of, err := sys.Stat(disk); {
	case err == nil && of.Same(st):
		return "", ondisk.In(ondisk.ErrUsage, "--journal %s is the disk itself; name another file", journal)
	case !st.Mode.IsRegular():
		return "", ondisk.In(ondisk.ErrUsage, "--journal %s is a folder, a device or another special file; name a file",
			journal)
	}
	return path, nil
}

// Middle reports whether an error leaves a disk in the middle of a move.
func Middle(err error) bool { return errors.Is(err, inplace.ErrMiddle) }

// midMove refuses a disk that begins with the mark of a move, whatever name it has.
func (s *Source) midMove() error {
	b := make([]byte, min(s.Image.Disk.Size(), units.SectorSize))
	if err := ondisk.ReadFull(s.Image.Disk, b, 0); err != nil {
		return err
	}
	name, marked := inplace.JournalIn(b)
	if !marked {
		return nil
	}
	w := journal.Work{Path: strings.TrimSuffix(s.Path(), image.Moving), Journal: name}
	remedy := "its journal has .trueup behind the name of the disk: give trueup resume or trueup undo with that name"
	switch {
	case name != "":
		remedy = fmt.Sprintf("%s goes on, %s takes it back", w.Command("resume"), w.Command("undo"))
	case s.Image.OnDevice():
		remedy = "give trueup resume or trueup undo with --journal and the file that the move was begun with"
	}
	return &ondisk.Refusal{Code: "unfinished", Reason: "the disk is in the middle of a move in place", Remedy: remedy}
}

// Undo, Resume and Finish are the commands that go on with open work.
const (
	Undo   = "undo"
	Resume = "resume"
	Finish = "finish"
)

// GoOn says how to go on with open work, which is locked.
type GoOn struct {
	Command  string
	KeepNone bool // resume an exchange of which no original is to stay
	Judge    bool // change nothing: the error says why the command would be refused
	// Allow are folders in which, and below, overlays of the disks of an exchange are looked for.
	Allow []string
}

// GoOn goes on with open work, which is locked. It refuses a command that does not apply.
func (j *Job) GoOn(ctx context.Context, w *journal.Held, g GoOn) (journal.Done, error) {
	not := map[string]string{Undo: w.Work.Undo, Resume: w.Work.Resume, Finish: w.Work.Finish}[g.Command]
	drops := g.Command == Undo && j.Force && w.Work.Drops
	switch {
	case not != "" && !drops:
		return journal.Done{}, &ondisk.Refusal{Code: "unfinished", Reason: w.Work.Text, Remedy: not}
	case g.Judge && w.Work.Kind != journal.Exchange:
		return journal.Done{}, nil // looked at when its turn comes
	case w.Journal == nil: // and the command is undo
		return journal.Done{Text: "nothing was begun; the journal is removed"}, w.Remove()
	}
	switch kind := w.Work.Kind; {
	case kind == journal.Exchange:
		return j.goOnExchange(ctx, w, g)
	case kind == journal.InPlace && g.Command != Finish:
		return j.goOnInPlace(ctx, w, g.Command == Undo)
	}
	return journal.Done{}, fmt.Errorf("no %s of %q", g.Command, w.Work.Kind) // our own bug
}

// goOnExchange completes an exchange, takes it back, or removes the original.
func (j *Job) goOnExchange(ctx context.Context, w *journal.Held, g GoOn) (journal.Done, error) {
	files, err := exchange.Files(w)
	if err != nil {
		return journal.Done{}, err
	}
	for _, name := range files {
		if st, err := w.Dir.At.Lstat(name); err == nil {
			if err := j.Looped.apart(st.ID, name); err != nil {
				return journal.Done{}, err
			}
		}
	}
	w.Writers = j.Writers
	j.watch()
	allowed, err := Reading{Allow: g.Allow}.Options()
	if err != nil {
		return journal.Done{}, err
	}
	o := journal.Options{Force: j.Force, Judge: g.Judge, Search: allowed.Search, Progress: j.progress}
	switch g.Command {
	case Undo:
		return exchange.Undo(ctx, w, o)
	case Finish:
		return exchange.Finish(ctx, w, o)
	}
	done, err := exchange.Resume(ctx, w, o)
	if err != nil || !g.KeepNone {
		return done, err
	}
	return exchange.Finish(ctx, w, o)
}

// FinishExchange removes the original of the disk at path, which was exchanged. allow are folders as those of GoOn.
func (j *Job) FinishExchange(ctx context.Context, path string, allow []string) error {
	w, err := journal.Hold(path, "")
	if err == nil {
		_, err = j.goOnExchange(ctx, w, GoOn{Command: Finish, Allow: allow})
		err = errors.Join(err, w.Close())
	}
	return err
}

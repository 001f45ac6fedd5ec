package realign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/inplace"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// replacing is a copy that will get the names of its source.
type replacing struct {
	exchanged
	from *exchange.Source
	done *exchange.Result
}

// exchanged is a copy that can get the names of its source.
type exchanged interface {
	output
	exchange.Output
}

// Replace gives the copy the names of SOURCE, and keeps SOURCE under another name in the same folder.
type Replace struct {
	Looped Loops // files behind loop devices are refused
}

func (r Replace) write(ctx context.Context, j *Job, x planned) (w Written, err error) {
	to := &replacing{}
	if err = apart(x.Image.Looped(r.Looped)); err == nil {
		to.from, err = exchange.New(x.Image)
	}
	if err != nil {
		return w, err
	}
	options := x.options(x.plan, "")
	options.Swap = true
	w, err = j.put(ctx, x, func() (output, target, error) {
		o, err := store.Create(x.Path(), x.plan.Size, x.Image, options)
		if err != nil {
			return nil, nil, err
		}
		return to, o, to.prepare(o)
	})
	if err == nil {
		to.enter(&w)
		w.Notes = slices.Concat(w.Notes, outside(x.plan), x.elsewhere("exchange", undoes))
	}
	return w, err
}

// prepare prepares the empty files of a copy.
func (r *replacing) prepare(o exchanged) error {
	r.exchanged = o
	if err := r.from.Prepare(o); err != nil {
		return errors.Join(err, o.Discard())
	}
	return nil
}

// Publish gives the copy the names of the source.
func (r *replacing) Publish() (err error) {
	r.done, err = r.from.Publish(r.exchanged)
	return err
}

// enter adds the result of the exchange to w.
func (r *replacing) enter(w *Written) {
	w.Replaced, w.Notes = r.done, append(w.Notes, r.done.Notes...)
}

// undoes describes the way back from an exchange.
const undoes = "trueup undo restores the original, until it is removed"

// By gives a finished copy the names of SOURCE, after verifying that it matches the plan for SOURCE.
type By struct {
	Copy    string  // path
	Looped  Loops   // files behind loop devices are refused
	Writers Writers // programs with files open for writing
}

func (b By) write(ctx context.Context, j *Job, x planned) (w Written, err error) {
	from, err := exchange.New(x.Image)
	if err != nil {
		return w, err
	}
	by, err := Open(b.Copy, Reading{Format: x.reading.Format, Like: x.Image.Disk.SectorSize()})
	if err != nil {
		return w, err
	}
	defer by.Close()
	if err := cmp.Or(apart(x.Image.Looped(b.Looped)), apart(by.Image.Looped(b.Looped))); err != nil {
		return w, err
	}
	allowed, err := x.reading.Options()
	if err != nil {
		return w, err
	}
	c, err := from.Take(by.Image, !j.Full, b.Writers, allowed.Search)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, c.Discard()) }()
	err = j.proved(ctx, x, by)
	if err == nil {
		err = cmp.Or(x.unchanged(), by.unchanged(), ctx.Err())
	}
	if err == nil {
		err = c.Begin()
	}
	if err == nil {
		err = from.Prepare(c)
	}
	w = Written{Format: by.Image.Format, Subformat: by.Image.Subformat, Files: c.Files()}
	if err == nil {
		w.Replaced, err = from.Publish(c)
	}
	if err != nil {
		return w, err
	}
	w.Notes = slices.Concat(w.Replaced.Notes, outside(x.plan), x.elsewhere("exchange", undoes))
	return w, nil
}

// proved refuses a copy that does not match its plan. It checks the size, the structures and all fields that the
// plan changes, and every byte with Full.
func (j *Job) proved(ctx context.Context, x planned, by *Source) error {
	if err := Broken(align.Relevant(by.Damage, nil)); err != nil {
		return err
	}
	got := by.Image.Disk
	err := cmp.Or(intact(by.Image), verify.Promise(x.plan, x.Layout, by.Layout))
	if err == nil && got.Size() != x.view.Size() {
		err = fmt.Errorf("%w: it has %d bytes, want %d", verify.ErrDifferent, got.Size(), x.view.Size())
	}
	var diffs []Difference
	switch {
	case err != nil:
	case j.Full:
		diffs, err = j.same(ctx, x.view, got)
	default:
		diffs, err = unpatched(x.plan, got)
	}
	if len(diffs) > 0 {
		err = fmt.Errorf("%w: %s", verify.ErrDifferent, diffs[0].Text)
	}
	if errors.Is(err, verify.ErrDifferent) {
		return &ondisk.Refusal{
			Code: "changed", Reason: fmt.Sprintf("COPY %s is not what these flags make of %s: %v", by.Path(), x.Path(),
				err),
			Remedy: "give the flags that it was written with, or write the copy again",
		}
	}
	return err
}

// unpatched returns the first field changed by the plan that has another value in the copy.
func unpatched(p *plan.Plan, got disk.Disk) ([]Difference, error) {
	for _, x := range p.Patches {
		b, err := ondisk.Bytes(got, x.Off, int64(len(x.New)))
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(b, x.New) {
			text := fmt.Sprintf("byte %d has % x, want % x (%s)", x.Off, b, x.New, x.Reason)
			return []Difference{{Range: x.Range(), Text: text}}, nil
		}
	}
	return nil, nil
}

// apart refuses to exchange a file behind a loop device, because the loop device would keep the original.
func apart(name, loop string) error {
	if loop == "" {
		return nil
	}
	return inplace.Shown(name, loop)
}

// elsewhere returns a warning about overlays in other folders: an overlay has the path of its base, but a disk has no
// list of its overlays.
func (s *Source) elsewhere(work, back string) []ondisk.Issue {
	if s.Image.Packaged() {
		return nil
	}
	seen := "its folder and below"
	if len(s.reading.Allow) > 0 {
		seen += ", and in those of --allow-folder,"
	}
	return []ondisk.Issue{{
		Code: "overlays-elsewhere", Effect: ondisk.Warn,
		Text: fmt.Sprintf("overlays of it (linked clones, snapshots) are searched in %s only; one in another folder "+
			"would mix old and new layout after the %s", seen, work),
		Remedy: fmt.Sprintf("before a machine starts, list them: trueup plan --allow-folder DIR %s refuses with the "+
			"names of the overlays in DIR and below; %s", shell.Quote(s.Path()), back),
	}}
}

// outside returns a warning about sizes to update in other files than the disk's after an exchange.
func outside(p *plan.Plan) []ondisk.Issue {
	if p.Size == p.OldSize {
		return nil
	}
	return []ondisk.Issue{{
		Code: "outside-size", Effect: ondisk.Warn,
		Text: fmt.Sprintf("the disk has %d bytes now instead of %d", p.Size, p.OldSize),
		Remedy: "enter the new size in other files: the volume definition of the storage pool, the OVF, the " +
			"inventory of the hypervisor",
	}}
}

// Move holds the options for moving partitions within a disk.
type Move struct {
	Device  *store.Device // device of the disk; nil for a disk in files
	Journal string        // absolute path; by default beside the disk
	Looped  Loops         // files behind loop devices are refused
	Moves   func()        // called before the first byte is written; may be nil
}

// MoveInPlace moves the partitions within the disk. Afterwards the disk is as planned, in its original state, or in the
// middle of the move. Middle detects the error of the last case.
func (j *Job) MoveInPlace(ctx context.Context, s *Source, p *plan.Plan, how Move) (w Written, err error) {
	if err := s.onDevice(how.Device); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	if err := s.staysAsShown(); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	view, err := s.View(p)
	if err == nil { // the check of a resumed run, which has only the disk and the journal
		err = promised(s.Image.Disk, view)
	}
	if err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	start := time.Now()
	m := inplace.Move{
		Image: s.Image, Plan: p, Path: s.Path(), Moves: how.Moves, Journal: how.Journal,
		BIOS:    s.bios(s.Image.Format),
		Options: j.inPlace(how.Looped, func(_, now disk.Disk) error { return s.keeps(p, now) }),
	}
	if how.Device != nil {
		if m.Device, err = how.Device.Disk(); err != nil {
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
	w.Notes = s.elsewhere("move", "only a backup restores the old layout")
	return w, nil
}

// keeps checks that a disk matches the plan.
func (s *Source) keeps(p *plan.Plan, now disk.Disk) error {
	after, err := layout.Read(now, s.geometry())
	if err != nil {
		return err
	}
	return verify.Promise(p, s.Layout, after)
}

func (j *Job) inPlace(looped Loops, look func(old, now disk.Disk) error) inplace.Options {
	return inplace.Options{Jobs: j.Jobs, Progress: j.watch(), Looped: looped, Look: look}
}

// goOnInPlace completes or undoes an interrupted move.
func (j *Job) goOnInPlace(ctx context.Context, h *journal.Held, g GoOn) (journal.Done, error) {
	a := inplace.Again{Held: h, Force: g.Force, Options: j.inPlace(g.Looped, promised)}
	if g.Device != nil {
		var err error
		if a.Device, err = g.Device.Disk(); err != nil {
			return journal.Done{}, err
		}
	}
	if g.Command == Undo {
		return a.Undo(ctx)
	}
	return a.Resume(ctx)
}

// promised derives the plan from the original and the moved disk, and checks the moved disk against it.
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
func (s *Source) onDevice(d *store.Device) error {
	switch on := s.Image.OnDevice(); {
	case on && d == nil:
		return ondisk.In(ondisk.ErrUsage, "it is on a block device; name the device itself, with --journal FILE")
	case d != nil && !d.Is(&s.Image.Opened):
		return ondisk.In(ondisk.ErrUsage, "the disk is not the device %s alone; name the device as a raw disk", d.Path)
	}
	return nil
}

// JournalFile returns the absolute path of the journal of a disk, or an empty string if journal is empty. It returns an
// error for the disk itself, and for special files.
func JournalFile(journal, disk string) (string, error) {
	if journal == "" {
		return "", nil
	}
	path, err := filepath.Abs(journal)
	if err != nil {
		return "", ondisk.In(ondisk.ErrUsage, "--journal %s: %w", journal, err)
	}
	st, err := sys.Stat(path)
	if err != nil { // the file need not exist
		return path, nil //nolint:nilerr // opening it returns the same error
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

// midMove returns an error for a disk that begins with the mark of a move, regardless of its name.
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
	remedy := "its journal is named like the disk, with .trueup appended: run trueup resume or trueup undo with the " +
		"name of the disk"
	switch {
	case name != "":
		remedy = fmt.Sprintf("%s completes it, %s reverses it", w.Command("resume"), w.Command("undo"))
	case s.Image.OnDevice():
		remedy = "run trueup resume or trueup undo with --journal FILE, the file given to trueup move"
	}
	return &ondisk.Refusal{Code: "unfinished", Reason: "a move of its partitions is not complete", Remedy: remedy}
}

// Undo, Resume and Finish are the commands for unfinished work.
const (
	Undo   = "undo"
	Resume = "resume"
	Finish = "finish"
)

// GoOn holds the options for continuing unfinished work.
type GoOn struct {
	Command  string
	KeepNone bool          // after resuming an exchange, remove the original
	Judge    bool          // only check: return the error of a refusal, or nil
	Force    bool          // undo although the disk has changed since
	Device   *store.Device // device of the disk; nil for a disk in files
	Looped   Loops         // files behind loop devices are refused
	Writers  Writers       // programs with files open for writing
	// Allow lists folders in which, and below which, to search overlays of the disks of an exchange.
	Allow []string
}

// GoOn continues unfinished work by undo, resume or finish. The caller holds the lock of the journal. GoOn refuses a
// command that does not apply to the state of the work.
func (j *Job) GoOn(ctx context.Context, w *journal.Held, g GoOn) (journal.Done, error) {
	not := map[string]string{Undo: w.Work.Undo, Resume: w.Work.Resume, Finish: w.Work.Finish}[g.Command]
	drops := g.Command == Undo && g.Force && w.Work.Drops
	switch {
	case w.Work.Through() && g.Command == Finish && (not == "" || g.Force && w.Work.Phase == journal.Unproved):
		return finishHandover(w, g)
	case w.Work.Through():
		remedy := w.Work.Issue().Remedy
		if g.Command == Finish && w.Work.Phase == journal.Unproved {
			remedy = "check the guest, then: " + w.Work.Command(Finish, "--force")
		}
		return journal.Done{}, &ondisk.Refusal{Code: "unfinished", Reason: w.Work.Text, Remedy: remedy}
	case not != "" && !drops:
		return journal.Done{}, &ondisk.Refusal{Code: "unfinished", Reason: w.Work.Text, Remedy: not}
	case g.Judge && w.Work.Kind != journal.Exchange:
		return journal.Done{}, nil // checked when it runs
	case w.Journal == nil, w.Work.Kind == journal.HandedOver: // then the command is undo
		return notBegun(w)
	}
	switch kind := w.Work.Kind; {
	case kind == journal.Exchange:
		return j.goOnExchange(ctx, w, g)
	case kind == journal.InPlace && g.Command != Finish:
		return j.goOnInPlace(ctx, w, g)
	}
	return journal.Done{}, fmt.Errorf("no %s of %q", g.Command, w.Work.Kind) // a bug of trueup
}

// notBegun removes the journal of a run that was ended before it changed anything.
func notBegun(w *journal.Held) (journal.Done, error) {
	d := journal.Done{Text: "nothing was changed; the journal is removed"}
	if left := "." + w.Base + journal.Partial; w.Dir.Exists(left) {
		d.Notes = []ondisk.Issue{{
			Code: "dest-leftover", Effect: ondisk.Warn, Text: left + ", the unfinished copy of that run, remains",
			Remedy: "start the command again, which removes it, or remove it by hand",
		}}
	}
	return d, w.Remove()
}

// finishHandover removes the source of a handover, then the journal. It keeps files that are not those of the journal.
func finishHandover(w *journal.Held, g GoOn) (d journal.Done, err error) {
	from, err := w.Handed()
	if err != nil {
		return d, err
	}
	claimed := from
	d.Text = "the source of the handover is removed"
	elsewhere := slices.ContainsFunc(from.Files, func(f journal.HandedFile) bool { return f.Name == "" })
	first := from.Files[0].Path
	_, missing := sys.Lstat(first)
	switch {
	case from.Stays != "":
		d.Text = "the handover is finished; the source stays, since it is " + from.Stays
		from.Files = nil
	case w.Work.Phase == journal.Finishing && elsewhere && !g.Force: // a journal of a stranger could name any file
		err = &ondisk.Refusal{
			Code: "unfinished", Reason: first + ", in another folder, may be removed in part",
			Remedy: "if it is the source: " + w.Work.Command(Finish, "--force"),
		}
	case w.Work.Phase == journal.Finishing:
	case errors.Is(missing, fs.ErrNotExist):
		d.Text, from.Files = "the source was removed already", nil
		fallthrough
	default:
		if err = removable(w, &from, g.Writers); err == nil && !g.Judge {
			err = w.Enter(journal.Finishing)
		}
	}
	if err != nil || g.Judge {
		return d, err
	}
	for _, f := range from.Files {
		if !f.Is() {
			continue
		}
		folder, err := gate.OpenFolder(filepath.Dir(f.Path))
		if err != nil {
			return d, ondisk.In(ondisk.ErrOutput, "%w", err)
		}
		err = folder.At.Remove(filepath.Base(f.Path))
		if err = cmp.Or(err, folder.At.Sync()); err != nil && !sys.Unsupported(err) {
			return d, errors.Join(ondisk.In(ondisk.ErrOutput, "remove %s: %w", f.Path, err), folder.Close())
		}
		_ = folder.Close() // only read
		d.Removed = append(d.Removed, f.Path)
	}
	return d, errors.Join(claimed.Release(w.Plan()), w.Remove())
}

// removable returns an error if the disk of the guest cannot be opened, or if the source of a handover, unless it is
// gone, has changed or is used by a program or another image.
func removable(w *journal.Held, from *journal.Handed, writers Writers) error {
	dest, err := image.Open(w.Work.Path, image.Options{})
	if err != nil {
		return fmt.Errorf("the source is all there is: %w", err)
	}
	dest.Close()
	if len(from.Files) == 0 {
		return nil
	}
	if err := from.Unchanged(); err != nil {
		return err
	}
	source, err := image.Open(from.Files[0].Path, image.Options{Format: from.Format})
	if err != nil {
		return err
	}
	defer source.Close()
	var files, recorded []string
	for _, f := range source.Files() {
		path := f.Name
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(from.Files[0].Path), path)
		}
		files = append(files, path)
	}
	for _, f := range from.Files {
		recorded = append(recorded, f.Path)
	}
	if !slices.Equal(files, recorded) {
		return ondisk.In(ondisk.ErrChanged, "%s has the files %q, and had %q when the handover began", source.Path,
			files, recorded)
	}
	users, err := source.Children()
	if busy, failed := source.UsedBy(writers); err == nil {
		users, err = append(users, busy...), failed
	}
	if err == nil && len(users) > 0 {
		err = &ondisk.Refusal{Code: users[0].Code, Reason: users[0].Text, Remedy: users[0].Remedy}
	}
	return err
}

// goOnExchange completes or undoes an exchange, or removes the original.
func (j *Job) goOnExchange(ctx context.Context, w *journal.Held, g GoOn) (journal.Done, error) {
	files, err := exchange.Files(w)
	if err != nil {
		return journal.Done{}, err
	}
	for _, name := range files {
		if st, err := w.Dir.At.Lstat(name); err == nil {
			if err := apart(name, g.Looped[st.ID]); err != nil {
				return journal.Done{}, err
			}
		}
	}
	w.Writers = g.Writers
	allowed, err := Reading{Allow: g.Allow}.Options()
	if err != nil {
		return journal.Done{}, err
	}
	o := exchange.Options{Force: g.Force, Judge: g.Judge, Search: allowed.Search, Progress: j.watch()}
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

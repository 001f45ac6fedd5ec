// Package realign is the pipe: open an image, plan, look at the planned disk before a byte is written, write it, prove
// what was written, publish it; and verify a copy that is there. It knows no flags, no terminal and no exit codes.
//
// From top to bottom this file is the whole way of one disk:
//
//	s, err := Read(img, reading)   // the image, what is on it, what is wrong with it
//	p, err := s.Plan(goal)         // what moves where; refusals are values in the plan
//	err = Acceptable(p, goal)      // the first refusal as an error
//	view, err := s.View(p)         // the disk that is to be, read and checked against the plan
//	w, err := job.Write(ctx, s, p, dest) // created, filled, proved, published: complete, or not there
//
// A stream (copy.go) and a package (package.go) go through the same Job.publish.
package realign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/verify"
)

// Source is an open image and what is on it.
type Source struct {
	Image  *image.Image
	Layout *layout.Layout
	Damage []ondisk.Issue // of the container
	Beside []ondisk.Issue // what uses the image, or needs it

	// Original reports that the disk is the kept one of an exchange, which its issues name, and Written that a guest or
	// another program has written to it since.
	Original, Written bool

	reading Reading
	asked   bool            // Beside has the unfinished work of other runs
	machine *layout.Machine // nil: the other disks are not known
	free    *freespace.Found
	counted int64 // sector size that a GPT states, bytes; 0: nothing does
}

// Plan is what becomes of a disk.
type Plan = plan.Plan

// Read reads what is on an image, and closes the image when that fails. Errors name the path.
func Read(img *image.Image, r Reading) (*Source, error) {
	s := &Source{reading: r, Image: img}
	for _, f := range img.Handles {
		f.Ours = r.Claimed
	}
	err := r.agrees(img)
	if err == nil {
		err = s.read()
	}
	if err != nil {
		img.Close()
		return nil, fmt.Errorf("%s: %w", img.Path, err)
	}
	return s, nil
}

func (s *Source) read() error {
	if err := s.open(); err != nil {
		return err
	}
	s.Damage = slices.Clone(s.Image.Issues)
	if s.Image.Check != nil {
		found, err := s.Image.Check()
		if err != nil {
			return err
		}
		s.Damage = append(s.Damage, found...)
	}
	looks := []func() ([]ondisk.Issue, error){s.Image.Busy, s.Image.Children, s.Image.Owner}
	if s.reading.Claimed {
		looks = nil
	}
	for _, look := range looks {
		found, err := look()
		if err != nil {
			return err
		}
		s.Beside = append(s.Beside, found...)
	}
	if err := s.overlays(); err != nil {
		return fmt.Errorf("--allow-folder: %w", err)
	}
	if s.reading.Writers != nil {
		s.Beside = append(s.Beside, s.Image.Written(s.reading.Writers)...)
	}
	var err error
	if s.Layout, err = layout.Read(s.Image.Disk, s.geometry()); err != nil {
		return err
	}
	if s.reading.SectorSize != 0 {
		s.Layout.SectorsAreAsOrdered()
	}
	s.countSectors()
	s.hidesData()
	return nil
}

// overlays looks for snapshots and views of the disk in other folders than its own.
func (s *Source) overlays() error {
	o, err := s.reading.Options()
	if err != nil || s.reading.Claimed {
		return nil //nolint:nilerr // opening the image has said the same
	}
	found, missed, err := s.overlaysIn(o.Search)
	s.Beside = slices.Concat(s.Beside, image.SnapshotsAt(found), missed)
	return err
}

// overlaysIn looks in folders that are allowed, and below that of a disk that changes.
func (s *Source) overlaysIn(allowed []string) (found []string, missed []ondisk.Issue, err error) {
	if !s.reading.Changed {
		return s.Image.OverlaysBelow(allowed)
	}
	path := s.Path()
	if s.Image.Packaged() {
		path = s.Image.Package.Path
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return s.Image.OverlaysNear(filepath.Dir(path), allowed)
}

// geometry returns what the container knows of the disk's.
func (s *Source) geometry() table.Geometry {
	return table.Geometry{Heads: s.Image.Heads, Sectors: s.Image.Sectors}
}

// hidesData notes data of the container that read as zeros in the layout.
func (s *Source) hidesData() {
	if slices.ContainsFunc(s.Damage, func(i ondisk.Issue) bool { return i.Code == image.CodeHidden }) {
		s.Layout.HidesData()
	}
}

// Close closes the image.
func (s *Source) Close() { s.Image.Close() }

// Path returns how the user can name the disk.
func (s *Source) Path() string { return s.Image.Path }

// Issues returns the issues that concern any copy, whatever is on the disk.
func (s *Source) Issues() []ondisk.Issue { return s.issuesFor(Goal{}) }

// issuesFor is Issues for a copy by a goal.
func (s *Source) issuesFor(g Goal) []ondisk.Issue {
	issues := slices.Concat(s.Damage, s.Beside)
	if s.Image.Child && !g.Flatten {
		issues = append(issues, s.child())
	}
	return append(issues, s.sectors(g.To)...)
}

// child keeps a snapshot from being copied as if it were a machine's disk: what it is a snapshot of stays behind.
func (s *Source) child() ondisk.Issue {
	names := make([]string, 0, len(s.Image.Chain))
	for _, l := range s.Image.Chain {
		names = append(names, fmt.Sprintf("%.256q", l.Name))
	}
	return ondisk.Issue{
		Code: "snapshot-child", Effect: ondisk.Refuse,
		Text: "it is a snapshot, which is complete only together with its parent " +
			strings.Join(names, ", and that one's parent "),
		Remedy: "--flatten of align and convert copies all of them into one complete disk; or consolidate the " +
			"snapshots first",
	}
}

// Misnamed returns the error of a file that has the name of a format and nothing of it; nil for another.
func (s *Source) Misnamed() error {
	for _, i := range s.Image.Issues {
		if i.Code == image.CodeMisnamed {
			return ondisk.In(i.Err, "%s; %s", i.Text, i.Remedy)
		}
	}
	return nil
}

// Lacks returns the error of a disk of which nothing is known because its image is malformed, damaged or incomplete: it
// is never accepted as unknown content. Nil for any other disk.
func (s *Source) Lacks() error {
	if s.Layout == nil || align.ContentOf(s.Layout) != align.UnknownContent {
		return nil
	}
	if err := s.malformed(); err != nil {
		return err
	}
	for _, i := range s.Damage {
		r, refused := errors.AsType[*ondisk.Refusal](i.Err)
		if i.Effect >= ondisk.Refuse && (errors.Is(i.Err, ondisk.ErrFormat) || refused && r.Code == "unfinished") {
			return ondisk.In(ErrUnknown, "%s; %s", i.Text, i.Remedy)
		}
	}
	return nil
}

// malformed returns the error of a container or table that is broken. A broken volume moves as opaque bytes, if at all.
func (s *Source) malformed() error {
	for _, i := range slices.Concat(s.Issues(), s.Layout.Issues) {
		if i.Effect == ondisk.Broken {
			return i.Err
		}
	}
	return nil
}

// Plan makes the plan for a goal. The container's own issues come first: they concern any copy, and a broken one would
// be met in the gaps by chance.
func (s *Source) Plan(g Goal) (*plan.Plan, error) {
	notes := align.Relevant(s.issuesFor(g), nil)
	if err := Broken(notes); err != nil {
		return nil, err
	}
	p, err := s.moves(g)
	if p != nil {
		p.Notes = append(notes, p.Notes...)
	}
	if err == nil && g.SkipFree {
		p.Unused, err = s.unused()
	}
	return p, err
}

// unused returns the free space of the volumes, which is found once.
func (s *Source) unused() (f *freespace.Found, err error) {
	if s.free == nil {
		s.free, err = freespace.Find(s.Image.Disk, s.Layout)
	}
	return s.free, err
}

// moves is Plan without what the container adds.
func (s *Source) moves(g Goal) (*plan.Plan, error) {
	if g.Copy {
		p := plan.Copy(s.Image.Disk.Size())
		p.Notes = copied(s.Layout)
		if g.RepairTable {
			p.Mend(s.Layout)
		}
		return p, nil
	}
	to := align.GoalFor(s.Layout, g.Boundary)
	to.Mend = g.RepairTable
	to.Only = g.Only
	if g.DataOnly {
		to = to.DataOnly(s.Layout)
	}
	if err := s.Layout.ReadGaps(s.Image.Disk); err != nil {
		return nil, err
	}
	p, err := plan.New(s.Layout, to)
	if err == nil && s.machine != nil {
		p.Join(s.Layout, s.machine)
	}
	return p, err
}

// copied returns warnings of a malformed disk, of which a copy without a move is as malformed.
func copied(l *layout.Layout) (out []align.Finding) {
	for _, i := range l.Issues {
		if i.Effect == ondisk.Broken {
			i.Effect, i.Err = ondisk.Warn, nil
			out = append(out, align.FromIssue(i))
		}
	}
	return out
}

// Refusals returns the reasons for which a copy could not be made now; none of a malformed disk, of which Malformed
// returns the error.
func (s *Source) Refusals(g Goal) ([]align.Finding, error) {
	none := []align.Finding{}
	if err := s.malformed(); err != nil {
		return none, nil //nolint:nilerr // said in its own way
	}
	p, err := s.Plan(g)
	if err != nil {
		return nil, err
	}
	return append(none, p.Refusals(g.AllowUnbootable)...), nil
}

// Acceptable returns the error of a plan that is refused.
func Acceptable(p *plan.Plan, g Goal) error { return Refusal(p.Refusals(g.AllowUnbootable)) }

// View returns the planned disk, before a byte of it is written: read by the eyes that found the fault, and checked
// against the plan.
func (s *Source) View(p *plan.Plan) (disk.Disk, error) {
	view, after, err := s.promised(p)
	if err != nil {
		return nil, err
	}
	return view, settled(view, after, p)
}

// Result returns what is on the planned disk.
func (s *Source) Result(p *plan.Plan) (*layout.Layout, error) {
	view, after, err := s.promised(p)
	if err != nil {
		return nil, err
	}
	return after, settled(view, after, p)
}

// promised reads the planned disk and checks it against the plan. A source that has changed since is the error.
func (s *Source) promised(p *plan.Plan) (view disk.Disk, after *layout.Layout, err error) {
	defer func() {
		if err != nil {
			err = cause(err, s.unchanged)
		}
	}()
	view = p.View(s.Image.Disk)
	if after, err = layout.Read(view, s.geometry()); err != nil {
		return nil, nil, fmt.Errorf("planned result: %w", err)
	}
	if s.Layout.Table == nil && after.Table != nil && p.Size > p.OldSize {
		return nil, nil, tableByGrowth(p, after.Table)
	}
	if err := checkOld(s.Image.Disk, p); err != nil {
		if s.readAgain() && errors.Is(err, verify.ErrDifferent) {
			return nil, nil, s.otherBytes(err.Error())
		}
		return nil, nil, err
	}
	if err := verify.Promise(p, s.Layout, after); err != nil {
		return nil, nil, fmt.Errorf("planned result: %w", err)
	}
	if found, err := s.unexplained(p, view, after); err != nil || len(found) > 0 {
		if err == nil {
			err = fmt.Errorf("%w: %s", verify.ErrDifferent, found[0].Text)
		}
		return nil, nil, fmt.Errorf("planned result: %w", err)
	}
	return view, after, nil
}

// tableByGrowth refuses a larger copy of a disk without a table on which bytes of sector 0 name places that only
// the copy has: systems would find partitions.
func tableByGrowth(p *plan.Plan, t *table.Table) error {
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("the disk has no partition table, and its copy would grow from %d to "+
			"%d bytes, where sector 0 reads as a table (%s) of places behind the old end", p.OldSize, p.Size, t.Scheme),
		Remedy: "keep the size of the disk: choose a format of DEST that stores it exactly, such as --to raw",
	}
}

// unexplained lists bytes of the planned disk that neither a move nor a field that had to follow it explains.
func (s *Source) unexplained(p *plan.Plan, view disk.Disk, after *layout.Layout) ([]verify.Difference, error) {
	r := verify.Result{
		Base: s.Image.Disk, Source: p.Unused.View(s.Image.Disk), Dest: view, Before: s.Layout, After: after,
	}
	return r.Unexplained()
}

// checkOld reads back what each patch says it replaces.
func checkOld(src disk.Disk, p *plan.Plan) error {
	bare := disk.Compose(p.Unused.View(src), p.Size, p.Pieces)
	for _, x := range p.Patches {
		b, err := ondisk.Bytes(bare, x.Off, int64(len(x.Old)))
		if err != nil {
			return err
		}
		if string(b) != string(x.Old) {
			return fmt.Errorf("%w: patch at %#x replaces % x, but finds % x", verify.ErrDifferent, x.Off, x.Old, b)
		}
	}
	return nil
}

// settled checks that the planned disk needs no further move.
func settled(view disk.Disk, after *layout.Layout, p *plan.Plan) error {
	if p.Converts {
		return nil
	}
	if err := after.ReadGaps(view); err != nil {
		return fmt.Errorf("planned result: %w", err)
	}
	if err := verify.Settled(after, p.Goal); err != nil {
		return fmt.Errorf("planned result: %w", err)
	}
	return nil
}

// Job says how a disk is written and proved.
type Job struct {
	Full     bool // compare every byte before DEST gets its name, not its structures alone
	Sums     bool // compute the digests of the files before they get their names
	SkipFree bool // the copy to verify has zeros in the free space of volumes
	Jobs     int  // how many chunks are read and written at once

	Progress Progress // nil: nobody watches

	Dest  string      // as the user names it
	Texts []store.Use // reports and digests of the run, which are no file of DEST

	memory int64 // of the machine, bytes; 0: as the system says
	passes bool  // what is read and written goes past the memory
}

// Write makes DEST of the planned disk: complete, or not there, whatever happens in between.
func (j *Job) Write(ctx context.Context, s *Source, p *plan.Plan, to Dest) (w Written, err error) {
	view, err := s.View(p)
	if err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	start := time.Now()
	release, err := s.Image.Hold()
	if err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	defer release()
	if err := s.Image.CheckDigests(ctx); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	w, err = to.write(ctx, j, s, p, view)
	w.Took = Since(start)
	return w, err
}

// put writes a disk to the DEST that create starts. own is the disk that DEST itself holds; nil: all of view.
func (j *Job) put(
	ctx context.Context, s *Source, p *plan.Plan, view, own disk.Disk, create func() (output, target, error),
) (Written, error) {
	var to target
	started := func() (o output, err error) {
		o, to, err = create()
		return o, err
	}
	return j.publish(ctx, started, s.unchanged, func(w *Written) (err error) {
		w.Format, w.Subformat = to.Kind()
		w.Copied, err = j.fill(ctx, s, p, view, own, to)
		if file, ok := to.(*store.Output); ok {
			w.Notes = s.geometryNotes(file)
		}
		return err
	})
}

// output is DEST under construction: an image or a package.
type output interface {
	Files() []string
	Notes() []ondisk.Issue // of the place where it went
	Publish() error
	Discard() error
	Sums(ctx context.Context, begin, add func(n int64)) ([]store.Sum, error)
}

// publish makes DEST: created, filled and proved by fill, and published when the source is still what it was. unchanged
// is nil for a source that cannot be asked.
func (j *Job) publish(
	ctx context.Context, create func() (output, error), unchanged func() error, fill func(*Written) error,
) (w Written, err error) {
	o, err := create()
	if err != nil {
		return w, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Discard())
		}
	}()
	w.Files = o.Files()
	for _, t := range j.Texts {
		if err := store.SpareFiles(t, j.Dest, w.Files); err != nil {
			return w, err
		}
	}
	if err = fill(&w); err == nil && j.Sums {
		begin := func(total int64) { j.watch().Begin(diskcopy.PhaseDigest, total) }
		w.Sums, err = o.Sums(ctx, begin, j.watch().Add)
	}
	if err != nil {
		return w, cause(err, unchanged)
	}
	if unchanged != nil {
		if err := unchanged(); err != nil {
			return w, err
		}
	}
	if err := ctx.Err(); err != nil {
		return w, err
	}
	err = o.Publish()
	w.Notes = slices.Concat(o.Notes(), w.Notes)
	return w, err
}

// unchanged returns the error of an image that is not what it was when it was opened.
func (s *Source) unchanged() error {
	if err := s.Image.Unchanged(); err != nil {
		return fmt.Errorf("%s: %w", s.Path(), err)
	}
	return nil
}

// fill writes a view, or what DEST itself holds of it, proves through a second opening that the image shows the view,
// and returns how many bytes there were beside zeros.
func (j *Job) fill(
	ctx context.Context, s *Source, p *plan.Plan, view, own disk.Disk, o target,
) (copied int64, err error) {
	stored := cmp.Or(own, view)
	need, err := j.room(ctx, s, stored, o)
	if err != nil {
		return 0, err
	}
	if err := diskcopy.Begin(ctx, j.watch(), diskcopy.PhaseCopy, o.Unit(), stored); err != nil {
		return 0, err
	}
	j.pass(s, o, need)
	work := diskcopy.Options{Jobs: j.Jobs, Progress: j.watch().Add, Pack: o.Pack()}
	if j.Full && own == nil {
		work.Sum = new(diskcopy.Sum)
	}
	copied, err = diskcopy.Run(ctx, stored, o, work)
	if err == nil {
		err = j.finish(o, copied)
	}
	if err != nil {
		return copied, full(err, need, o.Free)
	}
	s.Image.Forget() // the proof reads what the server has
	return copied, j.reread(o, func(got *image.Image) error {
		return j.prove(ctx, s, p, view, got, work.Sum)
	})
}

// ErrUnknown marks a disk of which nothing is known.
var ErrUnknown = errors.New("unknown content")

// classes map errors to their codes. The first that matches counts.
var classes = []struct {
	err  error
	code string
}{
	{ondisk.ErrUsage, "usage"},
	{ErrUnknown, "unsupported"},
	{plan.ErrSelection, "usage"},
	{ondisk.ErrBusy, "busy"},
	{ondisk.ErrChanged, "changed"},
	{verify.ErrDifferent, "verify"},
	{ova.ErrDigest, "verify"},
	{ondisk.ErrOutput, "output"},
	{ondisk.ErrReference, "reference"},
	{ondisk.ErrLimit, "limit"},
	{ondisk.ErrUnsupported, "unsupported"},
	{ondisk.ErrFormat, "format"},
}

// Code returns the class of an error, as JSON has it.
func Code(err error) string {
	if r, ok := errors.AsType[*ondisk.Refusal](err); ok {
		return r.Code
	}
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	if sys.FromSystem(err) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "io"
	}
	return "internal"
}

// Broken returns the error of the first finding that is malformed.
func Broken(fs []align.Finding) error {
	for _, f := range fs {
		if f.Effect == ondisk.Broken || f.Effect == ondisk.BadVolume {
			return f.Err
		}
	}
	return nil
}

// Refusal makes one error of the findings that keep a copy from being made.
func Refusal(fs []align.Finding) error {
	if len(fs) == 0 {
		return nil
	}
	f := fs[0]
	if f.Effect == ondisk.Broken || f.Effect == ondisk.BadVolume {
		return fmt.Errorf("%w; %s", f.Err, f.Remedy)
	}
	r := &ondisk.Refusal{Code: "unsupported", Reason: f.Subject + ": " + f.Text, Remedy: f.Remedy}
	if f.Err != nil {
		r.Code = Code(f.Err)
	}
	if len(fs) > 1 {
		r.Remedy += fmt.Sprintf(" (and %d more; see trueup plan)", len(fs)-1)
	}
	return r
}

// readBack returns the error of a copy that cannot be read: if it is malformed, other bytes stand there than were
// written.
func readBack(err error) error {
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) ||
		errors.Is(err, ondisk.ErrReference) {
		return fmt.Errorf("%w from what was written: %w", verify.ErrDifferent, err)
	}
	return fmt.Errorf("read back what was written: %w", err)
}

// cause returns what made a copy fail: a source that changed under it can look like anything.
func cause(err error, unchanged func() error) error {
	if unchanged == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if changed := unchanged(); changed != nil {
		return changed
	}
	return err
}

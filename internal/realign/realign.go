// Package realign is the pipeline: open an image, plan, check the planned disk before a byte is written, write it,
// verify the written disk, publish it; and verify an existing copy. It is independent of flags, terminal and exit
// codes.
//
// A disk passes through this file from top to bottom:
//
//	s, err := Read(img, reading)   // the image, its layout and its issues
//	p, err := s.Plan(goal)         // the moves; refusals are values in the plan
//	err = Acceptable(p, goal)      // the first refusal as an error
//	view, err := s.View(p)         // the planned disk, read and checked against the plan
//	w, err := job.Write(ctx, s, p, dest) // created, filled, verified, published: complete or absent
//
// A stream (copy.go) and a package (package.go) are published by the same Job.publish.
package realign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// Source is an open image with the layout of its disk.
type Source struct {
	Image  *image.Image
	Layout *layout.Layout
	Damage []ondisk.Issue // of the container
	Beside []ondisk.Issue // users and dependants of the image

	// Original reports that the disk is the kept original of an exchange; its issues name the exchange. Written reports
	// that a guest or another program has written to it since.
	Original, Written bool

	reading Reading
	asked   bool            // Beside includes the unfinished work of other runs
	machine *layout.Machine // nil if the other disks are unknown
	free    *freespace.Found
	counted int64 // sector size that a GPT implies, in bytes, or 0
}

// Plan is the plan of a disk.
type Plan = plan.Plan

// Read reads the layout of an image. On error it closes the image. Errors contain the path.
func Read(img *image.Image, r Reading) (*Source, error) {
	if err := r.complete(img); err != nil {
		return nil, errors.Join(err, img.Close())
	}
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
		s.Layout.AcceptSectorSize()
	}
	s.countSectors()
	s.hidesData()
	return nil
}

// overlays finds snapshots and views of the disk in other folders.
func (s *Source) overlays() error {
	o, err := s.reading.Options()
	if err != nil || s.reading.Claimed {
		return nil //nolint:nilerr // opening the image has returned the same error
	}
	found, missed, err := s.overlaysIn(o.Search)
	s.Beside = slices.Concat(s.Beside, image.SnapshotsAt(found), missed)
	return err
}

// overlaysIn searches the allowed folders, and for a disk that will change also its own folder and below.
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

// Beside returns the paths of files in the folder of a path, as the user wrote it. A link leads to another folder.
func Beside(path string, names []string) []string {
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
	}
	folder := strings.TrimSuffix(path, filepath.Base(path))
	out := []string{}
	for _, name := range names {
		if !filepath.IsAbs(name) {
			name = folder + name
		}
		out = append(out, name)
	}
	return out
}

// geometry returns the disk geometry stated by the container.
func (s *Source) geometry() table.Geometry {
	return table.Geometry{Heads: s.Image.Heads, Sectors: s.Image.Sectors}
}

// hidesData records in the layout that data of the container read as zeros.
func (s *Source) hidesData() {
	if slices.ContainsFunc(s.Damage, func(i ondisk.Issue) bool { return i.Code == image.CodeHidden }) {
		s.Layout.HidesData()
	}
}

// Close closes the image.
func (s *Source) Close() { s.Image.Close() }

// Path returns the path of the disk for messages.
func (s *Source) Path() string { return s.Image.Path }

// Issues returns the issues that concern any copy, regardless of the content of the disk.
func (s *Source) Issues() []ondisk.Issue { return s.issuesFor(Goal{}) }

// issuesFor is Issues for a copy with a goal.
func (s *Source) issuesFor(g Goal) []ondisk.Issue {
	issues := slices.Concat(s.Damage, s.Beside)
	if s.Image.Child && !g.Flatten {
		issues = append(issues, s.child())
	}
	return append(issues, s.sectors(g)...)
}

// child returns the refusal to copy a snapshot as a complete disk, because its parents would be missing.
func (s *Source) child() ondisk.Issue {
	names := make([]string, 0, len(s.Image.Chain))
	for _, l := range s.Image.Chain {
		names = append(names, fmt.Sprintf("%.256q", l.Name))
	}
	return ondisk.Issue{
		Code: "snapshot-child", Effect: ondisk.Refuse,
		Text: "it is a snapshot of its parent " +
			strings.Join(names, ", a snapshot of "),
		Remedy: "copy all of them into one complete disk with align --flatten or convert --flatten, or consolidate " +
			"the snapshots first",
	}
}

// Misnamed returns an error if the file has the extension of a format, but no data of that format.
func (s *Source) Misnamed() error {
	for _, i := range s.Image.Issues {
		if i.Code == image.CodeMisnamed {
			return ondisk.In(i.Err, "%s; %s", i.Text, i.Remedy)
		}
	}
	return nil
}

// Lacks returns the error of a disk whose content is unknown because its image is malformed, damaged or incomplete.
// Such a disk is never accepted as unknown content.
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

// malformed returns the error of a broken container or table. A broken volume does not count: it moves as opaque bytes,
// if at all.
func (s *Source) malformed() error {
	for _, i := range slices.Concat(s.Issues(), s.Layout.Issues) {
		if i.Effect == ondisk.Broken {
			return i.Err
		}
	}
	return nil
}

// Plan returns the plan for a goal. Issues of the container come first: they concern any copy, and reading the gaps
// would meet a broken container only by chance.
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

// unused returns the free space of the volumes. It is determined once.
func (s *Source) unused() (f *freespace.Found, err error) {
	if s.free == nil {
		s.free, err = freespace.Find(s.Image.Disk, s.Layout)
	}
	return s.free, err
}

// moves is Plan without the issues of the container.
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
	if seen, bad := s.InFiles(); p != nil && bad == nil { // reading the data returns the same error
		p.Notes = append(p.Notes, align.Unshifted(seen, to.Must)...)
	}
	return p, err
}

// copied returns warnings about a malformed disk and a damaged GPT, because a copy without moves has the same damage.
func copied(l *layout.Layout) (out []align.Finding) {
	for _, i := range l.Issues {
		if i.Effect == ondisk.Broken || i.Effect == ondisk.Warn && slices.Contains(table.Torn, i.Code) {
			i.Effect, i.Err = ondisk.Warn, nil
			out = append(out, align.FromIssue(i))
		}
	}
	return out
}

// Refusals returns the reasons why a copy cannot be made now. It returns none for a malformed disk; see malformed.
func (s *Source) Refusals(g Goal) ([]align.Finding, error) {
	none := []align.Finding{}
	if err := s.malformed(); err != nil {
		return none, nil //nolint:nilerr // reported separately
	}
	p, err := s.Plan(g)
	if err != nil {
		return nil, err
	}
	return append(none, p.Refusals(g.AllowUnbootable)...), nil
}

// Acceptable returns an error if the plan is refused.
func Acceptable(p *plan.Plan, g Goal) error { return Refusal(p.Refusals(g.AllowUnbootable)) }

// View returns the planned disk before a byte of it is written. The disk is read like any other disk, and checked
// against the plan.
func (s *Source) View(p *plan.Plan) (disk.Disk, error) {
	x, err := s.planned(p)
	return x.view, err
}

// Result returns the layout of the planned disk.
func (s *Source) Result(p *plan.Plan) (*layout.Layout, error) {
	x, err := s.planned(p)
	return x.after, err
}

// planned is a disk with its plan, and the planned disk.
type planned struct {
	*Source

	plan  *plan.Plan
	view  disk.Disk
	own   disk.Disk // the part of view that DEST itself stores; nil for all of it
	after *layout.Layout
}

func (s *Source) planned(p *plan.Plan) (x planned, err error) {
	if s, p, err = s.inSectors(p); err != nil {
		return x, err
	}
	x = planned{Source: s, plan: p}
	if x.view, x.after, err = s.promised(p); err != nil {
		return x, err
	}
	return x, settled(x.view, x.after, p)
}

// promised reads the planned disk and checks it against the plan. If the source has changed since, it returns that
// error.
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

// tableByGrowth refuses a larger copy of a disk without a table if sector 0 would become a valid table. Its entries lie
// beyond the old end of the disk, and systems would find partitions in the copy.
func tableByGrowth(p *plan.Plan, t *table.Table) error {
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("the disk has no partition table, and its copy would grow from %d "+
			"to %d bytes, where sector 0 reads as a table (%s) of partitions past the old end",
			p.OldSize, p.Size, t.Scheme),
		Remedy: "keep the disk size: choose a format that stores it exactly, such as --to raw",
	}
}

// unexplained lists bytes of the planned disk that neither a move nor a field updated for a move explains.
func (s *Source) unexplained(p *plan.Plan, view disk.Disk, after *layout.Layout) ([]verify.Difference, error) {
	r := verify.Result{
		Base: s.Image.Disk, Source: p.Unused.View(s.Image.Disk), Dest: view, Before: s.Layout, After: after,
	}
	return r.Unexplained()
}

// checkOld verifies that the source has the old bytes of each patch.
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
	if p.Converts || p.Goal.Must == (align.Boundary{}) { // a repeated plan has no goal
		return nil
	}
	if err := after.ReadGaps(view); err != nil {
		return fmt.Errorf("planned result: %w", err)
	}
	if err := verify.Stable(after, p.Goal); err != nil {
		return fmt.Errorf("planned result: %w", err)
	}
	return nil
}

// Job holds the options for writing and verifying a disk.
type Job struct {
	Full     bool   // compare every byte before publication, instead of the structures only
	Sums     bool   // compute the digests of the files before publication
	SkipFree bool   // the copy to verify has zeros in the free space of volumes
	Guest    *Guest // wrote to the copy to verify; nil without one
	Jobs     int    // number of chunks that are read and written concurrently
	Offset   int64  // of the disk in each file of a raw or flat DEST, or in a device

	Progress Progress // may be nil

	Dest  string      // path as the user wrote it
	Texts []store.Use // reports and digests of the run, which are not files of DEST

	memory int64 // of the machine, in bytes; by default from the system
	passes bool  // drop data from memory after reading and writing
}

// Write writes the planned disk to DEST. DEST is complete or absent, regardless of how the run ends.
func (j *Job) Write(ctx context.Context, s *Source, p *plan.Plan, to Dest) (w Written, err error) {
	served, err := s.Serve(ctx, p)
	if err != nil {
		return w, err
	}
	defer served.Close()
	w, err = to.write(ctx, j, served.of)
	w.Took = Since(served.began)
	return w, err
}

// put writes a disk to the DEST that create starts.
func (j *Job) put(ctx context.Context, x planned, create func() (output, target, error)) (Written, error) {
	var to target
	started := func() (o output, err error) {
		o, to, err = create()
		return o, err
	}
	return j.publish(ctx, started, x.unchanged, func(w *Written) (err error) {
		w.Format, w.Subformat = to.Kind()
		w.Copied, err = j.fill(ctx, x, to)
		if file, ok := to.(*store.Output); ok {
			w.Notes = x.geometryNotes(file)
		}
		return err
	})
}

// output is DEST under construction: an image or a package.
type output interface {
	Files() []string
	Notes() []ondisk.Issue // about its file system or device
	Publish() error
	Discard() error
	Sums(ctx context.Context, begin, add func(n int64)) ([]store.Sum, error)
}

// publish creates DEST, calls fill to write and verify it, and publishes it if the source is unchanged. unchanged is
// nil if the source cannot be checked.
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

// unchanged returns an error if the image has changed since it was opened.
func (s *Source) unchanged() error {
	if err := s.Image.Unchanged(); err != nil {
		return fmt.Errorf("%s: %w", s.Path(), err)
	}
	return nil
}

// fill writes a planned disk, or the part of it that DEST stores. It verifies through a second opening that the image
// has the bytes of the view, and returns the number of bytes copied, without zeros.
func (j *Job) fill(ctx context.Context, x planned, o target) (copied int64, err error) {
	stored := cmp.Or(x.own, x.view)
	need, err := j.room(ctx, x.Source, stored, o)
	if err != nil {
		return 0, err
	}
	if err := diskcopy.Begin(ctx, j.watch(), diskcopy.PhaseCopy, o.Unit(), stored); err != nil {
		return 0, err
	}
	j.pass(x.Source, o, need)
	work := diskcopy.Options{Jobs: j.Jobs, Progress: j.watch().Add, Pack: o.Pack()}
	if j.Full && x.own == nil {
		work.Sum = new(diskcopy.Sum)
	}
	copied, err = diskcopy.Run(ctx, stored, o, work)
	if err == nil {
		err = j.finish(o, copied)
	}
	if err != nil {
		return copied, full(err, need, o.Free)
	}
	x.Image.Forget() // so that the verification reads from the server
	return copied, j.reread(o, func(got *image.Image) error { return j.prove(ctx, x, got, work.Sum) })
}

// ErrUnknown marks a disk with unknown content.
var ErrUnknown = errors.New("unknown content")

// classes maps errors to their codes. The first match counts.
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

// Code returns the error code for JSON.
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

// Broken returns the error of the first malformed finding.
func Broken(fs []align.Finding) error {
	for _, f := range fs {
		if f.Effect == ondisk.Broken || f.Effect == ondisk.BadVolume {
			return f.Err
		}
	}
	return nil
}

// Refusal combines the findings that prevent a copy into one error.
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

// readBack returns the error of a copy that cannot be read. A malformed copy has other bytes than were written.
func readBack(err error) error {
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) ||
		errors.Is(err, ondisk.ErrReference) {
		return fmt.Errorf("%w from the bytes written: %w", verify.ErrDifferent, err)
	}
	return fmt.Errorf("read back the copy: %w", err)
}

// cause returns the cause of a failed copy: a change of the source, if there was one, since that can cause any error.
func cause(err error, unchanged func() error) error {
	if unchanged == nil || errors.Is(err, context.Canceled) {
		return err
	}
	if changed := unchanged(); changed != nil {
		return changed
	}
	return err
}

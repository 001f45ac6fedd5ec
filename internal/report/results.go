package report

import (
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
)

// Criteria holds the criteria and options of an inspection.
type Criteria struct {
	Boundary align.Boundary
	Storage  align.Storage
	Costs    bool // compute Costs on the storage
	Impact   bool // compute the Impact of each partition on the storage

	Fragments []freespace.FragmentsOf // nil if not counted
}

// NewInspect reports on a disk and on the use of its container. refusals are the reasons to refuse a copy. The error
// describes a malformed image; its report has no verdict.
func NewInspect(
	h Head, s *realign.Source, u *realign.Usage, refusals []align.Finding, c Criteria,
) (r *Inspect, bad error) {
	b := c.Boundary
	findings := slices.Concat(align.Relevant(u.Issues, nil), align.Relevant(s.Issues(), nil),
		align.Check(s.Layout, align.Goal{Must: b, Want: b}))
	r = &Inspect{Head: h, Image: NewImage(s.Image), Disk: NewDisk(s.Layout, b, findings), Refusals: refusals}
	r.stored(u.Map, u.NonZero)
	r.ExitCode = r.Verdict.ExitCode()
	if bad = realign.Broken(findings); bad == nil && r.Unknown() {
		bad = s.Misnamed()
	}
	if c.Costs {
		r.Costs = NewCosts(s.Layout, c.Storage)
	}
	if c.Fragments != nil {
		r.Fragmentation = NewFragmentation(c.Fragments)
	}
	if c.Impact {
		r.AddImpacts(s.Layout, c.Storage)
	}
	r.Advice = align.For(s.Layout, align.Case{
		Boundary: r.Boundary, Storage: c.Storage, Refusals: refusals, Broken: bad != nil,
	})
	if bad != nil {
		bad = fmt.Errorf("%s: %w", s.Path(), bad)
		r.Verdict, r.Content, r.Error = "", "", NewError(bad)
	}
	return r, bad
}

// NewError describes the error of a command.
func NewError(err error) *Error { return &Error{Code: realign.Code(err), Message: Message(err)} }

// NewPackageInspect reports on a package before its disks are added.
func NewPackageInspect(h Head, p *ova.Package) *PackageInspect {
	r := &PackageInspect{Head: h, Package: newPackage(p), Disks: []PackageDisk{}, Findings: PackageFindings(p.Issues())}
	if len(p.Images()) == 0 {
		r.Verdict, r.Content = align.NothingToJudge, align.NoDisks
	}
	return r
}

// Add adds a disk and its inspection, or its error if x is nil.
func (r *PackageInspect) Add(d ova.Disk, x *Inspect, err error) {
	out := newPackageDisk(d)
	if out.Inspect = x; x == nil {
		out.Error = NewError(err)
	} else {
		r.ExitCode, r.Verdict = max(r.ExitCode, x.Verdict.ExitCode()), r.Verdict.Worse(x.Verdict)
		r.Content = r.Content.Vaguer(x.Content)
		r.Findings = append(r.Findings, PackageFindings(realign.CapacityIssues(d, x.Image.Size))...)
	}
	r.Disks = append(r.Disks, out)
}

// maxDrawn bounds the partitions in the pictures of before and after. More partitions would take memory without a
// useful picture.
const maxDrawn = 1024

// NewPlan reports on a plan. refusals are the reasons to refuse it. The caller adds its changes with NewChanges.
func NewPlan(h Head, s *realign.Source, p *realign.Plan, refusals []align.Finding) *Plan {
	r := &Plan{
		Head: h, Image: NewImage(s.Image), Target: p.Goal.Want, Refusals: orEmpty(refusals),
		References: newReferences(p, s.Layout), Findings: notRefused(p.Notes, refusals),
	}
	is := s.BIOSOf(p)
	of := Geometries{Source: newGeometry(Geometry(s.Image.BIOS)), Result: newGeometry(Geometry(is))}
	if of != (Geometries{}) {
		r.BIOS = &of
	}
	if len(refusals) == 0 && len(s.Layout.Partitions) <= maxDrawn {
		r.Before = new(NewDisk(s.Layout, p.Goal.Must, nil))
	}
	return r
}

func newGeometry(g Geometry) *Geometry {
	if g == (Geometry{}) {
		return nil
	}
	return &g
}

// Inspected adds the disk that results from the plan.
func (r *Plan) Inspected(after *layout.Layout, p *realign.Plan) {
	r.Result = new(NewDisk(after, p.Goal.Must, align.Check(after, p.Goal)))
}

// notRefused returns the notes without the refusals.
func notRefused(notes, refusals []align.Finding) []align.Finding {
	type key struct {
		code, text string
		partition  int
	}
	of := func(f align.Finding) key { return key{f.Code, f.Text, f.Partition} }
	refused := map[key]bool{}
	for _, f := range refusals {
		refused[of(f)] = true
	}
	return slices.DeleteFunc(orEmpty(notes), func(f align.Finding) bool { return refused[of(f)] })
}

// NewAlign reports on the copy of a plan, before it is written.
func NewAlign(h Head, s *realign.Source, p *realign.Plan, dest string) *Align {
	return &Align{
		Head: h, Source: s.Path(), Dest: dest, Format: s.Image.Format, Subformat: s.Image.Subformat,
		Changes: NewChanges(p), Findings: notRefused(p.Notes, nil), Files: []string{}, Unpacked: s.Image.Unpacked,
		registered: registered(s.Image),
	}
}

// registered reports whether VirtualBox identifies an image by a UUID in it.
func registered(img *image.Image) bool {
	for _, d := range img.Details {
		if d.Name == "uuid.image" {
			return true
		}
	}
	return img.Format == "vdi"
}

// Wrote completes the report of a written copy. verified is the mode of its verification.
func (r *Align) Wrote(w realign.Written, verified string) {
	r.Format, r.Subformat, r.Files = w.Format, w.Subformat, w.Files
	r.Written, r.Verified, r.Copied, r.Took = true, verified, w.Copied, w.Took
	r.Sums = newChecksums(w)
	r.Findings = append(r.Findings, destFindings(w.Notes)...)
}

func newChecksums(w realign.Written) (out []Checksum) {
	for _, s := range w.Sums {
		out = append(out, Checksum{s.File, hex.EncodeToString(s.SHA256[:])})
	}
	return out
}

// NewReplaced reports on an exchange. kept reports whether the original is kept.
func NewReplaced(x *exchange.Result, kept bool) *Replaced {
	if !kept {
		return &Replaced{Files: []string{}}
	}
	return &Replaced{Original: x.Original, Files: x.Files, Journal: x.Journal}
}

// ReplacedBy completes the report of a copy that got the names of SOURCE. x is nil for other copies.
func (r *Align) ReplacedBy(x *Replaced) {
	r.Replaced = x
	if x != nil && x.Original != "" {
		r.Source = x.Original
	}
}

// ReplacedBy completes the report of a package that got the names of SOURCE. x is nil for other packages.
func (r *PackageAlign) ReplacedBy(x *Replaced) {
	r.Replaced = x
	if x == nil || x.Original == "" {
		return
	}
	r.Source = x.Original
	for _, d := range r.Disks {
		member := strings.TrimPrefix(d.Dest, r.Dest+"!")
		if r.Package.Kind == "ovf" {
			member = exchange.OriginalOf(filepath.Base(r.Dest), member)
		}
		d.Source = r.Source + "!" + member
	}
}

// replacedLines prints the place of an exchanged original, and the next commands.
func (t *Text) replacedLines(r *Replaced, path string) {
	switch {
	case r == nil:
		return
	case r.Original == "":
		t.printf("  the original was removed\n")
		return
	}
	t.Para(2, "  the original is kept as %s", Safe(r.Original))
	t.next("To bring it back:          ", shell.Command("undo", nil, path))
	t.next("To remove it:              ", shell.Command("finish", nil, path))
}

// NewPackageAlign reports on the copy of the plans of a package, before it is written. flags make a later command read
// the disks in the same way.
func NewPackageAlign(h Head, p *realign.Package, dest string, flags []string) *PackageAlign {
	r := &PackageAlign{
		Head: h, Source: p.Path, Dest: dest, Package: newPackage(p.Package), Dropped: []string{}, Files: []string{},
		Findings: PackageFindings(p.Issues()),
	}
	for _, d := range p.Disks {
		x := NewAlign(h, d.Source, d.Plan, dest+"!"+d.Member)
		x.Flags = flags
		r.Disks = append(r.Disks, x)
		r.Moved += x.Moved
	}
	return r
}

// Wrote completes the report of a written package. verified is the mode of its verification.
func (r *PackageAlign) Wrote(p *realign.Package, w realign.WrittenPackage, verified string) {
	r.Written, r.Verified, r.Files, r.Dropped = true, verified, w.Files, append(r.Dropped, w.Dropped...)
	r.Copied, r.Took, r.Sums = w.Copied, w.Took, newChecksums(w.Written)
	r.Findings = append(r.Findings, PackageFindings(w.Issues)...)
	r.Findings = append(r.Findings, destFindings(w.Notes)...)
	for i, d := range r.Disks {
		d.Written, d.Verified, d.Files = true, verified, []string{p.Disks[i].Member}
		d.Copied, d.Took = p.Disks[i].Copied, p.Disks[i].Took
	}
}

// ExitDiffers is the exit code for a copy with a difference.
const ExitDiffers = 5

// NewVerify reports on a comparison. p is nil if DEST does not result from a plan. l is the layout of DEST.
func NewVerify(h Head, src, dest string, p *realign.Plan, diffs []realign.Difference, l *layout.Layout) *Verify {
	r := &Verify{
		Head: h, Source: src, Dest: dest, Changes: Changes{Moves: []Move{}, Patches: []Patch{}},
		Differences: NewDifferences(diffs, l), Equal: len(diffs) == 0,
	}
	if p != nil {
		r.Changes = NewChanges(p)
	}
	if !r.Equal {
		r.ExitCode = ExitDiffers
	}
	return r
}

// NewPackageVerify reports on the comparison of two packages before its disks are added.
func NewPackageVerify(h Head, s, d *ova.Package) *PackageVerify {
	return &PackageVerify{
		Head: h, Source: s.Path, Dest: d.Path, Package: newPackage(d), Equal: true,
		Disks: []*Verify{}, Differences: []string{},
	}
}

// Add adds the comparison of a disk.
func (r *PackageVerify) Add(v realign.MemberVerified) {
	x := NewVerify(r.Head, v.Source, v.Dest, v.Plan, v.Differences, v.Layout)
	r.Disks = append(r.Disks, x)
	r.differ(!x.Equal)
}

// AddDifferences adds differences outside of the disks.
func (r *PackageVerify) AddDifferences(more []string) {
	r.Differences = append(r.Differences, more...)
	r.differ(len(more) > 0)
}

func (r *PackageVerify) differ(differs bool) {
	if differs {
		r.Equal, r.ExitCode = false, ExitDiffers
	}
}

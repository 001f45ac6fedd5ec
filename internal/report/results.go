package report

import (
	"bytes"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
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
	b, l := c.Boundary, u.Layout
	findings := slices.Concat(align.Relevant(u.Issues, nil), align.Relevant(s.Issues(), nil),
		align.Check(l, align.Goal{Must: b, Want: b}))
	r = &Inspect{Head: h, Image: NewImage(s.Image), Disk: NewDisk(l, b, findings), Refusals: refusals}
	r.stored(u.Map, u.NonZero)
	r.ExitCode = r.Verdict.ExitCode()
	if bad = realign.Broken(findings); bad == nil && r.Unknown() {
		bad = s.Misnamed()
	}
	if c.Costs {
		r.Costs = NewCosts(l, c.Storage)
	}
	if c.Fragments != nil {
		r.Fragmentation = NewFragmentation(c.Fragments)
	}
	if c.Impact {
		r.AddImpacts(l, c.Storage)
	}
	r.Advice = align.For(l, align.Case{
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
	r := &PackageInspect{
		Head: h, Package: *newPackage(p), Disks: []PackageDisk{}, Findings: PackageFindings(p.Issues()),
	}
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
	seen, err := s.InFiles()
	if err == nil && len(refusals) == 0 && len(s.Layout.Partitions) <= maxDrawn {
		r.Before = new(NewDisk(seen, p.Goal.Must, nil))
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
	r := newAlign(h, s.Path(), dest)
	r.add(s, p, dest)
	return r
}

func newAlign(h Head, source, dest string) *Align {
	return &Align{
		Head: h, Source: source, Dest: dest, Dropped: []string{}, Files: []string{}, Findings: []align.Finding{},
	}
}

func (r *Align) add(s *realign.Source, p *realign.Plan, dest string) {
	d := &AlignedDisk{
		Source: s.Path(), Dest: dest, Format: s.Image.Format, Subformat: s.Image.Subformat,
		Changes: NewChanges(p), Findings: notRefused(p.Notes, nil), Unpacked: s.Image.Unpacked,
		registered: registered(s.Image),
	}
	r.Disks = append(r.Disks, d)
	r.Moved += d.Moved
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

// Wrote completes the report of a written disk. verified is the mode of its verification.
func (r *Align) Wrote(w realign.Written, verified string) {
	d := r.Disks[0]
	d.Format, d.Subformat, d.Copied, d.Took = w.Format, w.Subformat, w.Copied, w.Took
	r.wrote(w, verified)
}

// WrotePackage completes the report of a written package.
func (r *Align) WrotePackage(p *realign.Package, w realign.WrittenPackage, verified string) {
	for i, d := range r.Disks {
		d.Copied, d.Took = p.Disks[i].Copied, p.Disks[i].Took
	}
	r.Dropped = append(r.Dropped, w.Dropped...)
	r.Findings = append(r.Findings, PackageFindings(w.Issues)...)
	r.wrote(w.Written, verified)
}

func (r *Align) wrote(w realign.Written, verified string) {
	r.Written, r.Verified, r.Copied, r.Took = true, verified, w.Copied, w.Took
	r.Files = realign.Beside(r.Dest, w.Files)
	for _, s := range w.Sums {
		r.Sums = append(r.Sums, Checksum{realign.Beside(r.Dest, []string{s.File})[0], hex.EncodeToString(s.SHA256[:])})
	}
	r.Findings = append(r.Findings, findingsOf("dest", w.Notes)...)
}

// NewReplaced reports on an exchange. kept reports whether the original is kept.
func NewReplaced(x *exchange.Result, kept bool) *Replaced {
	if !kept {
		return &Replaced{Files: []string{}}
	}
	return &Replaced{Original: x.Original, Files: realign.Beside(x.Original, x.Files), Journal: x.Journal}
}

// ReplacedBy completes the report of a copy that got the names of SOURCE.
func (r *Align) ReplacedBy(x *Replaced) {
	if r.Replaced = x; x.Original == "" {
		return
	}
	r.Source = x.Original
	for _, d := range r.Disks {
		d.Source = r.Source
		if r.Package == nil {
			continue
		}
		member := r.member(d)
		if r.Package.Kind == "ovf" {
			member = exchange.OriginalOf(filepath.Base(r.Dest), member)
		}
		d.Source += "!" + member
	}
}

// member returns the name of a disk in the package DEST.
func (r *Align) member(d *AlignedDisk) string { return strings.TrimPrefix(d.Dest, r.Dest+"!") }

// NewPackageAlign reports on the copy of the plans of a package, before it is written.
func NewPackageAlign(h Head, p *realign.Package, dest string) *Align {
	r := newAlign(h, p.Path, dest)
	r.Package, r.Findings = newPackage(p.Package), PackageFindings(p.Issues())
	for _, d := range p.Disks {
		r.add(d.Source, d.Plan, dest+"!"+d.Member)
	}
	return r
}

// ExitDiffers is the exit code for a copy with a difference.
const ExitDiffers = 5

// NewVerify reports on a comparison before its disks are added. p is DEST if it is a package.
func NewVerify(h Head, src, dest string, p *ova.Package) *Verify {
	r := &Verify{
		Head: h, Source: src, Dest: dest, Equal: true, Disks: []*VerifiedDisk{}, Differences: []string{},
	}
	if p != nil {
		r.Package = newPackage(p)
	}
	return r
}

// Add adds the comparison of a disk.
func (r *Verify) Add(v realign.DiskVerified) {
	d := &VerifiedDisk{
		Source: v.Source, Dest: v.Dest, Changes: Changes{Moves: []Move{}, Patches: []Patch{}},
		Differences: NewDifferences(v.Differences, v.Layout), Equal: len(v.Differences) == 0 && v.Guest.Proved(),
	}
	if v.Plan != nil {
		d.Changes = NewChanges(v.Plan)
	}
	if g := v.Guest; g != nil {
		d.Guest = &GuestWrites{Bitmap: g.Bitmap, Consistent: g.Consistent, Written: g.Written, Differ: g.Differ}
	}
	r.Disks = append(r.Disks, d)
	r.differ(!d.Equal)
}

// AddDifferences adds differences outside of the disks.
func (r *Verify) AddDifferences(more []string) {
	r.Differences = append(r.Differences, more...)
	r.differ(len(more) > 0)
}

func (r *Verify) differ(differs bool) {
	if differs {
		r.Equal, r.ExitCode = false, ExitDiffers
	}
}

// Offset describes a disk that begins at an offset of DEST, and how to attach it.
type Offset struct {
	At         int64           `json:"offset_bytes"`
	Partitions []align.Placing `json:"partitions"`
	QEMU       string          `json:"qemu"`              // an argument
	Libvirt    string          `json:"libvirt,omitempty"` // XML; only of a raw disk, like Losetup
	Losetup    string          `json:"losetup,omitempty"` // a command line

	sector int64 // bytes
}

// Shifted completes the report of a disk that was written at an offset. Sources: QEMU, qapi/block-core.json,
// BlockdevOptionsRaw; libvirt, formatdomain, "slices"; losetup(8).
func (r *Align) Shifted(at, sector int64, places []align.Placing) {
	d := r.Disks[0]
	path, err := filepath.Abs(r.Dest)
	if err != nil {
		path = r.Dest
	}
	driver, attribute := "file", "file"
	if realign.IsDevice(r.Dest) {
		driver, attribute = "host_device", "dev"
	}
	var escaped bytes.Buffer
	_ = xml.EscapeText(&escaped, []byte(path)) // a buffer never fails
	r.Offset = &Offset{At: at, Partitions: places, sector: sector}
	place := ""
	if d.Format == "raw" {
		place = fmt.Sprintf("offset=%d,size=%d,", at, d.NewSize)
		if utf8.ValidString(path) {
			r.Offset.Libvirt = fmt.Sprintf("<source %s='%s'><slices><slice type='storage' offset='%d' size='%d'/>"+
				"</slices></source>", attribute, &escaped, at, d.NewSize)
		}
		sectors := ""
		if sector != units.SectorSize {
			sectors = fmt.Sprintf("--sector-size %d ", sector)
		}
		r.Offset.Losetup = fmt.Sprintf("losetup --find --show --offset %d --sizelimit %d %s%s", at, d.NewSize, sectors,
			shell.Quote(path))
	}
	r.Offset.QEMU = "-blockdev " + shell.Quote(fmt.Sprintf("driver=%s,node-name=disk,%sfile.driver=%s,file.filename=%s",
		d.Format, place, driver, strings.ReplaceAll(path, ",", ",,")))
}

// offset prints the place of each partition before and after, and how to attach the disk.
func (t *Text) offset(o *Offset) {
	t.Say("offset", o)
	var rows [][]string
	for _, p := range o.Partitions {
		rows = append(rows, []string{
			decimal(int64(p.Partition)), units.Format(p.Size), decimal(p.From), string(p.Was), decimal(p.To),
			string(p.Is),
		})
	}
	if len(rows) > 0 {
		t.Table(slices.Values(rows), ">partition", ">size", ">from byte", "verdict", ">to byte", "verdict")
	}
	t.Say("use of an offset", o)
}

package realign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/verify"
)

// Package is a package with the plans of its disks.
type Package struct {
	*ova.Package
	Disks []*PackageDisk
}

// PackageDisk is a disk of a package with its plan and the result.
type PackageDisk struct {
	*Source
	Member string
	Plan   *plan.Plan
	Copied int64   // bytes of data
	Took   float64 // seconds

	machine string // machine of the disk
	view    disk.Disk
}

// changes reports whether the copy of the disk has other bytes.
func (d *PackageDisk) changes() bool {
	return len(d.Plan.Patches) > 0 || d.Plan.Size != d.Plan.OldSize || d.Plan.Unused.Stored() > 0
}

// Idle reports whether no disk needs a change.
func (p *Package) Idle() bool {
	return !slices.ContainsFunc(p.Disks, func(d *PackageDisk) bool { return !d.Plan.Idle() })
}

// PlanPackage opens and plans all disks of a package. It checks the planned disks before anything is written.
func PlanPackage(src *ova.Package, r Reading, g Goal) (*Package, error) {
	p := &Package{Package: src}
	if err := p.plan(r, g); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *Package) plan(r Reading, g Goal) error {
	src := p.Package
	for _, d := range src.Disks() {
		s, err := openMember(src, d, r)
		if err != nil {
			return err
		}
		x := &PackageDisk{Source: s, Member: d.Member, machine: src.Machine(d)}
		p.Disks = append(p.Disks, x)
		if x.Plan, err = s.Plan(g); err != nil {
			return fmt.Errorf("%s: %w", s.Path(), err)
		}
	}
	if len(p.Disks) == 0 {
		return fmt.Errorf("%s: the package has no disk with a file: %w, nothing to copy", src.Path,
			ondisk.ErrUnsupported)
	}
	m := Machines{}
	for _, x := range p.Disks {
		m.of(x.machine).Add(x.Layout, x.Plan.Starts())
	}
	for _, x := range p.Disks {
		if err := x.completePlan(m.of(x.machine), g); err != nil {
			return fmt.Errorf("%s: %w", x.Path(), err)
		}
	}
	return nil
}

// completePlan completes the plan of a disk with the plans of the other disks of its machine, and checks it.
func (d *PackageDisk) completePlan(m *layout.Machine, g Goal) (err error) {
	if !d.Plan.Converts {
		d.Layout.Relate(m)
		d.Plan.Join(d.Layout, m)
	}
	if err := Acceptable(d.Plan, g); err != nil {
		return err
	}
	d.view, err = d.View(d.Plan)
	return err
}

// Close closes the disks.
func (p *Package) Close() {
	for _, d := range p.Disks {
		d.Close()
	}
}

// WrittenPackage is the result of a Job for a package.
type WrittenPackage struct {
	Written
	Dropped []string       // members of the source missing in the copy, because they would no longer match
	Issues  []ondisk.Issue // of the copy's envelope
}

// unchanged returns an error if the package has changed since it was opened.
func (p *Package) unchanged() error {
	if err := p.Unchanged(); err != nil {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	return nil
}

// WritePackage writes a package with the planned disks and all other members unchanged. The package is complete or
// absent. to is a File or a Replace.
func (j *Job) WritePackage(ctx context.Context, p *Package, to Dest) (w WrittenPackage, err error) {
	start := time.Now()
	rewrite := map[string]ova.Rewrite{}
	for _, d := range p.Disks {
		release, err := d.Image.Hold()
		if err != nil {
			return w, fmt.Errorf("%s: %w", d.Path(), err)
		}
		defer release()
		if d.changes() {
			rewrite[d.Member] = ova.Rewrite{Source: d.Image, Size: d.Plan.Size}
		}
	}
	if err := p.Check(ctx, j.watch()); err != nil {
		return w, cause(fmt.Errorf("%s: %w", p.Path, err), p.unchanged)
	}
	path, options, r, err := p.at(to)
	if err != nil {
		return w, err
	}
	options.Rewrite = rewrite
	var o *ova.Output
	create := func() (_ output, err error) {
		if o, err = ova.Create(path, p.Package, options); err != nil || r == nil {
			return o, err
		}
		return r, r.prepare(o)
	}
	w.Written, err = j.publish(ctx, create, p.unchanged, func(*Written) error {
		w.Dropped, w.Issues = o.Dropped, o.Issues()
		return o.Write(ctx, j.watch(),
			func(member string, create ova.CreateDisk) error { return j.fillMember(ctx, p, member, create) })
	})
	w.Took = Since(start)
	if r != nil && err == nil {
		r.enter(&w.Written)
	}
	for _, m := range p.Members {
		if _, ok := rewrite[m.Name]; !ok && !slices.Contains(w.Dropped, m.Name) {
			w.Copied += m.Size
		}
	}
	for _, d := range p.Disks {
		w.Copied += d.Copied
	}
	return w, err
}

// at returns the options for creating a copy of the package, and its exchange, or nil if the copy gets names of its
// own.
func (p *Package) at(to Dest) (path string, o ova.CreateOptions, r *replacing, err error) {
	switch to := to.(type) {
	case File:
		path, o.Force = to.Path, to.Force
	case Replace:
		path, o.Swap, r = p.Path, true, &replacing{}
		if err = apart(p.Opened().Looped(to.Looped)); err == nil {
			r.from, err = exchange.NewPackage(p.Package)
		}
	default:
		err = fmt.Errorf("no package goes to a %T", to) // a bug of trueup
	}
	return path, o, r, err
}

// fillMember writes and verifies one disk of a package.
func (j *Job) fillMember(ctx context.Context, p *Package, member string, create ova.CreateDisk) error {
	i := slices.IndexFunc(p.Disks, func(d *PackageDisk) bool { return d.Member == member })
	if i < 0 {
		return fmt.Errorf("member %q is no disk", member) // a bug of trueup
	}
	d, start := p.Disks[i], time.Now()
	o, err := create(d.options(d.Plan, ""))
	if err != nil {
		return err
	}
	if d.Copied, err = j.fill(ctx, planned{Source: d.Source, plan: d.Plan, view: d.view}, o); err != nil {
		return cause(err, d.unchanged)
	}
	d.Took = Since(start)
	return nil
}

// DiskVerified is the result of comparing two disks.
type DiskVerified struct {
	Source, Dest string // paths
	Plan         *plan.Plan
	Layout       *layout.Layout // of Dest
	Differences  []Difference
	Guest        *Guest // wrote to Dest; nil without one
}

// VerifyPackages checks package d against package s and the plans that lead from the disks of s to the disks of d. It
// passes the result of each disk to disk. others lists differences outside of the disks.
func (j *Job) VerifyPackages(
	ctx context.Context, s, d *ova.Package, r Reading, disk func(DiskVerified),
) (others []string, err error) {
	others, err = d.Differs(ctx, s, j.watch())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Path, err)
	}
	theirs := map[string]ova.Disk{}
	for _, x := range d.Disks() {
		theirs[x.Member] = x
	}
	m := machinesWere(s, theirs, d, r)
	for _, x := range s.Disks() {
		y, ok := theirs[x.Member]
		if !ok {
			others = append(others, fmt.Sprintf("the disk %.256q is missing", x.Member))
			continue
		}
		v, err := j.verifyMember(ctx, s, x, d, y, r, m.of(s.Machine(x)))
		if err != nil {
			return nil, err
		}
		disk(v)
	}
	return others, nil
}

// machinesWere returns the machines of package s, with the partition offsets of its disks in the copy d. It ignores
// unreadable disks, because comparing the disks reports them.
func machinesWere(s *ova.Package, theirs map[string]ova.Disk, d *ova.Package, r Reading) Machines {
	m := Machines{}
	if len(theirs) < 2 {
		return m
	}
	for _, x := range s.Disks() {
		was, err := openMember(s, x, r)
		if err != nil {
			continue
		}
		is, err := openMember(d, theirs[x.Member], Reading{Like: was.Image.Disk.SectorSize()})
		if err == nil {
			if starts, err := verify.Starts(was.Layout, is.Layout); err == nil {
				m.of(s.Machine(x)).Add(was.Layout, starts)
			}
			is.Close()
		}
		was.Close()
	}
	return m
}

// verifyMember compares one disk of the copy with the disk of the source.
func (j *Job) verifyMember(
	ctx context.Context, from *ova.Package, x ova.Disk, to *ova.Package, y ova.Disk, r Reading, m *layout.Machine,
) (v DiskVerified, err error) {
	s, err := openMember(from, x, r)
	if err != nil {
		return v, err
	}
	defer s.Close()
	d, err := openMember(to, y, Reading{Like: s.Image.Disk.SectorSize()})
	if err != nil {
		return v, err
	}
	defer d.Close()
	v = DiskVerified{Source: s.Path(), Dest: d.Path(), Layout: d.Layout}
	if v.Plan, v.Differences, err = j.Verify(ctx, s, d, m); err != nil {
		return v, err
	}
	size := d.Image.Disk.Size()
	stays := size == s.Image.Disk.Size() && (v.Plan == nil || len(v.Plan.Moves) == 0)
	for _, o := range y.Disks {
		// A member that is copied unchanged keeps its description.
		carried := stays &&
			slices.ContainsFunc(x.Disks, func(w ovf.Disk) bool { return w.ID == o.ID && w.Capacity == o.Capacity })
		if o.Capacity >= 0 && o.Capacity < size && !carried {
			v.Differences = append(v.Differences, Difference{
				Text: fmt.Sprintf("the OVF states a capacity of %d bytes, and the disk has %d", o.Capacity, size),
			})
		}
	}
	return v, nil
}

// CapacityIssues returns issues for disks whose capacity in the envelope is wrong. A deployment would cut off a larger
// disk. Units larger than a byte may round up.
func CapacityIssues(d ova.Disk, size int64) (out []ondisk.Issue) {
	for _, x := range d.Disks {
		i := ondisk.Issue{
			Code: "ovf-capacity", Effect: ondisk.Warn, Remedy: "align corrects it for a disk that moves; for an " +
				"aligned disk, correct it by hand",
			Text: fmt.Sprintf("the OVF states for disk %.256q a capacity of %d bytes, and %.256q has %d", x.ID,
				x.Capacity, d.Member, size),
		}
		switch {
		case x.Capacity < 0 || (x.Capacity >= size && x.Capacity-size < x.Unit):
			continue
		case x.Capacity > size:
			i.Remedy = "check whether the disk was truncated or replaced; if the OVF is wrong, correct it by hand"
		}
		out = append(out, i)
	}
	return out
}

// IsPackage reports whether a copy of this name is a package.
func IsPackage(dest string) bool { return ova.KindOf(dest) != "" }

// OpenPackage opens a package. It returns ondisk.ErrNoMatch if path is not a package.
func OpenPackage(path string) (*ova.Package, error) {
	if hasNoFolder(path) {
		return nil, ondisk.In(ondisk.ErrNoMatch, "%s is on a server or a device, and a package must be a file", path)
	}
	p, err := ova.Open(path, nil)
	if errors.Is(err, ova.ErrNoOVF) {
		err = ondisk.ErrNoMatch // its images can still be opened by name
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// OpenPackages opens two packages. It returns ondisk.ErrNoMatch if one of them is not a package.
func OpenPackages(src, dest string) (s, d *ova.Package, err error) {
	if s, err = OpenPackage(src); err != nil {
		return nil, nil, err
	}
	if d, err = OpenPackage(dest); err != nil {
		_ = s.Close() // read-only
		return nil, nil, err
	}
	return s, d, nil
}

// Members returns a function for MachinesOf that opens the disks of a package.
func Members(p *ova.Package, r Reading) func(ova.Disk) (*Source, error) {
	return func(d ova.Disk) (*Source, error) { return openMember(p, d, r) }
}

// Machine holds the partitions of all disks of a machine.
type Machine = layout.Machine

// Others holds the other disks of a machine, open.
type Others []*Source

// Close closes the disks.
func (o Others) Close() {
	for _, s := range o {
		s.Close()
	}
}

// maxOthers bounds the other disks of a machine, because all are open at once.
const maxOthers = 32

// OpenOthers opens the other disks of the machine of s. dest is the output of the command, or empty.
func OpenOthers(
	s *Source, paths []string, allow []string, dest string, open func(string, Reading) (*Source, error),
) (o Others, err error) {
	if len(paths) > maxOthers {
		return nil, ondisk.In(ondisk.ErrUsage, "--with is given %d times; at most %d are allowed", len(paths),
			maxOthers)
	}
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	for _, path := range paths {
		r := Reading{Like: s.Image.Disk.SectorSize(), Allow: allow}
		x, err := open(path, r)
		if errors.Is(err, ErrComplete) { // the folders are meant for SOURCE
			r.Allow = nil
			x, err = open(path, r)
		}
		if err != nil {
			return o, err
		}
		o = append(o, x)
		if name, ok := x.Image.Uses(dest); ok && dest != "" {
			return o, ondisk.In(ondisk.ErrUsage, "DEST %s would overwrite %s, a disk of --with", dest, name)
		}
	}
	return o, o.Distinct(s)
}

// Distinct returns an error if two disks, including s, have the same disk signature, because Windows cannot distinguish
// them.
func (o Others) Distinct(s *Source) error {
	seen := map[uint32]string{}
	for _, x := range append(Others{s}, o...) {
		signature := x.Layout.Signature()
		if other, twice := seen[signature]; twice && signature != 0 {
			return fmt.Errorf("%s: %w", x.Path(), &ondisk.Refusal{
				Code: "unsupported",
				Reason: fmt.Sprintf("it has disk signature 0x%08x, like %s: a reference to one of them could mean "+
					"the other",
					signature, other),
				Remedy: "name each disk of the machine once, without copies; or change the signature of one in the " +
					"guest",
			})
		}
		seen[signature] = x.Path()
	}
	return nil
}

// Join relates the disk to the other disks of its machine. It does nothing if m is nil.
func (s *Source) Join(m *layout.Machine) {
	if m != nil {
		s.machine = m
		s.Layout.Relate(m)
	}
}

// Join adds the other disks to s, with their partitions and new offsets. Without other disks it does nothing.
func (o Others) Join(s *Source, g Goal) error {
	if len(o) == 0 {
		return nil
	}
	var starts map[int]int64
	if s.malformed() == nil {
		p, err := s.Plan(g)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Path(), err)
		}
		starts = p.Starts()
	}
	machine, refused, err := o.machine(s, starts, g)
	if err != nil {
		return err
	}
	s.Join(machine)
	s.Beside = append(s.Beside, refused...)
	return nil
}

// PlanAmong returns the plan of a disk among the other disks of its machine. size rounds the size of the copy, or is
// nil to keep it.
func (s *Source) PlanAmong(o Others, g Goal, size func(int64) int64) (*plan.Plan, error) {
	p, err := s.Plan(g)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	if size != nil {
		p.Grow(s.Layout, size(p.Size))
	}
	if err := o.joinPlan(s, p, g); err != nil {
		return p, err
	}
	return p, s.planSectors(p, g, size)
}

// joinPlan completes a plan of s with the plans of the other disks for the same goal.
func (o Others) joinPlan(s *Source, p *plan.Plan, g Goal) error {
	if len(o) == 0 {
		return nil
	}
	machine, refused, err := o.machine(s, p.Starts(), g)
	if err != nil {
		return err
	}
	s.Layout.Relate(machine)
	p.Join(s.Layout, machine)
	p.Notes = append(p.Notes, align.Relevant(refused, nil)...)
	for _, x := range o {
		p.Notes = append(p.Notes, x.namesPartitionsOf(s, p)...)
	}
	return nil
}

// machine returns the new partition offsets of all disks: starts for s, and the plans for the same goal for the others.
// refused has issues for disks that cannot be aligned and stay as they are.
func (o Others) machine(
	s *Source, starts map[int]int64, g Goal,
) (machine *layout.Machine, refused []ondisk.Issue, err error) {
	machine = &layout.Machine{}
	machine.Add(s.Layout, starts)
	for _, x := range o {
		to, why, err := x.starts(g)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", x.Path(), err)
		}
		machine.Add(x.Layout, to)
		refused = append(refused, why...)
	}
	return machine, refused, nil
}

// starts returns the new partition offsets of another disk. A disk that cannot be aligned stays as it is.
func (s *Source) starts(g Goal) (to map[int]int64, refused []ondisk.Issue, err error) {
	g.SkipFree = false // it moves nothing
	p, err := s.Plan(g)
	if err != nil {
		return nil, nil, err
	}
	if why := p.Refusals(g.AllowUnbootable); len(why) > 0 {
		return nil, []ondisk.Issue{{
			Code: "with-refused", Effect: ondisk.Warn,
			Text: fmt.Sprintf("align would refuse %.256q, so its partitions are assumed to stay: %s", s.Path(),
				why[0].Text),
			Remedy: "run trueup plan on that disk",
		}}, nil
	}
	return p.Starts(), nil, s.Image.Unchanged()
}

// namesPartitionsOf reports references on another disk to partitions of target that move.
func (s *Source) namesPartitionsOf(target *Source, p *plan.Plan) []align.Finding {
	moves := map[int64]int{}
	for _, m := range p.Moves {
		moves[m.From] = m.Partition
	}
	var names []string
	for _, r := range s.Layout.Boot.Refs {
		if n, ok := moves[r.Points]; ok && r.Disk != 0 && r.Disk == target.Layout.Signature() {
			if name := fmt.Sprintf("%s means partition %d", r.Kind, n); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	more := ""
	if len(names) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(names)-1)
	}
	return []align.Finding{align.FromIssue(ondisk.Issue{
		Code: "named-by", Effect: ondisk.Warn,
		Text:   fmt.Sprintf("%.256q names partitions of this disk that move: %s%s", s.Path(), names[0], more),
		Remedy: fmt.Sprintf("align that disk too, with --with %.256q: its copy gets the new positions", target.Path()),
	})}
}

// Machines maps names to the machines of a package.
type Machines map[string]*layout.Machine

// of returns the machine with a name, and adds it if it is new.
func (m Machines) of(name string) *layout.Machine {
	if m[name] == nil {
		m[name] = &layout.Machine{}
	}
	return m[name]
}

// MachinesOf plans all disks of a package, and returns the new offsets of their partitions, or nil for a single disk.
// An unreadable or refused disk is no error here: it is reported with the disk itself.
func MachinesOf(p *ova.Package, g Goal, open func(ova.Disk) (*Source, error)) Machines {
	disks := p.Disks()
	if len(disks) < 2 {
		return nil
	}
	m := Machines{}
	for _, d := range disks {
		s, err := open(d)
		if err != nil {
			continue
		}
		var to map[int]int64
		if plan, err := s.Plan(g); err == nil && len(plan.Refusals(false)) == 0 {
			to = plan.Starts()
		}
		m.of(p.Machine(d)).Add(s.Layout, to)
		s.Close()
	}
	return m
}

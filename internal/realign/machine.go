package realign

import (
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

// Machine holds what disks know of each other's partitions.
type Machine = layout.Machine

// Others are the other disks of a machine, open.
type Others []*Source

// Close closes them.
func (o Others) Close() {
	for _, s := range o {
		s.Close()
	}
}

// maxOthers bounds the other disks of a machine, since all are open at once.
const maxOthers = 32

// OpenOthers opens the other disks of the machine of s. dest is the output of the command, empty for none.
func OpenOthers(
	s *Source, paths []string, allow []string, dest string, open func(string, Reading) (*Source, error),
) (o Others, err error) {
	if len(paths) > maxOthers {
		return nil, ondisk.In(ondisk.ErrUsage, "%d disks by --with, want %d at most", len(paths), maxOthers)
	}
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	for _, path := range paths {
		r := Reading{Like: s.Image.Disk.SectorSize(), Allow: allow}
		x, err := open(path, r)
		if errors.Is(err, ErrComplete) { // the folders are those of SOURCE
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

// Distinct refuses disks that Windows could not tell apart, s among them.
func (o Others) Distinct(s *Source) error {
	seen := map[uint32]string{}
	for _, x := range append(Others{s}, o...) {
		signature := x.Layout.Signature()
		if other, twice := seen[signature]; twice && signature != 0 {
			return fmt.Errorf("%s: %w", x.Path(), &ondisk.Refusal{
				Code: "unsupported",
				Reason: fmt.Sprintf("it has the disk signature 0x%08x, as %s has: what names one of them could "+
					"mean the other",
					signature, other),
				Remedy: "name each disk of the machine once, without copies; or give one of them another " +
					"signature in the guest",
			})
		}
		seen[signature] = x.Path()
	}
	return nil
}

// Join makes the other disks of its machine known to the disk. m is nil when they are not known.
func (s *Source) Join(m *layout.Machine) {
	if m != nil {
		s.machine = m
		s.Layout.Relate(m)
	}
}

// Join makes known to s where the partitions of the other disks go, and what they are. Without other disks it does
// nothing.
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

// PlanAmong makes the plan of a disk for a goal, among the other disks of its machine. size rounds the size of the
// copy; nil: it stays.
func (s *Source) PlanAmong(o Others, g Goal, size func(int64) int64) (*plan.Plan, error) {
	p, err := s.Plan(g)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	if size != nil {
		p.Grow(s.Layout, size(p.Size))
	}
	return p, o.joinPlan(s, p, g)
}

// joinPlan completes a plan of s by what the same goal makes of the other disks.
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

// machine returns where the partitions of all disks go: those of s to starts, those of the others where the same goal
// puts them. refused are disks that stay as they are, since they could not be aligned.
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

// starts returns where the partitions of another disk go. One that could not be aligned stays as it is.
func (s *Source) starts(g Goal) (to map[int]int64, refused []ondisk.Issue, err error) {
	g.SkipFree = false // which moves nothing
	p, err := s.Plan(g)
	if err != nil {
		return nil, nil, err
	}
	if why := p.Refusals(g.AllowUnbootable); len(why) > 0 {
		return nil, []ondisk.Issue{{
			Code: "with-refused", Effect: ondisk.Warn,
			Text: fmt.Sprintf("align would refuse %.256q, so its partitions are taken to stay: %s", s.Path(),
				why[0].Text),
			Remedy: "see trueup plan for that disk",
		}}, nil
	}
	return p.Starts(), nil, s.Image.Unchanged()
}

// namesPartitionsOf reports what another disk stores of the partitions of target that move.
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
		Remedy: fmt.Sprintf("align it too, with --with %.256q: its copy gets the new places", target.Path()),
	})}
}

// Machines are those of a package, by name.
type Machines map[string]*layout.Machine

// of returns the machine of that name.
func (m Machines) of(name string) *layout.Machine {
	if m[name] == nil {
		m[name] = &layout.Machine{}
	}
	return m[name]
}

// MachinesOf plans all disks of a package, and returns where their partitions go; nil for one disk. What cannot be read
// or would be refused is reported with the disk itself.
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

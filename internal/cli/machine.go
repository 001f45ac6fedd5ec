package cli

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

// maxWith is how many other disks a machine can have here: all are open at once.
const maxWith = 32

func withFlag(cmd *cobra.Command, paths *[]string) {
	cmd.Flags().StringArrayVar(paths, "with", nil, "another `DISK` of the machine, read only (repeatable)")
}

// noPackage refuses --with for a package.
func (m *moveFlags) noPackage() error {
	if len(m.with) > 0 {
		return ondisk.In(errUsage, "--with, but the disks of a package are planned together without it")
	}
	return nil
}

// others are the other disks of a machine.
type others []*source

func (o others) close() {
	for _, s := range o {
		s.close()
	}
}

// openOthers opens the disks of --with. dest is what the command writes, empty for nothing.
func (m *moveFlags) openOthers(c *common, s *source, dest string) (o others, err error) {
	switch {
	case len(m.with) > 0 && len(m.only) > 0:
		return nil, ondisk.In(errUsage, "--partition numbers the partitions of one disk, and --with plans all disks alike; give one of them")
	case len(m.with) > maxWith:
		return nil, ondisk.In(errUsage, "%d disks by --with, want %d at most", len(m.with), maxWith)
	}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	for _, path := range m.with {
		x, err := c.open(path, reading{like: s.img.Disk.SectorSize()})
		if err != nil {
			return o, err
		}
		o = append(o, x)
		if name, ok := x.img.Uses(dest); ok && dest != "" {
			return o, ondisk.In(errUsage, "DEST %s would overwrite %s, a disk of --with", dest, name)
		}
	}
	return o, o.distinct(s)
}

// distinct refuses disks that Windows could not tell apart.
func (o others) distinct(s *source) error {
	seen := map[uint32]string{}
	for _, x := range append(others{s}, o...) {
		signature := x.layout.Signature()
		if other, twice := seen[signature]; twice && signature != 0 {
			return fmt.Errorf("%s: %w", x.img.Path, &ondisk.Refusal{
				Code:   "unsupported",
				Reason: fmt.Sprintf("it has the disk signature 0x%08x, as %s has: what names one of them could mean the other", signature, other),
				Remedy: "name each disk of the machine once, without copies; or give one of them another signature in the guest",
			})
		}
		seen[signature] = x.img.Path
	}
	return nil
}

// joinOthers completes a plan by what the same options make of the other disks.
func (m *moveFlags) joinOthers(s *source, p *plan.Plan, o others) error {
	if len(o) == 0 {
		return nil
	}
	machine, refused, err := m.machineOf(s, p.Starts(), o)
	if err != nil {
		return err
	}
	s.layout.Relate(machine)
	p.Join(s.layout, machine)
	p.Notes = append(p.Notes, align.Relevant(refused, nil)...)
	for _, x := range o {
		p.Notes = append(p.Notes, x.namesPartitionsOf(s, p)...)
	}
	return nil
}

// machineOf returns where the partitions of all disks go: those of s to starts, those of the others where the same options put them. refused
// are those that stay, since align would refuse them.
func (m *moveFlags) machineOf(s *source, starts map[int]int64, o others) (machine *layout.Machine, refused []ondisk.Issue, err error) {
	machine = &layout.Machine{}
	machine.Add(s.layout, starts)
	for _, x := range o {
		to, why, err := m.planOther(x)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", x.img.Path, err)
		}
		machine.Add(x.layout, to)
		refused = append(refused, why...)
	}
	return machine, refused, nil
}

// planOther returns where the partitions of another disk go. One that align would refuse stays as it is.
func (m *moveFlags) planOther(x *source) (to map[int]int64, refused []ondisk.Issue, err error) {
	x.flatten = m.flatten
	p, err := x.plan(m.choice)
	if err != nil {
		return nil, nil, err
	}
	if why := p.Refusals(m.allowUnbootable); len(why) > 0 {
		return nil, []ondisk.Issue{{
			Code: "with-refused", Effect: ondisk.Warn,
			Text:   fmt.Sprintf("align would refuse %.256q, so its partitions are taken to stay: %s", x.img.Path, why[0].Text),
			Remedy: "see trueup plan for that disk",
		}}, nil
	}
	return p.Starts(), nil, x.img.Unchanged()
}

// namesPartitionsOf reports what another disk stores of the partitions of s that move.
func (s *source) namesPartitionsOf(target *source, p *plan.Plan) []align.Finding {
	moves := map[int64]int{}
	for _, m := range p.Moves {
		moves[m.From] = m.Partition
	}
	var names []string
	for _, r := range s.layout.Boot.Refs {
		if n, ok := moves[r.Points]; ok && r.Disk != 0 && r.Disk == target.layout.Signature() {
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
		Text:   fmt.Sprintf("%.256q names partitions of this disk that move: %s%s", s.img.Path, names[0], more),
		Remedy: fmt.Sprintf("align it too, with --with %.256q: its copy gets the new places", target.img.Path),
	})}
}

// machines are those of a package, by name.
type machines map[string]*layout.Machine

// of returns the machine of that name.
func (m machines) of(name string) *layout.Machine {
	if m[name] == nil {
		m[name] = &layout.Machine{}
	}
	return m[name]
}

// packageMachines plans all disks of a package, and returns where their partitions go; nil for one disk. What cannot be read or would be
// refused is reported with the disk itself.
func packageMachines(p *image.Package, c choice, open func(image.PackageDisk) (*source, error)) machines {
	disks := p.Disks()
	if len(disks) < 2 {
		return nil
	}
	m := machines{}
	for _, d := range disks {
		s, err := open(d)
		if err != nil {
			continue
		}
		var to map[int]int64
		if plan, err := s.plan(c); err == nil && len(plan.Refusals(false)) == 0 {
			to = plan.Starts()
		}
		m.of(p.Machine(d)).Add(s.layout, to)
		s.close()
	}
	return m
}

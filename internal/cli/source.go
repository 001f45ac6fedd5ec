package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
)

// source is an opened image and what is on it.
type source struct {
	reading
	img    *image.Image
	layout *layout.Layout
	damage []ondisk.Issue // of the container
	beside []ondisk.Issue // what uses the image, or needs it
	// flatten tells that the user wants a snapshot together with its parents.
	flatten bool
	machine *layout.Machine // nil: the other disks are not known
}

// join tells the disk of the others of its machine. m is nil when they are not known.
func (s *source) join(m *layout.Machine) {
	if m != nil {
		s.machine = m
		s.layout.Relate(m)
	}
}

// openSource opens an image and reads its layout. Errors name the path as the user wrote it.
func openSource(path string, r reading) (*source, error) {
	o, err := r.options()
	if err != nil {
		return nil, err
	}
	if path == "-" {
		return nil, ondisk.In(errUsage, "only trueup convert reads from a pipe; write the image to a file first (a file of that name is ./-)")
	}
	img, err := image.Open(path, o)
	if err != nil {
		return nil, noImage(path, err)
	}
	return readSource(img, r)
}

// readSource reads the layout of an opened image, and closes it when that fails.
func readSource(img *image.Image, r reading) (*source, error) {
	s := &source{reading: r, img: img}
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

func (s *source) read() error {
	s.damage = slices.Clone(s.img.Issues)
	if s.img.Check != nil {
		found, err := s.img.Check()
		if err != nil {
			return err
		}
		s.damage = append(s.damage, found...)
	}
	for _, look := range []func() ([]ondisk.Issue, error){s.img.Busy, s.img.Children, s.img.Owner} {
		found, err := look()
		if err != nil {
			return err
		}
		s.beside = append(s.beside, found...)
	}
	var err error
	s.layout, err = layout.Read(s.img.Disk, table.Geometry{Heads: s.img.Heads, Sectors: s.img.Sectors})
	if err == nil && s.sector != 0 {
		s.layout.SectorsAreAsOrdered()
	}
	if err == nil {
		s.hidesData()
	}
	return err
}

// hidesData tells the layout of data of the container that read as zeros.
func (s *source) hidesData() {
	if slices.ContainsFunc(s.damage, func(i ondisk.Issue) bool { return i.Code == image.CodeHidden }) {
		s.layout.HidesData()
	}
}

// issues are those that concern any copy, whatever is on the disk.
func (s *source) issues() []ondisk.Issue { return slices.Concat(s.damage, s.beside, s.child()) }

// child keeps a snapshot from being copied as if it were a machine's disk: what it is a snapshot of stays behind.
func (s *source) child() []ondisk.Issue {
	if !s.img.Child || s.flatten {
		return nil
	}
	names := make([]string, 0, len(s.img.Chain))
	for _, l := range s.img.Chain {
		names = append(names, fmt.Sprintf("%.256q", l.Name))
	}
	return []ondisk.Issue{{
		Code: "snapshot-child", Effect: ondisk.Refuse,
		Text:   "it is a snapshot, which is complete only together with its parent " + strings.Join(names, ", and that one's parent "),
		Remedy: "--flatten copies all of them into one complete disk; or consolidate the snapshots first",
	}}
}

func (s *source) close() { s.img.Close() }

// plan makes the plan for a goal. The container's own issues come first: they concern any copy, and a broken one would
// be met in the gaps by chance.
func (s *source) plan(c choice) (*plan.Plan, error) {
	p, err := s.planDisk(c)
	if p != nil {
		p.Notes = append(align.Relevant(s.issues(), nil), p.Notes...)
	}
	return p, err
}

// planDisk is plan without what the container has to say of a copy.
func (s *source) planDisk(c choice) (*plan.Plan, error) {
	if err := broken(align.Relevant(s.issues(), nil)); err != nil {
		return nil, err
	}
	goal := align.GoalFor(s.layout, int64(c.boundary))
	if goal.Only = c.only; c.dataOnly {
		goal = goal.DataOnly(s.layout)
	}
	if err := s.layout.ReadGaps(s.img.Disk); err != nil {
		return nil, err
	}
	p, err := plan.New(s.layout, goal)
	if err == nil && s.machine != nil {
		p.Join(s.layout, s.machine)
	}
	return p, err
}

// refusals are the reasons for which an aligned copy could not be made now. The default criterion asks for the default
// target.
func (s *source) refusals(criterion boundary) ([]align.Finding, error) {
	none := []align.Finding{}
	if err := s.malformed(); err != nil {
		return none, nil //nolint:nilerr // said in its own way
	}
	p, err := s.plan(choice{boundary: criterion.target()})
	if err != nil {
		return nil, err
	}
	return append(none, p.Refusals(false)...), nil
}

// malformed is the error of a container or table that is broken. A broken volume moves as opaque bytes, if at all.
func (s *source) malformed() error {
	for _, i := range slices.Concat(s.issues(), s.layout.Issues) {
		if i.Effect == ondisk.Broken {
			return i.Err
		}
	}
	return nil
}

// broken is the error of the first finding that is malformed.
func broken(fs []align.Finding) error {
	for _, f := range fs {
		if f.Effect == ondisk.Broken || f.Effect == ondisk.BadVolume {
			return f.Err
		}
	}
	return nil
}

// refusal makes one error of the findings that keep a copy from being made.
func refusal(fs []align.Finding) error {
	if len(fs) == 0 {
		return nil
	}
	f := fs[0]
	if f.Effect == ondisk.Broken || f.Effect == ondisk.BadVolume {
		return fmt.Errorf("%w; %s", f.Err, f.Remedy)
	}
	r := &ondisk.Refusal{Code: "unsupported", Reason: f.Subject + ": " + f.Text, Remedy: f.Remedy}
	if f.Err != nil {
		r.Code, _ = classify(f.Err)
	}
	if len(fs) > 1 {
		r.Remedy += fmt.Sprintf(" (and %d more; see trueup plan)", len(fs)-1)
	}
	return r
}

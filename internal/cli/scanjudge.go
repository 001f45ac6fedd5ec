package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/library"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// maxRead is how much is read to judge one image, in bytes.
const maxRead = 256 * units.MiB

// judge looks into images for scan. What is aligned is not looked into any further than that needs; of the rest it knows what inspect and
// plan know.
type judge struct {
	Boundary int64  `json:"boundary"`
	Storage  string `json:"storage"`
	Check    bool   `json:"check,omitempty"` // all tables of every container

	below align.Storage
	most  int64 // bytes that are read to judge one image; 0: maxRead
}

func newJudge(f *scanFlags) *judge {
	return &judge{Boundary: f.boundary.criterion(), Storage: f.storage.profile().Name, Check: f.tables, below: f.storage.profile()}
}

// prepare completes a judge that came as JSON.
func (j *judge) prepare() (err error) {
	if j.below, err = align.ParseStorage(j.Storage); err != nil {
		return fmt.Errorf("judge of a worker: %w", err)
	}
	return nil
}

// Identify tells what the file at path is.
func (j *judge) Identify(path string) (image.Identity, error) {
	meter := image.NewMeter(maxRead)
	id, err := image.Identify(path, meter)
	id.Read = meter.Read()
	return id, err
}

// Classify gives the code and the text of an error.
func (j *judge) Classify(err error) report.Error {
	code, _ := classify(err)
	return report.Error{Code: code, Message: message(err)}
}

// Image judges the image of a job. One whose tables are too large to be checked as a whole has the verdict of a scan without --check.
func (j *judge) Image(job scan.Job) *library.Image {
	i, err := j.image(job)
	if j.Check && errors.Is(err, ondisk.ErrLimit) {
		survey := *j
		survey.Check = false
		if again, other := survey.image(job); again != nil && other == nil {
			again.Read += i.Read
			for k := range again.Disks {
				d := &again.Disks[k]
				d.Findings = append(d.Findings, align.FromIssue(unchecked(err, job.Path)))
			}
			i, err = again, nil
		}
	}
	if i == nil {
		return nil
	}
	if err != nil {
		e := j.Classify(err)
		i.Fail(e.Code, e.Message)
		i.Fleeting = slices.Contains([]string{"io", "busy", "changed", "internal"}, e.Code)
	}
	i.Trim(library.MostItems)
	return i
}

// image judges the image of a job; nil is a doubt that came to nothing. With an error it has what could be read all the same.
func (j *judge) image(job scan.Job) (i *library.Image, err error) {
	meter := image.NewMeter(cmp.Or(j.most, maxRead))
	i = library.NewImage(job.Path)
	i.State = library.Judged
	o := image.Options{Beside: job.Beside, Meter: meter}
	judged := true
	if job.Package {
		err = j.pack(i, job.Path, o)
	} else {
		judged, err = j.single(i, job, o)
	}
	if !judged && err == nil {
		return nil, nil
	}
	for _, f := range i.Files {
		i.Stored += f.Allocated
	}
	i.Read = meter.Read()
	return i, err
}

// single judges an image that is one disk. judged is false for a doubt that came to nothing.
func (j *judge) single(i *library.Image, job scan.Job, o image.Options) (judged bool, err error) {
	img, err := image.OpenPlain(job.Path, o)
	if err != nil {
		return !job.Doubt, err
	}
	defer img.Close()
	i.Format, i.Subformat, i.Files = img.Format, img.Subformat, files(img.States())
	for _, l := range img.Chain {
		i.Parents = append(i.Parents, l.Name)
	}
	d, err := j.disk(i, img, nil)
	switch {
	case job.Doubt && err == nil && unknown(&d.Disk), job.Doubt && err != nil && img.Disk.Size() < image.SmallestBare:
		return false, nil // what is broken and as large as a disk may be one
	case misnamed(img) && unknown(&d.Disk):
		return true, misnamedError(img)
	}
	i.Disks, i.Size = append(i.Disks, d), img.Disk.Size()
	return true, errors.Join(err, img.Unchanged())
}

// unknown reports whether nothing is known of what a disk holds.
func unknown(d *report.Disk) bool {
	return d.Table.Scheme == "none" && (d.Volume == nil || d.Volume.Kind == string(volume.Unknown))
}

// misnamed reports whether the file has the name of a format, and nothing of it.
func misnamed(img *image.Image) bool {
	return slices.ContainsFunc(img.Issues, func(i ondisk.Issue) bool { return i.Code == image.CodeMisnamed })
}

func misnamedError(img *image.Image) error {
	for _, i := range img.Issues {
		if i.Code == image.CodeMisnamed {
			return ondisk.In(i.Err, "%s; %s", i.Text, i.Remedy)
		}
	}
	return nil
}

// files are those of an image, and what its file system has allocated for them.
func files(states []image.State) []library.File {
	out := make([]library.File, 0, len(states))
	for _, s := range states {
		out = append(out, library.File(s))
	}
	return out
}

// pack judges all disks of a package. One that cannot be judged costs the verdict of the whole, and not the report of the others.
func (j *judge) pack(i *library.Image, path string, o image.Options) error {
	p, err := image.OpenPackageWith(path, o.Meter)
	if errors.Is(err, ondisk.ErrNoMatch) {
		return fmt.Errorf("the package %w", image.ErrChanged)
	}
	if err != nil {
		return err
	}
	defer p.Close()
	i.Format, i.Files = p.Kind, files(p.States())
	i.Findings = report.PackageFindings(p.Issues())
	var bad error
	seen := map[string]bool{}
	for _, f := range i.Files {
		seen[f.Name] = true
	}
	for _, d := range p.Images() {
		x, states, err := j.member(i, p, d, o, nil)
		x.Member = d.Member
		if states != nil {
			i.Findings = append(i.Findings, report.PackageFindings(capacityIssues(d, x.Size))...)
		}
		if err != nil {
			e := j.Classify(err)
			x.Error = &e
			if bad == nil {
				bad = fmt.Errorf("%.256q: %w", d.Member, err)
			}
		}
		i.Disks, i.Size = append(i.Disks, x), i.Size+x.Size
		for _, s := range states {
			if !seen[s.Name] {
				seen[s.Name] = true
				i.Files = append(i.Files, library.File(s))
			}
		}
	}
	j.relate(i, p, o)
	return errors.Join(bad, p.Unchanged())
}

// relate judges the disks of a package again that a move concerns, with the other disks of their machine.
func (j *judge) relate(i *library.Image, p *image.Package, o image.Options) {
	if !slices.ContainsFunc(i.Disks, func(d library.Disk) bool { return d.Fix != nil }) {
		return
	}
	m := packageMachines(p, choice{boundary: boundary(j.Boundary).target()}, func(d image.PackageDisk) (*source, error) {
		img, err := p.Open(d, o)
		if err != nil {
			return nil, err
		}
		return readSource(img, reading{})
	})
	if m == nil {
		return
	}
	for k, d := range p.Images() {
		if i.Disks[k].Fix == nil {
			continue
		}
		if x, _, err := j.member(i, p, d, o, m[p.Machine(d)]); err == nil {
			x.Member = d.Member
			i.Disks[k] = x
		}
	}
}

func (j *judge) member(i *library.Image, p *image.Package, d image.PackageDisk, o image.Options, m *layout.Machine) (library.Disk, []image.State, error) {
	img, err := p.Open(d, o)
	if err != nil {
		return library.NewDisk(0, j.Boundary), nil, err
	}
	defer img.Close()
	x, err := j.disk(i, img, m)
	return x, img.States(), err
}

// disk judges one disk. With an error it has what could be read all the same.
func (j *judge) disk(i *library.Image, img *image.Image, m *layout.Machine) (library.Disk, error) {
	s := &source{img: img, damage: slices.Clone(img.Issues)}
	hint := table.Geometry{Heads: img.Heads, Sectors: img.Sectors}
	l, err := layout.Survey(img.Disk, hint)
	if err != nil {
		return library.NewDisk(img.Disk.Size(), j.Boundary), err
	}
	s.layout = l
	if err := s.lookForHidden(); err != nil {
		return library.NewDisk(img.Disk.Size(), j.Boundary), err
	}
	d := j.describe(s, library.Survey)
	if !d.Verdict.Off() && !j.Check {
		return malformedDisk(d)
	}
	if err := s.read(); err != nil {
		return d, err
	}
	if j.Check {
		s.checkMap()
	}
	s.join(m)
	d = j.describe(s, library.Full)
	if d, err := malformedDisk(d); err != nil || !d.Verdict.Off() {
		return d, err
	}
	if err := j.plan(s, &d); err != nil {
		if j.Check && errors.Is(err, ondisk.ErrLimit) {
			return d, err // the check has used up what may be read
		}
		e := j.Classify(err)
		d.Unplanned = &e
	}
	i.Fleeting = i.Fleeting || slices.ContainsFunc(s.beside, func(x ondisk.Issue) bool { return errors.Is(x.Err, ondisk.ErrBusy) })
	return d, nil
}

// lookForHidden finds data that read as zeros, on a disk where nothing else would be judged: only a VHD can hide some.
func (s *source) lookForHidden() error {
	if s.img.Format != "vhd" || s.img.Check == nil || align.ContentOf(s.layout) == "" {
		return nil
	}
	found, err := s.img.Check()
	s.damage = append(s.damage, found...)
	s.hidesData()
	return err
}

// malformedDisk takes the verdict off a disk that is malformed, and gives the error.
func malformedDisk(d library.Disk) (library.Disk, error) {
	err := broken(d.Findings)
	if err != nil {
		d.Verdict, d.Content = "", ""
	}
	return d, err
}

// describe reports on a layout.
func (j *judge) describe(s *source, depth library.Depth) library.Disk {
	findings := append(align.Relevant(s.issues(), nil), align.Check(s.layout, align.Goal{Must: j.Boundary, Want: j.Boundary})...)
	return library.Disk{Disk: report.NewDisk(s.layout, j.Boundary, findings), Depth: depth}
}

// plan adds what an aligned copy would be and gain.
func (j *judge) plan(s *source, d *library.Disk) error {
	p, err := s.plan(choice{boundary: boundary(j.Boundary).target()})
	if err != nil {
		return err
	}
	c := report.NewChanges(p)
	refusals := append([]align.Finding{}, p.Refusals(false)...)
	d.Fix = &library.Fix{Boundary: p.Goal.Want, OldSize: p.OldSize, NewSize: p.Size, Moves: c.Moves, Refusals: refusals}
	a := align.Advise(s.layout, align.Case{Boundary: j.Boundary, Storage: j.below, Refusals: refusals})
	d.Advice = &a
	d.Cost = library.NewCost(s.layout, j.Boundary, j.below)
	return nil
}

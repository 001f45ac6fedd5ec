package scan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/unpack"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// maxRead bounds the bytes read to judge one image.
const maxRead = 256 * units.MiB

// Inspector is the Judge of real images. It reads only the table and volumes of an aligned image. It reads as much of
// any other image as inspect and plan do.
type Inspector struct {
	Boundary align.Boundary `json:"boundary"`
	Storage  align.Storage  `json:"storage"`
	Check    bool           `json:"check,omitempty"` // check all tables of every container

	Allow image.FileNames `json:"allow,omitempty"` // folders that may contain parents, besides the child's

	Most int64 `json:"most,omitempty"` // bytes to read for one image; the default is 256 MiB
}

// Identify identifies the file at path.
func (j *Inspector) Identify(path string) (image.Identity, error) {
	meter := gate.NewMeter(maxRead)
	id, err := ova.Identify(path, meter)
	id.Read = meter.Read()
	return id, err
}

// classify returns the code and the message of an error, for reports.
func classify(err error) report.Error {
	return report.Error{Code: realign.Code(err), Message: report.Message(err)}
}

// Image judges the image of a job. If its tables are too large to check as a whole, it has the verdict of a scan
// without --check.
func (j *Inspector) Image(job Job) *results.Image {
	i, err := j.image(job)
	packed := job.Packed || i != nil && (i.Unpacked != nil || image.IsPacked(i.Format))
	if j.Check && !packed && errors.Is(err, ondisk.ErrLimit) {
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
		e := classify(err)
		i.Fail(e.Code, e.Message)
		i.Fleeting = slices.Contains([]string{"io", "busy", "changed", "internal", "reference", "unfinished"}, e.Code)
	}
	i.Trim(results.MostItems)
	return i
}

// image judges the image of a job. It returns nil for a doubtful file without an image. With an error, the row contains
// the data read so far.
func (j *Inspector) image(job Job) (i *results.Image, err error) {
	meter := gate.NewMeter(cmp.Or(j.Most, maxRead))
	i = results.NewImage(job.Path)
	i.State = results.Judged
	o := image.Options{Beside: job.Beside, Meter: meter, Allow: j.Allow}
	var judged bool
	switch {
	case job.Packed:
		judged, err = j.head(i, job, o)
	case job.Package:
		judged, err = j.pack(i, job, o)
	default:
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

// single judges an image that is one disk. judged is false for a doubtful file without an image.
func (j *Inspector) single(i *results.Image, job Job, o image.Options) (judged bool, err error) {
	img, err := image.Open(job.Path, o)
	if err != nil {
		return !job.Doubt, realign.Unopened(job.Path, err)
	}
	defer img.Close()
	i.Format, i.Subformat, i.Files = img.Format, img.Subformat, files(img.States())
	for _, l := range img.Chain {
		i.Parents = append(i.Parents, l.Name)
	}
	d, misnamed, err := j.disk(i, img, nil)
	switch {
	case job.Doubt && err == nil && d.Unknown(), job.Doubt && err != nil && img.Disk.Size() < image.SmallestBare:
		return false, nil // a broken file as large as a disk may be one
	case d.Unknown() && misnamed != nil && !hasCompanionFinding(d):
		return true, misnamed
	}
	i.Disks, i.Size = append(i.Disks, d), img.Disk.Size()
	return true, errors.Join(err, img.Unchanged())
}

// head judges a packed image by the starts of its partitions, as far as its first bytes contain them. judged is false
// for a doubtful file that is not an archive with an image.
func (j *Inspector) head(i *results.Image, job Job, o image.Options) (judged bool, err error) {
	s, err := realign.Head(context.Background(), job.Path, o)
	if errors.Is(err, unpack.ErrArchive) {
		return true, err
	}
	if job.Doubt && (err == nil || ondisk.Understood(err) || errors.Is(err, ondisk.ErrReference)) {
		if err == nil {
			s.Close()
		}
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer s.Close()
	d := j.describe(s, s.Layout, results.Head)
	i.Unpacked = s.Image.Unpacked
	d.Findings = append(d.Findings, align.FromIssue(realign.ByHead()))
	if s.Guessed() {
		i.Format, d.Size = i.Unpacked.Kind, 0
	} else {
		i.Format, i.Subformat = s.Image.Format, s.Image.Subformat
	}
	i.Disks, i.Size = append(i.Disks, d), d.Size
	return true, s.Image.Unchanged()
}

// files returns the files of an image, with their allocated space.
func files(states []gate.State) []results.File {
	out := make([]results.File, 0, len(states))
	for _, s := range states {
		out = append(out, results.File(s))
	}
	return out
}

// pack judges all disks of a package. A disk that cannot be judged voids the verdict of the package; the other disks
// are still reported. judged is false for a tar archive without an OVF or an image.
func (j *Inspector) pack(i *results.Image, job Job, o image.Options) (judged bool, err error) {
	p, err := ova.Open(job.Path, o.Meter)
	if errors.Is(err, ova.ErrNoOVF) && ova.KindOf(job.Path) == "" {
		i.Format = unpack.Tar
		return j.head(i, job, o)
	}
	if errors.Is(err, ondisk.ErrNoMatch) {
		return true, fmt.Errorf("the package %w", ondisk.ErrChanged)
	}
	if err != nil {
		return true, err
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
			i.Findings = append(i.Findings, report.PackageFindings(realign.CapacityIssues(d, x.Size))...)
		}
		if err != nil {
			x.Error = new(classify(err))
			if bad == nil {
				bad = fmt.Errorf("%.256q: %w", d.Member, err)
			}
		}
		i.Disks, i.Size = append(i.Disks, x), i.Size+x.Size
		for _, s := range states {
			if !seen[s.Name] {
				seen[s.Name] = true
				i.Files = append(i.Files, results.File(s))
			}
		}
	}
	j.relate(i, p, o)
	return true, errors.Join(bad, p.Unchanged())
}

// relate judges those disks of a package again that a copy would realign, now with the other disks of their machine.
func (j *Inspector) relate(i *results.Image, p *ova.Package, o image.Options) {
	if !slices.ContainsFunc(i.Disks, func(d results.Disk) bool { return d.Fix != nil }) {
		return
	}
	m := realign.MachinesOf(p, j.goal(), func(d ova.Disk) (*realign.Source, error) {
		img, err := p.Open(d, o)
		if err != nil {
			return nil, err
		}
		return realign.Read(img, realign.Reading{})
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

func (j *Inspector) member(
	i *results.Image, p *ova.Package, d ova.Disk, o image.Options, m *realign.Machine,
) (results.Disk, []gate.State, error) {
	img, err := p.Open(d, o)
	if err != nil {
		return results.NewDisk(0, j.Boundary), nil, err
	}
	defer img.Close()
	x, _, err := j.disk(i, img, m)
	return x, img.States(), err
}

// disk judges one disk. With an error, d contains the data read so far. misnamed is the error of a file with the name
// of a format but not its content, see realign.Source.
func (j *Inspector) disk(i *results.Image, img *image.Image, m *realign.Machine) (d results.Disk, misnamed, err error) {
	s, err := realign.Survey(img)
	misnamed = s.Misnamed()
	if s.Original {
		if !s.Written { // else a machine may run from it
			i.State = results.Original
		}
		i.Findings = append(i.Findings, align.Relevant(s.Beside, nil)...)
	}
	if err != nil {
		return results.NewDisk(img.Disk.Size(), j.Boundary), misnamed, err
	}
	seen, err := s.InFiles()
	if err != nil {
		return d, misnamed, err
	}
	d = j.describe(s, seen, results.Survey)
	if err := s.Lacks(); err != nil && misnamed == nil {
		d.Verdict, d.Content = "", ""
		return d, nil, err
	}
	if !d.Verdict.Off() && !j.Check {
		d, err = malformedDisk(d)
		return d, misnamed, err
	}
	if err := s.Complete(context.Background(), j.Check); err != nil {
		return d, misnamed, err
	}
	s.Join(m)
	if seen, err = s.InFiles(); err != nil {
		return d, misnamed, err
	}
	d = j.describe(s, seen, results.Full)
	if d, err = malformedDisk(d); err != nil || !d.Verdict.Off() {
		return d, misnamed, err
	}
	if err := j.plan(s, seen, &d); err != nil {
		if j.Check && errors.Is(err, ondisk.ErrLimit) {
			return d, misnamed, err // the check has used up the read limit
		}
		d.Unplanned = new(classify(err))
	}
	i.Fleeting = i.Fleeting ||
		slices.ContainsFunc(s.Beside, func(x ondisk.Issue) bool { return errors.Is(x.Err, ondisk.ErrBusy) })
	return d, misnamed, nil
}

// malformedDisk removes the verdict of a malformed disk and returns the error.
func malformedDisk(d results.Disk) (results.Disk, error) {
	err := realign.Broken(d.Findings)
	if err != nil {
		d.Verdict, d.Content = "", ""
	}
	return d, err
}

// goal returns the target of a copy. The default boundary stands for the default target.
func (j *Inspector) goal() realign.Goal {
	if j.Boundary == align.DefaultBoundary {
		return realign.Goal{}
	}
	return realign.Goal{Boundary: j.Boundary}
}

// describe returns the report on the layout of a disk, with the starts that the storage sees.
func (j *Inspector) describe(s *realign.Source, l *layout.Layout, depth results.Depth) results.Disk {
	findings := append(align.Relevant(s.Issues(), nil),
		align.Check(l, align.Goal{Must: j.Boundary, Want: j.Boundary})...)
	return results.Disk{Disk: report.NewDisk(l, j.Boundary, findings), Depth: depth}
}

// plan adds the fix, the advice and the cost to a disk. l has the starts that the storage sees.
func (j *Inspector) plan(s *realign.Source, l *layout.Layout, d *results.Disk) error {
	p, err := s.Plan(j.goal())
	if err != nil {
		return err
	}
	c := report.NewChanges(p)
	refusals := append([]align.Finding{}, p.Refusals(false)...)
	d.Fix = &results.Fix{Boundary: p.Goal.Want, OldSize: p.OldSize, NewSize: p.Size, Moves: c.Moves, Refusals: refusals}
	d.Advice = new(align.For(l, align.Case{Boundary: j.Boundary, Storage: j.Storage, Refusals: refusals}))
	d.Cost = newCost(l, j.Boundary, j.Storage)
	return nil
}

// unchecked returns the issue of an image whose tables are too large for a scan to check.
func unchecked(err error, path string) ondisk.Issue {
	return ondisk.Issue{
		Code: "unchecked", Effect: ondisk.Warn, Text: fmt.Sprintf("the tables were not checked as a whole: %v", err),
		Remedy: "look at it alone with " + shell.Command("inspect", nil, path),
	}
}

// newCost returns the cost of the partition off a boundary that costs a storage most: the share of extra storage blocks
// that a random I/O of one block of the volume touches. It returns nil if all partitions are on the boundary.
func newCost(l *layout.Layout, boundary align.Boundary, s align.Storage) (out *results.Cost) {
	for _, p := range align.InFile(l) {
		if !align.Judge(p, boundary).Verdict.Off() {
			continue
		}
		i := align.ImpactOf(p, s)
		// More returns a factor; convert it to a percentage with one decimal place.
		more := math.Round(1000*(i.Touched(i.Block).Random.More()-1)) / 10
		if out == nil || more > out.More {
			out = &results.Cost{Storage: s.Name, Block: s.Block, Partition: p.Number, More: more, Text: i.Text()}
		}
	}
	return out
}

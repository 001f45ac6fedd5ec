package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
)

// packageCopy is a package that is to be written.
type packageCopy struct {
	source, dest string
	reading      // of its disks
	skipAligned  bool
	plan         func(s *source) (*plan.Plan, error) // of one disk
	// accepts gives the error of a plan that is refused.
	accepts func(p *plan.Plan) error
}

// packageDisk is one disk of it.
type packageDisk struct {
	*source
	member  string
	machine string // to which it belongs
	plan    *plan.Plan
	view    disk.Disk
	report  *report.Align
}

// changes reports whether the disk gets other bytes.
func (d *packageDisk) changes() bool { return len(d.plan.Patches) > 0 || d.plan.Size != d.plan.OldSize }

// planDisk is the plan of align for one disk of a package.
func (f *alignFlags) planDisk(s *source) (*plan.Plan, error) {
	s.flatten = f.flatten
	return s.plan(f.choice)
}

// accepts gives the error of a plan that is refused.
func (f *alignFlags) accepts(p *plan.Plan) error { return refusal(p.Refusals(f.allowUnbootable)) }

// planCopy is the plan of convert for one disk of a package.
func planCopy(s *source) (*plan.Plan, error) {
	p := plan.Copy(s.img.Disk.Size())
	p.Notes = align.Relevant(s.issues(), nil)
	return p, broken(p.Notes)
}

func acceptCopy(p *plan.Plan) error { return refusal(p.Refusals(false)) }

// copyPackage writes a package in which every disk is what its plan makes of it, and everything else as it was.
func (c *copyFlags) copyPackage(ctx context.Context, out, errOut io.Writer, job packageCopy) error {
	if c.to != (target{}) {
		return ondisk.In(errUsage, "--to %s, but the disks of a package keep their format: the OVF names it", c.to.String())
	}
	src, err := image.OpenPackage(job.source)
	if errors.Is(err, ondisk.ErrNoMatch) {
		return notAPackage(job)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", job.source, err)
	}
	defer src.Close()
	if err := c.spare(src); err != nil {
		return err
	}
	disks, err := c.planPackage(src, job)
	defer closeAll(disks)
	if err != nil {
		return err
	}
	r := newPackageAlign(c.command, src, job.dest, disks)
	if r.Moved == 0 && job.skipAligned {
		return c.emit(out, r, func(t *report.Text) { t.PackageAlign(r) })
	}
	if err := c.writePackage(ctx, errOut, src, disks, r); err != nil {
		return err
	}
	if err := c.emit(out, r, func(t *report.Text) { t.PackageAlign(r) }); err != nil {
		return fmt.Errorf("%w; %s itself is complete and verified", err, r.Dest)
	}
	return nil
}

// notAPackage says what is wrong with a source that should be one. A file that cannot be opened has its own error.
func notAPackage(job packageCopy) error {
	s, err := openSource(job.source, reading{})
	if err != nil {
		return err
	}
	s.close()
	return ondisk.In(errUsage, "DEST %s is a package, and SOURCE %s is one disk; name a package, or a disk as DEST", job.dest, job.source)
}

func closeAll(disks []*packageDisk) {
	for _, d := range disks {
		d.close()
	}
}

// planPackage opens and plans all disks before anything is written.
func (c *copyFlags) planPackage(src *image.Package, job packageCopy) (disks []*packageDisk, err error) {
	for _, d := range src.Disks() {
		s, err := openDisk(src, d, job.reading)
		if err != nil {
			return disks, err
		}
		x := &packageDisk{source: s, member: d.Member, machine: src.Machine(d)}
		disks = append(disks, x)
		if x.plan, err = job.plan(s); err != nil {
			return disks, fmt.Errorf("%s: %w", s.img.Path, err)
		}
	}
	if len(disks) == 0 {
		return nil, fmt.Errorf("%s: the package has no disk with a file: %w, there is nothing to copy", job.source, ondisk.ErrUnsupported)
	}
	m := machines{}
	for _, x := range disks {
		m.of(x.machine).Add(x.layout, x.plan.Starts())
	}
	for _, x := range disks {
		if err := x.join(c.command, m.of(x.machine), job); err != nil {
			return disks, fmt.Errorf("%s: %w", x.img.Path, err)
		}
	}
	return disks, nil
}

// join completes the plan of a disk by those of the other disks of its machine, and checks it.
func (d *packageDisk) join(command string, m *layout.Machine, job packageCopy) (err error) {
	if !d.plan.Converts {
		d.layout.Relate(m)
		d.plan.Join(d.layout, m)
	}
	if err := job.accepts(d.plan); err != nil {
		return err
	}
	if d.view, err = checked(d.source, d.plan); err != nil {
		return err
	}
	d.report = newAlignReport(command, d.source, d.plan, job.dest+"!"+d.member)
	return nil
}

// openDisk opens a disk of a package. Errors name it as the user can.
func openDisk(src *image.Package, d image.PackageDisk, r reading) (*source, error) {
	o, err := r.options()
	if err != nil {
		return nil, err
	}
	img, err := src.Open(d, o)
	if err != nil {
		return nil, fmt.Errorf("%s!%s: %w", src.Path, d.Member, err)
	}
	return readSource(img, r)
}

func newPackageAlign(command string, src *image.Package, dest string, disks []*packageDisk) *report.PackageAlign {
	r := &report.PackageAlign{
		Head: head(command), Source: src.Path, Dest: dest, Package: report.NewPackage(src), Dropped: []string{}, Files: []string{},
		Findings: report.PackageFindings(src.Issues()),
	}
	for _, d := range disks {
		r.Disks = append(r.Disks, d.report)
		r.Moved += d.report.Moved
	}
	return r
}

// writePackage makes DEST: absent or complete, whatever happens in between.
func (c *copyFlags) writePackage(ctx context.Context, errOut io.Writer, src *image.Package, disks []*packageDisk, r *report.PackageAlign) (err error) {
	start := time.Now()
	rewrite := map[string]image.Rewrite{}
	for _, d := range disks {
		release := d.img.Hold()
		defer release()
		if d.changes() {
			rewrite[d.member] = image.Rewrite{Source: d.img, Size: d.plan.Size}
		}
	}
	c.ending.hold(removing)
	bar := c.newProgress(errOut, c.progress, c.command)
	defer bar.stop()
	c.shared = bar
	if err := src.Check(ctx, bar); err != nil {
		return fmt.Errorf("%s: %w", src.Path, packageCause(src, err))
	}
	o, err := image.CreatePackage(r.Dest, src, image.PackageOptions{Force: c.force, Rewrite: rewrite})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Discard())
		}
	}()
	r.Files, r.Dropped = o.Files(), append(r.Dropped, o.Dropped...)
	r.Findings = append(r.Findings, report.PackageFindings(o.Issues())...)
	if err := c.spareFiles(r.Dest, r.Files); err != nil {
		return err
	}
	err = o.Write(ctx, bar, func(member string, create image.CreateDisk) error {
		return c.fillDisk(ctx, errOut, disks, member, create)
	})
	if err != nil {
		return packageCause(src, err)
	}
	if err := src.Unchanged(); err != nil {
		return fmt.Errorf("%s: %w", src.Path, err)
	}
	c.settle(r)
	for _, m := range src.Members {
		if _, ok := rewrite[m.Name]; !ok && !slices.Contains(r.Dropped, m.Name) {
			r.Copied += m.Size
		}
	}
	if err := o.Publish(); err != nil {
		return err
	}
	r.Took = since(start)
	r.Findings = append(r.Findings, report.DestFindings(o.Notes())...)
	return nil
}

// settle says what has become of each disk.
func (c *copyFlags) settle(r *report.PackageAlign) {
	r.Written, r.Verified = true, c.verify
	for i, d := range r.Disks {
		d.Written, d.Verified = true, c.verify
		r.Copied += d.Copied
		d.Files = []string{r.Disks[i].Dest[len(r.Dest)+1:]}
	}
}

// fillDisk writes one disk of a package and proves it.
func (c *copyFlags) fillDisk(ctx context.Context, errOut io.Writer, disks []*packageDisk, member string, create image.CreateDisk) error {
	for _, d := range disks {
		if d.member != member {
			continue
		}
		start, g := time.Now(), d.layout.Geometry
		o, err := create(image.CreateOptions{Seed: seed(d.source, d.plan), Heads: g.Heads, Sectors: g.Sectors})
		if err != nil {
			return err
		}
		if d.report.Copied, err = c.fill(ctx, errOut, d.source, d.plan, d.view, o); err != nil {
			return cause(d.source, err)
		}
		d.report.Took = since(start)
		return nil
	}
	return fmt.Errorf("member %q is no disk", member) // our own bug
}

// packageCause is what made a copy fail: a source that changed under it can look like anything.
func packageCause(src *image.Package, err error) error {
	if changed := src.Unchanged(); changed != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", src.Path, changed)
	}
	return err
}

// bar shows the progress of one copy. All disks of a package have one together.
func (c *copyFlags) bar(errOut io.Writer) progress {
	if c.shared != nil {
		return kept{c.shared}
	}
	return c.newProgress(errOut, c.progress, c.command)
}

// kept is a progress that goes on when a part of the work ends.
type kept struct{ progress }

func (kept) stop() {}

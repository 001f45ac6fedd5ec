package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// packageCopy is a package that is to be written.
type packageCopy struct {
	source, dest string
	reading      realign.Reading // of its disks
	goal         realign.Goal    // of each
	flags        []string        // of a command line that reads them in the same way
	skipAligned  bool
}

// copyPackage writes a package in which every disk is what its plan makes of it, and everything else as it was.
func (c *copyFlags) copyPackage(ctx context.Context, out, errOut io.Writer, job packageCopy) error {
	if c.to != (target{}) {
		return ondisk.In(errUsage, "--to %s, but the disks of a package keep their format: the OVF names it", c.to.String())
	}
	src, err := ova.Open(job.source, nil)
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
	p, err := realign.PlanPackage(src, job.reading, job.goal)
	if err != nil {
		return err
	}
	defer p.Close()
	r := newPackageAlign(c.command, p, job)
	if r.Moved == 0 && job.skipAligned {
		return c.emit(out, r, func(t *report.Text) { t.PackageAlign(r) })
	}
	j, end := c.job(errOut, job.dest)
	w, err := j.WritePackage(ctx, p)
	end()
	if err != nil {
		return err
	}
	c.settle(r, p, w)
	if err := c.emit(out, r, func(t *report.Text) { t.PackageAlign(r) }); err != nil {
		return fmt.Errorf("%w; %s itself is complete and verified", err, r.Dest)
	}
	return nil
}

// notAPackage says what is wrong with a source that should be one. A file that cannot be opened has its own error.
func notAPackage(job packageCopy) error {
	s, err := openSource(job.source, realign.Reading{})
	if err != nil {
		return err
	}
	s.Close()
	return ondisk.In(errUsage, "DEST %s is a package, and SOURCE %s is one disk; name a package, or a disk as DEST", job.dest, job.source)
}

func newPackageAlign(command string, p *realign.Package, job packageCopy) *report.PackageAlign {
	r := &report.PackageAlign{
		Head: head(command), Source: p.Path, Dest: job.dest, Package: report.NewPackage(p.Package), Dropped: []string{}, Files: []string{},
		Findings: report.PackageFindings(p.Issues()),
	}
	for _, d := range p.Disks {
		x := newAlignReport(command, d.Source, d.Plan, job.dest+"!"+d.Member, job.flags)
		r.Disks = append(r.Disks, x)
		r.Moved += x.Moved
	}
	return r
}

// settle says what has become of the package and of each disk.
func (c *copyFlags) settle(r *report.PackageAlign, p *realign.Package, w realign.WrittenPackage) {
	r.Written, r.Verified, r.Files, r.Dropped = true, c.verify, w.Files, append(r.Dropped, w.Dropped...)
	r.Copied, r.Took = w.Copied, w.Took
	r.Findings = append(r.Findings, report.PackageFindings(w.Issues)...)
	r.Findings = append(r.Findings, report.DestFindings(w.Notes)...)
	for i, d := range r.Disks {
		d.Written, d.Verified, d.Files = true, c.verify, []string{p.Disks[i].Member}
		d.Copied, d.Took = p.Disks[i].Copied, p.Disks[i].Took
	}
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/verify"
)

// inspectPackage shows each disk of a package. p is opened, unless openErr says why not.
func (f *inspectFlags) inspectPackage(ctx context.Context, out, errOut io.Writer, p *image.Package, path string, openErr error) (err error) {
	if openErr != nil {
		return fmt.Errorf("%s: %w", path, openErr)
	}
	defer p.Close()
	if _, err = f.options(); err == nil {
		err = errors.Join(f.spare(p), f.move().noPackage())
	}
	if err != nil {
		return err
	}
	r := &report.PackageInspect{Head: head("inspect"), Package: report.NewPackage(p), Disks: []report.PackageDisk{}, Findings: report.PackageFindings(p.Issues()), Flags: f.flags()}
	var bad error
	if len(p.Images()) == 0 {
		r.Verdict, r.Content = align.NothingToJudge, align.NoDisks
	}
	m := packageMachines(p, choice{boundary: f.boundary.target()}, func(d image.PackageDisk) (*source, error) { return openDisk(p, d, f.reading) })
	for _, d := range p.Images() {
		x := report.NewPackageDisk(d)
		var err error
		x.Inspect, err = f.inspectDisk(ctx, errOut, p, d, m[p.Machine(d)])
		if x.Inspect == nil {
			code, _ := classify(err)
			x.Error = &report.Error{Code: code, Message: message(err)}
		} else {
			r.ExitCode, r.Verdict = max(r.ExitCode, x.Inspect.Verdict.ExitCode()), r.Verdict.Worse(x.Inspect.Verdict)
			r.Content = r.Content.Vaguer(x.Inspect.Content)
			r.Findings = append(r.Findings, report.PackageFindings(capacityIssues(d, x.Inspect.Image.Size))...)
		}
		if bad == nil || (err != nil && errors.Is(bad, errUnknown)) {
			bad = err
		}
		r.Disks = append(r.Disks, x)
	}
	switch {
	case errors.Is(bad, errUnknown):
		r.ExitCode = exitError
	case bad != nil:
		code, exit := classify(bad)
		r.Error, r.ExitCode = &report.Error{Code: code, Message: message(bad)}, exit
		r.Verdict = ""
	}
	if r.Verdict != align.NothingToJudge {
		r.Content = ""
	}
	if err := f.emit(out, r, f.show(func(t *report.Text) { t.PackageInspect(r) })); err != nil {
		return err
	}
	if bad != nil {
		return malformed{bad, !errors.Is(bad, errUnknown)}
	}
	return exitWith(r.ExitCode)
}

// inspectDisk reports on one disk. A malformed one has a report and an error.
func (f *inspectFlags) inspectDisk(ctx context.Context, errOut io.Writer, p *image.Package, d image.PackageDisk, m *layout.Machine) (*report.Inspect, error) {
	s, err := openDisk(p, d, f.reading)
	if err != nil {
		return nil, err
	}
	defer s.close()
	s.join(m)
	r, bad, err := f.inspect(ctx, errOut, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.img.Path, err)
	}
	return r, bad
}

// capacityIssues are disks that are not as large as the envelope says. What deploys the package would cut off a larger one. Larger units
// than bytes round up.
func capacityIssues(d image.PackageDisk, size int64) (out []ondisk.Issue) {
	for _, x := range d.Disks {
		i := ondisk.Issue{
			Code: "ovf-capacity", Effect: ondisk.Warn, Remedy: "align corrects it for a disk that moves; correct it by hand for one that is aligned",
			Text: fmt.Sprintf("the OVF gives the disk %.256q a capacity of %d bytes, and %.256q has %d", x.ID, x.Capacity, d.Member, size),
		}
		switch {
		case x.Capacity < 0 || (x.Capacity >= size && x.Capacity-size < x.Unit):
			continue
		case x.Capacity > size:
			i.Remedy = "find out whether the disk was cut short or exchanged; correct the OVF by hand where it is wrong"
		}
		out = append(out, i)
	}
	return out
}

// openPackages opens two packages. When one of them is not one the error is ErrNoMatch.
func openPackages(src, dest string) (s, d *image.Package, err error) {
	if s, err = image.OpenPackage(src); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", src, err)
	}
	if d, err = image.OpenPackage(dest); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s: %w", dest, err), s.Close())
	}
	return s, d, nil
}

// verifyPackage proves that the package d is s with its disks aligned. They are opened, unless openErr says why not.
func (f *verifyFlags) verifyPackage(ctx context.Context, out, errOut io.Writer, s, d *image.Package, openErr error) error {
	if openErr != nil {
		return openErr
	}
	defer s.Close()
	defer d.Close()
	if err := errors.Join(f.spare(s, d), f.noPackage()); err != nil {
		return err
	}
	r := &report.PackageVerify{Head: head("verify"), Source: s.Path, Dest: d.Path, Package: report.NewPackage(d), Disks: []*report.Verify{}, Differences: []string{}}
	if err := f.comparePackages(ctx, errOut, s, d, r); err != nil {
		return err
	}
	r.Equal = len(r.Differences) == 0
	for _, x := range r.Disks {
		r.Equal = r.Equal && x.Equal
	}
	if !r.Equal {
		r.ExitCode = exitDiffers
	}
	if err := f.emit(out, r, func(t *report.Text) { t.PackageVerify(r) }); err != nil {
		return err
	}
	return exitWith(r.ExitCode)
}

func (f *verifyFlags) comparePackages(ctx context.Context, errOut io.Writer, s, d *image.Package, r *report.PackageVerify) error {
	f.ending.hold("") // a comparison ends soon
	bar := f.newProgress(errOut, f.progress, "verify")
	defer bar.stop()
	others, err := d.Differs(ctx, s, bar)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Path, err)
	}
	r.Differences = append(r.Differences, others...)
	theirs := map[string]image.PackageDisk{}
	for _, x := range d.Disks() {
		theirs[x.Member] = x
	}
	m := f.machines(s, theirs, d)
	for _, x := range s.Disks() {
		y, ok := theirs[x.Member]
		if !ok {
			r.Differences = append(r.Differences, fmt.Sprintf("the disk %.256q is missing", x.Member))
			continue
		}
		v, err := f.compareDisks(ctx, s, x, d, y, m.of(s.Machine(x)), bar)
		if err != nil {
			return err
		}
		r.Disks = append(r.Disks, v)
	}
	return nil
}

// machines reads where the partitions of all disks of a package went. What cannot be read is reported when the disks are compared.
func (f *verifyFlags) machines(s *image.Package, theirs map[string]image.PackageDisk, d *image.Package) machines {
	m := machines{}
	if len(theirs) < 2 {
		return m
	}
	for _, x := range s.Disks() {
		was, err := openDisk(s, x, f.reading)
		if err != nil {
			continue
		}
		is, err := openDisk(d, theirs[x.Member], reading{like: was.img.Disk.SectorSize()})
		if err == nil {
			if starts, err := verify.Starts(was.layout, is.layout); err == nil {
				m.of(s.Machine(x)).Add(was.layout, starts)
			}
			is.close()
		}
		was.close()
	}
	return m
}

// compareDisks holds one disk of the copy against that of the source.
func (f *verifyFlags) compareDisks(
	ctx context.Context, from *image.Package, x image.PackageDisk, to *image.Package, y image.PackageDisk, m *layout.Machine, bar progress,
) (*report.Verify, error) {
	s, err := openDisk(from, x, f.reading)
	if err != nil {
		return nil, err
	}
	defer s.close()
	d, err := openDisk(to, y, reading{like: s.img.Disk.SectorSize()})
	if err != nil {
		return nil, err
	}
	defer d.close()
	r := newVerifyReport(s.img.Path, d.img.Path)
	diffs, err := f.compare(ctx, s, d, r, m, bar)
	if err != nil {
		return nil, err
	}
	for _, o := range y.Disks {
		size := d.img.Disk.Size()
		// What is copied as it is keeps its description.
		carried := size == s.img.Disk.Size() && len(r.Moves) == 0 &&
			slices.ContainsFunc(x.Disks, func(w ovf.Disk) bool { return w.ID == o.ID && w.Capacity == o.Capacity })
		if o.Capacity >= 0 && o.Capacity < size && !carried {
			diffs = append(diffs, verify.Difference{Text: fmt.Sprintf("the OVF gives the disk a capacity of %d bytes, and it has %d", o.Capacity, size)})
		}
	}
	settleVerify(r, diffs, d.layout)
	return r, nil
}

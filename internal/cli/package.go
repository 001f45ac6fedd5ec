package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// copyPackage writes a package with every disk as planned, and everything else unchanged.
func (f *copyFlags) copyPackage(
	ctx context.Context, out, errOut io.Writer, source, dest string, m *making,
) error {
	if err := f.NoPackage(); err != nil {
		return err
	}
	src, err := realign.OpenPackage(source)
	if errors.Is(err, ondisk.ErrNoMatch) {
		return notAPackage(source, dest)
	}
	if err != nil {
		return err
	}
	defer src.Close()
	if err := errors.Join(f.Spare(src), f.spareSums(src)); err != nil {
		return err
	}
	goal := f.Goal
	if goal.Copy {
		goal.Flatten = false // a package keeps its snapshots
	}
	p, err := realign.PlanPackage(src, f.Knowing(f.Reading), goal)
	if err != nil {
		return err
	}
	defer p.Close()
	r := report.NewPackageAlign(Head(f.command), p, dest, f.proof())
	if !p.Idle() || !f.skipAligned {
		if err := f.writePackage(ctx, errOut, p, r, m); err != nil {
			return err
		}
	}
	err = f.Emit(out, r, func(t *report.Text) { t.PackageAlign(r) })
	if err != nil && r.Written {
		return fmt.Errorf("%w; %s itself is complete and verified", err, r.Dest)
	}
	return err
}

// writePackage writes and proves the package, and enters what was written in r.
func (f *copyFlags) writePackage(
	ctx context.Context, errOut io.Writer, p *realign.Package, r *report.PackageAlign, m *making,
) error {
	j, end := f.jobOf(errOut, r.Dest)
	m.job(j)
	w, err := j.WritePackage(ctx, p)
	end()
	var replaced *report.Replaced
	if err == nil && m.after != nil {
		replaced, err = m.after(w.Written)
	}
	if err == nil {
		err = f.writeSums(r.Dest, w.Written)
	}
	if err != nil {
		return err
	}
	r.Wrote(p, w, f.verify)
	r.ReplacedBy(replaced)
	return nil
}

// notAPackage returns the error of a source that should be a package. A file that cannot be opened has its own.
func notAPackage(source, dest string) error {
	s, err := OpenSource(source, realign.Reading{
		Unpacking: realign.Unpacking{Wanted: "a copy that is a package"},
	})
	if err != nil {
		return err
	}
	s.Close()
	return Usage("DEST %s is a package, and SOURCE %s is one disk; name a package, or a disk as DEST",
		dest, source)
}

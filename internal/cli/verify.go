package cli

import (
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

type verifyFlags struct {
	*Base
	jobs       int
	bitmap     string // of DEST, with the writes of a guest
	destOffset int64  // of the disk in DEST, a raw file
	Move              // of the align run of DEST, for the disks of --with
}

// newVerify returns the command verify.
func newVerify(c *Base) *cobra.Command {
	f := &verifyFlags{Base: c, jobs: defaultJobs}
	cmd := newCommand("verify SOURCE DEST", "Prove that DEST is SOURCE, aligned", f.run)
	f.Add(cmd)
	addFlags(cmd,
		"offset", realign.Offset(&f.Offset), "dest-offset", realign.Offset(&f.destOffset),
		"to-sector-size", realign.SectorSize(&f.Sectors), "require-sandbox", &f.RequireSandbox,
		"spool", &f.unpacking.Spool, "except-bitmap", &f.bitmap, "jobs", &f.jobs, "progress", &f.progress,
	)
	return cmd
}

func (f *verifyFlags) run(ctx context.Context, out, errOut io.Writer, args []string) error {
	src, dest := args[0], args[1]
	if src == dest || store.SameFile(src, dest) {
		return Usage("SOURCE %s and DEST %s are the same file; name two", src,
			dest)
	}
	if err := f.Confine(ctx, errOut, f.Reads(src, dest), nil); err != nil {
		return err
	}
	if isPackage, err := f.verifyPackages(ctx, out, errOut, src, dest); isPackage {
		return err
	}
	s, d, err := f.both(src, dest)
	if err != nil {
		return err
	}
	defer s.Close()
	defer d.Close()
	o, err := f.OpenOthers(f.Base, s, "")
	if err != nil {
		return err
	}
	defer o.Close()
	m, err := o.Elsewhere(s, d, f.Goal)
	if err != nil {
		return err
	}
	var guest *realign.Guest
	if f.bitmap != "" {
		if guest, err = d.ReadGuest(f.bitmap); err != nil {
			return err
		}
		if guest.Plan, err = f.accepted(f.Base, s, "", making{}); err != nil {
			return err
		}
	}
	j, end := f.job(errOut)
	j.Guest = guest
	p, diffs, err := j.Verify(ctx, s, d, m)
	end()
	if err != nil {
		return err
	}
	src, dest = realign.Shown(src), realign.Shown(dest)
	r := report.NewVerify(Head("verify"), src, dest, nil)
	r.Add(realign.DiskVerified{Source: src, Dest: dest, Plan: p, Layout: d.Layout, Differences: diffs, Guest: guest})
	if err := f.Emit(out, r, func(t *report.Text) { t.Verify(r) }); err != nil {
		return err
	}
	return ExitWith(r.ExitCode)
}

// job returns the job of a comparison and a function to end its progress. From now on the run handles interrupts
// itself, without delay.
func (f *verifyFlags) job(errOut io.Writer) (j *realign.Job, end func()) {
	f.Ending.Hold("")
	p, end := f.Watched(errOut, "verify", false)
	return &realign.Job{Jobs: f.jobs, SkipFree: f.SkipFree, Progress: p}, end
}

// both opens the two disks. The caller closes them.
func (f *verifyFlags) both(src, dest string) (s, d *realign.Source, err error) {
	if s, err = f.OpenSource(src, f.Reading); err != nil {
		return nil, nil, err
	}
	like := cmp.Or(f.Sectors, s.Image.Disk.SectorSize())
	at := realign.Reading{Like: like, Offset: f.destOffset}
	if f.destOffset != 0 && realign.IsDevice(dest) {
		at.Size = s.Image.Disk.Size() // the device can be larger
	}
	d, err = f.OpenSource(dest, at)
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	if err := f.Spare(s.Image, d.Image); err != nil {
		d.Close()
		s.Close()
		return nil, nil, err
	}
	return s, d, nil
}

// verifyPackages verifies that the package at dest is the package at src with aligned disks. It reports whether they
// are packages.
func (f *verifyFlags) verifyPackages(
	ctx context.Context, out, errOut io.Writer, src, dest string,
) (isPackage bool, err error) {
	s, d, err := realign.OpenPackages(src, dest)
	if err != nil {
		return !errors.Is(err, ondisk.ErrNoMatch), err
	}
	defer s.Close()
	defer d.Close()
	if f.bitmap != "" {
		return true, Usage("--except-bitmap is for a qcow2, and DEST is a package")
	}
	if err := errors.Join(f.Spare(s, d), f.NoPackage()); err != nil {
		return true, err
	}
	r := report.NewVerify(Head("verify"), s.Path, d.Path, d)
	j, end := f.job(errOut)
	others, err := j.VerifyPackages(ctx, s, d, f.Reading, r.Add)
	end()
	if err != nil {
		return true, err
	}
	r.AddDifferences(others)
	if err := f.Emit(out, r, func(t *report.Text) { t.Verify(r) }); err != nil {
		return true, err
	}
	return true, ExitWith(r.ExitCode)
}

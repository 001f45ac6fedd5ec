package realign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

// finished is a copy that is complete, in one file beside its source, as the output of an exchange.
type finished struct {
	final, name string
	file        *os.File
}

// EachFile passes the file.
func (f finished) EachFile(each func(final, partial string, f *sys.File) error) error {
	return each(f.final, f.name, sys.Of(f.file))
}

// Release closes the file, and leaves it as it is.
func (f finished) Release() error { return f.file.Close() }

// Exchange gives made, a copy of s that stands beside it, the names of s, once it is shown to be the planned disk: in
// every byte, or with less than j.Full by its structures, and then it must be younger than s. It closes made.
func (j *Job) Exchange(ctx context.Context, s, made *Source, p *plan.Plan) (w Written, err error) {
	start := time.Now()
	from, err := j.fits(s, made)
	if err != nil {
		return w, errors.Join(err, made.Image.Close())
	}
	j.begun()
	if err := errors.Join(j.provesCopy(ctx, s, made, p), made.Image.Close()); err != nil {
		return w, err
	}
	copied := made.Image.Handles[0]
	opened, err := s.Image.Dir.At.OpenToWrite(copied.Name())
	if err != nil {
		return w, fmt.Errorf("%s: %w", made.Path(), err)
	}
	file := opened.Handed(copied.Name())
	defer file.Close() // for the second time, where names have changed
	now, err := sys.Of(file).Stat()
	switch {
	case err != nil:
		return w, fmt.Errorf("%s: %w", made.Path(), err)
	case !now.Same(copied.Info) || now.Size != copied.Info.Size || now.Modified != copied.Info.Modified:
		return w, fmt.Errorf("%s: %w while it was compared; end what writes to it, and run again", made.Path(),
			ondisk.ErrChanged)
	}
	o := finished{final: s.Image.Base, name: copied.Name(), file: file}
	if err := errors.Join(file.Sync(), s.unchanged(), ctx.Err()); err != nil {
		return w, err
	}
	if err := from.Prepare(o); err != nil {
		return w, err
	}
	if w.Replaced, err = from.Publish(o); err != nil {
		return w, err
	}
	w.Format, w.Subformat, w.Files, w.Took = s.Image.Format, s.Image.Subformat, []string{o.final}, Since(start)
	w.Notes = slices.Concat(w.Replaced.Notes, outside(p),
		s.elsewhere("exchange", "trueup undo brings the original back"))
	return w, nil
}

// fits prepares the exchange of a disk for a copy that is there, and refuses one that cannot get its name.
func (j *Job) fits(s, made *Source) (*exchange.Source, error) {
	refuse := func(reason string) error {
		return &ondisk.Refusal{
			Code: "unsupported", Reason: made.Path() + ": " + reason,
			Remedy: "have replace write its own copy: leave out --by",
		}
	}
	for _, x := range []*Source{s, made} {
		if len(x.Image.Handles) != 1 {
			return nil, refuse("only disks in one file are exchanged for a copy that is there")
		}
		if err := j.Looped.apart(x.Image.Handles[0].Info.ID, x.Image.Handles[0].Name()); err != nil {
			return nil, err
		}
	}
	old, copied := s.Image.Handles[0], made.Image.Handles[0]
	switch here, err := s.Image.Dir.At.Lstat(copied.Name()); {
	case err != nil || !here.Same(copied.Info) || !here.Mode.IsRegular():
		return nil, refuse("it is no file in the folder of the disk")
	case copied.Info.Same(old.Info):
		return nil, ondisk.In(ondisk.ErrUsage, "%s is the disk itself; name its copy", made.Path())
	case copied.Info.Links > 1:
		return nil, refuse("its file has several names, and the others would stay the new disk")
	case made.Image.Format != s.Image.Format || made.Image.Subformat != s.Image.Subformat:
		return nil, refuse(fmt.Sprintf("it is %s %s, and the disk is %s %s", made.Image.Format, made.Image.Subformat,
			s.Image.Format, s.Image.Subformat))
	case !j.Full && copied.Info.Modified < old.Info.Modified:
		return nil, &ondisk.Refusal{
			Code: "changed", Reason: made.Path() + ": the disk was written after this copy of it",
			Remedy: "make the copy anew; or compare every byte, with --verify full",
		}
	}
	as, err := made.Plan(Goal{Copy: true})
	if err == nil {
		err = Acceptable(as, Goal{})
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", made.Path(), err)
	}
	return exchange.New(s.Image)
}

// provesCopy returns the error of a copy that is not the planned disk.
func (j *Job) provesCopy(ctx context.Context, s, made *Source, p *plan.Plan) error {
	view, err := s.View(p)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Path(), err)
	}
	release, err := s.Image.Hold()
	if err != nil {
		return fmt.Errorf("%s: %w", s.Path(), err)
	}
	defer release()
	j.watch()
	err = intact(made.Image)
	if err == nil {
		err = verify.Promise(p, s.Layout, made.Layout)
	}
	if err == nil && j.Full {
		diffs, bad := j.same(ctx, view, made.Image.Disk)
		if err = bad; err == nil && len(diffs) > 0 {
			err = fmt.Errorf("%w at byte %d (%s)", verify.ErrDifferent, diffs[0].Off, diffs[0].Text)
		}
	}
	if err == nil && j.Ask != nil {
		err = j.Ask(ctx)
	}
	switch {
	case errors.Is(err, verify.ErrDifferent):
		return &ondisk.Refusal{
			Code: "changed", Reason: fmt.Sprintf("%s is not the aligned copy of %s: %v", made.Path(), s.Path(), err),
			Remedy: "make it anew; where align had flags such as --boundary or --with, give them here too",
		}
	case err != nil:
		return fmt.Errorf("%s: %w", made.Path(), err)
	}
	return made.unchanged()
}

package realign

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/inplace"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

// replacing is a copy that gets the names of its source instead of names of its own.
type replacing struct {
	exchanged
	from *exchange.Source
	done *exchange.Result
}

// exchanged is a copy that can get the names of its source.
type exchanged interface {
	output
	exchange.Output
}

// newReplacing checks that the files of a disk can be exchanged.
func (j *Job) newReplacing(img *image.Image) (*replacing, error) {
	for _, f := range img.Handles {
		if err := j.Looped.apart(f.Info.ID, f.Name()); err != nil {
			return nil, err
		}
	}
	from, err := exchange.New(img)
	return &replacing{from: from}, err
}

// newReplacingPackage checks that the files of a package can be exchanged.
func (j *Job) newReplacingPackage(p *ova.Package) (*replacing, error) {
	for _, f := range p.Opened().Handles {
		if err := j.Looped.apart(f.Info.ID, f.Name()); err != nil {
			return nil, err
		}
	}
	from, err := exchange.NewPackage(p)
	return &replacing{from: from}, err
}

// prepare prepares the files of a copy, which are empty. Without an exchange, the copy stays as it is.
func (r *replacing) prepare(o exchanged) (output, error) {
	if r == nil {
		return o, nil
	}
	if err := r.from.Prepare(o); err != nil {
		return nil, errors.Join(err, o.Discard())
	}
	r.exchanged = o
	return r, nil
}

// Publish gives the copy the names of the source.
func (r *replacing) Publish() (err error) {
	r.done, err = r.from.Publish(r.exchanged)
	return err
}

// enter enters in w what was exchanged.
func (r *replacing) enter(w *Written) {
	w.Replaced, w.Notes = r.done, append(w.Notes, r.done.Notes...)
}

// undoes is the way back from an exchange.
const undoes = "trueup undo brings the original back"

// replaceBy gives a finished copy the names of SOURCE, when it is proved to be what the plan makes of that.
func (j *Job) replaceBy(ctx context.Context, s *Source, p *plan.Plan, view disk.Disk) (w Written, err error) {
	start := time.Now()
	from, err := exchange.New(s.Image)
	if err != nil {
		return w, err
	}
	by, err := Open(j.By, Reading{Format: s.Image.Format, Like: s.Image.Disk.SectorSize()})
	if err != nil {
		return w, err
	}
	defer by.Close()
	for _, f := range slices.Concat(s.Image.Handles, by.Image.Handles) {
		if err := j.Looped.apart(f.Info.ID, f.Name()); err != nil {
			return w, err
		}
	}
	allowed, err := s.reading.Options()
	if err != nil {
		return w, err
	}
	c, err := from.Take(by.Image, !j.Full, j.Writers, allowed.Search)
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, c.Discard()) }()
	j.watch()
	err = j.proved(ctx, s, p, view, by)
	if err == nil {
		err = cmp.Or(s.unchanged(), by.unchanged(), ctx.Err())
	}
	if err == nil {
		err = c.Begin()
	}
	if err == nil {
		err = from.Prepare(c)
	}
	w = Written{Format: by.Image.Format, Subformat: by.Image.Subformat, Files: c.Files()}
	if err == nil {
		w.Replaced, err = from.Publish(c)
	}
	if err != nil {
		return w, err
	}
	w.Took = Since(start)
	w.Notes = slices.Concat(w.Replaced.Notes, outside(p), s.elsewhere("exchange", undoes))
	return w, nil
}

// proved refuses a copy that is not what the plan makes of s: in its size, its structures and all fields that the plan
// changes, and in every byte where all are compared.
func (j *Job) proved(ctx context.Context, s *Source, p *plan.Plan, view disk.Disk, by *Source) error {
	if err := Broken(align.Relevant(by.Damage, nil)); err != nil {
		return err
	}
	got := by.Image.Disk
	err := cmp.Or(intact(by.Image), verify.Promise(p, s.Layout, by.Layout))
	if err == nil && got.Size() != view.Size() {
		err = fmt.Errorf("%w: it has %d bytes, want %d", verify.ErrDifferent, got.Size(), view.Size())
	}
	var diffs []Difference
	switch {
	case err != nil:
	case j.Full:
		diffs, err = j.same(ctx, view, got)
	default:
		diffs, err = unpatched(p, got)
	}
	if len(diffs) > 0 {
		err = fmt.Errorf("%w: %s", verify.ErrDifferent, diffs[0].Text)
	}
	if errors.Is(err, verify.ErrDifferent) {
		return &ondisk.Refusal{
			Code: "changed", Reason: fmt.Sprintf("COPY %s is not what these flags make of %s: %v", j.By, s.Path(), err),
			Remedy: "give the flags that it was written with, or write it anew",
		}
	}
	return err
}

// unpatched returns the first field that the plan changes and that a copy has with another value.
func unpatched(p *plan.Plan, got disk.Disk) ([]Difference, error) {
	for _, x := range p.Patches {
		b, err := ondisk.Bytes(got, x.Off, int64(len(x.New)))
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(b, x.New) {
			text := fmt.Sprintf("byte %d has % x, want % x (%s)", x.Off, b, x.New, x.Reason)
			return []Difference{{Range: x.Range(), Text: text}}, nil
		}
	}
	return nil, nil
}

// apart refuses the exchange of a file that a loop device shows: that would go on with the original.
func (l Loops) apart(id sys.ID, name string) error {
	if loop := l[id]; loop != "" {
		return inplace.Shown(name, loop)
	}
	return nil
}

// elsewhere warns of overlays that no look at the folder of the disk finds: the backing file of an image is a path, and
// the disk does not know who names it.
func (s *Source) elsewhere(work, back string) []ondisk.Issue {
	if s.Image.Packaged() {
		return nil
	}
	seen := "its folder and below"
	if len(s.reading.Allow) > 0 {
		seen += ", and in those of --allow-folder,"
	}
	return []ondisk.Issue{{
		Code: "overlays-elsewhere", Effect: ondisk.Warn,
		Text: fmt.Sprintf("overlays of it (linked clones, snapshots) are looked for in %s only: one in another folder "+
			"would mix the old layout with the new one after the %s", seen, work),
		Remedy: fmt.Sprintf("before a machine starts, find them: trueup plan --allow-folder DIR %s refuses with the "+
			"names of those in DIR and below; %s", shell.Quote(s.Path()), back),
	}}
}

// outside returns what has to follow an exchange in other files than those of the disk.
func outside(p *plan.Plan) []ondisk.Issue {
	if p.Size == p.OldSize {
		return nil
	}
	return []ondisk.Issue{{
		Code: "outside-size", Effect: ondisk.Warn,
		Text: fmt.Sprintf("the disk has %d bytes now, and had %d", p.Size, p.OldSize),
		Remedy: "enter the new size where another file has the old one: the volume's definition of the storage pool, " +
			"the OVF, the inventory of the hypervisor",
	}}
}

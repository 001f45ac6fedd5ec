package realign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

// readAgain reports whether the proof of a copy reads the source a second time. Digests of what was read while it was
// copied do, where the files of a source would show that others have written to them; a device does not, nor does NBD.
func (s *Source) readAgain() bool { return s.Image.Unseen() }

// otherBytes returns the error of a source that gave other bytes at a second reading, which found names.
func (s *Source) otherBytes(found string) error {
	remedy := "end what writes to the device"
	if IsRemote(s.Path()) {
		remedy = "end what writes to the export, or have the server export a snapshot"
	}
	return fmt.Errorf("%s: the disk %w: a second reading gave other bytes (%s); %s, and run again", s.Path(),
		ondisk.ErrChanged, found, remedy)
}

// pass keeps a large copy, which reads and writes need bytes, from pushing all else out of the machine's memory: more
// than half of that it does not take. Its proof then reads DEST from the storage.
func (j *Job) pass(s *Source, o target, need int64) {
	j.passes = 2*need > cmp.Or(j.memory, sys.Memory(), math.MaxInt64)/2
	if !j.passes {
		return
	}
	s.Image.Pass()
	if out, ok := o.(*store.Output); ok {
		out.Pass()
	}
}

// reread opens what was written a second time, checks its tables, and has it proved.
func (j *Job) reread(o target, prove func(got *image.Image) error) error {
	got, err := o.Reopen()
	if err != nil {
		return readBack(err)
	}
	defer got.Close()
	if j.passes {
		got.Uncache()
		got.Pass()
	}
	if err := intact(got); err != nil {
		return err
	}
	return prove(got)
}

// prove checks the result: its structures always, every byte unless the user does without. want is the digest of the
// bytes that were written; without it, the view is read again. A source that hides changes is always read again, and
// the digest then says whether the source or the copy changed.
func (j *Job) prove(
	ctx context.Context, s *Source, p *plan.Plan, view disk.Disk, got *image.Image, want *diskcopy.Sum,
) error {
	after, err := layout.Read(got.Disk, s.geometry())
	if err != nil {
		return readBack(err)
	}
	if err := verify.Promise(p, s.Layout, after); err != nil || !j.Full {
		return err
	}
	copied := got.Disk
	if want != nil && copied.Size() == view.Size() && !s.readAgain() {
		sum, err := j.digest(ctx, j.rest(copied))
		if err != nil {
			return err
		}
		if sum == *want {
			left := j.unproved(copied)
			if len(left) == 0 {
				return nil
			}
			view, copied, want = only(view, left), only(copied, left), nil
		}
	}
	diffs, err := j.same(ctx, view, copied) // finds the byte
	if err == nil && want != nil && s.readAgain() {
		return j.blame(ctx, s, copied, *want, diffs)
	}
	switch {
	case err != nil:
		return err
	case len(diffs) > 0:
		return fmt.Errorf("%w from what was planned at byte %d (%s): %w", verify.ErrDifferent, diffs[0].Off,
			diffs[0].Text, errFaulty)
	case want != nil:
		return fmt.Errorf("%w: SOURCE or the copy gave other bytes when it was read again: %w", verify.ErrDifferent,
			errFaulty)
	}
	return nil
}

// blame returns nil without differences, and otherwise the error of the disk that changed: the copy, if it has not the
// digest of the bytes that were written, or the source.
func (j *Job) blame(ctx context.Context, s *Source, copied disk.Disk, want diskcopy.Sum, diffs []Difference) error {
	if len(diffs) == 0 {
		return nil
	}
	sum, err := j.digest(ctx, j.rest(copied))
	switch {
	case err != nil:
		return err
	case sum == want:
		return s.otherBytes("the copy has the first ones: " + diffs[0].Text)
	}
	return fmt.Errorf("%w from what was written, at byte %d (%s): %w", verify.ErrDifferent, diffs[0].Off,
		diffs[0].Text, errFaulty)
}

// errFaulty names the cause of bytes that are not what was written.
var errFaulty = errors.New("the storage or memory of this machine is at fault; nothing was published")

// digest reads every byte of a disk.
func (j *Job) digest(ctx context.Context, d disk.Disk) (diskcopy.Sum, error) {
	if err := j.begin(ctx, diskcopy.PhaseProve, 0, d); err != nil {
		return diskcopy.Sum{}, err
	}
	return diskcopy.Digest(ctx, d, diskcopy.Options{Jobs: j.Jobs, Progress: j.add})
}

// same compares every byte of two disks.
func (j *Job) same(ctx context.Context, want, got disk.Disk) ([]verify.Difference, error) {
	if want.Size() == got.Size() {
		if err := j.begin(ctx, diskcopy.PhaseProve, 0, want, got); err != nil {
			return nil, err
		}
	}
	return verify.Same(ctx, want, got, verify.Options{Jobs: j.Jobs, Progress: j.add})
}

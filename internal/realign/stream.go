package realign

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/verify"
)

// WriteStream makes DEST of an image that comes through a pipe, as a disk whose size size computes from its own.
// Nothing of it can be looked at before it is copied, and nothing read again: the proof compares digests. When ctx
// ends, a read from in must end too.
func (j *Job) WriteStream(
	ctx context.Context, in io.Reader, r Reading, size func(int64) int64,
) (p *plan.Plan, w Written, err error) {
	o, err := r.Options()
	if err != nil {
		return nil, w, err
	}
	s, err := image.OpenStream(in, o.Format)
	if err == nil {
		err = r.agrees(s.Image)
	}
	if err != nil {
		return nil, w, streamError(ctx, fmt.Errorf("standard input: %w", err))
	}
	p = plan.Copy(s.Disk.Size())
	p.Size = size(p.Size)
	create := func() (*store.Output, error) {
		return store.Create(j.Dest, p.Size, s.Image, store.CreateOptions{
			Format: j.Format, Subformat: j.Subformat, Force: j.Force, Seed: streamSeed(p.Size), BIOS: s.BIOS,
		})
	}
	w, err = publish(ctx, j, time.Now(), create, nil, func(o *store.Output, w *Written) (err error) {
		w.Format, w.Subformat = o.Format, o.Subformat
		w.Copied, err = j.fillStream(ctx, s, p.Size, o)
		return err
	})
	return p, w, err
}

// fillStream writes what comes through the pipe and proves it through a second opening.
func (j *Job) fillStream(ctx context.Context, s *image.Stream, size int64, o *store.Output) (copied int64, err error) {
	j.watch()
	if j.progress != nil {
		j.progress.Begin(diskcopy.PhaseCopy, size)
	}
	work := diskcopy.Options{Jobs: j.Jobs, Progress: j.add, Pack: o.Pack()}
	want, copied, err := diskcopy.Pipe(ctx, named(s.Next), size, o, work)
	if err == nil {
		err = j.finish(o, copied)
	}
	if err != nil {
		return copied, streamError(ctx, err)
	}
	return copied, j.reread(o, func(got *image.Image) error {
		if err := copyHoldsSectors(got); err != nil || !j.Full {
			return err
		}
		sum, err := j.digest(ctx, got.Disk)
		if err == nil && sum != want {
			err = fmt.Errorf("%w from what came through the pipe: %w", verify.ErrDifferent, errFaulty)
		}
		return err
	})
}

// named says about an error of the stream where that came from.
func named(next func() (int64, []byte, error)) func() (int64, []byte, error) {
	return func() (int64, []byte, error) {
		off, p, err := next()
		if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("standard input: %w", err)
		}
		return off, p, err
	}
}

// streamError returns what ended a copy from a pipe: an interruption looks like a pipe that ends.
func streamError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// streamSeed returns what identifiers of the copy are derived from, beside what the stream states about itself.
func streamSeed(size int64) []byte {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, ondisk.U64(size)))
	return sum[:]
}

package cli

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/verify"
)

// runStream converts an image that comes through standard input. Nothing of it can be looked at before it is copied, and
// nothing read again: the proof compares digests.
func runStream(ctx context.Context, out, errOut io.Writer, f *copyFlags, read reading, dest string) error {
	if err := f.spare(); err != nil {
		return err
	}
	o, err := read.options()
	if err != nil {
		return err
	}
	in, stop := interruptible(ctx, os.Stdin)
	defer stop()
	s, err := image.OpenStream(in, o.Format)
	if err == nil {
		err = read.agrees(s.Image)
	}
	if err != nil {
		return streamError(ctx, fmt.Errorf("standard input: %w", err))
	}
	p := plan.Copy(s.Disk.Size())
	p.Size = f.to.size(p.Size)
	r := &report.Align{
		Head: head("convert"), Source: "-", Dest: dest, Changes: report.NewChanges(p), Findings: notRefused(nil, nil), Files: []string{},
	}
	w, err := f.writeStream(ctx, errOut, s, p.Size, dest)
	if err != nil {
		return err
	}
	return f.finish(out, r, w)
}

// interruptible reads from r until the run is interrupted. A read of standard input that waits for another program cannot be ended,
// so it is left behind.
func interruptible(ctx context.Context, r io.Reader) (io.Reader, func() bool) {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, r)
		in.CloseWithError(err) // io.EOF when it is nil
	}()
	return out, context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
}

// writeStream makes DEST: absent or complete, whatever happens in between.
func (c *copyFlags) writeStream(ctx context.Context, errOut io.Writer, s *image.Stream, size int64, dest string) (w written, err error) {
	start := time.Now()
	c.ending.hold(removing)
	o, err := image.Create(dest, size, s.Image, image.CreateOptions{
		Format: c.to.format, Subformat: c.to.subformat, Force: c.force, Seed: streamSeed(size),
	})
	if err != nil {
		return w, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Discard())
		}
	}()
	w = written{format: o.Format, subformat: o.Subformat, files: o.Files(), notes: o.Notes}
	if err := c.spareFiles(dest, w.files); err != nil {
		return w, err
	}
	bar := c.newProgress(errOut, c.progress, c.command)
	defer bar.stop()
	bar.Begin(image.PhaseCopy, size)
	work := diskcopy.Options{Jobs: c.jobs, Progress: bar.Add, Pack: o.Pack()}
	sum, copied, err := diskcopy.Pipe(ctx, named(s.Next), size, o, work)
	if err == nil {
		err = o.Finish()
	}
	if err != nil {
		return w, streamError(ctx, err)
	}
	if err := c.proveStream(ctx, o, sum, work, bar); err != nil {
		return w, err
	}
	if err := ctx.Err(); err != nil {
		return w, err
	}
	err = o.Publish()
	w.copied, w.took = copied, since(start)
	return w, err
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

// streamError is what ended a copy from a pipe: an interruption looks like a pipe that ends.
func streamError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// proveStream reads the result through a second opening.
func (c *copyFlags) proveStream(ctx context.Context, o *image.Output, want diskcopy.Sum, work diskcopy.Options, bar progress) error {
	got, err := o.Reopen()
	if err != nil {
		return readBack(err)
	}
	defer got.Close()
	if err := intact(got); err != nil || c.verify != "full" {
		return err
	}
	if err := begin(ctx, bar, image.PhaseCompare, got.Disk); err != nil {
		return err
	}
	work.Pack = nil
	sum, err := diskcopy.Digest(ctx, got.Disk, work)
	if err == nil && sum != want {
		err = fmt.Errorf("%w from what came through the pipe: the storage or memory of this machine is at fault; nothing was published", verify.ErrDifferent)
	}
	return err
}

// streamSeed is what identifiers of the copy are derived from, beside what the stream says about itself.
func streamSeed(size int64) []byte {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, ondisk.U64(size)))
	return sum[:]
}

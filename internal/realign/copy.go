package realign

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// room refuses a copy that cannot fit, before the first byte, and returns the number of bytes that it needs. What the
// source has allocated is a quick estimate; only if that is too much are the zeros in it looked for.
func (j *Job) room(ctx context.Context, s *Source, view disk.Disk, o target) (need int64, err error) {
	free := o.Room()
	if need, err = disk.Stored(view); err != nil || withTables(need) <= free {
		return withTables(need), err
	}
	if o.Pack() != nil {
		need = s.packed(need)
		if need > free && j.Warn != nil {
			j.Warn(fmt.Sprintf("the copy is compressed and may need up to %s (%d bytes), and %s (%d bytes) are free "+
				"where DEST goes; trying all the same",
				units.Format(need), need, units.Format(free), free))
		}
		return need, nil
	}
	n := &counter{unit: o.Unit()}
	if _, err := diskcopy.Run(ctx, view, n, diskcopy.Options{Jobs: j.Jobs}); err != nil {
		return 0, err
	}
	if need = withTables(n.bytes); need > free {
		return 0, ondisk.In(ondisk.ErrOutput, "the copy needs %s (%d bytes) and %s (%d bytes) are free where DEST "+
			"goes; make room or choose another place", units.Format(need), need, units.Format(free), free)
	}
	return need, nil
}

// Cost is what a copy will read and write, in bytes.
type Cost struct {
	Read  int64 // of SOURCE, for the copy and, where it is a device, again to compare
	Write int64 // at DEST, and read back; fewer if there are zeros among the data
	Need  int64 // space at DEST
}

// Cost computes what a copy by a plan will read and write.
func (s *Source) Cost(p *plan.Plan) (c Cost, err error) {
	if c.Read, err = disk.Stored(p.Unused.View(s.Image.Disk)); err != nil {
		return c, err
	}
	if c.Write, err = disk.Stored(p.View(s.Image.Disk)); err != nil {
		return c, err
	}
	c.Need = withTables(c.Write)
	if s.readAgain() {
		c.Read *= 2
	}
	return c, nil
}

// packed estimates how much of so many bytes of data a compressed copy takes: what the image itself stores, where that
// is less. How much smaller data become is known only when they are compressed.
func (s *Source) packed(data int64) int64 {
	var stored int64
	for _, f := range s.Image.Files() {
		stored += f.Size
	}
	return withTables(min(data, stored))
}

// withTables adds one percent for the tables of the container and of the file system.
func withTables(n int64) int64 { return n + n/100 }

// counter is a target that only counts what it would allocate.
type counter struct{ unit, bytes int64 }

func (c *counter) Unit() int64                            { return c.unit }
func (c *counter) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (c *counter) Reserve(_, n int64) error {
	c.bytes += units.AlignUp(n, c.unit)
	return nil
}

// full says how much is missing when the space ran out under way: others write to the same file system.
func full(err error, need int64, room func() (free int64, err error)) error {
	if !sys.Full(err) {
		return err
	}
	free, freeErr := room()
	if freeErr != nil || free == store.UnknownRoom {
		return err
	}
	return fmt.Errorf("%w; the copy needs %s (%d bytes) and %s (%d bytes) are free beside what it has written",
		err, units.Format(need), need, units.Format(free), free)
}

// only returns a disk that has the bytes of d in ranges, and zeros elsewhere.
func only(d disk.Disk, ranges []disk.Range) disk.Disk {
	own := make([]disk.Piece, 0, len(ranges))
	for _, r := range ranges {
		own = append(own, disk.Piece{Range: r, Src: d, At: r.Off})
	}
	return disk.New(d.Size(), d.SectorSize(), disk.Pieces(d.Size(), own, nil))
}

// Since returns how many seconds have gone by, in tenths.
func Since(start time.Time) float64 { return math.Round(10*time.Since(start).Seconds()) / 10 }

// Progress receives how far the work is, phase by phase.
type Progress = diskcopy.Progress

// watch returns the progress of long work, which begins with the first call.
func (j *Job) watch() Progress {
	if j.progress == nil && j.Watch != nil {
		j.progress = j.Watch()
	}
	j.progress = cmp.Or(j.progress, Progress(diskcopy.Unwatched{}))
	return j.progress
}

// finish completes the files and flushes so many bytes. How far that is, no system says.
func (j *Job) finish(o target, copied int64) error {
	j.watch().Begin(diskcopy.PhaseFlush, copied)
	err := o.Finish()
	if err == nil {
		j.watch().Add(copied)
	}
	return err
}

// Written is the result of a Job.
type Written struct {
	Format, Subformat string
	Files             []string // names, the one named DEST first
	Sums              []store.Sum
	Copied            int64   // bytes of data
	Took              float64 // seconds
	Notes             []ondisk.Issue
	Replaced          *exchange.Result // where the copy has the names of SOURCE
}

// begun calls Begin, once.
func (j *Job) begun() {
	if j.Begin != nil {
		j.Begin()
		j.Begin = nil
	}
}

// WriteStream makes DEST of an image that comes through a pipe, as a disk whose size size computes from its own.
// Nothing of it can be looked at before it is copied, and nothing read again: the proof compares digests. When ctx
// ends, a read from in must end too.
func (j *Job) WriteStream(
	ctx context.Context, in io.Reader, r Reading, size func(int64) int64, to File,
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
	start := time.Now()
	var out *store.Output
	create := func() (_ output, err error) {
		out, err = store.Create(to.Path, p.Size, s.Image, store.CreateOptions{
			Format: to.Format, Subformat: to.Subformat, Force: to.Force, Seed: streamSeed(p.Size), BIOS: s.BIOS,
		})
		return out, err
	}
	w, err = j.publish(ctx, create, nil, func(w *Written) (err error) {
		w.Format, w.Subformat = out.Format, out.Subformat
		w.Copied, err = j.fillStream(ctx, s, p.Size, out)
		return err
	})
	w.Took = Since(start)
	return p, w, err
}

// fillStream writes what comes through the pipe and proves it through a second opening.
func (j *Job) fillStream(ctx context.Context, s *image.Stream, size int64, o *store.Output) (copied int64, err error) {
	j.watch().Begin(diskcopy.PhaseCopy, size)
	work := diskcopy.Options{Jobs: j.Jobs, Progress: j.watch().Add, Pack: o.Pack()}
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

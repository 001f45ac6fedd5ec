package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

// fill writes the bytes of the view, proves them through a second opening, and returns how many there are beside zeros.
func (c *copyFlags) fill(ctx context.Context, errOut io.Writer, s *source, p *plan.Plan, view disk.Disk, o *image.Output) (copied int64, err error) {
	need, err := c.room(ctx, errOut, s, view, o)
	if err != nil {
		return 0, err
	}
	bar := c.bar(errOut)
	defer bar.stop()
	if err := begin(ctx, bar, image.PhaseCopy, view); err != nil {
		return 0, err
	}
	copied, err = diskcopy.Run(ctx, view, o, diskcopy.Options{Jobs: c.jobs, Progress: bar.Add, Pack: o.Pack()})
	if err == nil {
		err = o.Finish()
	}
	if err != nil {
		return copied, full(err, need, o)
	}
	got, err := o.Reopen()
	if err != nil {
		return copied, readBack(err)
	}
	defer got.Close()
	return copied, c.prove(ctx, s, p, view, got, bar)
}

// prove checks the result: its structures always, every byte unless the user does without.
func (c *copyFlags) prove(ctx context.Context, s *source, p *plan.Plan, view disk.Disk, got *image.Image, bar progress) error {
	if err := intact(got); err != nil {
		return err
	}
	after, err := layout.Read(got.Disk, table.Geometry{Heads: s.img.Heads, Sectors: s.img.Sectors})
	if err != nil {
		return readBack(err)
	}
	if err := verify.Promise(p, s.layout, after); err != nil {
		return err
	}
	if c.verify != "full" {
		return nil
	}
	diffs, err := same(ctx, view, got.Disk, c.jobs, bar)
	if err != nil {
		return err
	}
	if len(diffs) > 0 {
		return fmt.Errorf("%w from what was planned at byte %d (%s): the storage or memory of this machine is at fault; nothing was published",
			verify.ErrDifferent, diffs[0].Off, diffs[0].Text)
	}
	return nil
}

// intact checks the tables of a result.
func intact(got *image.Image) error {
	if got.Check == nil {
		return nil
	}
	issues, err := got.Check()
	if err != nil {
		return err
	}
	for _, i := range issues {
		if i.Effect > ondisk.Note {
			return fmt.Errorf("%w: %s", verify.ErrDifferent, i.Text)
		}
	}
	return nil
}

// room refuses a copy that cannot fit, before the first byte, and returns the number of bytes that it needs. What the source
// has allocated is a quick estimate; only if that is too much are the zeros in it looked for.
func (c *copyFlags) room(ctx context.Context, errOut io.Writer, s *source, view disk.Disk, o *image.Output) (need int64, err error) {
	free := o.Room()
	for off := int64(0); off < view.Size(); {
		e, err := view.Extent(off, view.Size()-off)
		if err != nil {
			return 0, err
		}
		if !e.Zero {
			need += e.Len
		}
		off = e.End()
	}
	if withTables(need) <= free {
		return withTables(need), nil
	}
	if o.Pack() != nil {
		need = s.packed(need)
		if need > free && !c.quiet {
			fmt.Fprintf(errOut, "trueup: the copy is compressed and may need up to %s (%d bytes), and %s (%d bytes) are free where DEST goes; trying all the same\n",
				units.Format(need), need, units.Format(free), free)
		}
		return need, nil
	}
	n := &counter{unit: o.Unit()}
	if _, err := diskcopy.Run(ctx, view, n, diskcopy.Options{Jobs: c.jobs}); err != nil {
		return 0, err
	}
	if need = withTables(n.bytes); need > free {
		return 0, ondisk.In(image.ErrOutput, "the copy needs %s (%d bytes) and %s (%d bytes) are free where DEST goes; make room or choose another place",
			units.Format(need), need, units.Format(free), free)
	}
	return need, nil
}

// packed estimates how much of so many bytes of data a compressed copy takes: what the image itself stores, where that is less. How much
// smaller data becomes is known only when it is compressed.
func (s *source) packed(data int64) int64 {
	var stored int64
	for _, f := range s.img.Files() {
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
func full(err error, need int64, o *image.Output) error {
	if !sys.Full(err) {
		return err
	}
	free, freeErr := o.Free()
	if freeErr != nil || free == image.UnknownRoom {
		return err
	}
	return fmt.Errorf("%w; the copy needs %s (%d bytes) and %s (%d bytes) are free beside what it has written",
		err, units.Format(need), need, units.Format(free), free)
}

// readBack is the error of a copy that cannot be read: if it is malformed, other bytes stand there than were written.
func readBack(err error) error {
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrReference) {
		return fmt.Errorf("%w from what was written: %w", verify.ErrDifferent, err)
	}
	return fmt.Errorf("read back what was written: %w", err)
}

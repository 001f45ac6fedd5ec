package realign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
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
	Read  int64   // of SOURCE, for the copy and, where it is a device, again to compare
	Write int64   // at DEST, and read back; fewer if there are zeros among the data
	Need  int64   // space at DEST
	Rate  int64   // of reads of SOURCE in a second, as measured; 0: it was not
	Took  float64 // seconds of the whole, if DEST is as fast as SOURCE; 0: Rate is
	Warm  bool    // a part of what was measured may have come from memory
}

// Cost computes what a copy by a plan will read and write. With measure, it reads some of SOURCE for that.
func (s *Source) Cost(ctx context.Context, p *plan.Plan, measure bool) (c Cost, err error) {
	src := p.Unused.View(s.Image.Disk)
	stored, err := disk.Stored(src)
	if err != nil {
		return c, err
	}
	if c.Write, err = disk.Stored(p.View(s.Image.Disk)); err != nil {
		return c, err
	}
	c.Read, c.Need = stored, withTables(c.Write)
	if s.readAgain() {
		c.Read += stored
	}
	if !measure || stored == 0 {
		return c, nil
	}
	warm := !s.Image.Uncache()
	read, took, err := sample(ctx, src, stored)
	if err == nil && read > 0 && took > 0 {
		rate := float64(read) / took.Seconds()
		c.Warm, c.Rate, c.Took = warm, int64(rate), float64(c.Read+2*c.Write)/rate
	}
	return c, err
}

// Limits of a sample: so many pieces of so many bytes, spread over the data, until the time is over.
const (
	samplePieces = 64
	samplePiece  = 4 * units.MiB
	sampleTime   = 3 * time.Second
)

// sample reads pieces of a disk that holds stored bytes of data, and returns how many bytes it read, and how long that
// took. Pieces that lie together would measure one place of a disk of platters.
func sample(ctx context.Context, d disk.Disk, stored int64) (read int64, took time.Duration, err error) {
	buf := make([]byte, min(samplePiece, stored))
	step := max(stored/samplePieces, int64(len(buf)))
	var seen, next int64 // bytes of data
	start := time.Now()
	for e, err := range disk.Extents(d, disk.Range{Len: d.Size()}) {
		if err != nil {
			return read, took, err
		}
		if e.Zero {
			continue
		}
		for ; next < seen+e.Len; next += step {
			n := min(int64(len(buf)), seen+e.Len-next)
			if _, err := d.ReadAt(buf[:n], e.Off+next-seen); err != nil && !errors.Is(err, io.EOF) {
				return read, took, err
			}
			read, took = read+n, time.Since(start)
			if took > sampleTime || ctx.Err() != nil {
				return read, took, ctx.Err()
			}
		}
		seen += e.Len
	}
	return read, took, nil
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

package realign

import (
	"context"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// room refuses a copy that cannot fit, before the first byte, and returns the number of bytes that it needs. What the
// source has allocated is a quick estimate; only if that is too much are the zeros in it looked for.
func (j *Job) room(ctx context.Context, s *Source, view disk.Disk, o *store.Output) (need int64, err error) {
	free := o.Room()
	if need, err = disk.Stored(view); err != nil || withTables(need) <= free {
		return withTables(need), err
	}
	if o.Pack() != nil {
		need = s.packed(need)
		if need > free && j.Warn != nil {
			j.Warn(fmt.Sprintf("the copy is compressed and may need up to %s (%d bytes), and %s (%d bytes) are free where "+
				"DEST goes; trying all the same",
				units.Format(need), need, units.Format(free), free))
		}
		return need, nil
	}
	n := &counter{unit: o.Unit()}
	if _, err := diskcopy.Run(ctx, view, n, diskcopy.Options{Jobs: j.Jobs}); err != nil {
		return 0, err
	}
	if need = withTables(n.bytes); need > free {
		return 0, ondisk.In(ondisk.ErrOutput, "the copy needs %s (%d bytes) and %s (%d bytes) are free where DEST goes; "+
			"make room or choose another place",
			units.Format(need), need, units.Format(free), free)
	}
	return need, nil
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

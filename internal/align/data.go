package align

import (
	"context"
	"sync/atomic"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// NonZero reads all data of a disk and counts the bytes in blocks of 4 KiB that are not all zero. progress receives
// bytes that were read, from any goroutine.
func NonZero(ctx context.Context, d disk.Disk, jobs int, progress func(n int64)) (int64, error) {
	var total atomic.Int64
	count := func(ctx context.Context, c diskcopy.Chunk, bufs [][]byte) error {
		for off := c.Off; off < c.End() && ctx.Err() == nil; {
			e, err := d.Extent(off, c.End()-off)
			if err != nil {
				return err
			}
			if e.Zero {
				off = e.End()
				continue
			}
			// Whole blocks, whatever the container stores of them: the number is one of the disk.
			off = units.AlignDown(off, Block)
			b := bufs[0][:min(units.AlignUp(e.End(), Block), c.End())-off]
			if err := ondisk.ReadFull(d, b, off); err != nil {
				return err
			}
			total.Add(nonZero(b))
			progress(e.Len)
			off += int64(len(b))
		}
		return nil
	}
	err := diskcopy.Each(ctx, jobs, &diskcopy.Data{Disks: []disk.Disk{d}}, count)
	return total.Load(), err
}

// Decode reads the compressed data of a disk, of which no look at the map finds whether they are sound.
func Decode(ctx context.Context, d disk.Disk, jobs int, progress diskcopy.Progress) error {
	packed := func(off int64) (disk.Run, error) {
		run, _, err := disk.Leaf(d, off)
		if _, plain := run.Src.(driver.File); plain {
			run.Src = nil
		}
		return run, err
	}
	only := disk.New(d.Size(), d.SectorSize(), packed)
	total, err := diskcopy.Size(ctx, 0, only)
	if err != nil || total == 0 {
		return err
	}
	progress.Begin(diskcopy.PhaseProve, total)
	_, err = NonZero(ctx, only, jobs, progress.Add)
	return err
}

// nonZero counts the bytes of the blocks of b that are not zero.
func nonZero(b []byte) int64 {
	var n int64
	for len(b) > 0 {
		block := b[:min(Block, int64(len(b)))]
		if !ondisk.IsZero(block) {
			n += int64(len(block))
		}
		b = b[len(block):]
	}
	return n
}

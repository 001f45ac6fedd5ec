// Package diskcopy copies a disk to a target, in parallel and without its zeros. It is the only code that writes disk
// bytes.
package diskcopy

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/units"
)

// ChunkSize is the unit of work and of reading, in bytes. Larger ones gain nothing: measured with pread and pwrite,
// 64 KiB reaches 0.5 to 0.8 of the rate of 1 MiB.
const ChunkSize = 1 << 20

// Chunk is one piece of work. Chunks are handed out in ascending order.
type Chunk struct {
	disk.Range
	before, passed chan struct{} // hold one value when the chunk in front, and this one, has passed its turn
	spent          *sync.Pool    // of channels whose value was taken
}

// Wait returns when all chunks in front of this one have called Pass. It is called once.
func (c Chunk) Wait(ctx context.Context) error {
	select {
	case <-c.before:
		c.spent.Put(c.before)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pass lets the next chunk go on. It is called once.
func (c Chunk) Pass() { c.passed <- struct{}{} }

// grain is the granularity in bytes at which chunks leave out holes: where data lie scattered, reading whole chunks
// would have the system fill sixteen times as much memory with zeros.
const grain = 64 << 10

// Data lists the stretches of a disk that may hold data, in chunks that do not cross a multiple of ChunkSize.
type Data struct {
	// Disks have one size; a stretch is skipped when it is zero in all of them.
	Disks []disk.Disk
	// Unit is what chunks begin and end on, in bytes, if it is more than 64 KiB. It divides ChunkSize.
	Unit int64

	off  int64
	ends []int64 // up to here each disk is known to hold data
}

// next returns the next chunk; its length is 0 at the end of the disks. It ends with ctx: the map of a large disk can
// take minutes to walk.
func (d *Data) next(ctx context.Context) (disk.Range, error) {
	size, unit := d.Disks[0].Size(), max(d.Unit, grain)
	if d.ends == nil {
		d.ends = make([]int64, len(d.Disks))
	}
	var r disk.Range
	for d.off < size {
		if err := ctx.Err(); err != nil {
			return disk.Range{}, err
		}
		zero, err := d.zero(size, unit)
		if err != nil {
			return disk.Range{}, err
		}
		if zero > 0 {
			d.off += zero
			if r.Len > 0 {
				break
			}
			continue
		}
		if r.Len == 0 {
			r.Off = d.off
		}
		// A chunk takes whole units even where the data end before: readers fill holes with zeros.
		border := min(size, r.Off-r.Off%ChunkSize+ChunkSize)
		d.off = min(border, units.AlignUp(slices.Max(d.ends), unit))
		if r.Len = d.off - r.Off; d.off == border {
			break
		}
	}
	return r, nil
}

// Size returns how many bytes of disks of one size are read to copy them in units, or to compare them in any: all that
// may be data in one of them.
func Size(ctx context.Context, unit int64, disks ...disk.Disk) (n int64, err error) {
	d := &Data{Disks: disks, Unit: unit}
	for {
		r, err := d.next(ctx)
		if err != nil || r.Len == 0 {
			return n, err
		}
		n += r.Len
	}
}

// zero returns the number of bytes from off on that all disks read as zero, in whole units unless they reach the end.
func (d *Data) zero(size, unit int64) (int64, error) {
	n := size - d.off
	for i, k := range d.Disks {
		if d.off < d.ends[i] {
			return 0, nil
		}
		e, err := k.Extent(d.off, n)
		if err != nil {
			return 0, err
		}
		if !e.Zero {
			d.ends[i] = e.End()
			return 0, nil
		}
		n = e.Len
	}
	if end := d.off + n; end < size {
		n = end - end%unit - d.off
		if n == 0 {
			d.ends[0] = max(d.ends[0], end) // the unit holds data behind its zeros
		}
	}
	return n, nil
}

// maxBuffers is how many buffers of ChunkSize all goroutines have together. With what packing, unpacking and tables
// need, a copy stays below 128 MiB, however many goroutines are wanted.
const maxBuffers = 48

// scratch are buffers of ChunkSize. Small disks are read many times in a scan, and each time by several goroutines.
var scratch = sync.Pool{New: func() any { b := make([]byte, ChunkSize); return &b }}

// Each runs work for all data chunks on so many goroutines. Each goroutine has a scratch buffer of ChunkSize bytes for
// each disk.
func Each(ctx context.Context, jobs int, d *Data, work func(ctx context.Context, c Chunk, bufs [][]byte) error) error {
	var mu sync.Mutex
	spent := sync.Pool{New: func() any { return make(chan struct{}, 1) }}
	last := make(chan struct{}, 1)
	last <- struct{}{}
	take := func() (Chunk, error) {
		mu.Lock()
		defer mu.Unlock()
		r, err := d.next(ctx)
		c := Chunk{Range: r, before: last, passed: spent.Get().(chan struct{}), spent: &spent} // nothing else is in it
		last = c.passed
		return c, err
	}
	return atOnce(ctx, max(1, min(jobs, maxBuffers/len(d.Disks))), func(ctx context.Context) (err error) {
		// A panic here would end the program before it can remove what it wrote.
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("internal error, please report it: %v at %s", p, debug.Stack())
			}
		}()
		bufs := make([][]byte, len(d.Disks))
		for i := range bufs {
			b := scratch.Get().(*[]byte) // nothing else is in it
			defer scratch.Put(b)
			bufs[i] = *b
		}
		for ctx.Err() == nil {
			c, err := take()
			if err != nil || c.Len == 0 {
				return err
			}
			if err := work(ctx, c, bufs); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// atOnce runs a function on so many goroutines and returns the first error, which ends the others.
func atOnce(ctx context.Context, jobs int, run func(ctx context.Context) error) (first error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	var once sync.Once
	for range jobs {
		all.Go(func() {
			if err := run(ctx); err != nil {
				once.Do(func() {
					first = err
					cancel()
				})
			}
		})
	}
	all.Wait()
	return first
}

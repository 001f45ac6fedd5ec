// Package diskcopy copies a disk to a target in parallel and skips its zeros. It is the only code that writes disk
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

// ChunkSize is the unit of work and of reading, in bytes. Larger chunks gain nothing. Measured with pread and pwrite,
// 64 KiB reaches 0.5 to 0.8 of the rate of 1 MiB.
const ChunkSize = 1 << 20

// Chunk is one piece of work. Chunks are handed out in ascending order.
type Chunk struct {
	disk.Range
	before, passed chan struct{} // receive one value when the previous chunk, and this one, passes its turn
	spent          *sync.Pool    // free, empty channels
}

// Wait returns after all previous chunks have called Pass. It is called once.
func (c Chunk) Wait(ctx context.Context) error {
	select {
	case <-c.before:
		c.spent.Put(c.before)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pass lets the next chunk continue. It is called once.
func (c Chunk) Pass() { c.passed <- struct{}{} }

// grain is the granularity in bytes at which chunks exclude holes. With scattered data, reading whole chunks would have
// the system fill sixteen times as much memory with zeros.
const grain = 64 << 10

// Data iterates over the ranges of a disk that may hold data, in chunks that do not cross a multiple of ChunkSize.
type Data struct {
	// Disks have one size; a range is skipped if it is zero in all of them.
	Disks []disk.Disk
	// Unit aligns the bounds of chunks, in bytes, if it is more than 64 KiB. It divides ChunkSize.
	Unit int64

	off  int64
	ends []int64 // for each disk the end of its known data
}

// next returns the next chunk; its length is 0 at the end of the disks. It stops when ctx is done, because walking the
// map of a large disk can last minutes.
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
		// A chunk covers whole units even if the data end earlier: readers fill holes with zeros.
		border := min(size, r.Off-r.Off%ChunkSize+ChunkSize)
		d.off = min(border, units.AlignUp(slices.Max(d.ends), unit))
		if r.Len = d.off - r.Off; d.off == border {
			break
		}
	}
	return r, nil
}

// Size returns the number of bytes read to copy disks of one size in units, or to compare them (unit 0): all ranges
// that may hold data in one of them.
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

// zero returns the number of bytes from off on that are zero in all disks, in whole units except at the end.
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
			d.ends[0] = max(d.ends[0], end) // the unit holds data after its zeros
		}
	}
	return n, nil
}

// maxBuffers limits the buffers of ChunkSize of all goroutines together. Including the memory for packing, unpacking
// and tables, a copy stays below 128 MiB with any number of jobs.
const maxBuffers = 48

// scratch holds buffers of ChunkSize. A scan reads small disks many times, each time with several goroutines.
var scratch = sync.Pool{New: func() any { b := make([]byte, ChunkSize); return &b }}

// Each runs work for all data chunks on jobs goroutines. Each goroutine has a scratch buffer of ChunkSize bytes for
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
		c := Chunk{Range: r, before: last, passed: spent.Get().(chan struct{}), spent: &spent} // only channels
		last = c.passed
		return c, err
	}
	return atOnce(ctx, max(1, min(jobs, maxBuffers/len(d.Disks))), func(ctx context.Context) (err error) {
		// Without recover, a panic would end the program before it can remove its files.
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("internal error, please report it: %v at %s", p, debug.Stack())
			}
		}()
		bufs := make([][]byte, len(d.Disks))
		for i := range bufs {
			b := scratch.Get().(*[]byte) // only buffers
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

// atOnce runs a function on jobs goroutines and returns the first error, which cancels the others.
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

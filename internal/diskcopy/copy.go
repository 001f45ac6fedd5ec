// Package diskcopy copies a disk to a target in parallel and skips its zeros. It is the only code that writes disk
// bytes.
package diskcopy

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/minio/highwayhash"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Target receives the bytes of a disk. Unit is its allocation granularity in bytes. Reserve is called before WriteAt,
// in ascending order and never concurrently.
type Target interface {
	WriteAt(p []byte, off int64) (int, error)
	Unit() int64
	Reserve(off, n int64) error
}

// Options configure Run.
type Options struct {
	Jobs     int               // goroutines; 0 means 1
	Progress func(bytes int64) // receives bytes of data done, as counted by Size, from any goroutine; may be nil
	// Pack packs a unit for the target; nil means that units are stored unpacked. With Pack the target receives the
	// packed bytes, one unit at a time.
	Pack func(unit []byte, off int64) ([]byte, error)
	// Sum receives the digest of the bytes that Run read; nil disables it.
	Sum *Sum
}

// packers bounds the goroutines that pack, for each processor. Each has about 1 MiB of tables, and more of them only
// push each other's out of the caches.
const packers = 4

// Run writes the nonzero data of src to dst and returns the number of bytes written. The order of Reserve calls, and so
// the layout of the target, does not depend on the number of goroutines or their speed.
func Run(ctx context.Context, src disk.Disk, dst Target, o Options) (int64, error) {
	var s *summer
	if o.Sum != nil {
		s = newSummer()
	}
	n, err := run(ctx, src, dst, o, s)
	if s != nil {
		*o.Sum = s.sum(src.Size())
	}
	return n, err
}

// run is Run with a summer, or nil. Without a dst it only reads.
func run(ctx context.Context, src disk.Disk, dst Target, o Options, s *summer) (int64, error) {
	w := writer{dst: dst, Options: o}
	d := &Data{Disks: []disk.Disk{src}}
	if dst != nil {
		d.Unit = dst.Unit()
	}
	if o.Pack != nil {
		o.Jobs = min(o.Jobs, packers*runtime.GOMAXPROCS(0))
	}
	err := Each(ctx, o.Jobs, d, func(ctx context.Context, c Chunk, bufs [][]byte) error {
		b := bufs[0][:c.Len]
		if err := ondisk.ReadFull(src, b, c.Off); err != nil {
			return err
		}
		return w.write(ctx, c, b, s)
	})
	return w.written.Load(), err
}

// writer is the state of one Run.
type writer struct {
	Options
	dst     Target
	written atomic.Int64
	spent   sync.Pool // free lists of written pieces
}

func (w *writer) tell(n int64) {
	if w.Progress != nil {
		w.Progress(n)
	}
}

// write writes the nonzero data b of chunk c to the target, and adds its digests to s unless s is nil.
func (w *writer) write(ctx context.Context, c Chunk, b []byte, s *summer) error {
	var of *digests
	if s != nil {
		of = s.chunk(c.Off, b)
	}
	l, ok := w.spent.Get().(*list)
	if !ok {
		l = &list{}
	}
	defer w.spent.Put(l)
	if w.dst != nil {
		if err := l.fill(b, c.Off, w.dst.Unit(), w.Pack); err != nil {
			return err
		}
	}
	if err := c.Wait(ctx); err != nil {
		return err
	}
	if s != nil {
		s.add(of)
	}
	for _, p := range l.pieces {
		if err := w.dst.Reserve(p.Off, int64(len(p.data))); err != nil {
			return err
		}
	}
	c.Pass()
	for _, p := range l.pieces {
		if _, err := w.dst.WriteAt(p.data, p.Off); err != nil {
			return err
		}
		w.written.Add(p.Len)
	}
	w.tell(c.Len)
	return nil
}

// piece is a range of the disk and its data in the form that the target stores, such as compressed.
type piece struct {
	disk.Range
	data []byte
}

// list holds the pieces of one chunk for the target. Its memory is reused.
type list struct {
	pieces []piece
	runs   []disk.Range
}

// fill splits the bytes b at offset off into pieces.
func (l *list) fill(b []byte, off, unit int64, pack func(unit []byte, off int64) ([]byte, error)) error {
	l.pieces, l.runs = l.pieces[:0], dataRuns(l.runs[:0], b, off, unit)
	for _, r := range l.runs {
		data := b[r.Off-off : r.End()-off]
		if pack == nil {
			l.pieces = append(l.pieces, piece{r, data})
			continue
		}
		for len(data) > 0 {
			n := min(unit, int64(len(data)))
			packed, err := pack(data[:n], r.Off)
			if err != nil {
				return err
			}
			l.pieces = append(l.pieces, piece{disk.Range{Off: r.Off, Len: n}, packed})
			r.Off, data = r.Off+n, data[n:]
		}
	}
	return nil
}

// dataRuns appends the runs of units in b that are not zero. b starts at byte off of the disk. Units are counted from
// byte 0 of the disk, so off must be a multiple of unit.
func dataRuns(runs []disk.Range, b []byte, off, unit int64) []disk.Range {
	if off%unit != 0 || ChunkSize%unit != 0 {
		panic(fmt.Sprintf("diskcopy: chunk at %#x does not start on a unit of %d bytes", off, unit))
	}
	for r := range ondisk.DataRuns(b, unit) {
		runs = append(runs, disk.Range{Off: off + r.Off, Len: r.Len})
	}
	return runs
}

// Progress receives the progress of a copy, phase by phase.
type Progress interface {
	Begin(phase string, total int64) // starts a phase of total bytes
	Add(n int64)                     // adds finished bytes of the phase, from any goroutine
}

// Unwatched discards progress.
type Unwatched struct{}

// Begin does nothing.
func (Unwatched) Begin(string, int64) {}

// Add does nothing.
func (Unwatched) Add(int64) {}

// Begin begins a phase that covers the data of all disks, in units of a target or in any unit (0).
func Begin(ctx context.Context, p Progress, phase string, unit int64, disks ...disk.Disk) error {
	if p == (Unwatched{}) {
		return nil
	}
	total, err := Size(ctx, unit, disks...)
	if err == nil {
		p.Begin(phase, total)
	}
	return err
}

// Phases of the work on a copy.
const (
	PhaseCopy   = "copy"   // writing
	PhaseFlush  = "flush"  // flushing to storage
	PhaseProve  = "prove"  // reading the copy again and comparing it
	PhaseDigest = "digest" // reading for the digests of a manifest
)

// Sum is a digest of all bytes of a disk. Run and Digest return equal sums for equal bytes. Its key is random, so only
// sums from Stored are comparable in other processes.
type Sum [sha256.Size]byte

// Digest reads a disk and returns its digest.
func Digest(ctx context.Context, d disk.Disk, o Options) (Sum, error) {
	return digest(ctx, d, o, newSummer())
}

// Stored is Digest with a key from NewKey. Store the key with the digest, so that another process can compare.
func Stored(ctx context.Context, d disk.Disk, key []byte, o Options) (Sum, error) {
	if len(key) != highwayhash.Size {
		return Sum{}, fmt.Errorf("digests with a key of %d bytes: %w", len(key), ondisk.ErrUnsupported)
	}
	return digest(ctx, d, o, &summer{key: key, hash: sha256.New()})
}

// NewKey returns a random key for Stored.
func NewKey() []byte {
	key := make([]byte, highwayhash.Size)
	_, _ = rand.Read(key) // never fails
	return key
}

func digest(ctx context.Context, d disk.Disk, o Options, s *summer) (Sum, error) {
	_, err := run(ctx, d, nil, Options{Jobs: o.Jobs, Progress: o.Progress}, s)
	return s.sum(d.Size()), err
}

// summer combines the digests of grains into one digest.
type summer struct {
	key   []byte
	hash  hash.Hash
	spent sync.Pool // free digests
}

func newSummer() *summer { return &summer{key: ownKey(), hash: sha256.New()} }

// ownKey returns the key of all digests that stay in this process.
var ownKey = sync.OnceValue(NewKey)

// grain appends the digest of a grain: HighwayHash with 128 bits. Its random key is secret from the author of the
// bytes, so two different grains share a digest by chance only. Spec: Alakuijala, Cox and Wassenberg, "Fast keyed
// hash/pseudo-random function using SIMD multiply and permute", 2016.
func (s *summer) grain(dst, b []byte) []byte {
	sum := highwayhash.Sum128(b, s.key)
	return append(dst, sum[:]...)
}

// digests holds the digests of the grains of a chunk, each after its offset.
type digests struct{ b []byte }

// chunk computes the digests of a chunk, for add. The disk is cut at all multiples of a grain, regardless of its
// chunks. A grain of zeros does not count, because a reader of the disk skips holes.
func (s *summer) chunk(off int64, b []byte) *digests {
	d, ok := s.spent.Get().(*digests)
	if !ok {
		d = &digests{make([]byte, 0, (8+highwayhash.Size128)*(ChunkSize/grain+1))}
	}
	d.b = d.b[:0]
	for len(b) > 0 {
		n := min(int64(len(b)), grain-off%grain)
		if !ondisk.IsZero(b[:n]) {
			d.b = s.grain(binary.LittleEndian.AppendUint64(d.b, ondisk.U64(off)), b[:n])
		}
		off, b = off+n, b[n:]
	}
	return d
}

// add adds the digests of a chunk. It must be called in the order of chunks.
func (s *summer) add(d *digests) {
	s.hash.Write(d.b)
	s.spent.Put(d)
}

func (s *summer) sum(size int64) (out Sum) {
	s.hash.Write(binary.LittleEndian.AppendUint64(nil, ondisk.U64(size)))
	s.hash.Sum(out[:0])
	return out
}

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

// Pass lets the next chunk continue. It must be called once for each chunk.
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

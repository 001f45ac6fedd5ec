package diskcopy

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"sync"
	"sync/atomic"

	"github.com/minio/highwayhash"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
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

// Run writes the nonzero data of src to dst and returns the number of bytes written. The order of Reserve calls, and so
// the layout of the target, does not depend on the number of goroutines or their speed.
func Run(ctx context.Context, src disk.Disk, dst Target, o Options) (int64, error) {
	w := writer{dst: dst, Options: o}
	var s *summer
	if o.Sum != nil {
		s = newSummer()
	}
	d := &Data{Disks: []disk.Disk{src}, Unit: dst.Unit()}
	err := Each(ctx, o.Jobs, d, func(ctx context.Context, c Chunk, bufs [][]byte) error {
		b := bufs[0][:c.Len]
		if err := ondisk.ReadFull(src, b, c.Off); err != nil {
			return err
		}
		return w.write(ctx, c, b, s)
	})
	if s != nil {
		*o.Sum = s.sum(src.Size())
	}
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
	if err := l.fill(b, c.Off, w.dst.Unit(), w.Pack); err != nil {
		return err
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

// piece is a range of the disk and the bytes for the target.
type piece struct {
	disk.Range
	data []byte
}

// list holds the pieces of one chunk. Its memory is reused.
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
	data := &Data{Disks: []disk.Disk{d}}
	err := Each(ctx, o.Jobs, data, func(ctx context.Context, c Chunk, bufs [][]byte) error {
		b := bufs[0][:c.Len]
		if err := ondisk.ReadFull(d, b, c.Off); err != nil {
			return err
		}
		of := s.chunk(c.Off, b)
		if err := c.Wait(ctx); err != nil {
			return err
		}
		s.add(of)
		c.Pass()
		if o.Progress != nil {
			o.Progress(c.Len)
		}
		return nil
	})
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

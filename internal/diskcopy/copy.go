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

// Target takes the bytes of a disk. Unit is the granularity in bytes at which it allocates space; Reserve comes before
// WriteAt, in ascending order and one at a time.
type Target interface {
	WriteAt(p []byte, off int64) (int, error)
	Unit() int64
	Reserve(off, n int64) error
}

// Options of Run.
type Options struct {
	Jobs     int               // goroutines; 0 means 1
	Progress func(bytes int64) // of data that are done, as Size counts them; from any goroutine; may be nil
	// Pack turns a unit into what the target stores of it; nil when that is the unit itself. With it the target is
	// given one unit at a time, and the packed bytes.
	Pack func(unit []byte, off int64) ([]byte, error)
	// Sum receives the digest of what Run read; nil: none is computed.
	Sum *Sum
}

// Run writes all of src that is not zero to dst and returns the number of bytes written. The order of Reserve calls,
// and so the layout of the target, does not depend on the number of goroutines or their speed.
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

// writer is one run of Run.
type writer struct {
	Options
	dst     Target
	written atomic.Int64
	spent   sync.Pool // of lists of pieces that are written
}

func (w *writer) tell(n int64) {
	if w.Progress != nil {
		w.Progress(n)
	}
}

// write gives the target what b, the chunk c, has beside zeros, and s its digests; nil: none are wanted.
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

// piece is a range of the disk and what the target stores of it.
type piece struct {
	disk.Range
	data []byte
}

// list holds what the target is given of a chunk. Its memory is used again.
type list struct {
	pieces []piece
	runs   []disk.Range
}

// fill makes the pieces of the bytes b from off on.
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

// dataRuns appends the runs of units in b that are not zero. b starts at byte off of the disk; units are counted from
// byte 0 of the disk, so off must be a multiple of unit or lie in a chunk that is handled alone.
func dataRuns(runs []disk.Range, b []byte, off, unit int64) []disk.Range {
	if off%unit != 0 || ChunkSize%unit != 0 {
		panic(fmt.Sprintf("diskcopy: chunk at %#x does not start on a unit of %d bytes", off, unit))
	}
	for r := range ondisk.DataRuns(b, unit) {
		runs = append(runs, disk.Range{Off: off + r.Off, Len: r.Len})
	}
	return runs
}

// Progress receives how far the work on a copy is, phase by phase.
type Progress interface {
	Begin(phase string, total int64) // what is done from now on, and with how many bytes
	Add(n int64)                     // bytes of the phase that are done, from any goroutine
}

// Unwatched is the progress of work that nobody watches.
type Unwatched struct{}

// Begin does nothing.
func (Unwatched) Begin(string, int64) {}

// Add does nothing.
func (Unwatched) Add(int64) {}

// Begin begins a phase that works on what all these disks hold beside holes, in units of a target or in any (0).
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
	PhaseFlush  = "flush"  // what was written, to the storage
	PhaseProve  = "prove"  // reading it again, and comparing it with what was to be written
	PhaseDigest = "digest" // reading for the digests of a manifest
)

// Sum is a digest of all bytes of a disk: what Run wrote and what Digest reads have the same one when they are
// equal. Its key is random: it means nothing to another process, but for that of Stored.
type Sum [sha256.Size]byte

// Digest reads a disk and gives its digest.
func Digest(ctx context.Context, d disk.Disk, o Options) (Sum, error) {
	return digest(ctx, d, o, newSummer())
}

// Stored is Digest with a key of NewKey, which can be stored beside the digest for another process to compare with.
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

// summer makes one digest of those of the grains.
type summer struct {
	key   []byte
	hash  hash.Hash
	spent sync.Pool // of digests that were added
}

func newSummer() *summer { return &summer{key: ownKey(), hash: sha256.New()} }

// ownKey is the key of all digests that stay in this process.
var ownKey = sync.OnceValue(NewKey)

// grain appends the digest of a grain: HighwayHash with 128 bits. Its key is random and not known to what made the
// bytes, so that two grains that differ have one digest by chance only, whatever they hold. Spec: Alakuijala, Cox and
// Wassenberg, "Fast keyed hash/pseudo-random function using SIMD multiply and permute", 2016.
func (s *summer) grain(dst, b []byte) []byte {
	sum := highwayhash.Sum128(b, s.key)
	return append(dst, sum[:]...)
}

// digests are those of the grains of a chunk, each behind its offset.
type digests struct{ b []byte }

// chunk computes the digests of a chunk, for add. A disk is cut at all multiples of a grain, whatever its chunks are,
// and a grain of zeros does not count, since a reader of the disk skips holes.
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

// add adds the digests of a chunk when it is the chunk's turn.
func (s *summer) add(d *digests) {
	s.hash.Write(d.b)
	s.spent.Put(d)
}

func (s *summer) sum(size int64) (out Sum) {
	s.hash.Write(binary.LittleEndian.AppendUint64(nil, ondisk.U64(size)))
	s.hash.Sum(out[:0])
	return out
}

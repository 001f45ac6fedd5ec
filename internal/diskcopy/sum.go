package diskcopy

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"sync"

	"github.com/minio/highwayhash"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Sum is a digest of all bytes of a disk: what Run or Pipe wrote and what Digest reads have the same one when they are
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

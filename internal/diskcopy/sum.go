package diskcopy

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
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
	of := sha
	if len(key) > 0 {
		if of = gmac(key); of == nil {
			return Sum{}, fmt.Errorf("digests with a key of %d bytes: %w", len(key), ondisk.ErrUnsupported)
		}
	}
	return digest(ctx, d, o, &summer{digest: of, hash: sha256.New()})
}

// NewKey returns a random key for Stored; nil, which stands for SHA-256, where that is faster or GMAC is not allowed.
func NewKey() []byte {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails
	if !sys.ComputesGMAC() || gmac(key) == nil {
		return nil
	}
	return key
}

// keySize is that of AES-128, bytes.
const keySize = 16

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
	digest func(dst, b []byte) []byte // appends that of a grain
	hash   hash.Hash
	spent  sync.Pool // of digests that were added
}

func newSummer() *summer { return &summer{digest: grainDigest(), hash: sha256.New()} }

// digests are those of the grains of a chunk, each behind its offset.
type digests struct{ b []byte }

// chunk computes the digests of a chunk, for add. A disk is cut at all multiples of a grain, whatever its chunks are,
// and a grain of zeros does not count, since a reader of the disk skips holes.
func (s *summer) chunk(off int64, b []byte) *digests {
	d, ok := s.spent.Get().(*digests)
	if !ok {
		d = &digests{make([]byte, 0, (8+sha256.Size)*(ChunkSize/grain+1))}
	}
	d.b = d.b[:0]
	for len(b) > 0 {
		n := min(int64(len(b)), grain-off%grain)
		if !ondisk.IsZero(b[:n]) {
			d.b = s.digest(binary.LittleEndian.AppendUint64(d.b, ondisk.U64(off)), b[:n])
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

// grainDigest returns the digest of grains that is the fastest here: GMAC where the processor has instructions for it,
// of which SHA-256 takes three times as long with its own.
var grainDigest = sync.OnceValue(func() func(dst, b []byte) []byte {
	if key := NewKey(); key != nil {
		return gmac(key)
	}
	return sha
})

// gmac returns GMAC; nil where the program may not use it, or for a key of another size. The key is random, and not
// known to what made the bytes. So two grains that differ have one tag with a probability below 2^-115, whatever they
// hold: a grain has 2^12 blocks, and a tag has 128 bits. Spec: NIST SP 800-38D; McGrew and Viega, "The Security and
// Performance of the Galois/Counter Mode (GCM) of Operation", section 5.
func gmac(key []byte) func(dst, b []byte) []byte {
	if len(key) != keySize {
		return nil
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return nil // GODEBUG=fips140=only
	}
	if fast := fastGMAC(block); fast != nil {
		return fast
	}
	nonce := make([]byte, gcm.NonceSize()) // one for all: no tag leaves the process, only digests of tags do
	return func(dst, b []byte) []byte { return gcm.Seal(dst, nonce, nil, b) }
}

func sha(dst, b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(dst, sum[:]...)
}

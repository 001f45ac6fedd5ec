package diskcopy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Sum is a digest of all bytes of a disk: what Pipe wrote and what Digest reads have the same one when they are equal.
type Sum [sha256.Size]byte

// Pipe writes a disk of size bytes that comes piece by piece, in ascending order, and ends with io.EOF. It returns
// the digest of the disk and the number of bytes written: what came through a pipe cannot be read again to compare.
// Progress reaches the size, since what will come is not known.
func Pipe(
	ctx context.Context, next func() (off int64, p []byte, err error), size int64, dst Target, o Options,
) (Sum, int64, error) {
	w := writer{dst: dst, Options: o}
	s := summer{hash: sha256.New()}
	g := &gather{next: next, size: size, skipped: w.tell}
	err := each(ctx, o.Jobs, 1, g.chunk, func(ctx context.Context, c Chunk, bufs [][]byte) error {
		b := bufs[0][:c.Len]
		part := sha256.Sum256(b)
		return w.write(ctx, c, b, func() { s.add(c.Off, b, part) })
	})
	return s.sum(size), w.written.Load(), err
}

// Digest reads a disk and gives its digest.
func Digest(ctx context.Context, d disk.Disk, o Options) (Sum, error) {
	s := summer{hash: sha256.New()}
	data := &Data{Disks: []disk.Disk{d}}
	err := Each(ctx, o.Jobs, data, func(ctx context.Context, c Chunk, bufs [][]byte) error {
		b := bufs[0][:c.Len]
		if err := ondisk.ReadFull(d, b, c.Off); err != nil {
			return err
		}
		part := sha256.Sum256(b)
		if err := c.Wait(ctx); err != nil {
			return err
		}
		s.add(c.Off, b, part)
		c.Pass()
		if o.Progress != nil {
			o.Progress(c.Len)
		}
		return nil
	})
	return s.sum(d.Size()), err
}

// summer makes one digest of those of the chunks. A chunk of zeros does not count, since a reader of the disk skips
// holes.
type summer struct{ hash hash.Hash }

func (s *summer) add(off int64, b []byte, part [sha256.Size]byte) {
	if ondisk.IsZero(b) {
		return
	}
	s.hash.Write(binary.LittleEndian.AppendUint64(nil, ondisk.U64(off)))
	s.hash.Write(part[:])
}

func (s *summer) sum(size int64) (out Sum) {
	s.hash.Write(binary.LittleEndian.AppendUint64(nil, ondisk.U64(size)))
	s.hash.Sum(out[:0])
	return out
}

// gather makes chunks of the pieces of a stream.
type gather struct {
	next    func() (off int64, p []byte, err error)
	size    int64
	skipped func(n int64)

	end  int64  // of the last chunk
	off  int64  // of what is left of a piece
	left []byte // of a piece, for the next chunk
	done bool
}

// chunk fills bufs[0] with the next chunk that holds data; the length is 0 at the end of the stream.
func (g *gather) chunk(bufs [][]byte) (disk.Range, error) {
	if err := g.more(); err != nil {
		return disk.Range{}, err
	}
	if g.done {
		g.skipped(g.size - g.end)
		g.end = g.size
		return disk.Range{}, nil
	}
	r := disk.Range{Off: g.off - g.off%ChunkSize, Len: ChunkSize}
	r.Len = min(r.Len, g.size-r.Off)
	b := bufs[0][:r.Len]
	clear(b)
	for len(g.left) > 0 && g.off < r.End() {
		n := copy(b[g.off-r.Off:], g.left)
		g.off, g.left = g.off+int64(n), g.left[n:]
		if err := g.more(); err != nil {
			return disk.Range{}, err
		}
	}
	g.skipped(r.Off - g.end)
	g.end = r.End()
	return r, nil
}

// more takes the next piece when nothing is left of the last.
func (g *gather) more() error {
	for len(g.left) == 0 && !g.done {
		off, p, err := g.next()
		switch {
		case errors.Is(err, io.EOF):
			g.done = true
		case err != nil:
			return err
		default:
			g.off, g.left = off, p[:min(int64(len(p)), g.size-off)]
		}
	}
	return nil
}

package diskcopy

import (
	"context"
	"errors"
	"io"

	"github.com/trueup/trueup/internal/disk"
)

// Pipe writes a disk of size bytes that comes piece by piece, in ascending order, and ends with io.EOF. It returns
// the digest of the disk and the number of bytes written: what came through a pipe cannot be read again to compare.
// Progress reaches the size, since what will come is not known.
func Pipe(
	ctx context.Context, next func() (off int64, p []byte, err error), size int64, dst Target, o Options,
) (Sum, int64, error) {
	w := writer{dst: dst, Options: o}
	s := newSummer()
	g := &gather{next: next, size: size, skipped: w.tell}
	err := each(ctx, o.Jobs, 1, g.chunk, func(ctx context.Context, c Chunk, bufs [][]byte) error {
		return w.write(ctx, c, bufs[0][:c.Len], s)
	})
	return s.sum(size), w.written.Load(), err
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

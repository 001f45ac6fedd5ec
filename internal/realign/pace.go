package realign

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/sys"
)

// pass keeps a large copy, which reads and writes need bytes, from pushing all else out of the machine's memory: more
// than half of that it does not take. Its proof then reads DEST from the storage.
func (j *Job) pass(s *Source, o target, need int64) {
	j.passes = 2*need > cmp.Or(j.memory, sys.Memory(), math.MaxInt64)/2
	if !j.passes {
		return
	}
	s.Image.Pass()
	if out, ok := o.(*store.Output); ok {
		out.Pass()
	}
}

// paced is a disk that is read no faster than at a rate. Others that read the same storage keep what is left of it.
type paced struct {
	disk.Disk
	ctx  context.Context //nolint:containedctx // a read has none, and the wait ends with the run
	rate float64         // bytes in a second

	mu   sync.Mutex
	free time.Time // when all that was read so far had its time
}

// pace returns a disk that is read at so many bytes in a second at most; 0: as fast as it goes.
func pace(ctx context.Context, d disk.Disk, rate int64) disk.Disk {
	if rate == 0 {
		return d
	}
	return &paced{Disk: d, ctx: ctx, rate: float64(rate)}
}

// ReadAt waits until its bytes have their turn.
func (p *paced) ReadAt(b []byte, off int64) (int, error) {
	turn := time.NewTimer(p.reserve(len(b)))
	defer turn.Stop()
	select {
	case <-turn.C:
		return p.Disk.ReadAt(b, off)
	case <-p.ctx.Done():
		return 0, p.ctx.Err()
	}
}

// reserve gives bytes their place behind all others, and returns how long they wait for it.
func (p *paced) reserve(n int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.free.Before(now) {
		p.free = now
	}
	wait := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	return wait
}

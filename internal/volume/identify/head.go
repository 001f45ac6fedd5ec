package identify

import (
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Sizes of the head that is read once for all probers, in bytes.
const (
	headSize  = 8 << 10 // most superblocks lie in it
	frontSize = 4 << 10 // those of the common file systems do in this
)

// headed is a disk whose first bytes are in memory.
type headed struct {
	disk.Disk
	head []byte
}

// heads keeps buffers for reuse: a table can name thousands of volumes.
var heads = sync.Pool{New: func() any { return new([headSize]byte) }}

// withHead reads the first size bytes of d. If they cannot be read as a whole, the probers read what they need. done
// returns the buffer, and nothing may read after it.
func withHead(d disk.Disk, size int64) (h headed, done func()) {
	buf, _ := heads.Get().(*[headSize]byte)
	done = func() { heads.Put(buf) }
	head := buf[:min(size, d.Size())]
	if err := ondisk.ReadFull(d, head, 0); err != nil {
		return headed{Disk: d}, done
	}
	return headed{d, head}, done
}

// mayBe reports whether the head has a mark of a prober. Without a head every prober may match.
func (h headed) mayBe(p volume.Prober) bool {
	if h.head == nil || len(p.Marks) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Marks, func(m volume.Mark) bool {
		return m.Off <= len(h.head)-len(m.Bytes) && string(h.head[m.Off:m.Off+len(m.Bytes)]) == m.Bytes
	})
}

// ReadAt reads from the head where it can.
func (h headed) ReadAt(p []byte, off int64) (int, error) {
	if off >= 0 && off <= int64(len(h.head)-len(p)) {
		return copy(p, h.head[off:]), nil
	}
	return h.Disk.ReadAt(p, off)
}

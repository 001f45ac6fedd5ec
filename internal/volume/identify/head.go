package identify

import (
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// What is read once for all probers, in bytes.
const (
	headSize  = 8 << 10 // most superblocks lie in it
	frontSize = 4 << 10 // those of the common file systems do in this
)

// headed is a disk whose first bytes are at hand.
type headed struct {
	disk.Disk
	head []byte
}

// heads are buffers for use again: a table can name thousands of volumes.
var heads = sync.Pool{New: func() any { return new([headSize]byte) }}

// withHead reads the head of d, so many bytes. One that cannot be read as a whole is left to the probers, which need
// less of it. done gives the buffer back; nothing may read after that.
func withHead(d disk.Disk, size int64) (h headed, done func()) {
	buf, _ := heads.Get().(*[headSize]byte)
	done = func() { heads.Put(buf) }
	head := buf[:min(size, d.Size())]
	if err := ondisk.ReadFull(d, head, 0); err != nil {
		return headed{Disk: d}, done
	}
	return headed{d, head}, done
}

// mayBe reports whether the head has a mark of a prober. Without a head nothing is known.
func (h headed) mayBe(p volume.Prober) bool {
	if h.head == nil || len(p.Marks) == 0 {
		return true
	}
	return slices.ContainsFunc(p.Marks, func(m volume.Mark) bool {
		return m.Off <= len(h.head)-len(m.Bytes) && string(h.head[m.Off:m.Off+len(m.Bytes)]) == m.Bytes
	})
}

// ReadAt reads from the head what lies in it.
func (h headed) ReadAt(p []byte, off int64) (int, error) {
	if off >= 0 && off <= int64(len(h.head)-len(p)) {
		return copy(p, h.head[off:]), nil
	}
	return h.Disk.ReadAt(p, off)
}

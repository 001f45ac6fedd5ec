package volume

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// headSize is what is read once for all probers, in bytes: most superblocks lie in it.
const headSize = 8 << 10

// headed is a disk whose first bytes are at hand.
type headed struct {
	disk.Disk
	head []byte
}

// withHead reads the head of d. One that cannot be read as a whole is left to the probers, which need less of it.
func withHead(d disk.Disk) disk.Disk {
	head := make([]byte, min(headSize, d.Size()))
	if err := ondisk.ReadFull(d, head, 0); err != nil {
		return d
	}
	return headed{d, head}
}

// ReadAt reads from the head what lies in it.
func (h headed) ReadAt(p []byte, off int64) (int, error) {
	if off >= 0 && off <= int64(len(h.head)-len(p)) {
		return copy(p, h.head[off:]), nil
	}
	return h.Disk.ReadAt(p, off)
}

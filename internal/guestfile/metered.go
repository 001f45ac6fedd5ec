package guestfile

import (
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// budget is what all structures of one file system may cost, in bytes that are read or gone through. Finding the files of a boot takes a
// few MiB; a hostile image that reaches the bound has cost about a second.
const budget = 512 << 20

// metered is a volume whose structures are read: it gives up where they cost more than any real ones.
type metered struct {
	disk.Disk
	left int64
}

func newMetered(volume disk.Disk) *metered { return &metered{volume, budget} }

// spend counts work that needed no read.
func (m *metered) spend(n int64) error {
	if m.left -= n; m.left < 0 {
		return fmt.Errorf("structures of the file system: %w of %d bytes in all", ondisk.ErrLimit, budget)
	}
	return nil
}

// ReadAt follows the contract of io.ReaderAt.
func (m *metered) ReadAt(p []byte, off int64) (int, error) {
	if err := m.spend(int64(len(p))); err != nil {
		return 0, err
	}
	return m.Disk.ReadAt(p, off)
}

// elements parts a path; "" is the root, which has none.
func elements(path string) []string {
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

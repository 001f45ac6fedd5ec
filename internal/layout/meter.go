package layout

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Bytes that may be read to probe the volumes of a disk: what the largest metadata need, and a head for each partition.
// A table can name thousands of partitions, each with a LUKS header of 4 MiB or texts of LVM, and all of that can be a
// hole.
const (
	volumesLimit   = 64 * units.MiB
	partitionLimit = 16 * units.KiB
	partsLimit     = 1 << 16 // slices of all volumes
	filledLimit    = 1 << 10 // partitions that hold anything: all probers look at each of those
)

// metered counts the bytes read of a disk.
type metered struct {
	disk.Disk
	left   int64 // bytes
	parts  int
	filled int
	data   bool // something that was read since the last partition is not zero
}

// meter returns a disk of which n partitions may read what they need.
func meter(d disk.Disk, n int) *metered {
	return &metered{Disk: d, left: volumesLimit + int64(n)*partitionLimit, parts: partsLimit, filled: filledLimit}
}

// ReadAt counts what it reads.
func (m *metered) ReadAt(p []byte, off int64) (int, error) {
	m.left -= int64(len(p))
	n, err := m.Disk.ReadAt(p, off)
	m.data = m.data || !ondisk.IsZero(p[:n])
	return n, err
}

// count charges what one partition has needed against the limits.
func (m *metered) count(v *volume.Volume) {
	m.parts -= len(v.Parts)
	if m.data {
		m.filled--
	}
	m.data = false
}

// exhausted returns the issue of partitions that are not probed, from one on. Unknown content does not move.
func (m *metered) exhausted(from int) (ondisk.Issue, bool) {
	if m.left >= 0 && m.parts >= 0 && m.filled >= 0 {
		return ondisk.Issue{}, false
	}
	err := fmt.Errorf("the volumes in front of partition %d have more metadata than is read: %w", from, ondisk.ErrLimit)
	if m.filled < 0 {
		err = fmt.Errorf("more than %d partitions in front of partition %d hold data: %w", filledLimit, from,
			ondisk.ErrLimit)
	}
	return ondisk.Issue{Code: "volume", Effect: ondisk.Broken, Text: err.Error(), Err: err}, true
}

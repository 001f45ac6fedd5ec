package layout

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Head reads where the partitions of a disk start, of which only the first bytes can be read: what is behind them has
// the error beyond. The table must be a certain one, all of which lies there. What is in the partitions is not known,
// nor whether the second copy of a GPT is sound. The size is what the partitions take at least.
func Head(d disk.Disk, hint table.Geometry, beyond error) (*Layout, error) {
	h := &beheaded{Disk: d, beyond: beyond}
	t, err := table.Read(h)
	switch {
	case errors.Is(err, ondisk.ErrNoMatch) || err == nil && !sensible(t):
		return nil, fmt.Errorf("its first bytes hold no partition table that is certainly that of the disk: %w",
			ondisk.ErrUnsupported)
	case err != nil:
		return nil, err
	}
	l := &Layout{
		SectorSize: d.SectorSize(), Sectors: Sectors{Shown: d.SectorSize(), Counted: t.SectorSize},
		Table: t, Boot: &boot.Result{Code: Identify(t.BootCode)},
	}
	for _, p := range t.Partitions {
		for _, at := range h.missed {
			if p.Kind == table.Extended && at >= p.Off && at < p.End() {
				return nil, fmt.Errorf("a record of extended partition %d: %w", p.Number, beyond)
			}
		}
		l.Size = max(l.Size, p.End())
		l.Partitions = append(l.Partitions, boot.Partition{Partition: p, Volume: &volume.Volume{Kind: volume.Unknown}})
	}
	t.Issues = nil // some come from what was not read
	if t.Scheme == table.MBR || t.IsHybrid() {
		l.Geometry = t.Geometry(l.hints(hint))
	}
	return l, nil
}

// beheaded reads what is missing as zeros, and notes where that was.
type beheaded struct {
	disk.Disk
	beyond error
	missed []int64
}

// ReadAt follows the contract of io.ReaderAt.
func (h *beheaded) ReadAt(p []byte, off int64) (int, error) {
	n, err := h.Disk.ReadAt(p, off)
	if errors.Is(err, h.beyond) {
		clear(p)
		h.missed = append(h.missed, off)
		return len(p), nil
	}
	return n, err
}

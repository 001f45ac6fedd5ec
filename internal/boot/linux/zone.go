package linux

import (
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// grubZone is where a run of sectors lies. Number 0 is the gap in front of the first partition, which stays.
type grubZone struct {
	boot.Partition
	known bool // in the gap or in one partition
	text  string
}

// zone finds where n sectors from one on lie.
func (r *grubReader) zone(first, n uint64) grubZone {
	sectors := ondisk.U64(r.g.Disk.Size() / grubSector)
	gap := ondisk.U64(r.g.FirstByte()) / grubSector
	switch {
	case first >= sectors || n > sectors-first:
		return grubZone{text: fmt.Sprintf("behind the end of the disk at LBA %d", sectors)}
	case first > 0 && first+n <= gap:
		return grubZone{known: true, text: "in the gap"}
	}
	p, ok := r.g.Holding(ondisk.I64(first)*grubSector, ondisk.I64(n)*grubSector)
	if !ok || p.Kind == table.Extended {
		const neither = "neither in the gap in front of the first partition (LBA 1 to %d) nor inside of one partition"
		return grubZone{text: fmt.Sprintf(neither, gap-1)}
	}
	text := fmt.Sprintf("inside partition %d", p.Number)
	if p.TypeGUID == biosBoot {
		text = fmt.Sprintf("inside the BIOS boot partition %d", p.Number)
	}
	return grubZone{p, true, text}
}

// biosBoot is the type of the partition that GRUB keeps core.img in on a GPT.
const biosBoot = "21686148-6449-6e6f-744e-656564454649"

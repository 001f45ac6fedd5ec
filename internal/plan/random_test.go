package plan_test

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

const (
	sector = 512
	mib    = 1 << 20
)

// part is a partition of a random disk. Positions are in sectors.
type part struct {
	slot           int
	start, sectors int64
	ntfs           bool
	hidden         int64 // what its boot sector says about its place
}

func (p part) end() int64 { return p.start + p.sectors }

// randomDisk is a legal MBR disk. Every sector that is not zero holds its own number, so that it is known again
// wherever it goes.
type randomDisk struct {
	bytes forge.Bytes
	parts []part // in disk order
	heads int64
}

var zeros [sector]byte

// minNTFS is the smallest volume that has a place for its MFT, in sectors.
const minNTFS = 200

func drawDisk(t *rapid.T) *randomDisk {
	d := &randomDisk{heads: rapid.SampledFrom([]int64{255, 16, 64, 240}).Draw(t, "heads")}
	slots := rapid.Permutation([]int{0, 1, 2, 3}).Draw(t, "slots")
	n := rapid.IntRange(1, 4).Draw(t, "partitions")
	lba := rapid.SampledFrom([]int64{1, 63, 64, 127, 128, 2048}).Draw(t, "first")
	for i := range n {
		p := part{slot: slots[i], start: lba, sectors: rapid.Int64Range(1, 1500).Draw(t, "sectors")}
		p.ntfs = p.sectors > minNTFS && rapid.Bool().Draw(t, "ntfs")
		p.hidden = p.start
		if rapid.IntRange(0, 4).Draw(t, "stale") == 0 {
			p.hidden += 7 // a value that the old layout does not imply stays as it is
		}
		d.parts = append(d.parts, p)
		lba = p.end() + rapid.SampledFrom([]int64{0, 0, 1, 5, 130, 1000}).Draw(t, "gap")
	}
	d.bytes = make(forge.Bytes, (lba+rapid.SampledFrom([]int64{0, 1, 100, 3000}).Draw(t, "tail"))*sector)

	// The table, the partitions, and data in some of the gaps.
	mbr := tableforge.NewMBR(1)
	cylinders := rapid.Bool().Draw(t, "ends on cylinders")
	for _, p := range d.parts {
		tableforge.PutSlot(mbr, 0, p.slot, slot(0x83, uint32(p.start), uint32(p.sectors)))
		at := tableforge.MBREntries + int64(p.slot)*tableforge.MBREntry
		mbr.Put(at+1, d.chs(p.start))
		mbr.Put(at+5, d.chs(p.end()-1))
		if cylinders {
			cyl := (p.end() - 1) / (d.heads * 63)
			mbr.Put(at+5, d.chs((cyl+1)*d.heads*63-1))
		}
	}
	d.bytes.Put(0, mbr)
	at := int64(1)
	for _, p := range append(slices.Clone(d.parts), part{start: int64(len(d.bytes)) / sector}) {
		d.gap(t, at, p.start)
		for s := p.start; s < p.end(); s++ {
			d.mark(s)
		}
		if p.ntfs {
			fsforge.PutNTFS(d.bytes, p.start, p.sectors)
			d.bytes.U32(p.start*sector+fsforge.BootHidden, uint32(p.hidden))
			d.bytes.U32((p.end()-1)*sector+fsforge.BootHidden, uint32(p.hidden))
		}
		at = p.end()
	}
	return d
}

func (d *randomDisk) mark(lba int64) {
	d.bytes.U64(lba*sector, uint64(lba)|1<<63)
	d.bytes.U8(lba*sector+sector-1, byte(lba))
}

// gap leaves the sectors between two partitions zero, or puts data at some place in them.
func (d *randomDisk) gap(t *rapid.T, from, to int64) {
	if from >= to {
		return
	}
	switch rapid.IntRange(0, 3).Draw(t, "gap content") {
	case 0:
		for s := from; s < to; s++ {
			d.mark(s)
		}
	case 1:
		d.mark(rapid.Int64Range(from, to-1).Draw(t, "gap data"))
	}
}

// chs encodes as UEFI 2.10, 5.2.1 says; nothing here is beyond cylinder 1023.
func (d *randomDisk) chs(lba int64) []byte {
	track := lba / 63
	cyl := track / d.heads
	return []byte{byte(track % d.heads), byte(lba%63+1) | byte(cyl>>8<<6), byte(cyl)}
}

func (d *randomDisk) disk() disk.Disk { return disktest.Memory(d.bytes) }

package plan_test

import (
	"bytes"
	"cmp"
	"hash/crc32"
	"math/rand/v2"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/table"
)

// dice draws a random table.
type dice struct {
	*rand.Rand
	tiny bool // a few sectors of everything
	far  bool // near the last LBA that an MBR can name
}

// pick chooses a number of sectors. Those of tiny disks are below 11, and 0 only where it is one of the choices.
func (d dice) pick(of ...int64) int64 {
	n := of[d.IntN(len(of))]
	if d.tiny {
		n %= 11
	}
	return n
}

func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

// sparse is a disk of a few sectors that are not zero.
type sparse struct {
	sectors int64
	sector  int64                 // by which it is read; 0: 512
	bytes   map[int64]forge.Bytes // by LBA
	stray   map[int64]uint64      // what lies between partitions, by LBA
}

func (s *sparse) at(lba int64) forge.Bytes {
	if s.bytes[lba] == nil {
		s.bytes[lba] = make(forge.Bytes, sector)
	}
	return s.bytes[lba]
}

func (s *sparse) disk() disk.Disk {
	var pieces []int64
	for lba := range s.bytes {
		pieces = append(pieces, lba)
	}
	slices.Sort(pieces)
	size := s.sectors * sector
	return disk.New(size, cmp.Or(s.sector, sector), func(off int64) (disk.Run, error) {
		lba := off / sector
		i, found := slices.BinarySearch(pieces, lba)
		switch {
		case found:
			return disk.Run{Len: (lba+1)*sector - off, Src: disktest.Memory(s.bytes[lba]), Off: off % sector}, nil
		case i == len(pieces):
			return disk.Run{Len: size - off}, nil
		}
		return disk.Run{Len: pieces[i]*sector - off}, nil
	})
}

// table draws a disk with an MBR or a GPT.
func (d dice) table() *sparse {
	if d.chance(30) {
		return d.gpt()
	}
	return d.mbr()
}

// start returns where the next partition begins, at or behind lba: at once, behind a gap, or on a cylinder.
func (d dice) start(lba int64) int64 {
	switch n := d.IntN(6); {
	case n < 2:
		return lba
	case d.tiny:
	case n == 2:
		return (lba + 16064) / 16065 * 16065
	case n == 3:
		return (lba + 2047) / 2048 * 2048
	}
	return lba + d.pick(1, 7, 62, 63, 500, 2048, 5000, 100_000)
}

func (d dice) sizeOf() int64 {
	if d.tiny {
		return 1 + d.Int64N(20)
	}
	return d.pick(1, 2, 63, 1000, 4096, 16065, 20_000, 1_000_000) + d.Int64N(64)
}

func (d dice) mbr() *sparse {
	s := &sparse{bytes: map[int64]forge.Bytes{}}
	sector0 := tableforge.NewMBR(1)
	s.bytes[0] = sector0
	slots := d.Perm(4)
	n, box := d.IntN(5), d.IntN(4)
	lba := d.pick(1, 2, 63, 64, 128, 2048)
	if d.far {
		lba = table.MaxLBA - d.Int64N(200_000)
	}
	for i := range n {
		at := slots[i]
		if i == box {
			start := d.start(lba)
			end := d.chain(s, start)
			tableforge.PutSlot(sector0, 0, at,
				tableforge.Slot{
					Type: []byte{0x05, 0x0f, 0x85}[d.IntN(3)], Start: uint32(start),
					Sectors: uint32(end - start),
				})
			lba = end
			continue
		}
		start, size := d.start(lba), d.sizeOf()
		tableforge.PutSlot(sector0, 0, at, slot(0x83, uint32(start), uint32(size)))
		d.gap(s, lba, start)
		lba = start + size
	}
	s.sectors = lba + d.pick(0, 0, 1, 100, 3000, 16065)
	d.gap(s, lba, s.sectors)
	return s
}

// chain writes the records of an extended partition that begins at start, and gives its end. The order of the chain
// need not be that of the disk, but for the first record.
func (d dice) chain(s *sparse, start int64) int64 {
	type logical struct{ record, start, sectors int64 }
	var all []logical
	lba := start
	for range d.IntN(7) {
		record := lba
		if len(all) > 0 && d.chance(50) {
			record += d.pick(1, 62, 1000)
		}
		first := d.start(record + 1)
		l := logical{record, first, d.sizeOf()}
		if d.chance(5) {
			l.sectors = 0 // a record whose partition was deleted
		}
		all = append(all, l)
		d.gap(s, record+1, first)
		lba = first + l.sectors
	}
	end := lba + d.pick(0, 0, 1, 62, 2048)
	if len(all) > 2 && d.chance(20) {
		d.Shuffle(len(all)-1, func(i, j int) { all[i+1], all[j+1] = all[j+1], all[i+1] })
	}
	s.at(start)
	for i, l := range all {
		f := s.at(l.record)
		f.U16(tableforge.MBRMagic, 0xaa55)
		at := 0
		if d.chance(10) {
			at = 1
		}
		if l.sectors > 0 {
			tableforge.PutSlot(f, 0, at, slot(0x83, uint32(l.start-l.record), uint32(l.sectors)))
		}
		if i+1 < len(all) {
			next := all[i+1]
			span := d.span(next.start+next.sectors-next.record, next.sectors, end-next.record)
			tableforge.PutSlot(f, 0, 1-at, slot(0x05, uint32(next.record-start), uint32(max(span, 1))))
		}
	}
	return max(end, start+1)
}

// span returns the length of a link: most makers lead it to the end of the next logical partition, some to that of the
// extended one, and it can be anything else, since no reader needs it.
func (d dice) span(logical, sectors, box int64) int64 {
	switch d.IntN(10) {
	case 0, 1:
		return box
	case 2:
		return d.pick(1, sectors, logical+1, box-1, box+1, box+5000, 1<<32-1)
	}
	return logical
}

func (d dice) gpt() *sparse {
	const first = 34
	var entries []tableforge.GPTEntry
	var holes [][2]int64
	lba := d.pick(first, first, 40, 63, 2048)
	for range d.IntN(9) {
		start := d.start(lba)
		holes = append(holes, [2]int64{lba, start})
		lba = start + d.sizeOf()
		entries = append(entries, tableforge.GPTEntry{First: uint64(start), Last: uint64(lba - 1)})
	}
	d.Shuffle(len(entries), func(i, j int) { entries[i], entries[j] = entries[j], entries[i] })
	sectors := max(lba, first+1) + d.pick(33, 33, 34, 100, 3000, 16065)

	// The sectors of both copies are forged on a small disk, and then told of the true size.
	const small, array = 80, 32
	f := tableforge.NewGPT(sector, small, 128, entries...)
	f.U32(tableforge.MBREntries+12, uint32(sectors-1))
	for _, at := range []int64{1, small - 1} {
		h := f[at*sector:][:92]
		h.U64(tableforge.GPTLastUsable, uint64(sectors-2-array))
		h.U64(tableforge.GPTAltLBA, uint64(sectors-1))
		if at > 1 {
			h.U64(tableforge.GPTMyLBA, uint64(sectors-1))
			h.U64(tableforge.GPTAltLBA, 1)
			h.U64(tableforge.GPTEntriesLBA, uint64(sectors-1-array))
		}
		h.U32(tableforge.GPTHeaderCRC, 0)
		h.U32(tableforge.GPTHeaderCRC, crc32.ChecksumIEEE(h))
	}
	s := &sparse{sectors: sectors, bytes: map[int64]forge.Bytes{}}
	for i := range int64(small) {
		to := i
		if i >= small-1-array {
			to = i + sectors - small
		}
		if b := f[i*sector : (i+1)*sector]; !bytes.Equal(b, zeros[:]) {
			s.bytes[to] = b
		}
	}

	for _, h := range append(holes, [2]int64{lba, sectors - first + 1}) {
		d.gap(s, h[0], h[1])
	}
	switch d.IntN(10) {
	case 0:
		s.at(1).Text(0, "damaged!")
	case 1:
		s.at(sectors-1).Text(0, "damaged!")
	case 2:
		s.sectors += d.pick(1, 2048) // an enlarged disk, whose backup is in the middle
	}
	return s
}

// gap puts data somewhere between two partitions.
func (d dice) gap(s *sparse, from, to int64) {
	for range 2 {
		if from < to && d.chance(30) {
			lba, n := from+d.Int64N(to-from), d.Uint64()|1
			s.at(lba).U64(8, n)
			if s.stray == nil {
				s.stray = map[int64]uint64{}
			}
			s.stray[lba] = n
		}
	}
}

// span is what the length of a link leads to the end of; it can be both, or neither.
type span struct{ logical, box bool }

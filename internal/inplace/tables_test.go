package inplace

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
)

// drawn is a random disk of a few partitions: the sectors of its tables are written, and the positions of other data
// are known.
type drawn struct {
	*rand.Rand
	kind  string
	bytes forge.Bytes
	parts []disk.Range // sectors
}

// start returns the start of the next partition: directly, or after a gap.
func (d *drawn) start(lba int64) int64 { return lba + []int64{0, 0, 1, 3, 5, 11}[d.IntN(6)] }

// place puts the next partition after lba, and returns its end.
func (d *drawn) place(lba int64) (start, sectors, end int64) {
	start, sectors = d.start(lba), 1+d.Int64N(30)
	d.parts = append(d.parts, disk.Range{Off: start, Len: sectors})
	return start, sectors, start + sectors
}

func slotOf(kind byte, start, sectors int64) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: uint32(start), Sectors: uint32(sectors)}
}

// mbr draws a table of one to three partitions, which a chain of one to three logical ones may follow.
func (d *drawn) mbr() {
	d.kind, d.bytes = "MBR", tableforge.NewMBR(400)
	slot, lba := 0, 1+d.Int64N(9)
	for ; slot < 1+d.IntN(3); slot++ {
		var start, sectors int64
		start, sectors, lba = d.place(lba)
		tableforge.PutSlot(d.bytes, 0, slot, slotOf(0x83, start, sectors))
	}
	if d.IntN(2) == 0 {
		d.kind = "MBR with a chain"
		box := d.start(lba)
		lba = d.chain(box)
		tableforge.PutSlot(d.bytes, 0, slot, slotOf(0x05, box, lba-box))
	}
	d.cut(lba)
}

// chain writes the records of an extended partition, and returns its end.
func (d *drawn) chain(box int64) int64 {
	record, last := box, int64(-1)
	for range 1 + d.IntN(3) {
		start, sectors, end := d.place(record + 1)
		tableforge.PutSlot(d.bytes, record, 0, slotOf(0x83, start-record, sectors))
		if last >= 0 {
			tableforge.PutSlot(d.bytes, last, 1, slotOf(0x05, record-box, end-record))
		}
		record, last = end, record
	}
	return record + d.Int64N(3)
}

// cut ends the disk at a sector, or a few after it, so that it has to grow.
func (d *drawn) cut(lba int64) { d.bytes = d.bytes[:(lba+[]int64{0, 0, 1, 9}[d.IntN(4)])*sector] }

// gpt draws a table with two copies, with a protective or a hybrid MBR. A copy can be damaged.
func (d *drawn) gpt() {
	d.kind = "GPT"
	var entries []tableforge.GPTEntry
	lba := int64(3)
	for range 1 + d.IntN(3) {
		var start int64
		start, _, lba = d.place(lba)
		entries = append(entries, tableforge.GPTEntry{First: uint64(start), Last: uint64(lba - 1)})
	}
	d.bytes = tableforge.NewGPT(sector, lba+2+[]int64{0, 0, 1, 9}[d.IntN(4)], 4, entries...)
	switch d.IntN(4) {
	case 0:
		d.kind = "GPT with one good copy"
		header := []int64{1, int64(len(d.bytes))/sector - 1}[d.IntN(2)]
		d.bytes[header*sector] ^= 1
	case 1:
		d.kind = "GPT with a hybrid MBR"
		p := d.parts[0]
		tableforge.PutSlot(d.bytes, 0, 0, slotOf(0x83, p.Off, p.Len))
		tableforge.PutSlot(d.bytes, 0, 1, slotOf(0xee, 1, p.Off-1))
		if p.Off < 2 {
			tableforge.PutSlot(d.bytes, 0, 1, tableforge.Slot{})
		}
	}
}

// fill writes data into the partitions, except for every seventh sector and some of one partition, and into some of the
// gaps.
func (d *drawn) fill() {
	hole := disk.Range{Off: d.parts[0].Off + d.Int64N(30), Len: d.Int64N(30)}
	for _, p := range d.parts {
		for i := range p.Len {
			if at := p.Off + i; at%7 != 5 && (at < hole.Off || at >= hole.End()) {
				d.noise(at)
			}
		}
	}
	if at := d.parts[len(d.parts)-1].End(); d.kind == "MBR" && d.IntN(2) == 0 && at*sector < int64(len(d.bytes)) {
		d.noise(at)
	}
}

func (d *drawn) noise(lba int64) {
	for i := range int64(sector) {
		d.bytes[lba*sector+i] = byte(d.Uint32())
	}
}

// plan is trueup's plan for the disk, without reading volumes.
func (d *drawn) plan(t *testing.T) *plan.Plan {
	t.Helper()
	l := boottest.Bare(t, d.disk())
	p, err := plan.New(l, align.Goal{Must: align.SmallestBoundary, Want: align.BoundaryOf(4096 << d.IntN(2))})
	require.NoError(t, err)
	return p
}

func (d *drawn) disk() disk.Disk {
	size := int64(len(d.bytes))
	return disk.New(size, sector, disk.Whole(bytes.NewReader(d.bytes), size))
}

// drawCase draws a disk and makes a case of it, or nil if nothing moves, or pieces would trade places.
func drawCase(t *testing.T, seed uint64) (c *simCase, kind string) {
	t.Helper()
	d := &drawn{Rand: rand.New(rand.NewPCG(29, seed))}
	if d.IntN(2) == 0 {
		d.mbr()
	} else {
		d.gpt()
	}
	d.fill()
	p := d.plan(t)
	moves, err := ordered(p.Pieces)
	if err != nil {
		require.ErrorIs(t, err, ondisk.ErrUnsupported)
		return nil, ""
	}
	if len(moves) == 0 {
		return nil, ""
	}
	c = &simCase{
		name:  fmt.Sprintf("table %d: %s, %d of %d pieces move", seed, d.kind, len(moves), len(p.Pieces)),
		chunk: 2 + d.Int64N(20), direct: 1 + d.Int64N(30), plan: p, old: d.bytes,
	}
	if p.Size > p.OldSize {
		c.name += ", grows"
	}
	if d.IntN(3) == 0 {
		c.name += ", with a footer"
		c.tail, c.newTail = []byte(fmt.Sprintf("%512s", "old")), []byte(fmt.Sprintf("%512s", "new"))
	}
	c.want, err = ondisk.Bytes(p.View(d.disk()), 0, p.Size)
	require.NoError(t, err)
	c.old, c.want = append(c.old, c.tail...), append(c.want, c.newTail...)
	return c, d.kind
}

// TestCrashesOfRandomTables crashes moves of random disks: chains of logical partitions, hybrid tables, a GPT whose
// backup moves, growing disks, footers. Plans are trueup's, and the expected disk is the view from which a copy is
// written. TRUEUP_CRASHES multiplies the disks and tries each call.
func TestCrashesOfRandomTables(t *testing.T) {
	t.Parallel()
	n := simulations(t)
	var s simulation
	kinds, cases := map[string]int{}, 0
	for seed := uint64(0); cases < 40*n; seed++ {
		c, kind := drawCase(t, seed)
		if c == nil {
			continue
		}
		cases++
		kinds[kind]++
		s.series(*c, faulty{}, 5, seed)
		if n > 1 {
			s.points(*c, faulty{}, 2)
		}
		if s.first != nil {
			break
		}
	}
	t.Logf("%d disks, %d trials, %d wrong; %v", cases, s.trials, s.wrong, kinds)
	require.NoError(t, s.first)
	require.Len(t, kinds, 5, "kinds of tables")
}

package plan_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
)

// tablesSeed reproduces a failure; TRUEUP_TABLE selects one table.
const (
	tablesSeed = 4
	tables     = 100_000
)

// TestHundredThousandTables plans random valid tables of all kinds, and checks the promises of plans. Other tests cover
// volumes.
func TestHundredThousandTables(t *testing.T) {
	n := disktest.Sample(tables)
	if s := os.Getenv("TRUEUP_TABLE"); s != "" {
		i, err := strconv.Atoi(s)
		require.NoError(t, err)
		checkTable(t, i)
		return
	}
	for part := range 4 {
		t.Run(fmt.Sprintf("part %d", part), func(t *testing.T) {
			t.Parallel()
			for i := part; i < n; i += 4 {
				if checkTable(t, i); t.Failed() {
					return
				}
			}
		})
	}
}

// checkStray requires that data between partitions are in the result once each, in their order. It searches without
// regard to gaps.
func (s *sparse) checkStray(t *testing.T, view disk.Disk, again string) {
	t.Helper()
	known := map[uint64]bool{}
	var want, got []uint64
	for _, lba := range slices.Sorted(maps.Keys(s.stray)) {
		want = append(want, s.stray[lba])
		known[s.stray[lba]] = true
	}
	for at := int64(0); at < view.Size(); {
		e, err := view.Extent(at, view.Size()-at)
		require.NoError(t, err, again)
		for at = e.Off; at < e.End() && !e.Zero; at += sector {
			var b [8]byte
			_, err := view.ReadAt(b[:], at+8)
			require.NoError(t, err, again)
			if n := binary.LittleEndian.Uint64(b[:]); known[n] {
				got = append(got, n)
			}
		}
		at = e.End()
	}
	require.Equal(t, want, got, again)
}

func (d dice) goal(l *layout.Layout) align.Goal {
	must := int64(4096) << d.IntN(19) // 4 KiB to 1 GiB
	g := align.Goal{
		Must: align.BoundaryOf(must), Want: align.BoundaryOf(min(must*d.pick(1, 1, 1, 16), 1<<30)), Mend: true,
	}
	for _, p := range l.Partitions {
		if d.chance(10) && p.Kind != table.Extended {
			g.Only = append(g.Only, p.Number)
		}
	}
	return g
}

func checkTable(t *testing.T, i int) {
	t.Helper()
	d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i)))}
	drawn := d.table()
	source := drawn.disk()
	again := fmt.Sprintf("TRUEUP_TABLE=%d", i)
	before := boottest.Bare(t, source)
	require.True(t, len(before.Table.Partitions) == 0 || before.Table.Plausible(), "%s: %v", again, before.Issues)
	require.Empty(t, before.Table.Relocate(table.Places{Size: before.Size}, before.Geometry),
		"%s: an unmoved table is the identity", again)
	goal := d.goal(before)
	p, err := plan.New(before, goal)
	require.NoError(t, err, again)
	require.Empty(t, p.Refusals(true), again)
	view := p.View(source)
	after := boottest.Bare(t, view)
	checkPlaces(t, p, before, after, again)
	checkBytes(t, p, before, after, again)
	drawn.checkStray(t, view, again)
	checkGrowth(t, p, before, again)
	checkExplained(t, p, source, view, before, after, again)
	is := links(t, view, after)
	for i, was := range links(t, source, before) {
		require.True(t, is[i].logical || !was.logical, "%s: link %d led to the end of its partition", again, i)
		require.True(t, is[i].box || !was.box || was.logical, "%s: link %d led to the end of all", again, i)
	}

	requireSettled(t, after, goal, again)
	require.False(t, after.Table.Damaged(), again)

	requireRepeated(t, p, before, after, again)
}

// checkPlaces requires that moved partitions are aligned, without overlaps, inside the disk, and that everything else
// is unchanged.
func checkPlaces(t *testing.T, p *plan.Plan, before, after *layout.Layout, again string) {
	t.Helper()
	require.Len(t, after.Partitions, len(before.Partitions), again)
	require.Len(t, after.Table.Records, len(before.Table.Records), "%s: the chain is as long", again)
	require.Equal(t, order(before), order(after), "%s: the order on the disk", again)
	for i, was := range before.Partitions {
		is := after.Partitions[i]
		require.Equal(t, was.Number, is.Number, again)
		require.Equal(t, was.Kind, is.Kind, again)
		require.Equal(t, was.TypeID(), is.TypeID(), again)
		require.Equal(t, was.GUID, is.GUID, again)
		if was.Kind == table.Extended {
			continue
		}
		require.Equal(t, was.Len, is.Len, again)
		moved := is.Off != was.Off
		if moved || (was.Off%p.Goal.Must.Bytes() != 0 && p.Goal.Selects(was.Number)) {
			require.Zero(t, is.Off%p.Goal.Want.Bytes(), "%s: partition %d", again, is.Number)
		}
	}
	for i, r := range after.Table.Records {
		require.Equal(t, before.Table.Records[i].Logical, r.Logical, again)
		require.Equal(t, before.Table.Records[i].Box, r.Box, again)
	}
	end := int64(0)
	for _, x := range after.Items() {
		require.GreaterOrEqual(t, x.Off, end, again)
		end = x.End()
	}
	require.LessOrEqual(t, end, after.Usable(after.Size), again)
}

// links returns the lengths of the links of a chain.
func links(t *testing.T, d disk.Disk, l *layout.Layout) []span {
	t.Helper()
	var out []span
	for i, r := range l.Table.Records {
		b := make(forge.Bytes, sector)
		_, err := d.ReadAt(b, r.Off)
		require.NoError(t, err)
		for k := range 2 {
			e := b[tableforge.MBREntries+k*tableforge.MBREntry:]
			if e[4] != 0x05 {
				continue
			}
			next := l.Table.Records[i+1]
			box, _ := l.Partition(r.Box)
			logical, _ := l.Partition(next.Logical)
			require.Equal(t, next.Off, box.Off+int64(binary.LittleEndian.Uint32(e[8:]))*sector)
			end := next.Off + int64(binary.LittleEndian.Uint32(e[12:]))*sector
			out = append(out, span{logical: end == logical.End(), box: end == box.End()})
		}
	}
	return out
}

func order(l *layout.Layout) []int {
	parts := slices.Clone(l.Partitions)
	slices.SortStableFunc(parts, func(a, b boot.Partition) int { return cmp.Compare(a.Off, b.Off) })
	var out []int
	for _, q := range parts {
		out = append(out, q.Number)
	}
	return out
}

// checkBytes requires that every byte of a partition is in the result exactly once, at its place and unpatched, and
// that the data of every gap are somewhere.
func checkBytes(t *testing.T, p *plan.Plan, before, after *layout.Layout, again string) {
	t.Helper()
	for i, was := range before.Partitions {
		if was.Kind == table.Extended {
			continue
		}
		var covered int64
		for _, x := range p.Pieces {
			from, to := max(x.From, was.Off), min(x.From+x.Len, was.End())
			if from >= to {
				continue
			}
			require.Equal(t, after.Partitions[i].Off-was.Off, x.To-x.From, "%s: partition %d", again, was.Number)
			covered += to - from
		}
		require.Equal(t, was.Len, covered, "%s: partition %d", again, was.Number)
		for _, x := range p.Patches {
			require.False(t, after.Partitions[i].Overlaps(x.Range()), "%s: %s", again, x.Reason)
		}
	}
	items := before.Items()
	for i, g := range before.Gaps {
		var covered int64
		for _, x := range p.Pieces {
			n := min(x.From+x.Len, g.Data.End()) - max(x.From, g.Data.Off)
			if n <= 0 {
				continue
			}
			covered += n
			if items[i].Kind == layout.PartitionItem && x.To != x.From {
				was, _ := before.Partition(items[i].Number)
				is, _ := after.Partition(items[i].Number)
				require.Equal(t, is.Off-was.Off, x.To-x.From, "%s: data behind partition %d stays, or moves with it",
					again, was.Number)
			}
		}
		require.Equal(t, g.Data.Len, covered, "%s: data at %d", again, g.Data.Off)
	}
}

// checkGrowth requires that a grown disk was too small, even with everything as near to the start as possible, on
// boundaries only.
func checkGrowth(t *testing.T, p *plan.Plan, before *layout.Layout, again string) {
	t.Helper()
	require.GreaterOrEqual(t, p.Size, before.Size, again)
	if p.Size == before.Size {
		return
	}
	require.Zero(t, p.Size%mib, again)
	end := int64(0)
	items := before.Items()
	if len(items) > 0 {
		end = items[0].Off
	}
	for i, x := range items {
		if x.Kind == layout.PartitionItem {
			want := p.Goal.Want.Bytes()
			to := (end + want - 1) / want * want
			if q, _ := before.Partition(x.Number); (q.Off%p.Goal.Must.Bytes() == 0 || !p.Goal.Selects(x.Number)) &&
				q.Off >= end {
				to = min(to, q.Off)
			}
			end = to
		}
		if x.Kind == layout.BoxEndItem {
			end = max(end, x.Off)
		}
		end += x.Len + before.Gaps[i].Data.Len
	}
	least := end + before.Size - before.Usable(before.Size)
	// This simple sum excludes data between partitions, whose position among zeros decides how close things can come.
	if !slices.ContainsFunc(before.Gaps, func(g layout.Gap) bool { return g.Data.Len > 0 }) {
		require.Greater(t, least, before.Size, "%s: it would have fitted", again)
		require.Less(t, p.Size-least, int64(mib), "%s: no more than to the next MiB", again)
	}
}

// dice draws a random table.
type dice struct {
	*rand.Rand
	tiny bool // a few sectors of everything
	far  bool // near the last LBA of an MBR
}

// pick returns a number of sectors. Those of tiny disks are below 11, and 0 only if it is a choice.
func (d dice) pick(of ...int64) int64 {
	n := of[d.IntN(len(of))]
	if d.tiny {
		n %= 11
	}
	return n
}

func (d dice) chance(percent int) bool { return d.IntN(100) < percent }

// sparse is a disk with a few nonzero sectors.
type sparse struct {
	sectors int64
	sector  int64                 // sector size; 0: 512
	bytes   map[int64]forge.Bytes // by LBA
	stray   map[int64]uint64      // data between partitions, by LBA
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

// start returns the start of the next partition, at or after lba: directly, after a gap, or on a cylinder.
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

// chain writes the records of an extended partition that begins at start, and returns its end. The order of the chain
// may differ from the order on disk, except for the first record.
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

// span returns the length of a link: most tools end it with the next logical partition, some with the extended one, and
// it can be anything else, since no reader needs it.
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

	// The sectors of both copies are forged on a small disk, and then patched with the real size.
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

// span tells whether the length of a link leads to the end of the logical partition, of the extended one, of both or of
// neither.
type span struct{ logical, box bool }

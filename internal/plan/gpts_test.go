package plan_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
)

// oddGPT is a GPT that is valid but that hardly any tool makes. Positions are in its own sectors.
type oddGPT struct {
	sector, sectors int64 // size of the disk according to the table
	extra           int64 // bytes after that
	read            int64 // sector size for reading the disk
	entrySize       int64
	array           []byte
	places          [2]int64 // of both arrays
	first, last     int64    // usable
	damaged         string
	stray           []int64 // data at the front or before the backup that belong to nothing
	bytes           map[int64]forge.Bytes
}

func (g *oddGPT) arraySectors() int64 {
	return (int64(len(g.array)) + g.sector - 1) / g.sector
}

func (d dice) oddGPT() *oddGPT {
	g := &oddGPT{sector: d.pick(512, 512, 4096), entrySize: d.pick(128, 128, 256, 4096), bytes: map[int64]forge.Bytes{}}
	g.read = d.pick(sector, g.sector)
	count := d.pick(1, 3, 4, 9, 128, 128)
	if d.chance(1) {
		count, g.entrySize = 16384, 128
	}
	g.array = make([]byte, count*g.entrySize)
	g.places[0] = 2 + d.pick(0, 0, 0, 5, 38)
	g.strays(d, 2, g.places[0])
	end := g.places[0] + g.arraySectors()
	g.first = end + d.pick(0, 0, 6, 2000)
	g.strays(d, end, g.first)
	lba, used := g.first, d.Perm(int(min(count, 6)))
	for _, i := range used[:d.IntN(len(used)+1)] {
		start := d.start(lba)
		lba = start + d.sizeOf()
		e := forge.Bytes(g.array[int64(i)*g.entrySize:])
		e.Text(0, "this is a type  ")
		e.Text(16, fmt.Sprintf("partition %d     ", i))
		e.U64(32, uint64(start))
		e.U64(40, uint64(lba-1))
		e.U64(48, d.Uint64())
		e.Text(56, "n a m e ")
		if g.entrySize > 128 {
			e.Text(128, "not ours")
		}
	}
	g.last = max(lba, g.first+1) + d.pick(0, 0, 0, 10, 5000)
	g.places[1] = g.last + 1 + d.pick(0, 0, 0, 3, 1000)
	g.strays(d, g.last+1, g.places[1])
	g.sectors = g.places[1] + g.arraySectors() + d.pick(0, 0, 5) + 1
	g.write(d)
	g.damage(d)
	return g
}

// strays puts data into some of the sectors of a range.
func (g *oddGPT) strays(d dice, from, to int64) {
	if from < to && d.chance(50) {
		lba := from + d.Int64N(to-from)
		g.at(lba*g.sector).U64(8, d.Uint64()|1)
		g.stray = append(g.stray, lba)
	}
}

// at returns the piece of the disk at a byte offset.
func (g *oddGPT) at(off int64) forge.Bytes {
	lba := off / sector
	if g.bytes[lba] == nil {
		g.bytes[lba] = make(forge.Bytes, sector)
	}
	return g.bytes[lba][off%sector:]
}

func (g *oddGPT) write(d dice) {
	mbr := tableforge.NewMBR(1)
	at := d.IntN(4)
	tableforge.PutSlot(mbr, 0, at, tableforge.Slot{
		Flag: []byte{0, 0x80}[d.IntN(2)], Type: 0xee, Start: 1,
		Sectors: uint32(d.pick(g.sectors-1, 1<<32-1, 5)),
	})
	g.bytes[0] = mbr
	last := g.sectors - 1
	for i, h := range [][2]int64{{1, last}, {last, 1}} {
		size := d.pick(92, 92, 512)
		f := make(forge.Bytes, size)
		f.Text(0, "EFI PART")
		f.U32(8, 0x10000)
		f.U32(tableforge.GPTHeaderSize, uint32(size))
		f.U64(tableforge.GPTMyLBA, uint64(h[0]))
		f.U64(tableforge.GPTAltLBA, uint64(h[1]))
		f.U64(tableforge.GPTFirstUsable, uint64(g.first))
		f.U64(tableforge.GPTLastUsable, uint64(g.last))
		f.Text(tableforge.GPTDiskGUID, "guid of the disk")
		f.U64(tableforge.GPTEntriesLBA, uint64(g.places[i]))
		f.U32(tableforge.GPTNumEntries, uint32(int64(len(g.array))/g.entrySize))
		f.U32(tableforge.GPTEntrySize, uint32(g.entrySize))
		f.U32(tableforge.GPTEntriesCRC, crc32.ChecksumIEEE(g.array))
		f.U32(tableforge.GPTHeaderCRC, crc32.ChecksumIEEE(f))
		copy(g.at(h[0]*g.sector), f)
		at := g.places[i] * g.sector
		for b := range slices.Chunk(g.array, sector) {
			copy(g.at(at), b)
			at += sector
		}
	}
}

func (g *oddGPT) damage(d dice) {
	last := g.sectors - 1
	header := d.pick(1, last)
	switch d.IntN(12) {
	case 0:
		g.at(header*g.sector).Text(0, "damaged!")
		g.damaged = "header"
	case 1:
		g.at(header * g.sector)[tableforge.GPTHeaderCRC] ^= 1
		g.damaged = "sum of header"
	case 2:
		array := g.places[0]
		if header == last {
			array = g.places[1]
		}
		g.at(array * g.sector)[d.IntN(32)] ^= 4
		g.damaged = "entry"
	case 3:
		g.sectors += d.pick(1, 2, 33, 2048, 100_000)
		g.damaged = "enlarged"
	case 4:
		clear(g.bytes[0])
		g.damaged = "no protective MBR"
	case 5:
		// An invalid field in a header with a correct checksum.
		h := g.at(header * g.sector)
		switch d.IntN(4) {
		case 0:
			h.U32(tableforge.GPTNumEntries, 0)
			h.U32(tableforge.GPTEntriesCRC, 0)
		case 1:
			h.U32(tableforge.GPTNumEntries, uint32(len(g.array)/129))
			h.U32(tableforge.GPTEntrySize, 129)
		case 2:
			h.U64(tableforge.GPTFirstUsable, uint64(g.last+1))
		case 3:
			h.U64(tableforge.GPTNumEntries, 129<<32) // none, with an impossible size
			h.U32(tableforge.GPTEntriesCRC, 0)
		}
		h.U32(tableforge.GPTHeaderCRC, 0)
		size := binary.LittleEndian.Uint32(h[tableforge.GPTHeaderSize:])
		h.U32(tableforge.GPTHeaderCRC, crc32.ChecksumIEEE(h[:size]))
		g.damaged = "claims of header"
	case 6:
		g.at(last*g.sector).Text(d.pick(0, 56), "damaged!")
		g.sectors += g.arraySectors() + 1 + d.pick(0, 1000)
		g.damaged = "enlarged, backup damaged"
	}
	g.extra = d.pick(0, 0, 0, 512) % g.sector
}

// disk returns the disk in the sectors of the table, or in those of a raw image without --sector-size.
func (g *oddGPT) disk() disk.Disk {
	s := &sparse{sectors: (g.sectors*g.sector + g.extra) / sector, bytes: g.bytes, sector: g.read}
	return s.disk()
}

// copyOf reads one copy of a table according to the specification, and returns its usable sectors and its array.
func (g *oddGPT) copyOf(t *testing.T, d disk.Disk, lba, alt int64, again string) (last int64, array []byte) {
	t.Helper()
	read := func(off, n int64) forge.Bytes {
		b := make(forge.Bytes, n)
		_, err := d.ReadAt(b, off)
		require.NoError(t, err, again)
		return b
	}
	h := read(lba*g.sector, g.sector)
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(h[at:]) }
	u64 := func(at int) int64 { return int64(binary.LittleEndian.Uint64(h[at:])) }
	require.Equal(t, "EFI PART", string(h[:8]), again)
	sum := u32(tableforge.GPTHeaderCRC)
	h.U32(tableforge.GPTHeaderCRC, 0)
	require.Equal(t, crc32.ChecksumIEEE(h[:u32(tableforge.GPTHeaderSize)]), sum, again)
	require.Equal(t, lba, u64(tableforge.GPTMyLBA), again)
	require.Equal(t, alt, u64(tableforge.GPTAltLBA), again)
	require.Equal(t, g.first, u64(tableforge.GPTFirstUsable), again)
	require.Equal(t, "guid of the disk", string(h[tableforge.GPTDiskGUID:][:16]), again)
	require.Equal(t, uint32(g.entrySize), u32(tableforge.GPTEntrySize), again)
	require.Equal(t, uint32(int64(len(g.array))/g.entrySize), u32(tableforge.GPTNumEntries), again)
	array = read(u64(tableforge.GPTEntriesLBA)*g.sector, int64(len(g.array)))
	require.Equal(t, crc32.ChecksumIEEE(array), u32(tableforge.GPTEntriesCRC), again)
	return u64(tableforge.GPTLastUsable), array
}

// protected returns the number of sectors in the protective entry.
func (g *oddGPT) protected(t *testing.T, d disk.Disk) uint32 {
	t.Helper()
	b := disktest.Head(t, d, sector)
	for e := range slices.Chunk(b[tableforge.MBREntries:tableforge.MBRMagic], tableforge.MBREntry) {
		if e[4] == 0xee {
			return binary.LittleEndian.Uint32(e[12:])
		}
	}
	require.Fail(t, "no protective entry")
	return 0
}

// checkGPT reads both copies of a result, and the data that belong to nothing.
func (g *oddGPT) checkGPT(t *testing.T, p *plan.Plan, before *layout.Layout, source, view disk.Disk, again string) {
	t.Helper()
	if g.damaged == "enlarged" && len(p.Moves) == 0 && p.Size == p.OldSize {
		require.Empty(t, p.Patches, again) // sound, and stays unchanged
		return
	}
	end := view.Size()/g.sector - 1
	last, array := g.copyOf(t, view, 1, end, again)
	last2, array2 := g.copyOf(t, view, end, 1, again)
	require.Equal(t, array, array2, again)
	require.Equal(t, last, last2, again)
	if n := g.protected(t, view); n != 1<<32-1 && (p.Size != p.OldSize || before.Table.Damaged()) {
		require.Equal(t, uint32(end), n, again)
	}
	want := forge.Bytes(slices.Clone(g.array))
	for _, m := range p.Moves {
		at := int64(m.Partition-1) * g.entrySize
		want.U64(at+32, uint64(m.To/g.sector))
		want.U64(at+40, uint64((m.To+m.Len)/g.sector-1))
	}
	disktest.EqualBytes(t, want, array)
	for _, lba := range g.stray {
		to := lba
		switch {
		case lba > g.last && strings.HasPrefix(g.damaged, "enlarged"):
			continue // in a gap
		case lba > g.last:
			to = end + 1 - (g.sectors - lba)
		}
		was, is := make([]byte, g.sector), make([]byte, g.sector)
		_, err := source.ReadAt(was, lba*g.sector)
		require.NoError(t, err)
		_, err = view.ReadAt(is, to*g.sector)
		require.NoError(t, err)
		require.True(t, bytes.Equal(was, is), "%s: sector %d of %d", again, lba, g.sectors)
	}
}

// TestOddGPTs plans valid tables that hardly any tool makes, damaged or not, and reads the results according to the
// specification.
func TestOddGPTs(t *testing.T) {
	n := disktest.Sample(3000)
	planned := 0
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i)))}
		g := d.oddGPT()
		source := g.disk()
		again := fmt.Sprintf("table %d, %s", i, g.damaged)
		before := boottest.Bare(t, source)
		require.Equal(t, table.GPT, before.Table.Scheme, again)
		goal := d.goal(before)
		p, err := plan.New(before, goal)
		require.NoError(t, err, again)
		if len(p.Refusals(true)) > 0 {
			require.True(t, before.Table.Blocked(), again)
			continue
		}
		if d.chance(30) {
			p.Grow(before, p.Size+d.pick(sector, mib, 5*mib+sector))
		}
		if before.Table.Blocked() {
			continue
		}
		planned++
		view := p.View(source)
		after := boottest.Bare(t, view)
		checkPlaces(t, p, before, after, again)
		checkBytes(t, p, before, after, again)
		g.checkGPT(t, p, before, source, view, again)
		checkExplained(t, p, source, view, before, after, again)
		requireSettled(t, after, goal, again)
	}
	require.Greater(t, planned, n*9/10)
}

// A damaged copy of the GPT stays if nothing has to be rewritten, is rewritten on request, and otherwise prevents any
// change of the disk.
func TestDamagedBackups(t *testing.T) {
	goal := kept
	mends := goal
	mends.Mend = true
	damaged := func(first int64, where ...byte) *layout.Layout {
		f := tableforge.NewGPT(sector, 8192, 128, tableforge.GPTEntry{First: uint64(first), Last: 8000, Name: "one"})
		clear(f[8191*sector:])
		copy(f[8191*sector:], where)
		return read(t, disktest.Memory(f))
	}
	l := damaged(2048)
	require.True(t, l.Damaged())
	p := newPlan(t, l, goal)
	require.Empty(t, p.Moves)
	require.Empty(t, p.Patches)
	require.Empty(t, p.Refusals(false))
	require.Contains(t, codes(p.Notes), "gpt-backup")
	require.True(t, p.Idle())
	l.Issues = slices.Insert(l.Issues, 0, ondisk.Issue{Code: "other", Effect: ondisk.Warn, Text: "no damage"})
	p.Grow(l, l.Size+mib)
	require.Equal(t, []string{"gpt-damaged"}, codes(p.Refusals(false)))
	require.Contains(t, p.Refusals(false)[0].Text, "rewritten: the backup GPT is invalid")
	p = newPlan(t, l, mends)
	require.Empty(t, p.Moves)
	require.NotEmpty(t, p.Patches)
	require.False(t, p.Idle())
	require.Empty(t, p.Refusals(false))
	require.Len(t, coded(p.Notes, "gpt-backup"), 1)
	p = plan.Copy(l.Size)
	p.Grow(l, l.Size+mib)
	require.Equal(t, []string{"gpt-damaged"}, codes(p.Refusals(false)))
	p = plan.Copy(l.Size)
	p.Mend(l)
	require.True(t, p.Mends)
	require.NotEmpty(t, p.Patches)
	p.Grow(l, l.Size+mib)
	require.Empty(t, p.Refusals(false))

	l = damaged(63)
	p = newPlan(t, l, goal)
	require.Equal(t, []string{"gpt-damaged"}, codes(p.Refusals(true)))
	p.Grow(l, l.Size+mib)
	require.Equal(t, []string{"gpt-damaged"}, codes(p.Refusals(true)))
	p = newPlan(t, l, mends)
	require.Len(t, p.Moves, 1)
	require.Empty(t, p.Refusals(false))
	at, err := plan.At(l, p.Starts(), true)
	require.NoError(t, err)
	require.Equal(t, p.Patches, at.Patches)
	require.Equal(t, p.Pieces, at.Pieces)

	// Other data are in the place of the header.
	for _, first := range []int64{63, 2048} {
		l = damaged(first, []byte("a superblock that is found from the end of a disk, and no part of a GPT")...)
		require.False(t, l.Damaged())
		require.True(t, l.Table.Blocked())
		p = newPlan(t, l, mends)
		require.Equal(t, []string{"gpt-backup"}, codes(p.Refusals(true)), first)
		p = newPlan(t, l, goal)
		require.Equal(t, first == 63, len(p.Refusals(true)) == 1)
		p = plan.Copy(l.Size)
		p.Mend(l)
		require.Len(t, p.Refusals(true), 1)
	}
	p = plan.Copy(l.Size)
	p.Grow(l, l.Size+mib)
	require.Equal(t, []string{"gpt-damaged"}, codes(p.Refusals(true)))
}

// A repair is refused beside a table for sectors of another size, which a machine may read instead. A sound table needs
// none, and other reasons against a move do not prevent a repair.
func TestRepairBesideAnotherTable(t *testing.T) {
	const large, size = 4096, 4 * mib
	for _, damaged := range []bool{false, true} {
		f := tableforge.NewGPT(sector, size/sector, 8, tableforge.GPTEntry{First: 2048, Last: 4095})
		f.Put(large, tableforge.NewGPT(large, size/large, 128)[large:8*large]) // header and entries
		if damaged {
			clear(f[size-sector:])
		}
		l := read(t, disktest.Memory(f))
		l.Issues = append(l.Issues, ondisk.Issue{Code: "other", Effect: ondisk.Refuse, OnMove: true})
		p := plan.Copy(l.Size)
		p.Mend(l)
		require.Equal(t, damaged, p.Mends)
		require.Equal(t, damaged, slices.Equal([]string{"gpt-sector-sizes"}, codes(p.Refusals(true))))
		require.Equal(t, damaged, len(p.Refusals(true)) > 0)
	}
}

// The backup in the middle of an enlarged disk is no damage: it stays if nothing has to be rewritten, goes to the end
// with a move, and keeps its distance from the end if other data are there.
func TestEnlargedDisks(t *testing.T) {
	for _, occupied := range []bool{false, true} {
		f := tableforge.NewGPT(sector, 8192, 128, tableforge.GPTEntry{First: 63, Last: 8000, Name: "moves"})
		f = append(f, make([]byte, 8192*sector)...)
		if occupied {
			f.Text(2*8192*sector-100, "a superblock at the end")
		}
		d := disktest.Memory(f)
		l := read(t, d)
		require.False(t, l.Damaged())
		require.False(t, l.Table.Blocked())
		stays := newPlan(t, l, align.Goal{Must: align.BoundaryOf(sector), Want: align.BoundaryOf(sector)})
		require.Empty(t, stays.Patches)
		require.Empty(t, stays.Refusals(false))
		disktest.EqualBytes(t, f, disktest.Head(t, stays.View(d), stays.Size))
		p := newPlan(t, l, kept)
		require.Empty(t, p.Refusals(false))
		require.Equal(t, occupied, p.Size > p.OldSize)
		view := p.View(d)
		at, want := p.Size-sector, "EFI PART"
		if occupied { // a superblock is found from the end
			at, want = p.Size-100, "a superblock at the end"
		}
		b, err := ondisk.Bytes(view, at, int64(len(want)))
		require.NoError(t, err)
		require.Equal(t, want, string(b))
		after := read(t, view)
		require.False(t, after.Damaged())
		require.Equal(t, int64(mib), after.Partitions[0].Off)
	}
}

// A GPT disk that is truncated anywhere after its entries is read, but a plan of it is an error.
func TestGPTDiskThatWasCutShort(t *testing.T) {
	const sectors = 8000
	disk := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: 2000, Name: "first"},
		tableforge.GPTEntry{First: 3000, Last: 7900, Name: "last"})
	for _, left := range []int64{34, 35, 63, 64, 65, 100, 1000, 2001, 2999, 3001, 7000, 7900, 7966} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			l := read(t, disktest.Memory(disk[:left*512]))
			require.Len(t, l.Partitions, 2)
			require.Equal(t, "cut-short", l.Issues[0].Code)
			for _, goal := range []align.Goal{
				align.GoalFor(l, align.Boundary{}), {Must: align.DefaultBoundary, Want: align.Kept},
			} {
				_, err := plan.New(l, goal)
				require.ErrorIs(t, err, ondisk.ErrFormat)
				require.ErrorContains(t, err, fmt.Sprintf("the image has %d of the %d bytes", left*512, sectors*512))
			}
			grown := plan.Copy(l.Size)
			grown.Grow(l, l.Size+mib)
			require.NotEmpty(t, grown.Refusals(false), "a new backup could overwrite a partition")
		})
	}
}

// extent is a range in sectors, and mirror the index of the partition in it; -1: protective.
type extent struct {
	start, end int64
	mirror     int
}

// hybridDisk is a GPT with a hybrid MBR: slots mirror some partitions, and protective entries cover the space between
// them, up to a partition, from one on, or with some of the free space.
type hybridDisk struct {
	bytes forge.Bytes
	parts []extent
	slots []extent
}

func drawHybrid(t *rapid.T) *hybridDisk {
	d := &hybridDisk{}
	lba := int64(34)
	for i := range rapid.IntRange(1, 6).Draw(t, "partitions") {
		lba += rapid.SampledFrom([]int64{0, 0, 1, 29, 500}).Draw(t, "gap")
		size := rapid.Int64Range(1, 3000).Draw(t, "sectors")
		d.parts = append(d.parts, extent{lba, lba + size, i})
		lba += size
	}
	sectors := lba + rapid.SampledFrom([]int64{0, 1, 100}).Draw(t, "tail") + 33
	entries := make([]tableforge.GPTEntry, len(d.parts))
	for i, p := range d.parts {
		entries[i] = tableforge.GPTEntry{First: uint64(p.start), Last: uint64(p.end - 1)}
	}
	d.bytes = tableforge.NewGPT(sector, sectors, 128, entries...)
	mirrors := rapid.SliceOfNDistinct(rapid.IntRange(0, len(d.parts)-1), 1, min(2, len(d.parts)), rapid.ID).Draw(t,
		"mirrors")
	slices.Sort(mirrors)
	from := int64(1)
	for _, m := range append(mirrors, len(d.parts)) {
		to, start := sectors, from
		if m < len(d.parts) {
			to = d.parts[m].start
		}
		if next := d.after(from); next < len(d.parts) && from > 1 {
			start = rapid.Int64Range(from, min(to, d.parts[next].start)).Draw(t, "protected from")
		}
		last := max(from, 2)
		for _, p := range d.parts {
			if p.end <= to {
				last = max(last, p.end)
			}
		}
		covers := from == 1 || slices.ContainsFunc(d.parts, func(p extent) bool {
			return p.start >= start &&
				p.end <= to
		})
		if m == len(d.parts) {
			last = sectors // the backup of the GPT
		}
		if end := rapid.SampledFrom([]int64{to, last, (last + to) / 2}).Draw(t, "protected to"); covers &&
			end > start && len(d.slots) < 4 {
			d.slots = append(d.slots, extent{start, end, -1})
		}
		if m < len(d.parts) {
			d.slots = append(d.slots, d.parts[m])
			from = d.parts[m].end
		}
	}
	d.slots = rapid.Permutation(d.slots[:min(4, len(d.slots))]).Draw(t, "slots")
	clear(d.bytes[tableforge.MBREntries:tableforge.MBRMagic])
	for i, s := range d.slots {
		kind := byte(0x83)
		if s.mirror < 0 {
			kind = 0xee
		}
		tableforge.PutSlot(d.bytes, 0, i, slot(kind, uint32(s.start), uint32(s.end-s.start)))
	}
	return d
}

// after returns the index of the first partition at or after a sector.
func (d *hybridDisk) after(lba int64) int {
	i := slices.IndexFunc(d.parts, func(p extent) bool { return p.start >= lba })
	if i < 0 {
		return len(d.parts)
	}
	return i
}

// covered returns the partitions inside a range.
func covered(s extent, parts []extent) (out []int) {
	for i, p := range parts {
		if p.start >= s.start && p.end <= s.end {
			out = append(out, i)
		}
	}
	return out
}

// TestHybridMBRFollows requires that both tables of a result agree: slots still mirror partitions, and protective
// entries cover the same partitions, do not overlap others, and keep the first and last sector.
func TestHybridMBRFollows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawHybrid(t)
		before := read(t, disktest.Memory(d.bytes))
		require.True(t, before.Table.IsHybrid(), "%v of %v: %v", d.slots, d.parts, before.Issues)
		want := align.BoundaryOf(rapid.SampledFrom([]int64{4096, 65536, mib}).Draw(t, "want"))
		p := newPlan(t, before, align.Goal{Must: align.SmallestBoundary, Want: want})
		require.Empty(t, p.Refusals(false))
		result := make([]byte, p.Size)
		source := disktest.Memory(d.bytes)
		_, err := p.View(source).ReadAt(result, 0)
		require.NoError(t, err)
		after := read(t, disktest.Memory(result))
		checkExplained(t, p, source, p.View(source), before, after, "hybrid")
		require.True(t, after.Table.IsHybrid(), "%v of %v: %v", d.slots, d.parts, after.Issues)
		require.Len(t, after.Issues, len(before.Issues))
		var parts []extent
		for i, x := range after.Partitions {
			require.Zero(t, x.Off%4096)
			parts = append(parts, extent{x.Off / sector, x.End() / sector, i})
		}
		was, is := int64(len(d.bytes))/sector, p.Size/sector
		var slots []extent
		for i, s := range d.slots {
			e := result[tableforge.MBREntries+i*tableforge.MBREntry:]
			start := int64(binary.LittleEndian.Uint32(e[8:]))
			now := extent{start, start + int64(binary.LittleEndian.Uint32(e[12:])), s.mirror}
			slots = append(slots, now)
			if s.mirror >= 0 {
				require.Equal(t, parts[s.mirror], now)
				continue
			}
			require.Equal(t, covered(s, d.parts), covered(now, parts), "slot %d: %v is %v", i+1, s, now)
			require.Equal(t, s.start == 1, now.start == 1)
			require.Equal(t, s.end == was, now.end == is)
		}
		slices.SortFunc(slots, func(a, b extent) int { return int(a.start - b.start) })
		for i, s := range slots[1:] {
			require.LessOrEqual(t, slots[i].end, s.start, "slots lie over each other")
		}
	})
}

// If a disk grows and nothing moves, only a protective entry that ended with the disk changes, even in a hybrid MBR
// that refuses a move.
func TestHybridMBROfALargerDisk(t *testing.T) {
	f := tableforge.NewGPT(sector, 20_000, 128, tableforge.GPTEntry{First: 2048, Last: 4095})
	for i, s := range []tableforge.Slot{
		{Type: 0xee, Start: 1, Sectors: 2047},
		{Type: 0x83, Start: 2048, Sectors: 1000},
		{Type: 0xee, Start: 5000, Sectors: 15_000},
	} {
		tableforge.PutSlot(f, 0, i, s)
	}
	l := read(t, disktest.Memory(f))
	p := plan.Copy(l.Size)
	p.Grow(l, l.Size+mib)
	var changed []int64
	for _, x := range p.Patches {
		if x.Off < sector {
			changed = append(changed, x.Off)
			require.Equal(t, uint32(15_000+mib/sector), binary.LittleEndian.Uint32(x.New))
		}
	}
	require.Equal(t, []int64{tableforge.MBREntries + 2*tableforge.MBREntry + 12}, changed)
}

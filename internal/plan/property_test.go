package plan_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// planned is a disk, its plan, and the bytes of the result.
type planned struct {
	*randomDisk
	goal   align.Goal
	before *layout.Layout
	plan   *plan.Plan
	result []byte
	after  *layout.Layout
}

func read(t require.TestingT, d disk.Disk) *layout.Layout {
	l, err := layout.Read(d, table.Geometry{})
	require.NoError(t, err)
	require.NoError(t, l.ReadGaps(d))
	return l
}

func drawPlan(t *rapid.T) *planned {
	d := drawDisk(t)
	must := rapid.SampledFrom([]int64{4096, 8192, 65536, mib}).Draw(t, "must")
	p := &planned{randomDisk: d, goal: align.Goal{Must: align.BoundaryOf(must)}}
	p.goal.Want = align.BoundaryOf(must * rapid.SampledFrom([]int64{1, 1, 16}).Draw(t, "want"))
	for _, part := range d.parts {
		if rapid.IntRange(0, 5).Draw(t, "only") == 0 {
			p.goal.Only = append(p.goal.Only, part.slot+1)
		}
	}

	p.before = read(t, d.disk())
	var err error
	p.plan, err = plan.New(p.before, p.goal)
	require.NoError(t, err)
	p.result = make([]byte, p.plan.Size)
	view := p.plan.View(d.disk())
	require.Equal(t, p.plan.Size, view.Size())
	_, err = view.ReadAt(p.result, 0)
	require.NoError(t, err)
	p.after = read(t, view)
	return p
}

// to returns the new position of a partition, from the table of the result.
func (p *planned) to(t *rapid.T, was part) int64 {
	e := p.result[tableforge.MBREntries+was.slot*tableforge.MBREntry:]
	require.Equal(t, uint32(was.sectors), binary.LittleEndian.Uint32(e[12:]), "the size of a partition never changes")
	return int64(binary.LittleEndian.Uint32(e[8:]))
}

func TestPartitionsOfTheResult(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		end, furthest, moved := int64(0), int64(0), map[int]plan.Move{}
		for i, m := range p.plan.Moves {
			moved[m.Partition] = m
			require.True(t, i == 0 || m.From > p.plan.Moves[i-1].From, "moves are listed in disk order")
		}
		for _, was := range p.parts {
			to := p.to(t, was)
			require.GreaterOrEqual(t, to, end, "partitions keep their order and do not overlap")
			end = to + was.sectors
			require.LessOrEqual(t, end*sector, p.plan.Size, "inside of the disk")
			off := was.start * sector
			furthest += max(p.goal.Want.Bytes(), min(off&-off, 1<<20))
			require.Less(t, (to-was.start)*sector, furthest, "no further than it must")

			selected := p.goal.Selects(was.slot + 1)
			if selected && off%p.goal.Must.Bytes() != 0 {
				require.Zero(t, to*sector%p.goal.Want.Bytes(), "partition %d must be aligned", was.slot+1)
			}
			if to == was.start {
				require.NotContains(t, moved, was.slot+1)
				continue
			}
			require.Zero(t, to*sector%p.goal.Want.Bytes(), "what moves goes to the boundary")
			require.Equal(t, plan.Move{Partition: was.slot + 1, From: off, To: to * sector, Len: was.sectors * sector},
				moved[was.slot+1])
			require.Equal(t, (to-was.start)*sector, moved[was.slot+1].Delta())
		}
		require.EqualValues(t, len(p.bytes), p.plan.OldSize)
		if p.plan.Size != p.plan.OldSize {
			last := p.plan.Pieces[len(p.plan.Pieces)-1].Dest().End()
			require.Greater(t, last, p.plan.OldSize, "the disk grows only when it must")
			require.Equal(t, units.AlignUp(last, mib), p.plan.Size, "and to the next MiB")
		}
	})
}

// Numbers, types, flags and the signature stay, and so does all of sector 0 except positions.
func TestTheTableKeepsEverythingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		want := slices.Clone([]byte(p.bytes[:sector]))
		for _, was := range p.parts {
			to := p.to(t, was)
			if to == was.start {
				continue
			}
			e := tableforge.MBREntries + was.slot*tableforge.MBREntry
			binary.LittleEndian.PutUint32(want[e+8:], uint32(to))
			heads, spt := int64(p.before.Geometry.Heads), int64(p.before.Geometry.Sectors)
			first := to / spt / heads
			copy(want[e+1:], []byte{byte(to / spt % heads), byte(to%spt+1) | byte(first>>8<<6), byte(first)})
			last := (to + was.sectors - 1) / (heads * spt)
			copy(want[e+5:], []byte{byte(heads - 1), byte(spt) | byte(last>>8<<6), byte(last)})
		}
		disktest.EqualBytes(t, want, p.result[:sector])
	})
}

// Every nonzero sector of the source is in the result exactly once: those of a partition at the same place in it, those
// of a gap outside partitions. The result has no others.
func TestEverySectorOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		result := slices.Clone(p.result)
		for _, x := range p.plan.Patches { // other properties check patches
			require.Equal(t, x.New, result[x.Off:x.Off+int64(len(x.New))])
			copy(result[x.Off:], x.Old)
		}
		disktest.EqualBytes(t, p.bytes[:sector], result[:sector])
		clear(result[:sector])
		for _, was := range p.parts {
			to := p.to(t, was)
			body := result[to*sector : (to+was.sectors)*sector]
			disktest.EqualBytes(t, p.bytes[was.start*sector:was.end()*sector], body)
			clear(body)
		}
		var want, got []string
		rest := slices.Clone([]byte(p.bytes))
		clear(rest[:sector])
		for _, was := range p.parts {
			clear(rest[was.start*sector : was.end()*sector])
		}
		for _, c := range []struct {
			from []byte
			to   *[]string
		}{{rest, &want}, {result, &got}} {
			for s := range slices.Chunk(c.from, sector) {
				if !bytes.Equal(s, zeros[:]) {
					*c.to = append(*c.to, string(s))
				}
			}
		}
		require.Equal(t, want, got, "sectors between partitions, in their order")
	})
}

// requireRepeated requires the same plan from the positions of partitions alone, which is all that a later verify has.
func requireRepeated(t require.TestingT, p *plan.Plan, before, after *layout.Layout, again string) {
	starts := map[int]int64{}
	for _, q := range after.Partitions {
		starts[q.Number] = q.Off
	}
	repeated, err := plan.At(before, starts, p.Goal.Mend)
	require.NoError(t, err, again)
	require.Equal(t, p.Size, repeated.Size, again)
	require.Equal(t, p.Pieces, repeated.Pieces, again)
	require.Equal(t, p.Patches, repeated.Patches, again)
	require.Equal(t, p.Moves, repeated.Moves, again)
}

// Hidden sectors that were correct are correct again, in both boot sectors. Other values are unchanged.
func TestHiddenSectorsFollow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		checkExplained(t, p.plan, p.disk(), p.plan.View(p.disk()), p.before, p.after, "")
		requireSettled(t, p.after, p.goal, "")
		requireRepeated(t, p.plan, p.before, p.after, "")
		for _, was := range p.parts {
			if !was.ntfs {
				continue
			}
			to, want := p.to(t, was), was.hidden
			if was.hidden == was.start {
				want = to
			}
			for _, boot := range []int64{to, to + was.sectors - 1} {
				require.Equal(t, uint32(want), binary.LittleEndian.Uint32(p.result[boot*sector+fsforge.BootHidden:]))
			}
		}
	})
}

const (
	sector = 512
	mib    = 1 << 20
)

// part is a partition of a random disk. Positions are in sectors.
type part struct {
	slot           int
	start, sectors int64
	ntfs           bool
	hidden         int64 // position in its boot sector
}

func (p part) end() int64 { return p.start + p.sectors }

// randomDisk is a valid MBR disk. Every nonzero sector contains its own number, so that it can be recognized.
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
			p.hidden += 7 // a value that does not match the old layout is unchanged
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

// gap leaves the sectors between two partitions zero, or puts data somewhere in them.
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

// chs encodes according to UEFI 2.10, 5.2.1; nothing here is beyond cylinder 1023.
func (d *randomDisk) chs(lba int64) []byte {
	track := lba / 63
	cyl := track / d.heads
	return []byte{byte(track % d.heads), byte(lba%63+1) | byte(cyl>>8<<6), byte(cyl)}
}

func (d *randomDisk) disk() disk.Disk { return disktest.Memory(d.bytes) }

// FuzzLayout runs the whole way from any bytes to the view of a result: read, judge, plan, view, read again.
func FuzzLayout(f *testing.F) {
	const seedBytes = 36 << 10 // the MBR, and the boot sector of a partition at LBA 63
	for _, path := range disktest.Fixtures(f) {
		d := disktest.Fixture(f, path)
		f.Add(disktest.Head(f, d, seedBytes), uint32(d.Size()/512), uint8(0))
	}
	for _, b := range disktest.Seeds(f, seedBytes, "dfvfs/mbr.raw.gz", "imagemounter/test.mbr.xz", "mbrman/disk2.img",
		"gptman/disk1.img", "dftt/7-ntfs-undel.dd.xz") {
		f.Add(b, uint32(16384), uint8(12))
	}
	for i, put := range []func(forge.Bytes, int64, int64){
		fsforge.PutNTFS, fsforge.PutFAT16,
		fsforge.PutExt,
	} {
		const start, sectors = 3, 5000
		disk := tableforge.NewMBR(6000,
			tableforge.Slot{
				Flag: 0x80, Type: 0x07, Start: start,
				Sectors: sectors,
			}, slot(0x83, start+sectors, 100))
		put(disk, start, sectors)
		f.Add([]byte(disk[:(start+4)*512]), uint32(6000), uint8(i))
	}
	far := tableforge.NewMBR(1, slot(0x83, 63, 1), slot(0x83, 0xfffffffe, 1))
	f.Add([]byte(far), uint32(1<<32-1), uint8(18))
	behind := tableforge.NewMBR(1, slot(0x83, 63, 100), slot(0x83, 10000, 64))
	f.Add([]byte(behind), uint32(200), uint8(0)) // a gap of this size exceeds the disk
	for i, n := range disk.SectorSizes {
		large := tableforge.NewMBR(int(4*n/512), slot(0x83, 70, 9), slot(0x05, 1, 60))
		f.Add([]byte(large[:512]), uint32(256*n/512), uint8(20*i)) // without a boot record
		tableforge.PutEBR(large, n/512, slot(0x06, 8, 2), slot(0x05, 1, 20))
		tableforge.PutEBR(large, 2*n/512, slot(0x83, 9, 2), tableforge.Slot{})
		f.Add([]byte(large), uint32(256*n/512), uint8(20*i))
		f.Add([]byte(tableforge.NewGPT(n, 64, 8, tableforge.GPTEntry{First: 7, Last: 12})), uint32(64*n/512), uint8(0))
	}
	empty := tableforge.NewMBR(1, tableforge.Slot{Type: 0x83, Start: 0xfffffff0})
	f.Add([]byte(empty), uint32(1<<32-1), uint8(19))
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32, boundary uint8) {
		n := disk.SectorSizes[int(boundary)/20%len(disk.SectorSizes)]
		whole := int64(sectors) * 512
		d := disk.InSectors(disktest.ShortDisk(data, whole-whole%n), n)
		spent := disktest.Spent()
		asked := int64(0) // auto, or a valid boundary: 4 KiB to 1 GiB
		if boundary%20 > 0 {
			asked = 4 << 10 << (boundary%20 - 1)
		}
		walkAll(t, d, asked)
		require.Less(t, spent(), 10*time.Second)
	})
}

// walkAll checks the promises of a plan without refusals: whole partitions, no remaining moves.
func walkAll(t *testing.T, d disk.Disk, boundary int64) {
	t.Helper()
	l, err := layout.Read(d, table.Geometry{Heads: 16, Sectors: 63})
	if err != nil {
		requireFormat(t, err)
		return
	}
	goal := align.GoalFor(l, align.BoundaryOf(boundary))
	align.Check(l, goal)
	align.Overall(l, align.DefaultBoundary)
	require.NoError(t, l.ReadGaps(d))
	p, err := plan.New(l, goal)
	if err != nil {
		requireFormat(t, err)
		return
	}
	if len(p.Refusals(true)) > 0 {
		return
	}

	require.GreaterOrEqual(t, p.Size, l.Size)
	moved := map[int]int64{}
	for _, m := range p.Moves {
		moved[m.Partition] = m.To
	}
	bare := disk.Compose(d, p.Size, p.Pieces)
	for _, part := range l.InDiskOrder() {
		to, ok := moved[part.Number]
		if !ok {
			to = part.Off
		}
		n := min(part.Len, 64<<10)
		for _, off := range []int64{0, part.Len - n} { // the first and the last 64 KiB
			want, got := make([]byte, n), make([]byte, n)
			require.NoError(t, ondisk.ReadFull(d, want, part.Off+off))
			require.NoError(t, ondisk.ReadFull(bare, got, to+off))
			disktest.EqualBytes(t, want, got)
		}
	}

	view := p.View(d)
	after, err := layout.Read(view, table.Geometry{Heads: 16, Sectors: 63})
	require.NoError(t, err)
	require.Len(t, after.Partitions, len(l.Partitions))
	require.NoError(t, after.ReadGaps(view))
	requireSettled(t, after, p.Goal, "a result that is planned again")
}

func requireFormat(t *testing.T, err error) {
	t.Helper()
	known := errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit) ||
		errors.Is(err, ondisk.ErrUnsupported)
	require.True(t, known, "%v", err)
}

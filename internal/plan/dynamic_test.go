package plan_test

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/advice"
	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/ldmforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/verify"
)

const dynamicSectors = 16384

// dynamicDisk forges a dynamic disk whose volumes are in the space from LBA 63 on.
func dynamicDisk(space int64, slots []tableforge.Slot, starts ...int64) forge.Bytes {
	f := tableforge.NewMBR(dynamicSectors, slots...)
	var volumes []ldmforge.Volume
	for i, start := range starts {
		volumes = append(volumes, ldmforge.Volume{
			Name: string(rune('A' + i)), Kind: ldmforge.Spanned,
			Copies: [][]ldmforge.Piece{{{Start: start, Sectors: 50}}},
		})
	}
	ldmforge.PutGroup([]forge.Bytes{f}, 63, space, volumes...)
	return f
}

func dynamicSlot(space uint32) []tableforge.Slot {
	return []tableforge.Slot{{Type: 0x42, Start: 63, Sectors: space}}
}

func planDynamic(t *testing.T, f forge.Bytes, goal align.Goal) *plan.Plan {
	t.Helper()
	p := newPlan(t, read(t, disktest.Memory(f)), goal)
	return p
}

func dynamicCodes(p *plan.Plan) (codes []string) {
	for _, n := range p.Notes {
		codes = append(codes, n.Code)
	}
	return codes
}

// The whole space of the volumes moves as one, what lies outside of its partitions too, and the database stays.
func TestADynamicDiskMovesAsOne(t *testing.T) {
	f := dynamicDisk(12000, []tableforge.Slot{
		{Type: 0x42, Start: 63, Sectors: 1000}, {Type: 0x42, Start: 2000, Sectors: 3000},
	}, 0, 128, 1001)
	for i := range f[63*512 : (63+12000)*512] {
		f[63*512+i] = byte(i%251 + 1)
	}
	goal := align.Goal{Must: 65536, Want: 65536, Dynamic: true}
	p := planDynamic(t, f, goal)
	require.Equal(t, []plan.Move{
		{Partition: 1, From: 63 * 512, To: 128 * 512, Len: 1000 * 512},
		{Partition: 2, From: 2000 * 512, To: 2065 * 512, Len: 3000 * 512},
	}, p.Moves)
	require.Empty(t, p.Refusals(false))
	require.Equal(t, []string{"ldm-moved", "ldm-off"}, dynamicCodes(p))
	require.Contains(t, p.Notes[1].Text, `1 of 3: "Disk1-`)
	out := make([]byte, len(f))
	_, err := p.View(disktest.Memory(f)).ReadAt(out, 0)
	require.NoError(t, err)
	require.Equal(t, []byte(f[63*512:][:12000*512]), out[128*512:][:12000*512])
	const db = (dynamicSectors - 2048) * 512
	was, is := bytes.Clone([]byte(f[db:])), bytes.Clone(out[db:])
	for _, at := range []int64{1856 * 512, 2047 * 512} {
		for _, b := range [][]byte{was, is} {
			clear(b[at+ldmforge.Sum:][:4])
			clear(b[at+0x11b:][:8])
		}
	}
	require.Equal(t, was, is)
	after := read(t, disktest.Memory(out))
	require.NoError(t, verify.Promise(p, read(t, disktest.Memory(f)), after))
	require.NoError(t, verify.Settled(after, p.Goal))
	starts, err := verify.Starts(read(t, disktest.Memory(f)), after)
	require.NoError(t, err)
	again, err := plan.At(read(t, disktest.Memory(f)), starts, false)
	require.NoError(t, err)
	require.Equal(t, p.Patches, again.Patches)
}

// Without the wish of the user a dynamic disk is refused as ever, whether it has room or not.
func TestADynamicDiskIsRefusedWithoutTheFlag(t *testing.T) {
	for _, space := range []uint32{12000, dynamicSectors - 2048 - 63} {
		p := planDynamic(t, dynamicDisk(int64(space), dynamicSlot(space), 0), align.Goal{Must: 65536, Want: 65536})
		require.Len(t, p.Refusals(true), 1)
		require.Equal(t, "ldm", p.Refusals(true)[0].Code)
		require.Contains(t, p.Refusals(true)[0].Remedy, "--dynamic-disks")
		require.NotContains(t, dynamicCodes(p), "ldm-off")
	}
}

// Where the volumes cannot move, or not without the database, the refusal has the reason.
func TestDynamicDisksThatHaveNoPlace(t *testing.T) {
	goal := align.Goal{Must: 65536, Want: 65536, Dynamic: true}
	const full = dynamicSectors - 2048 - 63
	for name, c := range map[string]struct {
		space int64
		junk  int64 // LBA of a byte behind the space
		code  string
	}{
		"room for it":               {full - 65, 0, ""},
		"one sector too few":        {full - 64, 0, "ldm-room"},
		"none":                      {full, 0, "ldm-room"},
		"bytes behind it that give": {full - 80, full - 80 + 63, ""},
		"bytes that have no place":  {full - 65, full - 65 + 63, "ldm-room"},
	} {
		t.Run(name, func(t *testing.T) {
			f := dynamicDisk(c.space, dynamicSlot(uint32(c.space)), 0)
			if c.junk > 0 {
				f.U8(c.junk*512, 1)
			}
			p := planDynamic(t, f, goal)
			if c.code == "" {
				require.Empty(t, p.Refusals(false))
				require.Len(t, p.Moves, 1)
				require.Equal(t, p.OldSize, p.Size)
				return
			}
			require.Equal(t, c.code, p.Refusals(true)[0].Code)
			require.Empty(t, p.Moves)
			require.Contains(t, p.Refusals(true)[0].Text, "in front of the database at LBA 14336")
		})
	}
}

// A disk of a system, or one whose Windows passes over the new start, is refused unless the user accepts that. One that
// grows is refused, also where nothing moves.
func TestDynamicDisksThatMayNotMove(t *testing.T) {
	slots := dynamicSlot(12000)
	slots[0].Flag = 0x80
	goal := align.Goal{Must: 65536, Want: 65536, Dynamic: true}
	p := planDynamic(t, dynamicDisk(12000, slots, 0), goal)
	require.Equal(t, "ldm-system", p.Refusals(false)[0].Code)
	require.Empty(t, p.Refusals(true))

	xp := dynamicDisk(12000, dynamicSlot(12000), 0)
	for _, at := range []int64{ldmforge.Head, (dynamicSectors - 192) * 512, (dynamicSectors - 1) * 512} {
		xp.U8(at+15, 11) // of version 2.12
		xp.BE32(at+ldmforge.Sum, binary.BigEndian.Uint32(xp[at+ldmforge.Sum:])-1)
	}
	p = planDynamic(t, xp, goal)
	require.Equal(t, "ldm-start", p.Refusals(false)[0].Code)
	require.Empty(t, p.Refusals(true))
	require.Len(t, p.Moves, 1)

	f := dynamicDisk(12000, dynamicSlot(12000), 0)
	l := read(t, disktest.Memory(f))
	p = planDynamic(t, f, goal)
	p.Grow(l, p.Size+512)
	require.Equal(t, "ldm-grows", p.Refusals(true)[0].Code)
	require.Contains(t, p.Refusals(true)[0].Remedy, "a device of that size")

	p = planDynamic(t, dynamicDisk(12000, dynamicSlot(12000), 65), goal)
	require.Empty(t, p.Moves, "its volume is aligned")
	require.False(t, slices.Contains(dynamicCodes(p), "ldm-moved"))
	p.Grow(l, p.Size+512)
	require.Equal(t, "ldm-grows", p.Refusals(true)[0].Code, "the copy with nothing moved")

	goal.Only = []int{1}
	require.Len(t, planDynamic(t, f, goal).Moves, 1)
	goal.Leave = map[int]string{1: "it stays"}
	require.Empty(t, planDynamic(t, f, goal).Moves)
}

// Partitions without a volume move as one, too: the first of them comes to the boundary.
func TestADynamicDiskWithoutVolumes(t *testing.T) {
	src := disktest.Memory(dynamicDisk(4000, []tableforge.Slot{
		{Type: 0x42, Start: 63, Sectors: 1000}, {Type: 0x42, Start: 1164, Sectors: 1000},
	}))
	for _, want := range []int64{4096, 65536, 1 << 20} {
		goal := align.Goal{Must: want, Want: want, Dynamic: true}
		before := read(t, src)
		p := newPlan(t, before, goal)
		require.Len(t, p.Moves, 2)
		require.Zero(t, p.Moves[0].To%want)
		require.Equal(t, p.Moves[0].Delta(), p.Moves[1].Delta())
		after := read(t, p.View(src))
		require.NoError(t, verify.Promise(p, before, after))
		require.NoError(t, verify.Settled(after, goal))
	}
}

// Whatever the extents and the boundary are: the result is settled, keeps the promise, and has no fewer extents on the
// boundary than any other distance would put there.
func TestDynamicDisksGetMostExtentsAligned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var starts []int64
		at := int64(0)
		for range rapid.IntRange(1, 6).Draw(t, "extents") {
			at += rapid.SampledFrom([]int64{0, 1, 14, 63, 78, 128}).Draw(t, "gap")
			starts = append(starts, at)
			at += 50
		}
		f := dynamicDisk(at, dynamicSlot(uint32(at)), starts...)
		want := rapid.SampledFrom([]int64{4096, 65536}).Draw(t, "boundary")
		goal := align.Goal{Must: want, Want: want, Dynamic: true}
		before := read(t, disktest.Memory(f))
		p, err := plan.New(before, goal)
		require.NoError(t, err)
		require.Empty(t, p.Refusals(false))
		source := disktest.Memory(f)
		after := read(t, p.View(source))
		require.NoError(t, verify.Promise(p, before, after))
		require.NoError(t, verify.Settled(after, p.Goal))
		checkExplained(t, p, source, p.View(source), before, after, "dynamic")
		off := len(after.Dynamic.Off(0, want))
		for shift := int64(0); shift < want; shift += 512 {
			require.LessOrEqual(t, off, len(before.Dynamic.Off(shift, want)))
		}
	})
}

// The extents are judged, not the partition over them: where they lie as Windows Server 2008 puts them, behind a space
// for volumes from LBA 63 on, nothing is off; and a partition on the boundary hides no extent off it.
func TestExtentsOfADynamicDiskAreJudged(t *testing.T) {
	const must, off, below = 65536, align.Misaligned, align.BelowBoundary
	for name, c := range map[string]struct {
		lba     uint32
		starts  []int64
		verdict align.Verdict
		action  advice.Action
		moves   bool
		says    string
	}{
		"as of Windows Server 2008": {63, []int64{2048 - 63, 4096 - 63}, align.Aligned, advice.Nothing, false, ""},
		"as of Windows Server 2003": {63, []int64{0, 1024}, off, advice.Refused, true, "starts at LBA 63 "},
		"off, in an aligned partition": {
			2048,
			[]int64{63},
			off, advice.Refused, true,
			`"Disk1-05" starts at LBA 2111 `,
		},
		"on 4 KiB only": {2048, []int64{8}, below, advice.Refused, true, `"Disk1-05" starts at byte 1052672`},
		"one of three":  {63, []int64{65, 1985, 4034}, off, advice.Optional, false, "leaves 1 of 3 off a multiple of"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(dynamicSectors, tableforge.Slot{Type: 0x42, Start: c.lba, Sectors: 9000})
			var volumes []ldmforge.Volume
			for i, start := range c.starts {
				volumes = append(volumes, ldmforge.Volume{
					Name: string(rune('A' + i)), Kind: ldmforge.Spanned,
					Copies: [][]ldmforge.Piece{{{Start: start, Sectors: 50}}},
				})
			}
			ldmforge.PutGroup([]forge.Bytes{f}, int64(c.lba), 9000, volumes...)
			for _, movable := range []bool{true, false} {
				if !movable {
					f.U8((dynamicSectors-2048)*512+ldmforge.VMDB+ldmforge.State+1, 2) // not committed
				}
				l := read(t, disktest.Memory(f))
				require.Equal(t, movable, l.Dynamic != nil)
				require.Equal(t, c.verdict, align.Overall(l, must))
				p := planDynamic(t, f, align.Goal{Must: must, Want: must})
				require.Equal(t, c.moves || !movable && c.verdict.Off(), len(p.Refusals(true)) > 0, p.Notes)
				if !movable {
					continue
				}
				text := ""
				for _, x := range align.Check(l, align.Goal{Must: must, Want: must}) {
					text += x.Text + "\n"
				}
				require.Contains(t, text, c.says)
				a := advice.For(l, advice.Case{Boundary: must, Storage: align.Generic(), Refusals: p.Refusals(false)})
				require.Equal(t, c.action, a.Action, a.Text)
			}
		})
	}
}

// The wish to move dynamic disks means nothing for others.
func TestFlagOnAnotherDisk(t *testing.T) {
	t.Parallel()
	f := tableforge.NewMBR(dynamicSectors, tableforge.Slot{Type: 7, Start: 63, Sectors: 8000})
	want := planDynamic(t, f, align.Goal{Must: 65536, Want: 65536})
	got := planDynamic(t, f, align.Goal{Must: 65536, Want: 65536, Dynamic: true})
	require.Equal(t, want.Moves, got.Moves)
	require.Equal(t, dynamicCodes(want), dynamicCodes(got))
}

// A partition in front of the volumes has its own place, and nothing is put over the database.
func TestAPartitionInFrontOfTheVolumes(t *testing.T) {
	t.Parallel()
	l := read(t, disktest.Memory(dynamicDisk(12000, []tableforge.Slot{
		{Type: 7, Start: 20, Sectors: 30}, {Type: 0x42, Start: 63, Sectors: 12000},
	}, 0)))
	p := newPlan(t, l, align.Goal{Must: 65536, Want: 65536, Dynamic: true})
	require.Equal(t, []plan.Move{
		{Partition: 1, From: 20 * 512, To: 128 * 512, Len: 30 * 512},
		{Partition: 2, From: 63 * 512, To: 256 * 512, Len: 12000 * 512},
	}, p.Moves)
	_, err := plan.At(l, map[int]int64{1: 20 * 512, 2: (dynamicSectors - 2048 - 11000) * 512}, false)
	require.ErrorIs(t, err, plan.ErrNoPlan)
	require.ErrorContains(t, err, "partition 2 ends over the database")
}

// dynamicGPT has volumes in one partition from LBA 63 on, the database at LBA 8192 in the next, and others.
func dynamicGPT(sectors int64, others ...tableforge.GPTEntry) forge.Bytes {
	const first, database = 63, 8192
	f := tableforge.NewGPT(512, dynamicSectors, 128, append([]tableforge.GPTEntry{
		{First: first, Last: uint64(first + sectors - 1)},
		{First: database, Last: database + 2047},
	}, others...)...)
	data := []byte{0xa0, 0x60, 0x9b, 0xaf, 0x31, 0x14, 0x62, 0x4f, 0xbc, 0x68, 0x33, 0x11, 0x71, 0x4a, 0x69, 0xad}
	metadata := []byte{0xaa, 0xc8, 0x08, 0x58, 0x8f, 0x7e, 0xe0, 0x42, 0x85, 0xd2, 0xe1, 0xe9, 0x04, 0x34, 0xcf, 0xb3}
	for header, array := range map[int64]int64{1: 2, dynamicSectors - 1: dynamicSectors - 33} {
		f.Put(array*512, data)
		f.Put(array*512+128, metadata)
		tableforge.SealGPT(f, header*512, 512)
	}
	ldmforge.PutDatabase(f, database*512, 1, ldmforge.Volume{
		Name: "A", Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{{{Sectors: 50}}},
	})
	for _, lba := range []int64{database + 1856, database + 2047} {
		f.Put(lba*512, ldmforge.PrivateHead(ldmforge.DiskID(0), first, sectors, database, 2048))
	}
	return f
}

// The database in a partition of a GPT stays, and refuses what has no room in front of it. The disk may grow behind it.
func TestDatabaseInAPartition(t *testing.T) {
	t.Parallel()
	goal := align.Goal{Must: 65536, Want: 65536, Dynamic: true}
	p := planDynamic(t, dynamicGPT(4000), goal)
	require.Equal(t, []plan.Move{{Partition: 1, From: 63 * 512, To: 128 * 512, Len: 4000 * 512}}, p.Moves)
	p.Grow(read(t, disktest.Memory(dynamicGPT(4000))), 2*dynamicSectors*512)
	require.Empty(t, p.Refusals(false))
	f := dynamicGPT(8192 - 63)
	p = planDynamic(t, f, goal)
	require.Len(t, p.Refusals(false), 1)
	require.Equal(t, "ldm-room", p.Refusals(false)[0].Code)
	require.Equal(t, 2, p.Refusals(false)[0].Partition)
	goal.Leave = map[int]string{3: "it boots"}
	p = planDynamic(t, dynamicGPT(4000, tableforge.GPTEntry{First: 4063, Last: 8191}), goal)
	require.Len(t, p.Refusals(false), 1)
	require.Equal(t, "boot-partition", p.Refusals(false)[0].Code)
	require.Equal(t, 3, p.Refusals(false)[0].Partition)
}

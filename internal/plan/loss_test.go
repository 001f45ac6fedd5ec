package plan_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
	"github.com/trueup/trueup/internal/volume"
)

// refusing returns a disk of one partition, and a stored position of it that cannot be rewritten.
func refusing(t *testing.T, loss string) (disk.Disk, *layout.Layout) {
	t.Helper()
	d := disktest.Memory(tableforge.NewMBR(20_000, slot(0x83, 63, 2000)))
	l := read(t, d)
	l.Boot.Refs = append(l.Boot.Refs, boot.Ref{
		Kind: "position", Partition: 1, File: "file", At: []disk.Range{{Off: 70 * sector, Len: 4}},
		Raw: []byte("63!!"), Points: 63 * sector, Target: 1, Loss: loss, Remedy: "make it again",
		Encode: func([]byte, int64) ([]byte, error) { return nil, ondisk.ErrLimit },
	})
	return d, l
}

// If a guest can boot with a stale position, the disk is aligned, and the position is reported as unchanged.
func TestAPositionThatOnlyCostsSomething(t *testing.T) {
	d, l := refusing(t, "the manual is not found")
	p := newPlan(t, l, kept)
	require.Empty(t, p.Refusals(false))
	require.False(t, p.Idle())
	p.Grow(l, p.Size+mib)
	require.Len(t, p.Moves, 1)
	for _, patch := range p.Patches {
		require.Less(t, patch.Off, int64(sector), "nothing but the table changes")
	}
	r := p.References(l)[0]
	require.False(t, r.Follows())
	require.Equal(t, r.Points, r.To)
	require.Contains(t, r.Stays, "byte 1048576 cannot be written there: limit exceeded")
	notes := coded(p.Notes, "reference-stays")
	require.Len(t, notes, 1)
	require.Equal(t, align.Warning, notes[0].Severity)
	require.Equal(t, 1, notes[0].Partition)
	require.Contains(t, notes[0].Text, "position in \"file\" of partition 1 is not changed, so the manual is not "+
		"found: ")
	require.Equal(t, "make it again", notes[0].Remedy)

	after := read(t, p.View(d))
	stays := l.Boot.Refs[0]
	stays.Target = 0
	after.Boot.Refs = append(after.Boot.Refs, stays)
	again, err := plan.At(l, map[int]int64{1: mib}, false)
	require.NoError(t, err)
	require.NoError(t, verify.Promise(again, l, after))
}

// A plan is refused if the guest does not boot without a position that cannot be updated.
func TestAPositionThatCannotFollow(t *testing.T) {
	_, l := refusing(t, "")
	p := newPlan(t, l, kept)
	require.Len(t, p.Refusals(true), 1)
	require.Equal(t, "limit", p.Refusals(true)[0].Code)
}

// A position that cannot be rewritten is unchanged, though its target moves.
func TestAPositionThatIsOnlyKnown(t *testing.T) {
	_, l := refusing(t, "")
	l.Boot.Refs[0].Encode = nil
	p := newPlan(t, l, kept)
	require.Len(t, p.Moves, 1)
	require.Equal(t, l.Boot.Refs[0].Points, p.References(l)[0].To)
}

// A stored position in a file is reported if no partition starts there now but one will.
func TestStrayReferences(t *testing.T) {
	stray := boot.Ref{Kind: "letter", File: "file", Points: mib}
	for name, c := range map[string]struct {
		change func(r *boot.Ref)
		notes  int
	}{
		"a letter":                         {func(*boot.Ref) {}, 1},
		"of a place that stays empty":      {func(r *boot.Ref) { r.Points = 2 * mib }, 0},
		"of a partition":                   {func(r *boot.Ref) { r.Target = 1 }, 0},
		"of another disk":                  {func(r *boot.Ref) { r.Disk = 7 }, 0},
		"a boot sector, which is no place": {func(r *boot.Ref) { r.File = "" }, 0},
	} {
		l := read(t, disktest.Memory(tableforge.NewMBR(20_000, slot(0x83, 63, 2000))))
		r := stray
		c.change(&r)
		l.Boot.Refs = []boot.Ref{r}
		p := newPlan(t, l, kept)
		notes := coded(p.Notes, "stray-reference")
		require.Len(t, notes, c.notes, name)
		require.True(t, c.notes == 0 || notes[0].Partition == 1, name)
	}
}

// A checksum covers two positions. It is computed once, from both new values, and again when the disk grows.
func TestChecksumOfTwoPositions(t *testing.T) {
	d := disktest.Memory(tableforge.NewMBR(20_000, slot(0x83, 63, 2000)))
	l := read(t, d)
	const at = 70 * sector
	made := 0
	seal := &boot.Seal{
		Name: "a log", At: []disk.Range{{Off: at, Len: 3}}, Raw: []byte{1, 2, 3},
		Make: func(b []byte) { b[2], made = b[0]+b[1], made+1 },
	}
	for i, becomes := range []byte{10, 20} {
		l.Boot.Refs = append(l.Boot.Refs, boot.Ref{
			Kind: "position", Partition: 1, File: "file", At: []disk.Range{{Off: at + int64(i), Len: 1}},
			Raw: seal.Raw[i:][:1], Points: 63 * sector, Target: 1, Seals: []*boot.Seal{seal},
			Encode: func([]byte, int64) ([]byte, error) { return []byte{becomes}, nil },
		})
	}
	p := newPlan(t, l, kept)
	require.Equal(t, 1, made) // it can be of many MiB, and thousands of references can share it
	for range 2 {
		sealed := 0
		for _, x := range p.Patches {
			if x.Reason == "checksum of a log" {
				sealed++
			}
		}
		require.Equal(t, 1, sealed)
		b, err := ondisk.Bytes(p.View(d), at+p.Moves[0].Delta(), 3)
		require.NoError(t, err)
		require.True(t, bytes.Equal([]byte{10, 20, 30}, b), "%v", b)
		p.Grow(l, p.Size+mib)
	}
	require.Equal(t, 1, made, "an MBR stays the same on a larger disk")
}

// inner is the content of a partition after its start.
type inner struct{ cluster, data int64 }

// hold gives each partition of a layout its volume.
func hold(l *layout.Layout, volumes map[int]inner) {
	for i, p := range l.Partitions {
		if v, ok := volumes[p.Number]; ok {
			l.Partitions[i].Volume = &volume.Volume{Kind: volume.FAT16, BlockSize: v.cluster, DataStart: v.data}
		}
	}
}

// touched counts the blocks of 4 KiB that consecutive I/Os of size bytes touch from a byte on, one by one.
func touched(first, step, size int64) (n int64) {
	for i := range int64(4096) {
		at := first + i*step
		n += (at+size-1)/4096 - at/4096 + 1
	}
	return n
}

// A default plan worsens the alignment of no partition's data, also of one that makes room for another, and a second
// plan moves nothing.
func TestNoPlanPutsDataWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDisk(t)
		volumes := map[int]inner{}
		for _, p := range d.parts {
			if rapid.Bool().Draw(t, "volume") {
				volumes[p.slot+1] = inner{
					512 << rapid.IntRange(0, 5).Draw(t, "cluster"),
					512 * rapid.Int64Range(0, p.sectors).Draw(t, "data"),
				}
			}
		}
		want := int64(4096) << rapid.IntRange(0, 8).Draw(t, "want")
		must := min(want, int64(4096)<<rapid.IntRange(0, 4).Draw(t, "must"))
		goal := align.Goal{Must: align.BoundaryOf(must), Want: align.BoundaryOf(want)}
		before := read(t, d.disk())
		hold(before, volumes)
		p := newPlan(t, before, goal)
		for _, was := range before.Partitions {
			to, moved := was.Off, false
			if place, ok := p.Places.Parts[was.Number]; ok {
				to, moved = place.Off, place.Off != was.Off
			}
			v := volumes[was.Number]
			for size := int64(512); moved && size <= 65536; size *= 2 {
				for _, step := range []int64{size, min(max(v.cluster, 512), size)} {
					require.LessOrEqual(t, touched(to+v.data, step, size), touched(was.Off+v.data, step, size),
						"partition %d to %d", was.Number, to)
				}
			}
		}
		after := read(t, p.View(d.disk()))
		hold(after, volumes)
		again := newPlan(t, after, goal)
		require.Empty(t, again.Moves)
	})
}

// A partition whose data are on blocks makes room by a multiple of the boundary, so that they still are.
func TestDataKeepTheirDistance(t *testing.T) {
	_, l, _ := planFixture(t, "two-ntfs-lba63-and-cylinder", 0)
	second := &l.Partitions[1]
	second.Volume = &volume.Volume{Kind: volume.FAT16, BlockSize: 512, DataStart: 4096 - second.Off%4096}
	require.NotZero(t, second.Off%4096)
	p := newPlan(t, l, kept)
	require.Len(t, p.Moves, 2)
	require.NotZero(t, p.Moves[1].Delta())
	require.Zero(t, p.Moves[1].Delta()%(1<<20))
}

// A partition that makes room keeps the alignment of its data, up to 1 MiB, also if the target is 4 KiB. It gives that
// up rather than let the disk grow, and a partition that moves for itself goes to the target.
func TestNeighboursKeepTheirAlignment(t *testing.T) {
	const mib = 2048 // sectors
	for name, tc := range map[string]struct {
		second, sectors, disk uint32 // of the second partition, and of the disk
		data                  int64  // of the second partition; bytes
		want, grown           int64  // LBA, sectors
	}{
		"on 2 MiB, with room":                 {2 * mib, 3 * mib, 8 * mib, 0, 3 * mib, 0},
		"on 64 KiB":                           {2*mib + 128, 3 * mib, 8 * mib, 0, 2*mib + 256, 0},
		"data on 1 MiB, start on 4 KiB":       {2*mib + 8, 3 * mib, 8 * mib, (mib - 8) * 512, 3*mib + 8, 0},
		"no room but on the target":           {2 * mib, 3 * mib, 5*mib + 100, 0, 2*mib + 8, 0},
		"no room at all":                      {2 * mib, 3 * mib, 5 * mib, 0, 3 * mib, mib},
		"off the target, on its own account":  {2*mib + 1, 3 * mib, 8 * mib, 0, 2*mib + 8, 0},
		"on the target and on nothing larger": {2*mib + 8, 3 * mib, 8 * mib, 0, 2*mib + 16, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(int(tc.disk), slot(0x83, 63, tc.second-63), slot(0x83, tc.second, tc.sectors))
			l := read(t, disktest.Memory(f))
			hold(l, map[int]inner{2: {4096, tc.data}})
			l.Boot.Refs = []boot.Ref{{
				Points: l.Partitions[1].Off, Target: 2, Encode: func(_ []byte, to int64) ([]byte, error) {
					if to != tc.want*512 {
						return nil, ondisk.ErrLimit // a rejected candidate is no reason to refuse
					}
					return nil, nil
				},
			}}
			p := newPlan(t, l, align.Goal{Must: align.SmallestBoundary, Want: align.SmallestBoundary})
			require.Empty(t, p.Refusals(true))
			require.Equal(t, int64(64*512), p.Places.Parts[1].Off)
			require.Equal(t, tc.want*512, p.Places.Parts[2].Off)
			require.Equal(t, (int64(tc.disk)+tc.grown)*512, p.Size)
		})
	}
}

// Data that the boot needs in place are refused if a partition, a patch or the growth of the disk would overwrite them.
func TestPlacesThatTheBootNeeds(t *testing.T) {
	const sectors = 8192
	last := int64(sectors - 34)
	mbr := tableforge.NewMBR(sectors, slot(6, 63, 3000))
	roomy := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: 3062})
	tight := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 63, Last: uint64(last)})
	for name, tc := range map[string]struct {
		image   []byte
		at, n   int64 // sectors
		refused bool
	}{
		"in front":                           {mbr, 1, 62, false},
		"over the table":                     {mbr, 0, 1, true},
		"where the partition goes":           {mbr, 4000, 1, true},
		"behind the partition, then and now": {mbr, 6000, 2, false},
		"behind the entries":                 {roomy, 30, 4, false},
		"over the header":                    {roomy, 1, 1, true},
		"behind the entries of the backup":   {roomy, sectors - 3, 2, false},
		"the same, on a disk that grows":     {tight, sectors - 3, 2, true},
		"in front, on a disk that grows":     {tight, 30, 4, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := read(t, boottest.Disk(tc.image))
			issue := ondisk.Issue{Code: "needed", Effect: ondisk.Unbootable, Text: "it is needed"}
			l.Boot.Fixed = []boot.Fixed{{Range: disk.Range{Off: tc.at * 512, Len: tc.n * 512}, Issue: issue}}
			p := newPlan(t, l, kept)
			require.NotEmpty(t, p.Moves)
			if tc.refused {
				p.Grow(l, p.Size+units.MiB)
				require.Equal(t, []string{"needed"}, codes(p.Refusals(false)))
			} else {
				require.Empty(t, p.Refusals(false))
			}
			require.Empty(t, p.Refusals(true))
		})
	}
}

// Data between moving partitions are a warning on a disk that no PC boots, because a board may read them by position.
func TestDataBetweenPartitionsThatMove(t *testing.T) {
	const at, n = 16_384, 128
	disk := func(first, second uint32, put func(f forge.Bytes)) *layout.Layout {
		f := tableforge.NewMBR(65_536, slot(0x83, first, 16_000), slot(0x83, second, 20_000))
		for i := range int64(n * 512) {
			f[at*512+i] = 0x55
		}
		put(f)
		return read(t, boottest.Disk(f))
	}
	unchanged := func(forge.Bytes) {}
	for name, tc := range map[string]struct {
		layout *layout.Layout
		warns  bool
		more   string
	}{
		"moved": {disk(63, 30_001, unchanged), true, ""},
		"in two gaps": {
			disk(63, 30_001, func(f forge.Bytes) { f.Text(50_010*512, "behind the second partition") }),
			true, ", and data in 1 other gap move likewise",
		},
		"a PC":           {disk(63, 30_001, func(f forge.Bytes) { f.Put(0, boottest.Code("fa eb fe")) }), false, ""},
		"nothing there":  {disk(63, 30_001, func(f forge.Bytes) { clear(f[at*512 : (at+n)*512]) }), false, ""},
		"nothing moves":  {disk(128, 30_080, unchanged), false, ""},
		"stays":          {disk(128, 30_001, unchanged), false, ""},
		"a known loader": {disk(63, 30_001, func(f forge.Bytes) { f.Text(at*512, "\xd0\x0d\xfe\xed") }), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlan(t, tc.layout, kept)
			found := slices.DeleteFunc(coded(p.Notes, "fixed-place"),
				func(x align.Finding) bool { return x.Severity != align.Warning })
			if !tc.warns {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			moved := p.Moves[0].To - p.Moves[0].From
			require.Contains(t, found[0].Text, fmt.Sprintf("bytes %d to %d are in no partition", at*512, (at+n)*512-1))
			require.Contains(t, found[0].Text, fmt.Sprintf("move to byte %d%s:", at*512+moved, tc.more))
		})
	}
}

// A partition that a boot ROM reads by sector stays, and all others move around it: the loader of Rockchip at LBA 64,
// before a partition off the boundary.
func TestFixedPlaceStays(t *testing.T) {
	const header = "\x3b\x8c\xdc\xfc" // mkimage -T rksd -n rk3399, U-Boot 2023.01
	goal := kept
	f := tableforge.NewGPT(512, 40_000, 128, tableforge.GPTEntry{Name: "loader1", First: 64, Last: 4000},
		tableforge.GPTEntry{First: 4001, Last: 30_000})
	f.Text(64*512, header)
	volumeforge.PutXFS(f, 4001, 8000)
	l := read(t, boottest.Disk(f))
	require.NotEmpty(t, l.Partitions[0].Fixed)
	require.False(t, align.Judged(l.Partitions[0]))

	p := newPlan(t, l, goal)
	require.Len(t, p.Moves, 1)
	require.Equal(t, 2, p.Moves[0].Partition)
	require.Empty(t, p.Refusals(false))
	after := read(t, p.View(boottest.Disk(f)))
	require.Equal(t, int64(64*512), after.Partitions[0].Off)
	require.NotEmpty(t, after.Partitions[0].Fixed)
	require.Empty(t, newPlan(t, after, goal).Moves)

	goal.Only = []int{1}
	_, err := plan.New(l, goal)
	require.ErrorIs(t, err, plan.ErrSelection)
	require.ErrorContains(t, err, "Rockchip")
}

// If it is in the way, the move is refused: it never makes room.
func TestFixedPlaceInTheWay(t *testing.T) {
	f := tableforge.NewGPT(512, 40_000, 128, tableforge.GPTEntry{First: 2049, Last: 16_383},
		tableforge.GPTEntry{Name: "uboot", First: 16_384, Last: 20_000})
	f.Text(16_384*512, "LOADER  ")
	volumeforge.PutXFS(f, 2049, 8000)
	f.Text(1000*512, "in the gap, which stays")
	l := read(t, boottest.Disk(f))
	p := newPlan(t, l, kept)
	require.Len(t, p.Refusals(true), 1)
	require.Equal(t, "fixed-place", p.Refusals(true)[0].Code)
	require.Contains(t, p.Refusals(true)[0].Text, "LBA 16384")
	require.Empty(t, p.Moves)
}

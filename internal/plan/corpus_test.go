package plan_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
)

// newPlan returns the plan of a layout, which must have one.
func newPlan(t require.TestingT, l *layout.Layout, g align.Goal) *plan.Plan {
	p, err := plan.New(l, g)
	require.NoError(t, err)
	return p
}

// kept is the default goal: 64 KiB, or the boundary of each disk's makers.
var kept = align.Goal{Must: align.DefaultBoundary, Want: align.Kept}

// codes returns the codes of findings.
func codes(fs []align.Finding) (out []string) {
	for _, f := range fs {
		out = append(out, f.Code)
	}
	return out
}

// coded returns the findings with a code.
func coded(fs []align.Finding, code string) []align.Finding {
	return slices.DeleteFunc(slices.Clone(fs), func(f align.Finding) bool { return f.Code != code })
}

// slot is an entry of an MBR or of a boot record.
func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

// requireSettled requires that the plan of a result changes nothing.
func requireSettled(t require.TestingT, after *layout.Layout, goal align.Goal, again string) {
	p, err := plan.New(after, goal)
	require.NoError(t, err, again)
	require.Empty(t, p.Moves, again)
	require.Empty(t, p.Patches, again)
	require.Equal(t, after.Size, p.Size, again)
}

// planFixture plans a disk of the corpus; boundary 0 is auto.
func planFixture(t *testing.T, name string, boundary int64, only ...int) (disk.Disk, *layout.Layout, *plan.Plan) {
	t.Helper()
	d := disktest.Fixture(t, disktest.Fixtures(t)[name])
	l := read(t, d)
	goal := align.GoalFor(l, align.BoundaryOf(boundary))
	goal.Only = only
	p := newPlan(t, l, goal)
	return d, l, p
}

// Expected starts are worked out by hand: the first multiple after the preceding partition, of 128 sectors (64 KiB) if
// the boot code reads CHS, otherwise of 2048 (1 MiB).
func TestPlansOfTheCorpus(t *testing.T) {
	for _, tc := range []struct {
		name     string
		fixture  string
		boundary int64
		only     []int
		want     map[int]int64 // number -> LBA
		size     int64         // sectors; 0: unchanged
	}{
		{"xp, its boot code reads chs", "xp-lba63-one-ntfs", 0, nil, map[int]int64{1: 128}, 0},
		{"xp, to 1 MiB all the same", "xp-lba63-one-ntfs", 1 << 20, nil, map[int]int64{1: 2048}, 0},
		{"xp, to 4 KiB", "xp-lba63-one-ntfs", 4096, nil, map[int]int64{1: 64}, 0},
		// The first one ends at 4192902+2048, so the second moves to 2049 MiB.
		{
			"two ntfs, each its own distance", "two-ntfs-lba63-and-cylinder", 0, nil,
			map[int]int64{1: 2048, 2: 4196352},
			0,
		},
		{"two ntfs, to 64 KiB", "two-ntfs-lba63-and-cylinder", 65536, nil, map[int]int64{1: 128, 2: 4193152}, 0},
		// 4192965 is not a multiple of 128, but was not selected; the first one would have to leave it room, and
		// cannot.
		{
			"two ntfs, only the first, which pushes the second", "two-ntfs-lba63-and-cylinder", 65536,
			[]int{1},
			map[int]int64{1: 128, 2: 4193152},
			0,
		},
		{"two ntfs, only the second", "two-ntfs-lba63-and-cylinder", 65536, []int{2}, map[int]int64{2: 4193024}, 0},
		// 1031121 + 2048 sectors exceed the 504 MiB of the disk.
		{"16 heads, no room behind it", "fat16-16-heads", 0, nil, map[int]int64{1: 2048}, 505 * 2048},
		{"16 heads, to 64 KiB", "fat16-16-heads", 65536, nil, map[int]int64{1: 128}, 0},
		{"beyond chs", "ext3-saturated-chs", 0, nil, map[int]int64{1: 2048, 2: 17672192}, 0},
		{"2 TiB, only the first", "two-tib-mbr", 0, []int{1}, map[int]int64{1: 2048}, 0},
		{"2 TiB, to 4 KiB", "two-tib-mbr", 4096, nil, map[int]int64{1: 64, 2: 4294963264}, 0},
		// The clusters of 2 KiB of partition 2 are on multiples of 2 KiB now (LBA 63 and 45), and would be on sectors
		// only at 1 MiB.
		{"entries out of order", "entries-out-of-order", 0, nil, map[int]int64{3: 241664, 1: 643072}, 0},
		{
			"entries out of order, all by name", "entries-out-of-order", 0,
			[]int{1, 2, 3},
			map[int]int64{2: 2048, 3: 241664, 1: 643072},
			0,
		},
		{"unused slots, one partition aligned", "unused-slots", 0, nil, map[int]int64{2: 2048}, 0},
		{"unused slots, good enough for 32 KiB", "unused-slots", 32768, nil, map[int]int64{}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, l, p := planFixture(t, tc.fixture, tc.boundary, tc.only...)
			got := map[int]int64{}
			for _, m := range p.Moves {
				got[m.Partition] = m.To / sector
			}
			require.Equal(t, tc.want, got)
			require.Empty(t, p.Refusals(false))
			if tc.size == 0 {
				tc.size = d.Size() / sector
			}
			require.Equal(t, tc.size*sector, p.Size)

			after := read(t, p.View(d))
			for _, was := range l.Partitions {
				is, ok := after.Partition(was.Number)
				require.True(t, ok)
				require.Equal(t, was.Volume.Kind, is.Volume.Kind)
				require.Equal(t, was.Volume.UUID, is.Volume.UUID)
				require.Equal(t, was.Volume.Label, is.Volume.Label)
				require.Equal(t, was.Active, is.Active)
			}
		})
	}
}

// CHS bytes after the moves above: LBA = (C * heads + H) * 63 + S - 1.
func TestCHSBytesOfTheCorpus(t *testing.T) {
	for _, tc := range []struct {
		name       string
		fixture    string
		boundary   int64
		slot       int64
		start, end []byte
	}{
		{
			"lba 128 is C0 H2 S3; the end is beyond chs", "xp-lba63-one-ntfs", 0, 0,
			[]byte{2, 3, 0},
			[]byte{0xfe, 0xff, 0xff},
		},
		{
			"lba 2048 is C0 H32 S33 with 255 heads", "two-ntfs-lba63-and-cylinder", 0, 0,
			[]byte{32, 33, 0},
			[]byte{254, 0x7f, 5},
		},
		{
			"lba 2048 is C2 H0 S33 with 16 heads; the end beyond chs says so too", "fat16-16-heads", 0, 0,
			[]byte{0, 33, 2},
			[]byte{15, 0xff, 0xff},
		},
		{
			"16 heads: the last sector of cylinder 1023", "fat16-16-heads", 65536, 0,
			[]byte{2, 3, 0},
			[]byte{15, 0xff, 0xff},
		},
		{"beyond chs stays beyond chs", "ext3-saturated-chs", 0, 1, []byte{0xfe, 0xff, 0xff}, []byte{0xfe, 0xff, 0xff}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, _, p := planFixture(t, tc.fixture, tc.boundary)
			entry := make([]byte, 16)
			_, err := p.View(d).ReadAt(entry, 446+16*tc.slot)
			require.NoError(t, err)
			require.Equal(t, tc.start, entry[1:4])
			require.Equal(t, tc.end, entry[5:8])
		})
	}
}

// An end beyond 32 bits of sectors is refused; nothing is omitted silently.
func TestBeyondTheTable(t *testing.T) {
	f := tableforge.NewMBR(64, slot(0x83, 63, 1<<32-1-63))
	d := disktest.ShortDisk(f, (1<<32-1)*sector)
	l := read(t, d)
	p := newPlan(t, l, align.GoalFor(l, align.Boundary{}))
	got := p.Refusals(true)
	require.Len(t, got, 1)
	require.Equal(t, "limit", got[0].Code)
	require.NotEmpty(t, got[0].Remedy)
	require.Empty(t, p.Moves)

	p = newPlan(t, l, align.GoalFor(l, align.SmallestBoundary))
	require.Empty(t, p.Refusals(true), "64 sectors in front and 2^32-64 behind are what there is")
	require.Equal(t, []plan.Move{{Partition: 1, From: 63 * sector, To: 64 * sector, Len: (1<<32 - 64) * sector}},
		p.Moves)
}

// An aligned partition makes room only if its neighbour has no other place. Free space before the neighbour is such a
// place, data are not.
func TestAnAlignedNeighbourIsSpared(t *testing.T) {
	disk := tableforge.NewMBR(20000, slot(0x83, 2048, 2000), slot(0x83, 4200, 3992), slot(0x83, 8192, 2048))
	goal := kept
	second := plan.Move{Partition: 2, From: 4200 * sector, To: 4096 * sector, Len: 3992 * sector}
	p := newPlan(t, read(t, disktest.Memory(disk)), goal)
	require.Equal(t, []plan.Move{second}, p.Moves)

	disk.U8(4100*sector, 1)
	p = newPlan(t, read(t, disktest.Memory(disk)), goal)
	second.To = 6144 * sector
	third := plan.Move{Partition: 3, From: 8192 * sector, To: 10240 * sector, Len: 2048 * sector}
	require.Equal(t, []plan.Move{second, third}, p.Moves)
}

// DOS and Windows count the hidden sectors of a logical drive from its boot record, others from the start of the disk.
// Each convention is kept.
func TestHiddenSectorsOfLogicalDrives(t *testing.T) {
	const box, first, second, size = 70, 133, 2200, 1500
	f := tableforge.NewMBR(8000, slot(0x0f, box, 4000))
	tableforge.PutEBR(f, box, slot(7, first-box, size), slot(5, 2000, 1700))
	tableforge.PutEBR(f, box+2000, slot(7, second-box-2000, size), tableforge.Slot{})
	fsforge.PutNTFS(f, first, size)
	fsforge.PutNTFS(f, second, size)
	f.U32(first*sector+fsforge.BootHidden, first-box)
	f.U32((first+size-1)*sector+fsforge.BootHidden, first-box)
	l := read(t, disktest.Memory(f))
	p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary})
	require.Empty(t, p.Refusals(false))
	result := disktest.Head(t, p.View(disktest.Memory(f)), p.Size)
	// 133 moves to 256, and its record stays at 70; the other moves to 2304 and its record stays at 2070.
	hidden := func(lba int64) uint32 { return binary.LittleEndian.Uint32(result[lba*sector+fsforge.BootHidden:]) }
	require.Equal(t, uint32(256-box), hidden(256))
	require.Equal(t, uint32(256-box), hidden(256+size-1))
	require.Equal(t, uint32(2304), hidden(2304))
	require.Equal(t, uint32(2304), hidden(2304+size-1))
}

// If the boot record moves too, a value relative to it changes by the distance between the two, and one relative to the
// disk by the move of the partition.
func TestHiddenSectorsBehindARecordThatMoves(t *testing.T) {
	const box, first, second, size = 70, 133, 2200, 1500
	for fromRecord, hidden := range map[bool]uint32{false: second, true: second - box - 2000} {
		f := tableforge.NewMBR(12000, slot(0x0f, box, 4000))
		tableforge.PutEBR(f, box, slot(7, first-box, size), slot(5, 2000, 1700))
		tableforge.PutEBR(f, box+2000, slot(7, second-box-2000, size), tableforge.Slot{})
		fsforge.PutNTFS(f, first, size)
		fsforge.PutNTFS(f, second, size)
		f.U32(second*sector+fsforge.BootHidden, hidden)
		f.U32((second+size-1)*sector+fsforge.BootHidden, hidden)
		p := newPlan(t, read(t, disktest.Memory(f)), kept)
		require.Empty(t, p.Refusals(false))
		result := disktest.Head(t, p.View(disktest.Memory(f)), p.Size)
		is, ok := read(t, disktest.Memory(result)).Partition(6)
		require.True(t, ok)
		require.NotEqual(t, int64(box+2000)*sector, is.Record())
		want := is.Off / sector
		if fromRecord {
			want = (is.Off - is.Record()) / sector
		}
		require.Equal(t, want, int64(binary.LittleEndian.Uint32(result[is.Off+fsforge.BootHidden:])))
	}
}

func TestSelectionOfAPartitionThatIsNotThere(t *testing.T) {
	d := disktest.Fixture(t, disktest.Fixtures(t)["unused-slots"])
	l := read(t, d)
	_, err := plan.New(l, align.Goal{Must: align.DefaultBoundary, Want: align.Kept, Only: []int{2, 3}})
	require.ErrorIs(t, err, plan.ErrSelection)
	require.ErrorContains(t, err, "3")
	_, extended, _ := planFixture(t, "logical-chain", mib)
	_, err = plan.New(extended, align.Goal{Must: align.DefaultBoundary, Want: align.Kept, Only: []int{5, 2}})
	require.ErrorIs(t, err, plan.ErrSelection)
	require.ErrorContains(t, err, "name those")
}

// At 1 MiB, the bytes depend on the number of heads of the BIOS, and there is a warning.
func TestTheGeometryNote(t *testing.T) {
	note := func(p *plan.Plan) bool { return slices.Contains(codes(p.Notes), "chs-geometry") }
	_, _, p := planFixture(t, "xp-lba63-one-ntfs", mib)
	require.True(t, note(p))
	_, _, p = planFixture(t, "xp-lba63-one-ntfs", 65536)
	require.False(t, note(p))
	_, l, _ := planFixture(t, "xp-lba63-one-ntfs", mib)
	p = newPlan(t, l, align.Goal{Must: align.BoundaryOf(512), Want: align.BoundaryOf(2 * mib)})
	require.Empty(t, p.Moves)
	require.False(t, note(p), "nothing moves")
	_, _, p = planFixture(t, "two-ntfs-lba63-and-cylinder", mib)
	require.False(t, note(p), "without boot code they are not read")
}

// A note reports that a disk grows, for programs that store its size elsewhere; other disks get no such note.
func TestTheSizeNote(t *testing.T) {
	for _, tc := range []struct {
		sectors int
		want    int
	}{{6000, 0}, {3063, 1}} {
		p := newPlan(t, read(t, disktest.Memory(tableforge.NewMBR(tc.sectors, slot(0x83, 63, 3000)))), kept)
		require.Len(t, p.Moves, 1)
		notes := coded(p.Notes, "size-elsewhere")
		require.Len(t, notes, tc.want, "%d sectors", tc.sectors)
		for _, n := range notes {
			require.Equal(t, align.Info, n.Severity)
			require.Contains(t, n.Text, fmt.Sprintf("from %d to %d bytes", p.OldSize, p.Size))
		}
	}
}

// At returns an error for places that no copy produces.
func TestAtRefusesOtherPlaces(t *testing.T) {
	_, l, p := planFixture(t, "two-ntfs-lba63-and-cylinder", 65536)
	starts := func(first, second int64) map[int]int64 { return map[int]int64{1: first * sector, 2: second * sector} }
	_, err := plan.At(l, starts(128, 4193152), false)
	require.NoError(t, err)
	for name, s := range map[string]map[int]int64{
		"into the gap in front":      starts(62, 4193152),
		"onto the partition before":  starts(128, 4192965),
		"a partition that is absent": {1: 128 * sector},
	} {
		_, err := plan.At(l, s, false)
		require.ErrorIs(t, err, plan.ErrNoPlan, name)
		require.Equal(t, len(s) == 1, strings.Contains(err.Error(), "partition 2 is missing"), name)
	}
	require.Len(t, p.Moves, 2)
}

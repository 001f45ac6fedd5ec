package disk_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// pattern returns n nonzero bytes in which no two places within 64 KiB are alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(1 + (i*7+i/251*31)%255)
	}
	return b
}

// striped returns a disk of runs of run bytes, alternately stored and zero, and its content. The stored bytes are in
// the file in reverse order, as in an image that grew.
func striped(size, run int) (disk.Disk, []byte) {
	file, want := pattern(size), make([]byte, size)
	for off := 0; off < size; off += 2 * run {
		n := min(run, size-off)
		copy(want[off:off+n], file[size-off-n:])
	}
	d := disk.New(int64(size), 512, func(off int64) (disk.Run, error) {
		into := off % int64(run)
		n := min(int64(run), int64(size)-(off-into))
		r := disk.Run{Len: n - into}
		if off/int64(run)%2 == 0 {
			r.Src, r.Off = bytes.NewReader(file), int64(size)-(off-into)-n+into
		}
		return r, nil
	})
	return d, want
}

func TestDisksOfMaps(t *testing.T) {
	for _, tc := range []struct {
		name      string
		size, run int
	}{
		{"runs of one byte", 1001, 1},
		{"runs of a sector, odd size", 100*512 + 77, 512},
		{"runs of a grain", 1 << 20, 64 << 10},
		{"one run longer than the disk", 4096, 1 << 20},
		{"an empty disk", 0, 512},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, want := striped(tc.size, tc.run)
			disktest.CheckBytes(t, d, want)
		})
	}
}

// A map may return a run that extends beyond the end of the disk, as the last grain of an image often does.
func TestARunPastTheEndIsCut(t *testing.T) {
	file := pattern(10000)
	for _, size := range []int64{1, 5000, 5120} {
		d := disk.New(size, 512, func(off int64) (disk.Run, error) {
			require.Less(t, off, size, "the map is asked for places of the disk only")
			return disk.Run{Len: 10000 - off, Src: bytes.NewReader(file), Off: off}, nil
		})
		disktest.CheckBytes(t, d, file[:size])
	}
}

func TestSectionIsAPartOfADisk(t *testing.T) {
	d, want := striped(300<<10, 10<<10)
	for _, r := range []disk.Range{
		{Off: 0, Len: 300 << 10},
		{Off: 63 * 512, Len: 100 << 10},
		{Off: 300<<10 - 1, Len: 1},
		{Off: 5, Len: 0},
	} {
		s := disk.Section(d, r)
		disktest.CheckBytes(t, s, want[r.Off:r.End()])
	}
	half := disk.Section(d, disk.Range{Off: 5 << 10, Len: 200 << 10})
	disktest.CheckBytes(t, disk.Section(half, disk.Range{Off: 5 << 10, Len: 1000}), want[10<<10:10<<10+1000])
	require.Panics(t, func() { disk.Section(d, disk.Range{Off: 1, Len: 300 << 10}) })
	require.Panics(t, func() { disk.Section(d, disk.Range{Off: -1, Len: 2}) })
}

func TestSectionKeepsTheSectorSize(t *testing.T) {
	d := disk.New(1<<20, 4096, func(off int64) (disk.Run, error) { return disk.Run{Len: 1<<20 - off}, nil })
	require.Equal(t, int64(4096), disk.Section(d, disk.Range{Off: 0, Len: 8192}).SectorSize())
	require.Equal(t, int64(4096), disk.Compose(d, 8192, nil).SectorSize())
	require.Equal(t, int64(4096), disk.Overlay(d, []disk.Patch{{Off: 1, New: []byte{1}}}).SectorSize())
}

// moves are those of an XP disk with two partitions: sector 0 and its gap stay, each partition has its own distance.
var moves = []disk.Shift{
	{From: 0, To: 0, Len: 63 * 512},
	{From: 63 * 512, To: 128 * 512, Len: 100 * 512},
	{From: 170 * 512, To: 256 * 512, Len: 51*512 + 17},
}

func composed(src []byte, size int64, pieces []disk.Shift) []byte {
	want := make([]byte, size)
	for _, p := range pieces {
		copy(want[p.To:p.To+p.Len], src[p.From:])
	}
	return want
}

func TestCompose(t *testing.T) {
	src, bytes := striped(230*512, 3*512)
	for _, tc := range []struct {
		name   string
		size   int64
		pieces []disk.Shift
	}{
		{"two partitions moved, the disk grows", 400*512 + 1, moves},
		{"nothing at all", 5000, nil},
		{"everything stays", 230 * 512, []disk.Shift{{Len: 230 * 512}}},
		{"one byte at the end", 70000, []disk.Shift{{From: 4, To: 69999, Len: 1}}},
		{"pieces that touch", 2000, []disk.Shift{{From: 700, To: 0, Len: 1000}, {From: 0, To: 1000, Len: 1000}}},
		{"one source twice", 2000, []disk.Shift{{From: 512, To: 10, Len: 700}, {From: 512, To: 1000, Len: 700}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			disktest.CheckBytes(t, disk.Compose(src, tc.size, tc.pieces), composed(bytes, tc.size, tc.pieces))
		})
	}
}

func TestComposePanicsOnOurOwnMistakes(t *testing.T) {
	src, _ := striped(1000, 100)
	for _, tc := range []struct {
		name   string
		pieces []disk.Shift
	}{
		{"not sorted", []disk.Shift{{To: 500, Len: 10}, {To: 0, Len: 10}}},
		{"overlap", []disk.Shift{{To: 0, Len: 10}, {To: 9, Len: 10}}},
		{"past the result", []disk.Shift{{To: 1995, Len: 10}}},
		{"past the source", []disk.Shift{{From: 995, Len: 10}}},
		{"before the source", []disk.Shift{{From: -1, Len: 10}}},
		{"empty", []disk.Shift{{Len: 0}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Panics(t, func() { disk.Compose(src, 2000, tc.pieces) })
		})
	}
}

func TestOverlay(t *testing.T) {
	src, bytes := striped(200<<10, 4<<10)
	patches := []disk.Patch{
		{Off: 0, New: []byte{0xfa}},
		{Off: 0x1be + 1, New: []byte{2, 3, 0}},
		{Off: 0x1be + 4, New: []byte{0x80, 0, 0, 0}}, // touches the one before
		{Off: 6 << 10, New: pattern(3000)},           // in zeros, over their end
		{Off: 200<<10 - 2, New: []byte{0, 7}},
	}
	want := append([]byte{}, bytes...)
	for _, p := range patches {
		copy(want[p.Off:], p.New)
	}
	disktest.CheckBytes(t, disk.Overlay(src, patches), want)
	disktest.CheckBytes(t, disk.Overlay(src, nil), bytes)
	require.Panics(t, func() { disk.Overlay(src, []disk.Patch{patches[1], patches[0]}) })
	require.Panics(t, func() { disk.Overlay(src, []disk.Patch{{Off: 0x1be, New: []byte{1, 2}}, patches[1]}) })
	require.Panics(t, func() { disk.Overlay(src, []disk.Patch{{Off: 200 << 10, New: []byte{1}}}) })
	require.Panics(t, func() { disk.Overlay(src, []disk.Patch{{Off: 7}}) })
}

// Pieces of several sources are laid over a disk, or over zeros.
func TestPieces(t *testing.T) {
	src, stored := striped(64<<10, 5000)
	other := pattern(3000)
	pieces := []disk.Piece{
		{Range: disk.Range{Off: 7, Len: 1000}, Src: bytes.NewReader(other), At: 500},
		{Range: disk.Range{Off: 1007, Len: 20000}}, // zeros that touch
		{Range: disk.Range{Off: 60 << 10, Len: 4 << 10}, Src: src, At: 100},
	}
	over := append([]byte{}, stored...)
	zeros := make([]byte, len(stored))
	for _, want := range [][]byte{over, zeros} {
		copy(want[7:1007], other[500:])
		clear(want[1007:21007])
		copy(want[60<<10:], stored[100:][:4<<10])
	}
	size := src.Size()
	disktest.CheckBytes(t, disk.New(size, 512, disk.Pieces(size, pieces, disk.Whole(src, size))), over)
	disktest.CheckBytes(t, disk.New(size, 512, disk.Pieces(size, pieces, nil)), zeros)
}

func TestExtents(t *testing.T) {
	const data = 4096 * 5
	src, _ := striped(data, data)
	d := disk.Compose(src, 1<<30, []disk.Shift{
		{To: 100, Len: 1000}, {From: 2000, To: 1100, Len: 900}, {To: 1<<30 - data, Len: data},
	})
	var got []disk.Extent
	for e, err := range disk.Extents(d, disk.Range{Off: 50, Len: 1<<20 - 50}) {
		require.NoError(t, err)
		got = append(got, e)
	}
	require.Equal(t, []disk.Extent{
		{Range: disk.Range{Off: 50, Len: 50}, Zero: true},
		{Range: disk.Range{Off: 100, Len: 1900}},
		{Range: disk.Range{Off: 2000, Len: 1<<20 - 2000}, Zero: true},
	}, got)
	n, err := disk.Stored(d)
	require.NoError(t, err)
	require.Equal(t, int64(1900+data), n)
	for _, err := range disk.Extents(d, disk.Range{Off: 1 << 30, Len: 1}) {
		require.ErrorIs(t, err, fs.ErrInvalid) // once, not for ever
	}
}

// The result of an alignment is a stack of all of them.
func TestStacks(t *testing.T) {
	src, bytes := striped(230*512, 1000)
	part := disk.Section(src, disk.Range{Off: 512, Len: 229 * 512})
	view := disk.Overlay(disk.Compose(part, 400*512, moves),
		[]disk.Patch{{Off: 128*512 + 0x1c, New: []byte{128, 0, 0, 0}}})
	want := composed(bytes[512:], 400*512, moves)
	copy(want[128*512+0x1c:], []byte{128, 0, 0, 0})
	disktest.CheckBytes(t, view, want)
	disktest.CheckBytes(t, disk.Section(view, disk.Range{Off: 128 * 512, Len: 100 * 512}), want[128*512:228*512])
	again := disk.Compose(view, 500*512,
		[]disk.Shift{{From: 128 * 512, To: 3, Len: 1000}, {From: 0, To: 64 << 10, Len: 64 << 10}})
	disktest.CheckBytes(t, again,
		composed(want, 500*512, []disk.Shift{
			{From: 128 * 512, To: 3, Len: 1000},
			{From: 0, To: 64 << 10, Len: 64 << 10},
		}))
}

// A stretch in one state is one extent, however the map divides it: a copy asks once and not once per grain.
func TestExtentJoinsRunsOfOneState(t *testing.T) {
	data := pattern(64 << 10)
	d := disk.New(64<<10, 512, func(off int64) (disk.Run, error) {
		r := disk.Run{Len: 512 - off%512}
		if off < 32<<10 {
			r.Src, r.Off = bytes.NewReader(data), off
		}
		return r, nil
	})
	e, err := d.Extent(100, 64<<10-100)
	require.NoError(t, err)
	require.Equal(t, disk.Extent{Range: disk.Range{Off: 100, Len: 32<<10 - 100}}, e)
	e, err = d.Extent(32<<10, 32<<10)
	require.NoError(t, err)
	require.Equal(t, disk.Extent{Range: disk.Range{Off: 32 << 10, Len: 32 << 10}, Zero: true}, e)
}

var errMedium = errors.New("input/output error")

type badSector struct{ at int64 }

func (b badSector) ReadAt(p []byte, off int64) (int, error) {
	if n := b.at - off; n < int64(len(p)) {
		return int(max(n, 0)), errMedium
	}
	return len(p), nil
}

func TestReadErrorsSurface(t *testing.T) {
	broken := errors.New("grain table")
	d := disk.New(3000, 512, func(off int64) (disk.Run, error) {
		if off >= 2000 {
			return disk.Run{}, broken
		}
		return disk.Run{Len: 1000 - off%1000, Src: badSector{1500}, Off: off}, nil
	})
	_, err := d.ReadAt(make([]byte, 1500), 0)
	require.NoError(t, err)
	n, err := d.ReadAt(make([]byte, 1501), 0)
	require.ErrorIs(t, err, errMedium)
	require.Equal(t, 1000, n, "what was read before the run with the error")
	_, err = d.ReadAt(make([]byte, 10), 2000)
	require.ErrorIs(t, err, broken)
	_, err = d.Extent(2500, 10)
	require.ErrorIs(t, err, broken)
}

// A truncated file returns io.EOF in the middle of a disk. That must not look like the end of the disk, because a
// copier would consider it success.
func TestShortFileIsNoEndOfDisk(t *testing.T) {
	d := disk.New(3000, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 3000 - off, Src: bytes.NewReader(make([]byte, 100)), Off: off}, nil
	})
	_, err := d.ReadAt(make([]byte, 3000), 0)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, err, io.EOF)
}

// The maps below a disk lead to the file that holds a byte, or to their error.
func TestLeaf(t *testing.T) {
	t.Parallel()
	src, _ := striped(230*512, 1000)
	d := disk.Section(disk.Section(src, disk.Range{Off: 512, Len: 100 * 512}), disk.Range{Off: 1024, Len: 512})
	want, _, err := disk.Leaf(src, 3*512+7)
	require.NoError(t, err)
	run, depth, err := disk.Leaf(d, 7)
	require.NoError(t, err)
	require.Equal(t, want.Off, run.Off)
	require.Equal(t, want.Src, run.Src)
	require.LessOrEqual(t, run.Len, int64(505))
	require.Equal(t, 3, depth)
	broken := disk.New(1<<20, 512, func(int64) (disk.Run, error) { return disk.Run{}, errMedium })
	_, _, err = disk.Leaf(disk.Section(broken, disk.Range{Len: 512}), 0)
	require.ErrorIs(t, err, errMedium)
}

// holey has data in every second stripe, and counts requests for its holes.
type holey struct{ asked *int }

const stripe = 64 << 10

func (holey) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }

func (s holey) Extent(off, limit int64) (disk.Extent, error) {
	*s.asked++
	n := min(limit, stripe-off%stripe)
	return disk.Extent{Range: disk.Range{Off: off, Len: n}, Zero: off/stripe%2 == 1}, nil
}

// A view of a partition of a file queries the file once for each stretch of data and each hole, however many disks are
// composed.
func TestComposedDisksAskOnce(t *testing.T) {
	var asked int
	const stripes = 1000
	d := disk.Disk(disk.New(stripes*stripe, 512, disk.Whole(holey{&asked}, stripes*stripe)))
	d = disk.Compose(d, d.Size(), []disk.Shift{{From: 0, To: 0, Len: d.Size()}})
	d = disk.Overlay(d, []disk.Patch{{Off: 0, New: []byte{1}}})
	d = disk.Section(d, disk.Range{Off: stripe, Len: d.Size() - stripe})
	stored, err := disk.Stored(d)
	require.NoError(t, err)
	require.EqualValues(t, stripes/2*stripe-stripe, stored)
	require.Equal(t, stripes-1, asked)
}

// A failed search for holes is an error, both of a disk and of its storage.
func TestExtentsThatAreNotKnown(t *testing.T) {
	bad := disktest.NewBadExtents(disktest.ShortDisk([]byte("data"), 4096))
	_, err := disk.Stored(bad)
	require.ErrorIs(t, err, disktest.ErrFault)
	stored := disk.New(4096, 512, func(off int64) (disk.Run, error) {
		return disk.Run{
			Len: 4096 - off, Src: bad,
			Off: off,
		}, nil
	})
	_, err = stored.Extent(0, 4096)
	require.ErrorIs(t, err, disktest.ErrFault)
	_, err = disk.Stored(stored)
	require.ErrorIs(t, err, disktest.ErrFault)
}

func TestRanges(t *testing.T) {
	t.Parallel()
	r := disk.Range{Off: 100, Len: 50}
	require.Equal(t, int64(150), r.End())
	require.True(t, r.Contains(r))
	require.True(t, r.Contains(disk.Range{Off: 149, Len: 1}))
	require.False(t, r.Contains(disk.Range{Off: 149, Len: 2}))
	require.False(t, r.Contains(disk.Range{Off: 99, Len: 2}))
	require.True(t, r.Overlaps(disk.Range{Off: 149, Len: 100}))
	require.True(t, r.Overlaps(disk.Range{Off: 0, Len: 101}))
	require.False(t, r.Overlaps(disk.Range{Off: 150, Len: 1}), "half-open: neighbours share no byte")
	require.False(t, r.Overlaps(disk.Range{Off: 0, Len: 100}))
	require.False(t, r.Overlaps(disk.Range{Off: 120}), "an empty range has no byte to share")
}

// setSize is the size of the space of random ranges, in bytes.
const setSize = 64

// set has each byte that ranges cover.
type set [setSize]bool

func setOf(t *rapid.T, ranges []disk.Range) (s set) {
	for _, r := range ranges {
		require.Positive(t, r.Len)
		for i := r.Off; i < r.End(); i++ {
			require.False(t, s[i], "ranges %v have byte %d twice", ranges, i)
			s[i] = true
		}
	}
	return s
}

func drawRange(t *rapid.T) disk.Range {
	off := rapid.Int64Range(0, setSize-1).Draw(t, "off")
	return disk.Range{Off: off, Len: rapid.Int64Range(1, setSize-off).Draw(t, "len")}
}

func drawRanges(t *rapid.T) []disk.Range {
	short := rapid.Custom(func(t *rapid.T) disk.Range {
		r := drawRange(t)
		return disk.Range{Off: r.Off, Len: min(r.Len, 9)}
	})
	return rapid.SliceOfN(short, 0, 9).Draw(t, "ranges")
}

// Ranges combine as the sets of their bytes do.
func TestRangesAreSetsOfBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		drawn := drawRanges(t)
		var want set
		for _, r := range drawn {
			for i := r.Off; i < r.End(); i++ {
				want[i] = true
			}
		}
		a, b, r := disk.Merge(drawn), disk.Merge(drawRanges(t)), drawRange(t)
		inA, inB := setOf(t, a), setOf(t, b)
		require.Equal(t, want, inA)
		for i := 1; i < len(a); i++ {
			require.Less(t, a[i-1].End(), a[i].Off, "merged ranges do not touch")
		}

		overlapping := setOf(t, disk.Overlapping(a, r))
		for _, x := range a {
			require.Equal(t, x.Overlaps(r), overlapping[x.Off])
		}
		common, gaps := setOf(t, disk.Intersect(a, b)), setOf(t, disk.Gaps(r, a))
		for i := range int64(setSize) {
			require.Equal(t, inA[i] && inB[i], common[i])
			require.Equal(t, r.Contains(disk.Range{Off: i, Len: 1}) && !inA[i], gaps[i])
		}
	})
}

// Append keeps the bytes of ranges in order, and joins those that touch.
func TestAppend(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		merged := disk.Merge(drawRanges(t))
		var out []disk.Range
		for _, r := range merged {
			cut := rapid.Int64Range(1, r.Len).Draw(t, "cut")
			out = disk.Append(out, disk.Range{Off: r.Off, Len: cut})
			if cut < r.Len {
				out = disk.Append(out, disk.Range{Off: r.Off + cut, Len: r.Len - cut})
			}
		}
		require.Len(t, out, len(merged))
		require.Equal(t, setOf(t, merged), setOf(t, out))
	})
}

package align_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	tib = int64(1) << 40
)

// file is a file of an image with known holes, which is never read.
type file struct {
	size  int64
	holes []disk.Range
	asked int
	fails error
}

func (f *file) Name() string                      { return "disk.img" }
func (f *file) ID() string                        { return "1:1" }
func (f *file) Size() int64                       { return f.size }
func (f *file) ReadAt([]byte, int64) (int, error) { panic("the walk reads no data") }
func (f *file) Extent(off, limit int64) (disk.Extent, error) {
	f.asked++
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	for _, h := range f.holes {
		switch {
		case off >= h.Off && off < h.End():
			e.Zero, e.Len = true, min(limit, h.End()-off)
			return e, f.fails
		case h.Off > off:
			e.Len = min(e.Len, h.Off-off)
		}
	}
	return e, f.fails
}

// packed is a source other than a file: a unit that is unpacked when read.
type packed struct{ io.ReaderAt }

// mapped returns a disk of these runs, one after the other.
func mapped(runs ...disk.Run) disk.Mapped {
	var size int64
	for _, r := range runs {
		size += r.Len
	}
	return disk.New(size, 512, func(off int64) (disk.Run, error) {
		at := int64(0)
		for _, r := range runs {
			if off < at+r.Len {
				into := off - at
				return disk.Run{Len: r.Len - into, Src: r.Src, Off: r.Off + into}, nil
			}
			at += r.Len
		}
		panic("behind the end")
	})
}

func look(t *testing.T, d disk.Disk, child bool, parts ...align.Part) *align.Usage {
	t.Helper()
	u, err := align.Look(d, child, parts)
	require.NoError(t, err)
	require.True(t, u.Complete)
	require.Equal(t, d.Size(), u.Size)
	return u
}

func TestBytesAndPieces(t *testing.T) {
	f, g := &file{size: tib}, &file{size: tib}
	hole := disk.Run{Len: mib}
	at := func(src io.ReaderAt, off int64) disk.Run { return disk.Run{Len: mib, Src: src, Off: off} }
	for _, tc := range []struct {
		name              string
		runs              []disk.Run
		stored, packed    int64
		pieces, unordered int64
	}{
		{"nothing stored", []disk.Run{hole, hole}, 0, 0, 0, 0},
		{"one run", []disk.Run{at(f, 7*mib)}, mib, 0, 1, 0},
		{"runs that follow each other", []disk.Run{at(f, 7*mib), at(f, 8*mib)}, 2 * mib, 0, 1, 0},
		{
			"the same with a hole of the disk between them",
			[]disk.Run{at(f, 7*mib), hole, at(f, 8*mib)},
			2 * mib, 0, 1,
			0,
		},
		{"a gap in the file", []disk.Run{at(f, 7*mib), at(f, 9*mib)}, 2 * mib, 0, 2, 0},
		{"descending", []disk.Run{at(f, 9*mib), at(f, 8*mib), at(f, 7*mib)}, 3 * mib, 0, 3, 2},
		{"back once, then on", []disk.Run{at(f, 9*mib), at(f, 7*mib), at(f, 8*mib), at(f, 10*mib)}, 4 * mib, 0, 3, 1},
		{"the same place twice", []disk.Run{at(f, 7*mib), at(f, 7*mib)}, 2 * mib, 0, 2, 1},
		{"two files", []disk.Run{at(f, 9*mib), at(g, 0), at(g, mib)}, 3 * mib, 0, 2, 0},
		{"packed units have no place", []disk.Run{at(packed{}, 9*mib), at(f, 0), at(packed{}, 0)}, mib, 2 * mib, 1, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := look(t, mapped(tc.runs...), false)
			require.Equal(t, tc.stored, u.Stored, "stored")
			require.Equal(t, tc.packed, u.Packed, "packed")
			require.Zero(t, u.Inherited)
			require.Equal(t, tc.stored+tc.packed, u.Data())
			require.Equal(t, tc.pieces, u.Pieces, "pieces")
			require.Equal(t, tc.unordered, u.Unordered, "out of order")
		})
	}
}

func TestHolesOfTheFile(t *testing.T) {
	f := &file{size: 64 * mib, holes: []disk.Range{
		{Off: 0, Len: mib},
		{Off: 3 * mib, Len: 2 * mib},
		{Off: 60 * mib, Len: 4 * mib},
	}}
	u := look(t, mapped(disk.Run{Len: 64 * mib, Src: f}), false)
	require.Equal(t, 57*mib, u.Stored, "64 MiB without the 7 of holes")
	require.Equal(t, int64(1), u.Pieces, "a hole of the file has its place in it: to go over it is no jump")
	require.Zero(t, u.Unordered)

	f.asked = 0
	var runs []disk.Run
	for i := range int64(512) {
		runs = append(runs, disk.Run{Len: 64 * kib, Src: f, Off: 60*mib - (i+1)*64*kib})
	}
	u = look(t, mapped(runs...), false)
	require.Equal(t, 32*mib, u.Stored)
	require.Equal(t, int64(512), u.Pieces)
	require.LessOrEqual(t, f.asked, 512, "at most once for each run")

	u = look(t, mapped(disk.Run{Len: mib, Src: f, Off: 61 * mib}), false)
	require.Zero(t, u.Stored+u.Pieces, "all in a hole")
}

// A parent's bytes count, but neither its pieces nor its positions.
func TestInheritedBytes(t *testing.T) {
	f, below := &file{size: tib}, &file{size: tib, holes: []disk.Range{{Off: 9 * mib, Len: tib - 9*mib}}}
	base := mapped(disk.Run{Len: 4 * mib, Src: below, Off: 6 * mib}, disk.Run{Len: mib, Src: packed{}},
		disk.Run{Len: 3 * mib})
	middle := mapped(disk.Run{Len: mib, Src: below}, disk.Run{Len: 7 * mib, Src: base, Off: mib})
	child := mapped(disk.Run{Len: 6 * mib, Src: middle}, disk.Run{Len: 2 * mib, Src: f, Off: 512})
	u := look(t, child, true)
	require.Equal(t, 2*mib, u.Stored)
	require.Zero(t, u.Packed)
	require.Equal(t, mib+2*mib+mib, u.Inherited, "1 MiB of middle, 2 of the 3 of base that are no hole, the packed one")
	require.Equal(t, int64(1), u.Pieces)
	require.Equal(t, int64(512), u.Whole.Alignment())

	u = look(t, child, false)
	require.Zero(t, u.Inherited, "disks below one that is no child are its own extents")
	require.Equal(t, 5*mib, u.Stored)
	require.Equal(t, mib, u.Packed)
}

func TestTheWalkIsBounded(t *testing.T) {
	f := &file{size: 1 << 62}
	looks := 0
	d := disk.New(64*tib, 512, func(off int64) (disk.Run, error) {
		looks++
		return disk.Run{Len: 512, Src: f, Off: 1<<60 - off}, nil
	})
	u, err := align.Look(d, false, nil)
	require.NoError(t, err)
	require.False(t, u.Complete)
	require.False(t, u.Small())
	require.LessOrEqual(t, looks, 1<<19)
	require.InDelta(t, 1<<18, float64(u.Pieces), 1,
		"each piece takes a look into the map and one at the holes of the file")
	require.Equal(t, 512*u.Pieces, u.Stored)

	u = look(t, disk.New(64*tib, 512, func(off int64) (disk.Run, error) { return disk.Run{Len: 64 * tib}, nil }), false)
	require.True(t, u.Small(), "64 TiB of nothing are one look")
	for size, small := range map[int64]bool{128 * mib: true, 128*mib + 512: false} {
		require.Equal(t, small, look(t, mapped(disk.Run{Len: size, Src: f}), false).Small())
	}
}

func TestErrorsOfTheMapEndTheWalk(t *testing.T) {
	bad := errors.New("grain table at 0x200: entry 7, want 0")
	_, err := align.Look(disk.New(mib, 512, func(int64) (disk.Run, error) { return disk.Run{}, bad }), false, nil)
	require.ErrorIs(t, err, bad)
	_, err = align.Look(mapped(disk.Run{Len: mib, Src: &file{size: mib, fails: bad}}), false, nil)
	require.ErrorIs(t, err, bad)
}

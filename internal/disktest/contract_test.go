package disktest

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
)

// sample returns a small disk with a hole: 8 KiB of data, 8 KiB of zeros, 3 KiB of data.
func sample() []byte {
	b := bytes.Repeat([]byte{0xa5, 1, 2, 3}, 19<<10/4)
	clear(b[8<<10 : 16<<10])
	return b
}

// rules is a disk that follows them, and that each case breaks in one place.
type rules struct {
	data   []byte
	sector int64
	readAt func(p []byte, off int64) (int, error)
	extent func(off, limit int64) (disk.Extent, error)
}

func (r *rules) Size() int64       { return int64(len(r.data)) }
func (r *rules) SectorSize() int64 { return r.sector }

func (r *rules) ReadAt(p []byte, off int64) (int, error) {
	if r.readAt != nil {
		return r.readAt(p, off)
	}
	return bytes.NewReader(r.data).ReadAt(p, off)
}

func (r *rules) Extent(off, limit int64) (disk.Extent, error) {
	if r.extent != nil {
		return r.extent(off, limit)
	}
	return r.good(off, limit)
}

func (r *rules) good(off, limit int64) (disk.Extent, error) {
	if off < 0 || off >= r.Size() || limit <= 0 {
		return disk.Extent{}, io.EOF
	}
	zero := off >= 8<<10 && off < 16<<10
	end := r.Size()
	for _, border := range []int64{16 << 10, 8 << 10} {
		if off < border {
			end = border
		}
	}
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, end-off)}, Zero: zero}, nil
}

func TestCheckAcceptsAGoodDisk(t *testing.T) {
	require.NoError(t, check(&rules{data: sample(), sector: 512}, bytes.NewReader(sample())))
	require.NoError(t, check(&rules{sector: 4096}, bytes.NewReader(nil)))
}

// brokenDisks break one rule each.
var brokenDisks = []struct {
	name, want string
	breaks     func(r *rules)
}{
	{"one byte is wrong", "byte 0x4321", func(r *rules) { r.data[0x4321] ^= 1 }},
	{"sector size of 520", "sector size 520", func(r *rules) { r.sector = 520 }},
	{"another size", "size 19455", func(r *rules) { r.data = r.data[:len(r.data)-1] }},
	{"no io.EOF at the end", "want 1 and io.EOF", func(r *rules) {
		r.readAt = func(p []byte, off int64) (int, error) {
			n, err := bytes.NewReader(r.data).ReadAt(p, off)
			if off >= 0 {
				err = nil
			}
			return n, err
		}
	}},
	{"a read behind the end gives zeros", "want 0 and io.EOF", func(r *rules) {
		r.readAt = func(p []byte, off int64) (int, error) {
			if off >= r.Size() {
				return len(p), nil
			}
			return bytes.NewReader(r.data).ReadAt(p, off)
		}
	}},
	{"a negative offset reads the start", "want an error", func(r *rules) {
		r.readAt = func(p []byte, off int64) (int, error) { return bytes.NewReader(r.data).ReadAt(p, max(off, 0)) }
	}},
	{"a read stops at the border of a run", "gives 8192 bytes", func(r *rules) {
		r.readAt = func(p []byte, off int64) (int, error) {
			if border := int64(8 << 10); off >= 0 && off < border && off+int64(len(p)) > border {
				return bytes.NewReader(r.data[:border]).ReadAt(p, off)
			}
			return bytes.NewReader(r.data).ReadAt(p, off)
		}
	}},
	{"data is called zero", "says that", func(r *rules) {
		r.extent = func(off, limit int64) (disk.Extent, error) {
			e, err := r.good(off, limit)
			e.Zero = true
			return e, err
		}
	}},
	{"one byte more is called zero", "says that", func(r *rules) {
		r.extent = func(off, limit int64) (disk.Extent, error) {
			e, err := r.good(off, limit)
			if e.Zero && e.Len < limit {
				e.Len++
			}
			return e, err
		}
	}},
	{"more than was asked", "gives [", func(r *rules) {
		r.extent = func(off, limit int64) (disk.Extent, error) {
			if limit > 0 {
				limit = max(limit, 600)
			}
			return r.good(off, limit)
		}
	}},
	{"an extent over the end of the disk", "gives [0x4bff, 0x1", func(r *rules) {
		r.extent = func(off, limit int64) (disk.Extent, error) {
			e, err := r.good(off, limit)
			if err == nil && e.End() == r.Size() {
				e.Len = limit
			}
			return e, err
		}
	}},
	{"an empty extent", "gives [0x4bff, 0x4bff)", func(r *rules) {
		r.extent = func(off, limit int64) (disk.Extent, error) {
			e, err := r.good(off, limit)
			e.Len = 0
			return e, err
		}
	}},
	{"an extent of another place", "gives [0x4c00", func(r *rules) {
		r.extent = func(off, limit int64) (disk.Extent, error) {
			e, err := r.good(off, limit)
			e.Off++
			return e, err
		}
	}},
	{"an extent outside of the disk", "and no error", func(r *rules) {
		r.extent = func(off, limit int64) (disk.Extent, error) {
			if off == r.Size() {
				return disk.Extent{Range: disk.Range{Off: off, Len: limit}}, nil
			}
			return r.good(off, limit)
		}
	}},
}

// A contract that accepts everything proves nothing.
func TestCheckFindsBrokenDisks(t *testing.T) {
	for _, tc := range brokenDisks {
		t.Run(tc.name, func(t *testing.T) {
			r := &rules{data: sample(), sector: 512}
			tc.breaks(r)
			require.ErrorContains(t, check(r, bytes.NewReader(sample())), tc.want)
		})
	}
}

func TestFirstDifferenceShowsTheBytes(t *testing.T) {
	want := bytes.Repeat([]byte{0xee}, 200)
	got := bytes.Clone(want)
	require.Empty(t, firstDifference(want, got, 0))
	got[100] = 0x11
	text := firstDifference(want, got, 0x1000)
	require.Contains(t, text, "byte 0x1064 (4196) is 0x11, want 0xee")
	require.Equal(t, 8, strings.Count(text, "|ee")+strings.Count(text, "|.."), "64 bytes of each side:\n%s", text)
}

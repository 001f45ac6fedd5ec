package disktest

import (
	"bytes"
	"errors"
	"io"
	"os"
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

// rules is a disk that follows the contract. Each case breaks it in one place.
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

func TestRecorderKeepsWrites(t *testing.T) {
	r := NewRecorder(10000, 4096)
	require.NoError(t, r.Reserve(0, 4096))
	require.NoError(t, r.Reserve(8192, 1808))
	last, first := bytes.Repeat([]byte{2}, 1808), bytes.Repeat([]byte{1}, 4096)
	_, err := r.WriteAt(last, 8192)
	require.NoError(t, err)
	_, err = r.WriteAt(first, 0)
	require.NoError(t, err)
	clear(first) // the caller's buffer is used again

	require.Empty(t, r.Faults())
	require.Equal(t, []disk.Range{{Off: 0, Len: 4096}, {Off: 8192, Len: 1808}}, r.Reserved())
	require.Equal(t, []disk.Range{{Off: 0, Len: 4096}, {Off: 8192, Len: 1808}}, r.Written())
	want := make([]byte, 10000)
	copy(want, bytes.Repeat([]byte{1}, 4096))
	copy(want[8192:], last)
	EqualBytes(t, want, r.Bytes())
}

func TestRecorderFindsBrokenRules(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		breaks     func(r *Recorder) error
	}{
		{"descending reservations", "not in ascending order", func(r *Recorder) error {
			return errors.Join(r.Reserve(8192, 4096), r.Reserve(0, 4096))
		}},
		{"half a unit", "in units of 4096", func(r *Recorder) error { return r.Reserve(0, 2048) }},
		{"an odd place", "in units of 4096", func(r *Recorder) error { return r.Reserve(512, 4096) }},
		{"past the end", "on a disk of 16384 bytes", func(r *Recorder) error { return r.Reserve(12288, 8192) }},
		{"a write that was not reserved", "not reserved", func(r *Recorder) error {
			_, err := r.WriteAt(make([]byte, 4096), 0)
			return err
		}},
		{"a part of what was reserved", "not reserved", func(r *Recorder) error {
			err := r.Reserve(0, 8192)
			_, werr := r.WriteAt(make([]byte, 4096), 0)
			return errors.Join(err, werr)
		}},
		{"a second write", "over", func(r *Recorder) error {
			err := r.Reserve(0, 4096)
			_, err1 := r.WriteAt(make([]byte, 4096), 0)
			_, err2 := r.WriteAt(make([]byte, 4096), 0)
			return errors.Join(err, err1, err2)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewRecorder(16384, 4096)
			require.NoError(t, tc.breaks(r))
			require.Len(t, r.Faults(), 1)
			require.Contains(t, r.Faults()[0], tc.want)
		})
	}
}

func TestFixtureText(t *testing.T) {
	d, err := parseFixture(`
# a disk
size 3s   # sectors
@2s+0x10 01 02
         0304 "AB" 05
@0 eb 52 90 "NTFS    "
`)
	require.NoError(t, err)
	want := make([]byte, 3*512)
	copy(want, "\xeb\x52\x90NTFS    ")
	copy(want[1024+16:], "\x01\x02\x03\x04AB\x05")
	CheckBytes(t, d, want)
	require.Equal(t, int64(512), d.SectorSize())

	big, err := parseFixture("size 2T\nsector 4096\n@2199023255040 55 aa")
	require.NoError(t, err)
	require.Equal(t, int64(2<<40), big.Size())
	require.Equal(t, int64(4096), big.SectorSize())
	e, err := big.Extent(0, big.Size())
	require.NoError(t, err)
	require.True(t, e.Zero)
}

func TestFixtureRefusesMistakes(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"past the end", "size 512\n@511 01 02", "pass the size"},
		{"overlap", "size 512\n@0 01 02\n@1 03", "overlap"},
		{"no offset", "size 512\n01 02", "line 2: bytes without"},
		{"no hexadecimal digits", "size 512\n@0 0x", "line 2"},
		{"unclosed quote", "size 512\n@0 \"NTFS", "line 2: unclosed"},
		{"bad size", "size many", "line 1"},
		{"bad offset", "size 512\n@0x1g 00", "line 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseFixture(tc.text)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestMaterializeWritesTheDisk(t *testing.T) {
	d, err := parseFixture("size 1M\n@0x1be 01 02 03\n@1048570 ff")
	require.NoError(t, err)
	got, err := os.ReadFile(Materialize(t, d))
	require.NoError(t, err)
	CheckBytes(t, d, got)
	require.Equal(t, byte(0xff), got[1048570])
}

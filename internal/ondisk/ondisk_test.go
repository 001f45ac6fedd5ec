package ondisk

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disk"
)

// counted is a source that counts its reads.
type counted struct {
	*bytes.Reader
	reads atomic.Int64
	size  int64 // when above 0: what the source says about its size
}

func (c *counted) ReadAt(p []byte, off int64) (int, error) {
	c.reads.Add(1)
	return c.Reader.ReadAt(p, off)
}

func (c *counted) Size() int64 {
	if c.size > 0 {
		return c.size
	}
	return c.Reader.Size()
}

func source(n int) *counted {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*13 + i/251)
	}
	return &counted{Reader: bytes.NewReader(b)}
}

// A length from an image is held against the size of the file before a byte is allocated.
func TestBytesPastTheEnd(t *testing.T) {
	src := source(1000)
	for _, tc := range []struct{ off, n int64 }{
		{-1, 1},
		{0, -1},
		{0, 1001},
		{1000, 1},
		{1001, 0},
		{math.MaxInt64, 1},
		{1, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64},
	} {
		_, err := Bytes(src, tc.off, tc.n)
		require.ErrorIs(t, err, ErrFormat, "%+v", tc)
	}
	b, err := Bytes(src, 990, 10)
	require.NoError(t, err)
	require.Len(t, b, 10)
	_, err = Bytes(&counted{Reader: bytes.NewReader(nil), size: 1 << 40}, 0, 17<<20)
	require.ErrorIs(t, err, ErrLimit)
}

// A file that became shorter is an I/O error, not a malformed image and not the end of the disk.
func TestShortFile(t *testing.T) {
	src := &counted{Reader: bytes.NewReader(make([]byte, 100)), size: 1000}
	_, err := Bytes(src, 0, 200)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NotErrorIs(t, err, ErrFormat)
}

func TestDecodeIsLittleEndian(t *testing.T) {
	var v struct {
		A uint16
		B uint32
	}
	raw, err := Decode(&counted{Reader: bytes.NewReader([]byte{0, 0x55, 0xaa, 1, 2, 3, 4})}, 1, &v)
	require.NoError(t, err)
	require.Equal(t, uint16(0xaa55), v.A)
	require.Equal(t, uint32(0x04030201), v.B)
	require.Equal(t, []byte{0x55, 0xaa, 1, 2, 3, 4}, raw)
}

func TestPagesReadWhatTheSourceHolds(t *testing.T) {
	src := source(5*pageSize + 77)
	p := NewPages(src, 2*pageSize)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 7))
			for range 300 {
				off := rnd.Int64N(src.Size())
				got := make([]byte, min(1+rnd.Int64N(2*pageSize), src.Size()-off))
				want := bytes.Clone(got)
				_, _ = src.Reader.ReadAt(want, off)
				if err := p.Read(got, off); err != nil || !bytes.Equal(want, got) {
					errs[i] = fmt.Errorf("%d bytes at %d: %w", len(got), off,
						errors.Join(err, errors.New("other bytes")))
					return
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.LessOrEqual(t, len(p.kept), 2, "the cache keeps to its bound")
}

func TestPagesAreKept(t *testing.T) {
	src := source(4 * pageSize)
	p := NewPages(src, 2*pageSize)
	read := func(page int64) {
		require.NoError(t, p.Read(make([]byte, 4), page*pageSize+8))
	}
	read(0)
	read(1)
	read(0)
	require.Equal(t, int64(2), src.reads.Load(), "a page that is there is not read again")
	read(2) // drops page 1, which was not used for longest
	read(0)
	require.Equal(t, int64(3), src.reads.Load())
	read(1)
	require.Equal(t, int64(4), src.reads.Load())
}

// Sources that share a cache share its bound, and each reads its own bytes.
func TestSourcesShareACache(t *testing.T) {
	c := NewPageCache(3 * pageSize)
	sizes := []int{1, 512, 40_000, pageSize, pageSize + 3, 7}
	var pages []*Pages
	for i, size := range sizes {
		pages = append(pages, c.Of(bytes.NewReader(bytes.Repeat([]byte{byte(i + 1)}, size))))
	}
	for range 2 {
		for i, size := range sizes {
			got := make([]byte, size)
			require.NoError(t, pages[i].Read(got, 0))
			require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, size), got)
		}
		require.LessOrEqual(t, len(c.kept), 3)
	}
	n, err := pages[2].U32(39_996)
	require.NoError(t, err)
	require.Equal(t, uint32(0x03030303), n)
	_, err = pages[2].U32(39_997)
	require.Error(t, err, "no source goes on in the next one")
}

// holed is a source that knows its holes.
type holed struct {
	*counted
	holes []disk.Range
}

func (h holed) Extent(off, limit int64) (disk.Extent, error) {
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	for _, r := range h.holes {
		switch {
		case off >= r.Off && off < r.End():
			e.Zero, e.Len = true, min(limit, r.End()-off)
			return e, nil
		case r.Off > off:
			e.Len = min(e.Len, r.Off-off)
		}
	}
	return e, nil
}

func TestPagesInHolesAreNotRead(t *testing.T) {
	src := holed{
		source(6 * pageSize),
		[]disk.Range{{Off: pageSize, Len: 2*pageSize + 5}, {Off: 4*pageSize + 1, Len: 2*pageSize - 1}},
	}
	p := NewPages(src, 2*pageSize)
	got := make([]byte, pageSize)
	for _, page := range []int64{1, 2, 5, 1} {
		got[7] = 7
		require.NoError(t, p.Read(got, page*pageSize))
		require.True(t, IsZero(got), "page %d", page)
	}
	require.Zero(t, src.reads.Load())
	require.Empty(t, p.kept, "they take no place in the cache")
	for i, page := range []int64{0, 3, 4} {
		require.NoError(t, p.Read(got, page*pageSize))
		require.False(t, IsZero(got), "page %d holds data, if only a byte", page)
		require.Equal(t, int64(i+1), src.reads.Load())
	}
	require.NoError(t, p.Read(got, pageSize+pageSize/2))
	require.True(t, IsZero(got), "over the border of two pages")

	p = NewPages(src, 2*pageSize)
	before := src.reads.Load()
	for page := range int64(3) {
		require.NoError(t, p.Read(got, page*pageSize))
	}
	require.Equal(t, before+1, src.reads.Load(), "a hole that comes behind data")
}

func TestPagesPastTheEnd(t *testing.T) {
	p := NewPages(source(100), pageSize)
	require.Error(t, p.Read(make([]byte, 4), 98))
	require.Error(t, p.Read(make([]byte, 4), 100))
	require.NoError(t, p.Read(make([]byte, 4), 96))
}

func TestFormatErrorNamesThePlace(t *testing.T) {
	err := error(&FormatError{What: "vhd footer", Off: 0x27fe00, Field: "checksum", Got: "0x1f3c", Want: "0x1f40"})
	require.EqualError(t, err, `vhd footer at 0x27fe00: checksum 0x1f3c, want 0x1f40`)
	moved := Shift(fmt.Errorf("partition 1: %w", err), 0x200)
	require.Contains(t, moved.Error(), "0x280000")
	require.ErrorIs(t, moved, ErrFormat)
	plain := errors.New("plain")
	require.Equal(t, plain, Shift(plain, 1))
}

// A text from an image reaches messages quoted and cut.
func TestFormatErrorQuotesTexts(t *testing.T) {
	err := &FormatError{
		What: "x", Field: "label", Got: "\x1b]0;x\a" + string(bytes.Repeat([]byte{'a'}, 1000)), Want: "text",
	}
	require.NotContains(t, err.Error(), "\x1b")
	require.Less(t, len(err.Error()), 400)
}

func TestNarrowing(t *testing.T) {
	require.Equal(t, uint32(math.MaxUint32), U32(math.MaxUint32))
	require.Equal(t, int64(math.MaxInt64), I64(math.MaxInt64))
	require.Equal(t, byte(255), Byte(255))
	for _, f := range []func(){
		func() { U32(math.MaxUint32 + 1) }, func() { U32(-1) }, func() { U64(-1) }, func() {
			I64(math.MaxInt64 +
				1)
		}, func() { Byte(256) }, func() { Byte(-1) },
	} {
		require.Panics(t, f)
	}
}

// Zeros are counted across pages, up to the limit, and up to the end of the source.
func TestPagesCountZeros(t *testing.T) {
	b := make([]byte, 3*pageSize+10)
	b[5], b[2*pageSize+7] = 1, 0xff
	p := NewPages(bytes.NewReader(b), pageSize)
	for _, c := range []struct{ off, most, want int64 }{
		{0, 100, 5},
		{0, 5, 5},
		{0, 4, 4},
		{5, 100, 0},
		{6, 1 << 20, 2*pageSize + 1},
		{6, pageSize, pageSize},
		{2*pageSize + 7, 8, 0},
		{2*pageSize + 8, 1 << 20, pageSize + 2},
		{int64(len(b)), 8, 0},
	} {
		n, err := p.Zeros(c.off, c.most)
		require.NoError(t, err)
		require.Equal(t, c.want, n, "%d zeros at most from %d", c.most, c.off)
	}
}

// A look at single entries reads little, and a walk over a table reads whole pages.
func TestPagesReadLittleAtFirst(t *testing.T) {
	sizes := &sized{Reader: bytes.NewReader(make([]byte, 4*pageSize))}
	p := NewPages(sizes, 4*pageSize)
	for _, off := range []int64{8, 4 * pieceSize, 2*pageSize + 5*pieceSize + 8, 12} {
		_, err := p.U32(off)
		require.NoError(t, err)
	}
	require.Equal(t, []int{pieceSize, pieceSize, pieceSize}, sizes.reads)

	sizes.reads = nil
	p = NewPages(sizes, 4*pageSize)
	for off := int64(0); off < 3*pageSize; off += 512 {
		require.NoError(t, p.Read(make([]byte, 512), off))
	}
	require.Equal(t, []int{pieceSize, pieceSize, pieceSize, pageSize - 3*pieceSize, pageSize, pageSize}, sizes.reads)
}

// A read of entries in memory allocates nothing, since each access to a sparse image makes one.
func TestPagesAllocateNothing(t *testing.T) {
	p := NewPages(bytes.NewReader(make([]byte, pageSize)), pageSize)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		var b [512]byte
		if err := p.Read(b[:], pieceSize-256); err != nil {
			t.Error(err)
		}
	}))
}

// sized remembers how much each read wanted.
type sized struct {
	*bytes.Reader
	reads []int
}

func (s *sized) ReadAt(p []byte, off int64) (int, error) {
	s.reads = append(s.reads, len(p))
	return s.Reader.ReadAt(p, off)
}

func TestIsZero(t *testing.T) {
	require.True(t, IsZero(nil))
	b := make([]byte, 4096)
	require.True(t, IsZero(b))
	for _, i := range []int{0, 1, 2047, 4094, 4095} {
		b[i] = 1
		require.False(t, IsZero(b), "byte %d", i)
		b[i] = 0
	}
	require.False(t, IsZero(bytes.Repeat([]byte{7}, 512)), "all bytes equal, and none of them zero")
}

// Runs cover every unit that holds a byte, and no other; they do not touch.
func TestDataRuns(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 11))
	for range 300 {
		const unit = 8
		b := make([]byte, rnd.IntN(20*unit))
		for range rnd.IntN(8) {
			if len(b) > 0 {
				b[rnd.IntN(len(b))] = 1
			}
		}
		in, before := make([]bool, len(b)), int64(-1)
		for r := range DataRuns(b, unit) {
			require.Positive(t, r.Len)
			require.Zero(t, r.Off%unit)
			require.Greater(t, r.Off, before, "it meets the run in front of it")
			before = r.End()
			for i := r.Off; i < r.End(); i++ {
				in[i] = true
			}
		}
		for i := range b {
			start := i - i%unit
			require.Equal(t, !IsZero(b[start:min(start+unit, len(b))]), in[i], "byte %d of %v", i, b)
		}
	}
	for range DataRuns([]byte{1, 0, 1}, 1) {
		break // a reader may stop at the first
	}
}

func TestAllZero(t *testing.T) {
	t.Parallel()
	b := make([]byte, 3*zerosRead)
	b[2*zerosRead+5] = 1
	src := bytes.NewReader(b)
	for want, ranges := range map[bool][]disk.Range{
		true:  {{Len: 2*zerosRead + 5}, {Off: 2*zerosRead + 6, Len: 10}, {Off: 9, Len: 0}},
		false: {{Len: 8}, {Off: zerosRead, Len: zerosRead + 6}},
	} {
		zero, err := AllZero(src, ranges...)
		require.NoError(t, err)
		require.Equal(t, want, zero)
	}
	_, err := AllZero(src, disk.Range{Off: 2*zerosRead + 6, Len: zerosRead})
	require.Error(t, err, "behind the end")
}

// The bitmap with its rules must say what a plain comparison of all pairs says. Overlaps are reported for the later
// block of a pair, whatever came in between.
func TestPlaceSetFindsOverlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]uint64{4, 8, 128}).Draw(t, "unit")
		base := rapid.Uint64Range(0, unit-1).Draw(t, "base")
		start := rapid.OneOf(
			rapid.Map(rapid.Uint64Range(0, 60), func(n uint64) uint64 { return base + n*unit }), // where grains lie
			rapid.Uint64Range(0, 61*unit), // and where they do not
		)
		s := NewPlaceSet(unit)
		var seen []uint64
		for _, at := range rapid.SliceOfN(start, 1, 40).Draw(t, "starts") {
			want := false
			for _, b := range seen {
				want = want || (at < b+unit && b < at+unit)
			}
			if want {
				// A damaged image has been found out; what later answers depend on is not specified.
				require.True(t, s.Add(at), "block at %d in %v", at, seen)
				return
			}
			require.False(t, s.Add(at), "block at %d in %v", at, seen)
			seen = append(seen, at)
		}
	})
}

// A full disk of 2 TiB in grains of 64 KiB, in any order, stays within the bound and finds the one block that comes
// twice.
func TestPlaceSetOfAWholeDisk(t *testing.T) {
	s := NewPlaceSet(128)
	const grains = 1 << 18
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, i := range rnd.Perm(grains) {
		require.False(t, s.Add(uint64(i)*128+21))
	}
	require.False(t, s.Full())
	require.Empty(t, s.odd, "all grains lie alike")
	require.True(t, s.Add(12345*128+21))
	require.True(t, s.Add(12345*128+20))
	require.True(t, s.Add(12345*128+22))
}

// Above its bounds it says that it did not look at everything, and grows no further.
func TestPlaceSetIsBounded(t *testing.T) {
	s := NewPlaceSet(1)
	for i := range uint64(maxPages) {
		s.Add(i * cellsPerPage)
	}
	require.False(t, s.Full())
	s.Add(maxPages * cellsPerPage)
	require.True(t, s.Full())
	require.Len(t, s.pages, maxPages)
}

// The expected texts are those of iconv(1); half of a surrogate pair has none.
func TestUTF16(t *testing.T) {
	for _, tc := range []struct{ name, hex, all, cut string }{
		{"nothing", "", "", ""},
		{"letters, and two behind a zero", "41004200000043004400", "AB\x00CD", "AB"},
		{"an odd byte at the end", "4100e4", "A", "A"},
		{"zero in one half only", "00014100", "\u0100A", "\u0100A"},
		{"a pair of surrogates", "3dd800de", "\U0001f600", "\U0001f600"},
		{"half a pair", "3dd84100", "\ufffdA", "\ufffdA"},
	} {
		little, err := hex.DecodeString(tc.hex)
		require.NoError(t, err)
		big := append([]byte{}, little...)
		for i := 0; i+1 < len(big); i += 2 {
			big[i], big[i+1] = big[i+1], big[i]
		}
		require.Equal(t, tc.all, UTF16(little, binary.LittleEndian), tc.name)
		require.Equal(t, tc.all, UTF16(big, binary.BigEndian), tc.name)
		require.Equal(t, tc.cut, UTF16Z(little, binary.LittleEndian), tc.name)
		require.Equal(t, tc.cut, UTF16Z(big, binary.BigEndian), tc.name)
	}
}

// The bytes are those that Hyper-V writes for the GUID of the BAT region.
func TestGUID(t *testing.T) {
	const text = "2dc27766-f623-4200-9d64-115e9bfd4a08"
	g, ok := ParseGUID("{2DC27766-F623-4200-9D64-115E9BFD4A08}")
	require.True(t, ok)
	require.Equal(t, "6677c22d23f600429d64115e9bfd4a08", hex.EncodeToString(g[:]))
	require.Equal(t, text, g.String())
	for _, bad := range []string{
		"", "{", "{" + text, text + "}", text[1:], "{}", "2dc27766-f623-4200-9d64x115e9bfd4a08",
		"2dc27766-f623-4200-9d64-115e9bfd4a0g", "2-c27766-f623-4200-9d64-115e9bfd4a08",
	} {
		_, ok := ParseGUID(bad)
		require.False(t, ok, bad)
	}
}

func TestNoChoice(t *testing.T) {
	formats := []string{"text", "json", "csv", "html", "junit", "prometheus"}
	for word, want := range map[string]string{
		"jsn": "json", "JSON": "json", "ndjson": "json", "htm": "html", "prom": "prometheus", "j": "", "": "",
		"xml": "", "yaml": "", "table": "", "x": "", "cvs": "",
	} {
		require.Equal(t, want, Near(word, formats...), word)
	}
	err := NoChoice("--output", "jsn", formats...)
	require.ErrorIs(t, err, ErrUsage)
	require.EqualError(t, err,
		`--output "jsn", must be one of text, json, csv, html, junit, prometheus; did you mean json?`)
	require.EqualError(t, NoChoice("--keep", "x", "original", "none"), `--keep "x", must be original or none`)
}

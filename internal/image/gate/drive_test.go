package gate

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// sectorDevice reads whole sectors of a disk, as Windows does.
type sectorDevice struct {
	disk    []byte
	sector  int64
	longest int
	bad     error
}

func (d *sectorDevice) ReadAt(p []byte, off int64) (int, error) {
	d.longest = max(d.longest, len(p))
	switch end := off + int64(len(p)); {
	case off%d.sector != 0 || end%d.sector != 0 || len(p) == 0:
		return 0, errors.New("the parameter is incorrect")
	case end > int64(len(d.disk)):
		return 0, errors.New("the sector is not there")
	case d.bad != nil:
		return 0, d.bad
	}
	return copy(p, d.disk[off:]), nil
}

// Reads of any place and length become reads of whole sectors, and answer as those of memory do.
func TestSectors(t *testing.T) {
	t.Parallel()
	for _, sector := range []int64{512, 4096} {
		d := &sectorDevice{disk: make([]byte, 5<<20), sector: sector}
		r := rand.New(rand.NewPCG(1, uint64(sector)))
		for i := range d.disk {
			d.disk[i] = byte(r.Uint32())
		}
		size := int64(len(d.disk))
		s, err := sectorsOf(d, size, sector)
		require.NoError(t, err)
		want := bytes.NewReader(d.disk)
		check := func(off int64, n int) {
			t.Helper()
			got, expected := make([]byte, n), make([]byte, n)
			m, err := s.ReadAt(got, off)
			wantN, wantErr := want.ReadAt(expected, off)
			require.Equal(t, wantN, m, "%d bytes at %d", n, off)
			require.Equal(t, wantErr, err, "%d bytes at %d", n, off)
			require.True(t, bytes.Equal(expected, got), "%d bytes at %d", n, off)
		}
		for _, off := range []int64{
			0, 1, sector - 1, sector, 1<<20 - 1, 1 << 20, size - sector, size - 1, size, size + 1,
		} {
			for _, n := range []int{1, 511, 512, int(sector), int(sector) + 1, 1 << 20, 1<<20 + 1, 3<<20 + 7} {
				check(off, n)
			}
		}
		for range 200 {
			check(r.Int64N(size), 1+r.IntN(1<<17))
		}
		require.Equal(t, 1<<20, d.longest)
		n, err := s.ReadAt(nil, 1)
		require.NoError(t, err)
		require.Zero(t, n)
		d.bad = errors.New("cyclic redundancy check")
		_, err = s.ReadAt(make([]byte, 2), sector-1)
		require.ErrorIs(t, err, d.bad)
		require.ErrorContains(t, err, "at byte 0")
	}
}

// Sizes that no disk has are refused before anything is read.
func TestSectorsOfOddSizes(t *testing.T) {
	t.Parallel()
	_, err := sectorsOf(nil, 0, 512)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	for _, c := range [][2]int64{
		{512, 0}, {512, 256}, {520 * 10, 520}, {513, 512}, {1 << 20, 1 << 17}, {-512, 512}, {512, -512}, {2048, 4096},
	} {
		_, err := sectorsOf(nil, c[0], c[1])
		require.ErrorIs(t, err, ondisk.ErrUnsupported, "%v", c)
	}
}

// A disk that ends before its size, as when its medium is taken out, has an error.
func TestReaderOfADriveReportsItsEnd(t *testing.T) {
	t.Parallel()
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	made, err := d.At.Create("a", 0o600)
	require.NoError(t, err)
	_, err = made.WriteString("0123456789")
	require.NoError(t, errors.Join(err, made.Close()))
	f, err := d.At.Open("a")
	require.NoError(t, err)
	defer f.Close()
	p := make([]byte, 8)
	n, err := preader{f}.ReadAt(p, 1)
	require.NoError(t, err)
	require.Equal(t, "12345678", string(p[:n]))
	n, err = preader{f}.ReadAt(p, 4)
	require.Equal(t, 6, n)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

package nbd

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// asked counts reads and their bytes.
type asked struct {
	io.ReaderAt
	reads, bytes int
	err          error
}

func (a *asked) ReadAt(p []byte, off int64) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	a.reads++
	a.bytes += len(p)
	return a.ReaderAt.ReadAt(p, off)
}

// Small reads give the bytes that are there, and ask for each page once until all is forgotten.
func TestPages(t *testing.T) {
	t.Parallel()
	const size = 3*pageBytes + 77
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	of := &asked{ReaderAt: bytes.NewReader(want)}
	c := &pages{of: of, size: size}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		off := rnd.Int64N(size)
		p := make([]byte, rnd.IntN(pageBytes))
		n, err := c.ReadAt(p, off)
		require.Equal(t, min(len(p), int(size-off)), n)
		require.Equal(t, want[off:off+int64(n)], p[:n])
		if n < len(p) {
			require.ErrorIs(t, err, io.EOF)
		} else {
			require.NoError(t, err)
		}
	}
	require.Equal(t, 4, of.reads)
	require.Equal(t, size, of.bytes)
	c.forget()
	_, err := c.ReadAt(make([]byte, 1), 0)
	require.NoError(t, err)
	require.Equal(t, 5, of.reads)
	_, err = c.ReadAt(make([]byte, pageBytes), 0)
	require.NoError(t, err)
	require.Equal(t, 6, of.reads, "a large read goes to the server")
	_, err = c.ReadAt(make([]byte, 1), size)
	require.ErrorIs(t, err, io.EOF)

	of.err = errors.New("broken")
	n, err := c.ReadAt(make([]byte, 20), pageBytes-10)
	require.ErrorIs(t, err, of.err)
	require.Equal(t, 10, n)
	require.Empty(t, c.kept[1])
}

// What is kept is bounded.
func TestPagesAreFew(t *testing.T) {
	t.Parallel()
	of := &asked{ReaderAt: bytes.NewReader(make([]byte, 200*pageBytes))}
	c := &pages{of: of, size: 200 * pageBytes}
	for i := range int64(200) {
		_, err := c.ReadAt(make([]byte, 1), i*pageBytes)
		require.NoError(t, err)
		require.LessOrEqual(t, len(c.kept), maxPages)
	}
	require.Equal(t, 200, of.reads)
}

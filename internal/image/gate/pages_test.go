package gate

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// metered opens a file of random bytes whose reads are counted.
func metered(t *testing.T, size int, m *Meter) (f *File, want []byte) {
	t.Helper()
	want = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(want)
	path := filepath.Join(t.TempDir(), "x.raw")
	require.NoError(t, os.WriteFile(path, want, 0o600))
	dir, err := OpenFolder(filepath.Dir(path))
	require.NoError(t, err)
	dir.Count(m)
	f, err = dir.OpenAny("x.raw", ondisk.ErrReference)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, f.Close())
		require.NoError(t, dir.Close())
	})
	return f, want
}

func TestPagesAreThoseOfTheFile(t *testing.T) {
	f, want := metered(t, 3*maxPages*pageBytes+777, &Meter{})
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		off := rnd.IntN(len(want))
		n := min(1+rnd.IntN(2*maxRun), len(want)-off)
		got := make([]byte, n)
		_, err := f.ReadAt(got, int64(off))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want[off:off+n], got), "%d bytes at %d", n, off)
		require.LessOrEqual(t, len(f.dir.pages.pages), maxPages)
	}
	_, err := f.ReadAt(make([]byte, 8), int64(len(want))-4)
	require.Error(t, err, "past the end")
}

// The same sectors are asked for many times, and read once. The limit is about what is asked for: what asks forever
// must end.
func TestMeterCountsPagesOnce(t *testing.T) {
	m := NewMeter(64 << 10)
	f, _ := metered(t, 10*pageBytes+100, m)
	b := make([]byte, 512)
	for _, off := range []int64{0, 0, 512, 2*pageBytes - 256, 10 * pageBytes} {
		_, err := f.ReadAt(b[:min(int64(len(b)), f.Size()-off)], off)
		require.NoError(t, err)
	}
	require.Equal(t, int64(3*pageBytes+100), m.Read())
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 200)
		_, err = f.ReadAt(b, 0)
	}
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.Equal(t, int64(3*pageBytes+100), m.Read())
}

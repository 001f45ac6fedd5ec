package diskcopy

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// The digest of a grain tells two grains apart that differ in one bit, and gives equal ones the same.
func TestGrainDigests(t *testing.T) {
	s := newSummer()
	b := make([]byte, 4096)
	_, _ = rand.Read(b)
	want := s.grain(nil, b)
	for i := range 8 * len(b) {
		b[i/8] ^= 1 << (i % 8)
		require.NotEqual(t, want, s.grain(nil, b), "bit %d", i)
		b[i/8] ^= 1 << (i % 8)
	}
	require.Equal(t, want, s.grain(nil, b))
	require.NotEqual(t, want, s.grain(nil, append(b, 0)))
	require.NotEqual(t, want, (&summer{key: NewKey()}).grain(nil, b), "each key is random")
}

// The digest that is stored for another process has the same value in each. It was computed with Python, hashlib and
// HighwayHash as its authors describe it: SHA-256 of the grain's offset, the digest of its bytes, and the size; both
// numbers little-endian, 64 bits.
func TestStoredDigest(t *testing.T) {
	content := strings.NewReader(strings.Repeat("\x00", grain) + strings.Repeat("x", 100))
	d := disk.New(content.Size(), 1, func(off int64) (disk.Run, error) {
		return disk.Run{Len: content.Size() - off, Src: content, Off: off}, nil
	})
	sum, err := Stored(t.Context(), d, []byte("0123456789abcdef0123456789ABCDEF"), Options{Jobs: 1})
	require.NoError(t, err)
	require.Equal(t, "20ac0969fb6b32c8a4b3f4ceb0110f5a8405d0a34a17e1f47d5ef9684435d2ed", hex.EncodeToString(sum[:]))
	_, err = Stored(t.Context(), d, []byte("short"), Options{Jobs: 1})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
}

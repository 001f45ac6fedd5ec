package diskcopy

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
)

// Each digest of grains tells two grains apart that differ in one bit, and gives equal ones the same.
func TestGrainDigests(t *testing.T) {
	for name, digest := range map[string]func(b []byte) []byte{"GMAC": gmac(), "SHA-256": sha} {
		b := make([]byte, 4096)
		_, _ = rand.Read(b)
		want := digest(b)
		for i := range 8 * len(b) {
			b[i/8] ^= 1 << (i % 8)
			require.NotEqual(t, want, digest(b), "%s, bit %d", name, i)
			b[i/8] ^= 1 << (i % 8)
		}
		require.Equal(t, want, digest(b), name)
		require.NotEqual(t, want, digest(append(b, 0)), name)
	}
	first, second := gmac(), gmac()
	require.NotEqual(t, first([]byte("a")), second([]byte("a")), "each key is random")
}

// The digest that is stored for another process has the same value in each. It was computed with Python's hashlib:
// SHA-256 of the grain's offset, the SHA-256 of its bytes, and the size; both numbers little-endian, 64 bits.
func TestStoredDigest(t *testing.T) {
	content := strings.NewReader(strings.Repeat("\x00", grain) + strings.Repeat("x", 100))
	d := disk.New(content.Size(), 1, func(off int64) (disk.Run, error) {
		return disk.Run{Len: content.Size() - off, Src: content, Off: off}, nil
	})
	sum, err := SHA256(t.Context(), d, Options{Jobs: 1})
	require.NoError(t, err)
	require.Equal(t, "987284f92e967ceaa14530213087491ca98906356e2db409613e2b13213be154", hex.EncodeToString(sum[:]))
}

func BenchmarkGrainDigest(b *testing.B) {
	chunk := make([]byte, grain)
	_, _ = rand.Read(chunk)
	for name, digest := range map[string]func(b []byte) []byte{"GMAC": gmac(), "SHA-256": sha} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(grain)
			b.ReportAllocs()
			for b.Loop() {
				digest(chunk)
			}
		})
	}
}

package diskcopy

import (
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/require"
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

package diskcopy

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Each digest of grains tells two grains apart that differ in one bit, and gives equal ones the same.
func TestGrainDigests(t *testing.T) {
	for name, digest := range map[string]func(dst, b []byte) []byte{"GMAC": gmac(randomKey()), "SHA-256": sha} {
		b := make([]byte, 4096)
		_, _ = rand.Read(b)
		want := digest(nil, b)
		for i := range 8 * len(b) {
			b[i/8] ^= 1 << (i % 8)
			require.NotEqual(t, want, digest(nil, b), "%s, bit %d", name, i)
			b[i/8] ^= 1 << (i % 8)
		}
		require.Equal(t, want, digest(nil, b), name)
		require.NotEqual(t, want, digest(nil, append(b, 0)), name)
	}
	first, second := gmac(randomKey()), gmac(randomKey())
	require.NotEqual(t, first(nil, []byte("a")), second(nil, []byte("a")), "each key is random")
}

// randomKey returns a key also where NewKey chooses SHA-256.
func randomKey() []byte {
	key := make([]byte, keySize)
	_, _ = rand.Read(key)
	return key
}

// The digest that is stored for another process has the same value in each. They were computed with Python: SHA-256 of
// the grain's offset, the digest of its bytes, and the size; both numbers little-endian, 64 bits. The digest is SHA-256
// of hashlib, or the tag of AESGCM of the package cryptography with a nonce of zeros and the bytes as associated data.
func TestStoredDigest(t *testing.T) {
	content := strings.NewReader(strings.Repeat("\x00", grain) + strings.Repeat("x", 100))
	d := disk.New(content.Size(), 1, func(off int64) (disk.Run, error) {
		return disk.Run{Len: content.Size() - off, Src: content, Off: off}, nil
	})
	for key, want := range map[string]string{
		"":                 "987284f92e967ceaa14530213087491ca98906356e2db409613e2b13213be154",
		"0123456789abcdef": "4f14bb1d5a5b0e7d6ff27c855d1a7d2f2906ca0b69e232fe174a0b6bb19e7483",
	} {
		sum, err := Stored(t.Context(), d, []byte(key), Options{Jobs: 1})
		require.NoError(t, err)
		require.Equal(t, want, hex.EncodeToString(sum[:]), key)
	}
	_, err := Stored(t.Context(), d, []byte("short"), Options{Jobs: 1})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.Equal(t, sys.ComputesGMAC(), len(NewKey()) == keySize)
}

func BenchmarkGrainDigest(b *testing.B) {
	chunk := make([]byte, grain)
	_, _ = rand.Read(chunk)
	for name, digest := range map[string]func(dst, b []byte) []byte{"GMAC": gmac(randomKey()), "SHA-256": sha} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(grain)
			b.ReportAllocs()
			var tag []byte
			for b.Loop() {
				tag = digest(tag[:0], chunk)
			}
		})
	}
}

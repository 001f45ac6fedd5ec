package diskcopy

import (
	"crypto/aes"
	"crypto/cipher"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tags are those of crypto/cipher: for all short lengths, and for random ones up to that of a grain and more.
func TestFastGMAC(t *testing.T) {
	r := rand.NewChaCha8([32]byte{1})
	rnd := rand.New(r)
	for i := range 1500 {
		n := i
		if i >= 600 {
			n = rnd.IntN(2 * grain)
		}
		key, b := make([]byte, keySize), make([]byte, n+1)
		_, _ = r.Read(key)
		_, _ = r.Read(b)
		b = b[1:] // off the boundary of anything
		block, err := aes.NewCipher(key)
		require.NoError(t, err)
		gcm, err := cipher.NewGCM(block)
		require.NoError(t, err)
		fast := fastGMAC(block)
		if fast == nil {
			t.Skip("no instructions for it on this processor")
		}
		want := gcm.Seal([]byte("x"), make([]byte, gcm.NonceSize()), nil, b)
		require.Equal(t, want, fast([]byte("x"), b), "%d bytes", n)
	}
}

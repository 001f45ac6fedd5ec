//go:build !amd64

package diskcopy

import "crypto/cipher"

// fastGMAC returns nil: there is none.
func fastGMAC(cipher.Block) func(dst, b []byte) []byte { return nil }

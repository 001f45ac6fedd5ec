package filetest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// Attack changes one field of a good volume.
type Attack struct {
	Name string
	Off  int64
	Put  []byte
	Want error
	Text string
}

// NewAttack returns an attack that puts bytes at off, and its error.
func NewAttack(name string, off int64, put []byte, want error, text string) Attack {
	return Attack{Name: name, Off: off, Put: put, Want: want, Text: text}
}

// Bad returns an attack that puts bytes at off, and makes a volume malformed.
func Bad(name string, off int64, put []byte, text string) Attack {
	return NewAttack(name, off, put, ondisk.ErrFormat, text)
}

// LE16 returns the bytes of a little-endian number.
func LE16(v uint16) []byte { return binary.LittleEndian.AppendUint16(nil, v) }

// LE32 returns the bytes of a little-endian number.
func LE32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// Try runs an attack on a copy of a volume.
func (a Attack) Try(t *testing.T, good []byte, use func(b []byte) error) {
	t.Helper()
	t.Run(a.Name, func(t *testing.T) {
		b := bytes.Clone(good)
		copy(b[a.Off:], a.Put)
		require.False(t, bytes.Equal(b, good), "the attack changes something")
		err := use(b)
		require.ErrorIs(t, err, a.Want)
		require.ErrorContains(t, err, a.Text)
	})
}

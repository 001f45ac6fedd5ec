package ondisk_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

func TestEncode(t *testing.T) {
	type pair struct {
		A uint16
		_ [2]byte
		B uint32
	}
	b := ondisk.Encode(binary.BigEndian, pair{A: 1, B: 2}, []uint16{3})
	require.Equal(t, []byte{0, 1, 0, 0, 0, 0, 0, 2, 0, 3}, b)
	require.Panics(t, func() { ondisk.Encode(binary.BigEndian, "no fixed size") })
}

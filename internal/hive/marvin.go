package hive

import (
	"encoding/binary"
	"math/bits"
)

// marvin is the state of a Marvin32 hash. Spec: "Windows registry file format specification", "New format".
type marvin struct{ lo, hi uint32 }

// marvinSeed is the one that Windows hashes logs with, 82EF4D887A4E55C5.
var marvinSeed = marvin{lo: 0x7a4e55c5, hi: 0x82ef4d88}

func (m *marvin) round(v uint32) {
	m.lo += v
	m.hi ^= m.lo
	m.lo = bits.RotateLeft32(m.lo, 20) + m.hi
	m.hi = bits.RotateLeft32(m.hi, 9) ^ m.lo
	m.lo = bits.RotateLeft32(m.lo, 27) + m.hi
	m.hi = bits.RotateLeft32(m.hi, 19)
}

// write adds bytes, a multiple of 4.
func (m *marvin) write(b []byte) {
	for ; len(b) > 0; b = b[4:] {
		m.round(binary.LittleEndian.Uint32(b))
	}
}

// sum ends the hash. The padding is that of data whose length is a multiple of 4.
func (m marvin) sum() uint64 {
	m.round(0x80)
	m.round(0)
	return uint64(m.hi)<<32 | uint64(m.lo)
}

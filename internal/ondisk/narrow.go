package ondisk

import (
	"fmt"
	"math"
)

// The conversions below are for values that were checked before: a value out of range is our own bug, and stopping is
// better than writing a wrapped number into a disk.

// U32 narrows a count or offset for a 32-bit field.
func U32(n int64) uint32 {
	if n < 0 || n > math.MaxUint32 {
		panic(fmt.Sprintf("ondisk: %d does not fit 32 bits", n))
	}
	return uint32(n)
}

// U64 takes a count or offset, which is never negative, as unsigned.
func U64(n int64) uint64 {
	if n < 0 {
		panic(fmt.Sprintf("ondisk: %d is negative", n))
	}
	return uint64(n)
}

// I64 takes an unsigned field that was checked against the size of its disk.
func I64(n uint64) int64 {
	if n > math.MaxInt64 {
		panic(fmt.Sprintf("ondisk: %d does not fit 63 bits", n))
	}
	return int64(n)
}

// Byte narrows a value for one byte of a field.
func Byte(n int64) byte {
	if n < 0 || n > math.MaxUint8 {
		panic(fmt.Sprintf("ondisk: %d does not fit a byte", n))
	}
	return byte(n)
}

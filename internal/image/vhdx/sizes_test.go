package vhdx

import (
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// Expected sizes and places are those of [MS-VHDX].
func TestStructSizes(t *testing.T) {
	for _, s := range []struct {
		name string
		v    any
		want int
	}{
		{"2.2.1 file identifier", fileIdentifier{}, 520},
		{"2.2.2 header", fileHeader{}, 4096},
		{"2.2.3.1 region table header", regionHeader{}, 16},
		{"2.2.3.2 region table entry", regionEntry{}, 32},
		{"2.3.1.1 log entry header", entryHeader{}, 64},
		{"2.3.1.3 data descriptor", anyDescriptor{}, 32},
		{"2.6.1.1 metadata table header", metadataHeader{}, 32},
		{"2.6.1.2 metadata table entry", metadataEntry{}, 32},
		{"2.6.2.6.1 parent locator header", locatorHeader{}, 20},
		{"2.6.2.6.2 parent locator entry", locatorEntry{}, 12},
	} {
		assert.Equal(t, s.want, binary.Size(s.v), s.name)
	}
	b, err := binary.Append(nil, binary.LittleEndian,
		fileHeader{SequenceNumber: 1, LogGUID: ondisk.GUID{2}, LogVersion: 3, Version: 4, LogLength: 5, LogOffset: 6})
	require.NoError(t, err)
	for at, want := range map[int]byte{
		atSequence: 1, 48: 2, atLogVersion: 3, atVersion: 4, atLogLength: 5,
		atLogOffset: 6,
	} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}

// The checksum of "123456789" with CRC-32C is well known; a structure's has its own bytes left out.
func TestChecksum(t *testing.T) {
	require.Equal(t, uint32(0xe3069283), crc32.Checksum([]byte("123456789"), castagnoli))
	b := []byte("head\xff\xff\xff\xff and more")
	require.Equal(t, crc32.Checksum([]byte("head\x00\x00\x00\x00 and more"), castagnoli), checksum(b))
}

func TestSameBits(t *testing.T) {
	for _, tc := range []struct {
		bits []byte
		from int
		set  bool
		n    int64
	}{
		{[]byte{0xff}, 0, true, 8},
		{[]byte{0x00, 0x00}, 3, false, 13},
		{[]byte{0x0f, 0xff}, 2, true, 2},
		{[]byte{0xf0, 0xff}, 2, false, 2},
		{[]byte{0xf0, 0xff, 0x01}, 4, true, 13},
		{[]byte{0x01, 0x00, 0x80}, 1, false, 22},
		{[]byte{0x80, 0x00}, 7, true, 1},
	} {
		set, n := sameBits(tc.bits, tc.from)
		require.Equal(t, tc.set, set, "%x from %d", tc.bits, tc.from)
		require.Equal(t, tc.n, n, "%x from %d", tc.bits, tc.from)
	}
}

// A disk has whole sectors, one at least, and 64 TiB at most. No file is written for another.
func TestSizesOfDisks(t *testing.T) {
	for size, want := range map[int64]error{
		0: ondisk.ErrUnsupported, -512: ondisk.ErrUnsupported, 513: ondisk.ErrUnsupported,
		maxDisk + 512: ondisk.ErrLimit,
	} {
		_, err := create(nil, size, driver.Options{})
		require.ErrorIs(t, err, want, "%d", size)
	}
}

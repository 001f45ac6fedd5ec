package units

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// K, M, G and T are powers of 1024, as in qemu-img(1), "Optional suffixes"; s is a sector of 512 bytes.
func TestParse(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want int64
	}{
		{"0", 0},
		{"1", 1},
		{"65536", 65536},
		{"64K", 65536},
		{"64k", 65536},
		{"64KB", 65536},
		{"64KiB", 65536},
		{"1M", 1048576},
		{"1G", 1073741824},
		{"1T", 1099511627776},
		{"2TiB", 2199023255552},
		{"63s", 32256},
		{"63S", 32256},
		{"512B", 512},
		{" 64 K ", 65536},
		{"007", 7},
		{"9223372036854775807", math.MaxInt64},
		{"8388607T", 8388607 << 40},
	} {
		got, err := Parse(tc.in)
		require.NoError(t, err, tc.in)
		assert.Equal(t, tc.want, got, tc.in)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, in := range []string{
		"", " ", "K", "-1", "+1", "1.5G", "0x10", "1e6", "64KK", "64 K B", "1P", "1Kb/s", "٣", "9223372036854775808",
		"8388608T", "18014398509481984s",
	} {
		n, err := Parse(in)
		assert.Error(t, err, "%q gives %d", in, n)
	}
}

func TestFormat(t *testing.T) {
	for want, n := range map[string]int64{
		"0 B": 0, "512 B": 512, "1023 B": 1023, "1 KiB": 1024, "31.5 KiB": 32256, "64 KiB": 65536, "1 MiB": 1 << 20,
		"1.5 MiB": 3 << 19, "8 GiB": 8 << 30, "2 TiB": 2 << 40, "100 KiB": 102400, "8388607 TiB": 8388607 << 40,
	} {
		assert.Equal(t, want, Format(n))
	}
}

// What Short prints is what a flag takes.
func TestShortIsReadBack(t *testing.T) {
	for want, n := range map[string]int64{
		"4K": 4096, "64K": 65536, "1M": 1 << 20, "1G": 1 << 30, "3K": 3072, "1000": 1000,
		"0": 0,
	} {
		assert.Equal(t, want, Short(n))
		back, err := Parse(Short(n))
		require.NoError(t, err)
		assert.Equal(t, n, back)
	}
}

func TestRounding(t *testing.T) {
	for _, tc := range []struct{ n, step, down, up int64 }{
		{0, 4096, 0, 0},
		{1, 4096, 0, 4096},
		{4096, 4096, 4096, 4096},
		{32256, 65536, 0, 65536},
		{65537, 65536, 65536, 131072},
		{7, 1, 7, 7},
		{2<<40 - 1, 1 << 20, 2<<40 - 1<<20, 2 << 40},
	} {
		assert.Equal(t, tc.down, AlignDown(tc.n, tc.step), "%+v", tc)
		assert.Equal(t, tc.up, AlignUp(tc.n, tc.step), "%+v", tc)
	}
}

// LBA 63 is on 512 bytes and no more; 2048 on 1 MiB; a cylinder boundary (16065) on 512 bytes.
func TestAlignment(t *testing.T) {
	for lba, want := range map[int64]int64{
		63: 512, 64: 32768, 128: 65536, 2048: 1 << 20, 16065: 512, 206848: 1 << 20,
		0: tib, 1 << 40: tib,
	} {
		assert.Equal(t, want, Alignment(lba*SectorSize), "LBA %d", lba)
	}
}

func TestIsPowerOfTwo(t *testing.T) {
	for n, want := range map[int64]bool{
		0: false, 1: true, 2: true, 3: false, 4096: true, 4097: false, -4: false,
		1 << 62: true, math.MinInt64: false,
	} {
		assert.Equal(t, want, IsPowerOfTwo(n), strconv.FormatInt(n, 10))
	}
}

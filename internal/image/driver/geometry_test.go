package driver_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
)

// What SeaBIOS 1.16 of QEMU 7.2 says on its debug port of an ide-hd with these cyls, heads and secs, on a disk of so
// many sectors: "PCHS=1053/4/17 translation=lba LCHS=71/16/63 s=71612".
func TestReportedAsBySeaBIOS(t *testing.T) {
	for _, tc := range []struct {
		stated, want driver.Geometry
		sectors      int64
	}{
		{driver.Geometry{843, 5, 17}, driver.Geometry{843, 5, 17}, 71680},
		{driver.Geometry{1024, 4, 17}, driver.Geometry{1024, 4, 17}, 71612},
		{driver.Geometry{1053, 4, 17}, driver.Geometry{71, 16, 63}, 71612},
		{driver.Geometry{1000, 16, 63}, driver.Geometry{1000, 16, 63}, 1008000},
		{driver.Geometry{1026, 16, 63}, driver.Geometry{1024, 16, 63}, 1034208},
		{driver.Geometry{2100, 16, 63}, driver.Geometry{1024, 32, 63}, 2116800},
		{driver.Geometry{4100, 16, 63}, driver.Geometry{1024, 64, 63}, 4132800},
		{driver.Geometry{8300, 16, 63}, driver.Geometry{520, 255, 63}, 8366400},
		{driver.Geometry{16383, 16, 63}, driver.Geometry{1024, 255, 63}, 33554432},
		{driver.Geometry{65535, 16, 255}, driver.Geometry{1024, 255, 63}, 40000000},
		{driver.Geometry{300, 16, 255}, driver.Geometry{607, 32, 63}, 1224000},
		{driver.Geometry{1, 1, 1}, driver.Geometry{1, 1, 1}, 1},
	} {
		require.Equal(t, tc.want, tc.stated.Reported(512*tc.sectors), "%v", tc.stated)
	}
}

// A geometry for ATA leads to what was wanted, has what a disk can state, and covers the disk, or all that can be
// addressed; heads and sectors that lead there by themselves stay.
func TestForATA(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 20000 {
		heads := []int64{4, 5, 12, 16, 32, 64, 128, 255}
		want := driver.Geometry{Heads: heads[r.IntN(8)], Sectors: []int64{17, 31, 63}[r.IntN(3)]}
		own := driver.Geometry{Heads: heads[r.IntN(4)], Sectors: []int64{17, 31, 63, 255}[r.IntN(4)]}
		size := 512 * (1 + r.Int64N(int64(1)<<(8+r.IntN(22))))
		g, ok := driver.ForATA(size, want, own)
		if !ok {
			// No disk that states what ATA can state is reported so.
			direct := want.Over(size).Clipped()
			require.NotEqual(t, direct, direct.Reported(size), "%v of %d", want, size)
			continue
		}
		found++
		require.Equal(t, [2]int64{want.Heads, want.Sectors}, [2]int64{g.Reported(size).Heads, g.Reported(size).Sectors})
		require.LessOrEqual(t, g.Heads, int64(16))
		require.LessOrEqual(t, g.Sectors, int64(63))
		missed := size - g.Bytes()
		require.True(t, g.Cylinders == 1024 || g.Cylinders == 65535 || missed < g.Heads*g.Sectors*512, "%v of %d", g,
			size)
	}
	require.Greater(t, found, 1000)
}

// TestBackingFilesOfOddNames takes no name for another one, and reports options that cannot be parsed.
func TestBackingFilesOfOddNames(t *testing.T) {
	for name, want := range map[string][]string{
		"":                        nil,
		"file:":                   nil,
		"blkdebug:rules":          nil, // as QEMU: without a second colon, it is not a file
		`C:\vm\disk.vmdk`:         {`C:\vm\disk.vmdk`},
		"my:file:a":               {"my:file:a"},
		"file:blkdebug::file:a:b": {"a:b"},
		"json:[]":                 nil,
		`json:{"filename":1}`:     nil,
		`json:{"file.filename":"json:{\"x-raw\":\"a\"}"}`: {"a"},
	} {
		got, broken := driver.BackingFiles(name)
		require.Equal(t, want, got, name)
		require.False(t, broken, name)
	}
	for _, name := range []string{"json:", `json:{"filename":"a"`, "file:json:{}}"} {
		_, broken := driver.BackingFiles(name)
		require.True(t, broken, name)
	}
}

// A table is written in pieces of 16 KiB, also those in which nothing stands; the last one may be cut.
func TestTable(t *testing.T) {
	const size = 40_000
	f, err := os.CreateTemp(t.TempDir(), "table")
	require.NoError(t, err)
	defer f.Close()
	want := make([]byte, 100+size)
	for i := range size {
		want[100+i] = 0xff
	}
	table := driver.NewTable(f, 100, size, binary.BigEndian)
	for _, i := range []int64{1, 4095, 9999} {
		require.NoError(t, table.Set(i, uint32(i+7)))
		binary.BigEndian.PutUint32(want[100+4*i:], uint32(i+7))
	}
	require.NoError(t, table.Finish())
	require.Equal(t, want, disktest.ReadFile(t, f.Name()))

	var b *disktest.Blind
	disktest.EveryFault(t, "table", func(faults *disktest.Faults) error {
		b = &disktest.Blind{Faults: faults}
		table := driver.NewTable(b, 100, size, binary.LittleEndian)
		if err := table.Set(5000, 1); err != nil {
			return err
		}
		return table.Finish()
	})
	require.Equal(t, []string{"write at 100", "write at 16484", "write at 32868"}, b.Calls)
}

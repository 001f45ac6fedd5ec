package driver_test

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
)

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

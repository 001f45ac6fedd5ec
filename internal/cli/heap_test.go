package cli

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// The records of a large report take more memory than the limit of a usual run.
func TestLargeHeapIsSeldomCollected(t *testing.T) {
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	defer func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}()
	boundHeap(false, true)
	for first := debug.SetMemoryLimit(-1); debug.SetMemoryLimit(-1) == first; {
		runtime.GC() // the first collection ends the first limit
	}
	rows := make([]byte, 128<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 2048 {
		rows[0] = make([]byte, 128<<10)[0]
	}
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(rows)
	require.Less(t, after.NumGC-before.NumGC, uint32(10))
}

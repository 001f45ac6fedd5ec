package realign

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/sys"
)

// Reads take the time that their bytes have at the rate, together, and end with the run.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 10<<20)
		data[5<<20] = 7
		d := disktest.NewMemPieces("paced", int64(len(data)), disktest.MemPiece{Data: data})
		require.Same(t, d, pace(t.Context(), d, 0))
		ctx, cancel := context.WithCancel(t.Context())
		slow := pace(ctx, d, 1<<20)
		start := time.Now()
		done := make(chan error)
		for i := range int64(10) {
			go func() {
				b := make([]byte, 1<<20)
				_, err := slow.ReadAt(b, i<<20)
				if i == 5 && b[0] != 7 {
					err = context.DeadlineExceeded
				}
				done <- err
			}()
		}
		for range 10 {
			require.NoError(t, <-done)
		}
		require.Equal(t, 9*time.Second, -time.Until(start)) // by the clock of the bubble
		cancel()
		_, err := slow.ReadAt(make([]byte, 1), 0)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A copy that is large beside the memory leaves little of both files there, a small one all of DEST. What was in memory
// before stays.
func TestLargeCopyPassesTheMemory(t *testing.T) {
	const size = 128 << 20
	raw := filepath.Join(t.TempDir(), "disk.raw")
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>12 | 1)
	}
	require.NoError(t, os.WriteFile(raw, data, 0o600))
	source, err := os.Open(raw)
	require.NoError(t, err)
	defer source.Close()
	disktest.OnUnix(t, "caches")
	require.NoError(t, source.Sync())
	if !sys.Of(source).Uncache() {
		t.Skip("memory is the storage here, or the kernel does not say what it keeps")
	}
	kept := func(path string) (n int64) {
		_, err := fmt.Sscan(disktest.Run(t, "fincore", "-b", "-n", "-r", "-o", "RES", path), &n)
		require.NoError(t, err)
		return n
	}
	const half = size / 2 // of what is passed less stays: what was read or written since the kernel was told last
	for _, c := range []struct {
		memory       int64
		source, dest bool // stay in memory
	}{
		{1, false, false},
		{1 << 50, true, true},
		{1, true, false}, // SOURCE is in memory since the copy before
	} {
		s := open(t, raw)
		p, err := s.Plan(Goal{Copy: true})
		require.NoError(t, err)
		j := &Job{Format: "raw", Full: true, Jobs: 2, memory: c.memory, Dest: filepath.Join(t.TempDir(), "copy")}
		_, err = j.Write(t.Context(), s, p)
		require.NoError(t, err)
		require.Equal(t, c.source, kept(raw) > half, "%d", kept(raw))
		require.Equal(t, c.dest, kept(j.Dest) > half, "%d", kept(j.Dest))
	}
}

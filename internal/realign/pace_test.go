package realign

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
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

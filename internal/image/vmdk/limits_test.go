package vmdk

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// nowhere is a file that keeps nothing.
type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nowhere) Truncate(int64) error                   { return nil }
func (nowhere) Sync() error                            { return nil }

// Tables have 32 bits for a sector.
func TestDataBehind2TiB(t *testing.T) {
	t.Parallel()
	sparse, err := newSparseTarget(nowhere{}, 1<<42, defaultGrain, []byte("text"))
	require.NoError(t, err)
	sparse.next = math.MaxUint32 - defaultGrain
	require.NoError(t, sparse.Reserve(0, 1<<16))
	require.ErrorIs(t, sparse.Reserve(1<<16, 1<<16), ondisk.ErrLimit)

	stream, err := newStreamTarget(nowhere{}, 1<<42, []byte("text"))
	require.NoError(t, err)
	stream.next = math.MaxUint32 - 1
	require.NoError(t, stream.Reserve(0, 1))
	require.ErrorIs(t, stream.Reserve(1<<16, 1), ondisk.ErrLimit)
	require.ErrorIs(t, stream.Reserve(1<<25, 1), ondisk.ErrLimit, "the table has no room")
	require.ErrorIs(t, stream.Finish(), ondisk.ErrLimit)
	_, err = newStreamTarget(nowhere{}, 1<<47+1<<25, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit, "the directory")
	_, err = newSparseTarget(nowhere{}, 1<<52, 8, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit, "the tables")
}

// A disk that lies over others needs a head for what they leave.
func TestViewsHaveAHead(t *testing.T) {
	t.Parallel()
	_, err := create(nowhere{}, 1<<20, driver.Options{
		Over:   []disk.Piece{},
		Beside: func(string) (driver.WriteFile, string, error) { return nil, "", disktest.ErrFault },
	})
	require.ErrorIs(t, err, disktest.ErrFault)
}

// What compresses one grain compresses the next.
func TestPackersAreUsedAgain(t *testing.T) {
	if disktest.Raced {
		t.Skip("the race detector has pools forget some of what they hold")
	}
	stream, err := newStreamTarget(nowhere{}, 1<<20, nil)
	require.NoError(t, err)
	grain := make([]byte, stream.Unit())
	require.Less(t, disktest.Allocated(func() {
		for range 20 {
			_, err := stream.Pack(grain, 0)
			require.NoError(t, err)
		}
	}), int64(4<<20), "one has 800 KiB")
}

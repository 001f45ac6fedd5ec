package vhd

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// nowhere is a file that keeps nothing.
type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nowhere) Truncate(int64) error                   { return nil }
func (nowhere) Sync() error                            { return nil }

// An entry of the table has 32 bits for a sector, and all ones mean that there is no block. Spec: VHD 1.0, "Block
// Allocation Table and Data Blocks".
func TestBlocksBehind2TiB(t *testing.T) {
	t.Parallel()
	target := newDynamicTarget(nowhere{}, (&template{}).footerFor(1<<40, driver.Geometry{}, nil), defaultBlock)
	target.next = (math.MaxUint32 - 8) * units.SectorSize
	require.NoError(t, target.Reserve(0, 512))
	target.next = math.MaxUint32 * units.SectorSize
	require.ErrorIs(t, target.Reserve(defaultBlock, 512), ondisk.ErrLimit)
}

// A VHD has whole sectors of 512 bytes, up to 2040 GiB, also one that changes in its place.
func TestSizesOfVHDs(t *testing.T) {
	t.Parallel()
	for size, want := range map[int64]error{
		512: nil, maxSize: nil, maxSize + 512: ondisk.ErrLimit, 0: ondisk.ErrUnsupported, -512: ondisk.ErrUnsupported,
		513: ondisk.ErrUnsupported,
	} {
		_, err := create(nowhere{}, size, driver.Options{})
		require.ErrorIs(t, err, want, "%d", size)
	}
	_, err := create(nowhere{}, 4096, driver.Options{SectorSize: 4096})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	_, err = (&footer{}).around(maxSize, 512, driver.Geometry{})
	require.NoError(t, err)
	_, err = (&footer{}).around(maxSize+512, 512, driver.Geometry{})
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

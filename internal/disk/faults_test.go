package disk_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// What does not know its holes is an error, of a disk and of what its bytes are stored in.
func TestExtentsThatAreNotKnown(t *testing.T) {
	bad := disktest.NewBadExtents(disktest.ShortDisk([]byte("data"), 4096))
	_, err := disk.Stored(bad)
	require.ErrorIs(t, err, disktest.ErrFault)
	stored := disk.New(4096, 512, func(off int64) (disk.Run, error) {
		return disk.Run{
			Len: 4096 - off, Src: bad,
			Off: off,
		}, nil
	})
	_, err = stored.Extent(0, 4096)
	require.ErrorIs(t, err, disktest.ErrFault)
	_, err = disk.Stored(stored)
	require.ErrorIs(t, err, disktest.ErrFault)
}

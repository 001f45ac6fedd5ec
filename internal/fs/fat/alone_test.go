package fat

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
)

// alone opens the files of one volume, with a budget of its own.
func alone(volume disk.Disk) (guestfile.FS, error) { return Open(guestfile.NewBudget(), volume) }

// opened is alone for a volume that can be opened.
func opened(t testing.TB, volume disk.Disk) guestfile.FS {
	t.Helper()
	g, err := alone(volume)
	require.NoError(t, err)
	return g
}

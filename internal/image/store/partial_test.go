package store

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/gate"
)

// Without locks, a partial file could belong to another run.
func TestStaleFilesWithoutLocks(t *testing.T) {
	t.Parallel()
	dir, err := gate.OpenFolder(t.TempDir())
	require.NoError(t, err)
	defer dir.Close()
	f, err := dir.At.Create(".x.partial", 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	o := Parts{dir: dir, limits: limits{noLocks: true}}
	require.ErrorContains(t, o.removeStale(".x.partial"), "without file locks")
	require.True(t, dir.Exists(".x.partial"))
}

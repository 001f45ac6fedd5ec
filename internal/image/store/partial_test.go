package store

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// A run that is killed just before DEST gets its name leaves a file that its owner may only read, as SOURCE is. The
// next run removes it, unless another one is at work: that has the lock, and its file keeps its permissions.
func TestStaleFilesThatAreReadOnly(t *testing.T) {
	t.Parallel()
	for name, atWork := range map[string]bool{"stale": false, "at work": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folderOfOrdinaryUser(t)
			f, err := dir.At.Create(".x.partial", 0o600)
			require.NoError(t, err)
			defer f.Close()
			require.NoError(t, f.Chmod(0o444))
			o := Output{dir: dir, notes: &notes{}}
			if !atWork {
				require.NoError(t, dir.At.Link(".x.partial", "note"))
				require.NoError(t, o.removeStale(".x.partial"))
				require.False(t, dir.Exists(".x.partial"))
				info, err := f.Stat()
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o444), info.Mode(), "of its other name")
				return
			}
			require.NoError(t, sys.Of(f).Lock(sys.Exclusive))
			require.ErrorIs(t, o.removeStale(".x.partial"), ondisk.ErrBusy)
			require.True(t, dir.Exists(".x.partial"))
			info, err := f.Stat()
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o444), info.Mode())
		})
	}
}

// folderOfOrdinaryUser is a folder of a test that has no rights of root.
func folderOfOrdinaryUser(t *testing.T) *gate.Folder {
	t.Helper()
	path := t.TempDir()
	dir, err := gate.OpenFolder(path)
	require.NoError(t, err)
	disktest.OrdinaryUser(t, path)
	t.Cleanup(func() { dir.Close() })
	return dir
}

// Where no locks are known, a partial file could be that of another run.
func TestStaleFilesWithoutLocks(t *testing.T) {
	t.Parallel()
	dir, err := gate.OpenFolder(t.TempDir())
	require.NoError(t, err)
	defer dir.Close()
	f, err := dir.At.Create(".x.partial", 0o600)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	o := Output{dir: dir, notes: &notes{}, limits: limits{noLocks: true}}
	require.ErrorContains(t, o.removeStale(".x.partial"), "knows no locks")
	require.True(t, dir.Exists(".x.partial"))
}

// A file that cannot be closed is said.
func TestCloseThatFails(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	dir, err := gate.OpenFolder(path)
	require.NoError(t, err)
	o := Output{dir: dir, path: path + "/x", base: "x", mode: 0o600, notes: &notes{}}
	p, err := o.newPart("x")
	require.NoError(t, err)
	require.NoError(t, p.File.Close())
	require.ErrorIs(t, o.Discard(), os.ErrClosed)
	require.False(t, dir.Exists(".x.partial"))
}

package gate

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A folder that is gone, or something else by now, reaches nothing.
func TestReachThroughFoldersThatChange(t *testing.T) {
	t.Parallel()
	root, o := further(t)
	allowed := []string{root + "/lib"}
	require.NoError(t, os.Rename(root+"/lib", root+"/old"))
	require.NoError(t, os.Symlink("lib", root+"/lib"))
	_, err := o.Reach(o.Handles[0], "../lib/base", allowed)
	require.ErrorContains(t, err, "too many links")
	require.NoError(t, os.Remove(root+"/lib"))
	require.NoError(t, os.WriteFile(root+"/lib", nil, 0o600))
	_, err = o.Reach(o.Handles[0], "../lib/base", allowed)
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.Empty(t, o.Further)
	require.NoError(t, os.Rename(root+"/own", root+"/mine"))
	_, err = o.Reach(o.Handles[0], "beside", allowed)
	require.ErrorIs(t, err, os.ErrNotExist)
}

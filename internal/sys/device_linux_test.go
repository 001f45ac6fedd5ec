package sys

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What is no device is refused by each call for one.
func TestCallsOnWhatIsNoDevice(t *testing.T) {
	_, err := OpenDevice(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer f.Close()
	require.ErrorIs(t, Of(f).ZeroOut(0, 512), unix.ENOTTY)
	require.ErrorIs(t, Of(f).Discard(0, 512), unix.ENOTTY)
	require.ErrorIs(t, Of(f).RereadTable(), unix.ENOTTY)
	_, err = Of(f).ReadOnly()
	require.ErrorIs(t, err, unix.ENOTTY)
	_, shows := Of(f).LoopFile()
	require.False(t, shows)
}

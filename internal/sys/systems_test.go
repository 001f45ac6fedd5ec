package sys

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A system lacks what docs/systems.md says that it does not do.
func TestLacksOfTheSystem(t *testing.T) {
	d, err := OpenFolder(t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	require.Equal(t, runtime.GOOS == "windows", Unsupported(d.Sync()))
	first, _ := twice(t)
	_, err = first.LockedByte(100)
	require.Equal(t, runtime.GOOS != "linux", Unsupported(err))
}

package gate_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"

	"github.com/trueup/trueup/internal/ondisk"
)

// openBeside opens a file as another program that shares it so.
func openBeside(t *testing.T, path string, access, share uint32) (windows.Handle, error) {
	t.Helper()
	name, err := windows.UTF16PtrFromString(path)
	require.NoError(t, err)
	return windows.CreateFile(name, access, share, nil, windows.OPEN_EXISTING, 0, 0)
}

// The share modes are those of VirtualBox, which lets others read a disk that it writes, and of a program with
// exclusive access.
func TestShareModes(t *testing.T) {
	path, d, o := opened(t)
	const readWrite = windows.GENERIC_READ | windows.GENERIC_WRITE
	writer, err := openBeside(t, path, readWrite, windows.FILE_SHARE_READ)
	require.NoError(t, err, "a file that is only read can be opened to write it")
	require.NoError(t, ondisk.ReadFull(o.Handles[0], make([]byte, 5), 0))
	_, err = o.Hold()
	require.ErrorIs(t, err, ondisk.ErrBusy)
	require.ErrorContains(t, err, "another program has it open")
	require.ErrorContains(t, err, "shut the virtual machine down")
	require.ErrorIs(t, o.Alone(), ondisk.ErrBusy)
	require.NoError(t, ondisk.ReadFull(o.Handles[0], make([]byte, 5), 0), "it is read as before")
	require.NoError(t, windows.CloseHandle(writer))
	require.NoError(t, o.Alone())

	release, err := o.Hold()
	require.NoError(t, err)
	_, err = openBeside(t, path, readWrite, windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE)
	require.ErrorIs(t, err, windows.ERROR_SHARING_VIOLATION)
	reader, err := openBeside(t, path, windows.GENERIC_READ, windows.FILE_SHARE_READ)
	require.NoError(t, err, "others can read, and run a second copy")
	require.NoError(t, windows.CloseHandle(reader))
	require.NoError(t, ondisk.ReadFull(o.Handles[0], make([]byte, 5), 0))
	require.NoError(t, o.Unchanged())
	release()

	sole, err := openBeside(t, path, readWrite, 0)
	require.NoError(t, err)
	_, err = d.Open("file")
	require.ErrorIs(t, err, ondisk.ErrBusy)
	require.NotErrorIs(t, err, ondisk.ErrReference)
	require.True(t, d.Exists("file"), "a file that is not shared is there")
	require.ErrorIs(t, ondisk.ReadFull(o.Handles[0], make([]byte, 5), 0), ondisk.ErrBusy)
	require.NoError(t, windows.CloseHandle(sole))
	require.NoError(t, o.CloseFiles())
}

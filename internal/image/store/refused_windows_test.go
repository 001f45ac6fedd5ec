package store_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/windows"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
)

// DEST is not replaced while another program writes it, or has it open exclusively.
func TestOpenFilesAreNotReplaced(t *testing.T) {
	dir := t.TempDir()
	src, err := image.Open("../../../testdata/xp-lba63.vmdk", image.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, src.Close()) }()
	dest := filepath.Join(dir, "dest.vmdk")
	require.NoError(t, os.WriteFile(dest, disktest.ReadFile(t, src.Path), 0o600))
	name, err := windows.UTF16PtrFromString(dest)
	require.NoError(t, err)
	for access, share := range map[uint32]uint32{
		windows.GENERIC_WRITE: windows.FILE_SHARE_READ, windows.GENERIC_READ: 0,
	} {
		other, err := windows.CreateFile(name, access, share, nil, windows.OPEN_EXISTING, 0, 0)
		require.NoError(t, err)
		_, err = store.Create(dest, src.Disk.Size(), src, store.CreateOptions{Force: true})
		require.ErrorContains(t, err, "dest.vmdk cannot be replaced: file \"dest.vmdk\" is in use: another program")
		require.NoError(t, windows.CloseHandle(other))
	}
	out, err := store.Create(dest, src.Disk.Size(), src, store.CreateOptions{Force: true})
	require.NoError(t, err)
	require.NoError(t, out.Discard())
	require.Equal(t, []string{"dest.vmdk"}, disktest.Names(t, dir))
}

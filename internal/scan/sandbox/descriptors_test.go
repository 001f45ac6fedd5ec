package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestForeignDescriptorIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	// Other descriptors of this process may come first.
	require.ErrorContains(t, foreign(os.Getpid()), "the worker holds descriptor ")

	iso := Isolation{Layers: []string{layerPrivilege, "landlock-7", layerSeccomp}}
	iso.takeOff(layerLandlock, foreign(os.Getpid()))
	iso.settle()
	require.Equal(t, Process, iso.Achieved)
	require.Equal(t, []string{layerPrivilege, layerSeccomp}, iso.Layers)
	require.Contains(t, iso.Note, "landlock: the worker holds descriptor ")
}

// What a kernel before 5.11 does comes to the same.
func TestKeepEachDescriptor(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD, stdio)
	require.NoError(t, err)
	defer unix.Close(fd)
	for name, keep := range map[string]func(){"one by one": keepEach, "all at once": keepDescriptors} {
		t.Run(name, func(t *testing.T) {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
			require.NoError(t, err)
			keep()
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			require.NoError(t, err)
			require.Equal(t, unix.FD_CLOEXEC, flags)
		})
	}
}

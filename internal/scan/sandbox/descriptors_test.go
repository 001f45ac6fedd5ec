package sandbox

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What a kernel before 5.11 does comes to the same.
func TestKeepEachDescriptor(t *testing.T) {
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD, stdio)
	require.NoError(t, err)
	defer unix.Close(fd)
	for name, keep := range map[string]func() error{"one by one": keepEach, "all at once": keepDescriptors} {
		t.Run(name, func(t *testing.T) {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0)
			require.NoError(t, err)
			require.NoError(t, keep())
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			require.NoError(t, err)
			require.Equal(t, unix.FD_CLOEXEC, flags)
		})
	}
}

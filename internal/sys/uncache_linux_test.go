package sys

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// Pages that are mapped stay in memory, and others go: fincore counts them.
func TestUncached(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	const size = 8 << 20
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	in, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer in.Close()
	require.NoError(t, in.Sync())
	var left unix.Cachestat_t
	if err := unix.Cachestat(uint(in.Fd()), &unix.CachestatRange{}, &left, 0); err != nil {
		t.Skipf("the kernel does not say what it keeps: %v", err)
	}
	kept := func() (n int) {
		_, err := fmt.Sscan(disktest.Run(t, "fincore", "-b", "-n", "-r", "-o", "RES", path), &n)
		require.NoError(t, err)
		return n
	}
	require.Equal(t, size, kept())
	mapped, err := unix.Mmap(int(in.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	require.NoError(t, err)
	require.False(t, Of(in).Uncache())
	require.Equal(t, size, kept())
	require.NoError(t, unix.Munmap(mapped))
	if !Of(in).Uncache() {
		require.Greater(t, kept(), size/100, "memory is the storage here")
		return
	}
	require.LessOrEqual(t, kept(), size/100)
}

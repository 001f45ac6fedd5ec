package realign

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/sys"
)

// A copy that is large beside the memory leaves little of both files there, a small one all of DEST. What was in memory
// before stays.
func TestLargeCopyPassesTheMemory(t *testing.T) {
	const size = 128 << 20
	raw := filepath.Join(t.TempDir(), "disk.raw")
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i>>12 | 1)
	}
	require.NoError(t, os.WriteFile(raw, data, 0o600))
	source, err := os.Open(raw)
	require.NoError(t, err)
	defer source.Close()
	disktest.OnUnix(t, "caches")
	require.NoError(t, source.Sync())
	if !sys.Of(source).Uncache() {
		t.Skip("memory is the storage here, or the kernel does not say what it keeps")
	}
	kept := func(path string) (n int64) {
		_, err := fmt.Sscan(disktest.Run(t, "fincore", "-b", "-n", "-r", "-o", "RES", path), &n)
		require.NoError(t, err)
		return n
	}
	const half = size / 2 // of what is passed less stays: what was read or written since the kernel was told last
	for _, c := range []struct {
		memory       int64
		source, dest bool // stay in memory
	}{
		{1, false, false},
		{1 << 50, true, true},
		{1, true, false}, // SOURCE is in memory since the copy before
	} {
		s := open(t, raw)
		p, err := s.Plan(Goal{Copy: true})
		require.NoError(t, err)
		dest := filepath.Join(t.TempDir(), "copy")
		j := &Job{Full: true, Jobs: 2, memory: c.memory}
		_, err = j.Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
		require.NoError(t, err)
		require.Equal(t, c.source, kept(raw) > half, "%d", kept(raw))
		require.Equal(t, c.dest, kept(dest) > half, "%d", kept(dest))
	}
}

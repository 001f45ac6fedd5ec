package realign

import (
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// Only a lack of space is reported with the missing amount, if known.
func TestFull(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err, freeErr error
		free         int64
		says         string
	}{
		{unix.ENOSPC, nil, 2048, "the copy needs 1 KiB (1024 bytes) and 2 KiB (2048 bytes) are free"},
		{io.ErrShortWrite, nil, 2048, io.ErrShortWrite.Error()},
		{unix.ENOSPC, errMarker, 2048, unix.ENOSPC.Error()},
		{unix.ENOSPC, nil, store.UnknownRoom, unix.ENOSPC.Error()},
	} {
		got := full(c.err, 1024, func() (int64, error) { return c.free, c.freeErr })
		require.ErrorIs(t, got, c.err)
		require.Contains(t, strings.TrimPrefix(got.Error(), unix.ENOSPC.Error()+"; "), c.says)
		require.Equal(t, got.Error() == c.err.Error(), c.says == c.err.Error())
	}
}

// A copy that does not fit is refused before the first byte. A compressed copy is tried, because it may fit.
func TestRoom(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	small := t.TempDir()
	if err := unix.Mount("none", small, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	defer func() { require.NoError(t, unix.Unmount(small, unix.MNT_DETACH)) }()
	s := open(t, raw)
	p := mustPlan(t, s)
	j := Job{Full: true, Jobs: 2}
	_, err := j.Write(t.Context(), s, p, File{Path: filepath.Join(small, "copy.raw"), Format: "raw"})
	require.ErrorIs(t, err, ondisk.ErrOutput)
	require.ErrorContains(t, err, "make room or choose another folder")
	require.Empty(t, disktest.Names(t, small))

	to := File{Path: filepath.Join(small, "copy.vmdk"), Format: "vmdk", Subformat: "streamOptimized"}
	_, err = j.Write(t.Context(), s, p, to)
	require.NoError(t, err, "the noise is compressible")
	requireAligned(t, raw, to.Path, "vmdk")
}

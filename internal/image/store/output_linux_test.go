package store_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// limited runs f under a limit on the size of files. The signal that comes with it is ignored by the Go runtime.
func limited(t *testing.T, size uint64, f func()) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: old.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &old)) }()
	f()
}

// A write that the storage refuses is an error of the output and not of the image.
func TestWriteErrorsAreThoseOfTheOutput(t *testing.T) {
	src, _ := source(t, 1)
	out, err := store.Create(filepath.Join(t.TempDir(), "out.img"), src.Disk.Size(), src, imagetest.Kinds[0])
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	limited(t, 64*kib, func() {
		_, err = out.WriteAt(make([]byte, 4096), 128*kib)
	})
	require.ErrorIs(t, err, ondisk.ErrOutput)
	require.ErrorIs(t, err, syscall.EFBIG)
	require.ErrorContains(t, err, "out.img")
}

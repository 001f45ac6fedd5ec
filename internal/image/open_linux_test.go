package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// What the user names and is no file is not a reference inside of an image.
func TestTheUsersPathMustBeAFile(t *testing.T) {
	path := t.TempDir()
	_, err := image.Open(path, image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, "a folder")
	require.NoError(t, unix.Mkfifo(filepath.Join(path, "fifo"), 0o644))
	_, err = image.Open(filepath.Join(path, "fifo"), image.Options{})
	require.ErrorContains(t, err, "a FIFO")
	_, err = image.Open(filepath.Join(path, "absent"), image.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

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

// The user's own path may lead through links; the folder of the file it ends at is the image's.
func TestTheUsersPathMayBeALink(t *testing.T) {
	path := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(path, "disk.img"), make([]byte, 512), 0o644))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(filepath.Join(path, "disk.img"), link))
	img, err := image.Open(link, image.Options{})
	require.NoError(t, err)
	require.Equal(t, link, img.Path)
	require.Equal(t, "disk.img", img.Files()[0].Name)
	require.NoError(t, img.Close())
}

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

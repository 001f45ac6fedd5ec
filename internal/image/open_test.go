package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
)

// The user's own path may lead through links; the folder of the file it ends at is the image's.
func TestTheUsersPathMayBeALink(t *testing.T) {
	disktest.OnUnix(t, "links")
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

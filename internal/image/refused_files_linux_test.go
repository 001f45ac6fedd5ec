package image_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
)

// What another user may read, or what is no OVF, is not searched for a name.
func TestFilesThatAreNotSearched(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	footer := make([]byte, 512)
	copy(footer, "conectix file.img") // of a VHD that is damaged
	imagetest.Write(t, dir, "broken.vhd", footer)
	require.NoError(t, os.Chmod(imagetest.Write(t, dir, "broken.ovf", []byte("<Envelope file.img")), 0))
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	disktest.OrdinaryUser(t, dir)
	user, err := image.UserOf(d, "file.img")
	require.NoError(t, err)
	require.Empty(t, user)
	named, err := image.IsNamed(d, "file.img")
	require.NoError(t, err)
	require.True(t, named, "it could be")
}

package image_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
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

// A further folder of which the locks cannot be listed is an error. It runs alone: the number of a descriptor that is
// closed twice may be another test's by then.
func TestFurtherFolderThatCannotBeListed(t *testing.T) {
	lib := t.TempDir()
	extent := imagetest.Write(t, lib, "flat.vmdk", make([]byte, 64*sector))
	var o image.Options
	require.NoError(t, o.AllowFolders([]string{lib}))
	img, err := image.Open(imagetest.Write(t, t.TempDir(), "disk.vmdk",
		[]byte(vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf("RW 64 FLAT %q 0", extent)))), o)
	require.NoError(t, err)
	require.NoError(t, img.Further[0].Close())
	_, err = img.Busy()
	require.ErrorIs(t, err, unix.EBADF)
	require.ErrorIs(t, img.Close(), unix.EBADF)
}

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

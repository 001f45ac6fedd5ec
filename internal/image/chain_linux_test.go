package image_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
)

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

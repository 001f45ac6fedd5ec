package store_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// A view lies beside the files that it needs, under a name with which they would not be removed.
func TestViewsThatCannotBe(t *testing.T) {
	t.Parallel()
	create := func(src, dest, says string) {
		img := imagetest.Open(t, src)
		o := store.CreateOptions{Format: "vmdk", Subformat: "twoGbMaxExtentFlat", Over: []disk.Piece{}}
		was := disktest.Names(t, filepath.Dir(dest))
		_, err := store.Create(dest, img.Disk.Size(), img, o)
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, says)
		require.Equal(t, was, disktest.Names(t, filepath.Dir(dest)))
	}
	dir, other := t.TempDir(), t.TempDir()
	data := make([]byte, 64*kib)
	src := imagetest.Write(t, dir, "src.img", data)
	create(imagetest.Write(t, dir, "a:b.img", data), filepath.Join(dir, "view.vmdk"),
		"cannot be a view of SOURCE: file name")
	create(imagetest.Write(t, dir, "view-flat.vmdk", data), filepath.Join(dir, "view.vmdk"),
		"has a name that belongs to DEST")
	create(src, filepath.Join(other, "view.vmdk"), "name a DEST there")
	imagetest.Write(t, other, "src.img", data)
	create(src, filepath.Join(other, "view.vmdk"), "name a DEST there")

	device := disktest.LoopDevice(t, imagetest.Write(t, t.TempDir(), "medium.img", make([]byte, mib)))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(device, &st))
	node := filepath.Join(dir, "node.img")
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Rdev)))
	img, err := image.Open(node, image.Options{})
	require.NoError(t, err)
	_, err = store.Create(filepath.Join(dir, "view.vmdk"), mib, img, store.CreateOptions{
		Format: "vmdk",
		Over:   []disk.Piece{},
	})
	require.NoError(t, img.Close())
	require.ErrorContains(t, err, "name a DEST there")
}

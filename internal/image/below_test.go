package image_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// Overlays that qemu-img makes in other folders are found by each form of the name that they have of their backing
// file, in an allowed folder and below it; what they are based on is another disk for images that only share its name.
func TestOverlaysInOtherFolders(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	for format, name := range map[string]string{
		"qcow2": "base.qcow2", "raw": "base.img", "vmdk": "base.vmdk", "vpc": "base.vhd",
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			lib, deep := filepath.Join(dir, "lib"), filepath.Join(dir, "vms", "one")
			require.NoError(t, os.MkdirAll(lib, 0o755))
			require.NoError(t, os.MkdirAll(deep, 0o755))
			base := filepath.Join(lib, name)
			disktest.Run(t, "qemu-img", "create", "-q", "-f", format, base, "4M")
			overlay := func(at, backing string) string {
				at = filepath.Join(dir, "vms", at)
				disktest.Run(t, "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", format, "-b", backing, at, "4M")
				return fmt.Sprintf("%q", at)
			}
			img := imagetest.Open(t, base)
			vms := []string{filepath.Join(dir, "vms")}
			found, err := childrenBelow(img, vms)
			require.NoError(t, err)
			require.Empty(t, found)

			require.NoError(t, os.Symlink(lib, filepath.Join(dir, "vms", "link")))
			imagetest.Write(t, deep, name, disktest.ReadFile(t, base))
			want := []string{
				overlay("above.qcow2", "../lib/"+name),
				overlay("one/absolute.qcow2", base),
				overlay("one/file.qcow2", "file:"+base),
				overlay("one/json", fmt.Sprintf(`json:{"driver":%q,"file":{"driver":"file","filename":%q}}`, format,
					base)),
				overlay("one/relative.qcow2", "../../lib/"+name),
				overlay("one/through-a-link.qcow2", "../link/"+name),
			}
			overlay("one/other.qcow2", name) // the file of that name beside it
			found, err = childrenBelow(img, vms)
			require.NoError(t, err)
			require.Len(t, found, len(want))
			for i, f := range found {
				require.Equal(t, ondisk.Refuse, f.Effect)
				require.Contains(t, f.Text, want[i]+" is a snapshot of this disk")
			}
			found, err = childrenBelow(img, []string{lib})
			require.NoError(t, err)
			require.Empty(t, found, "Children looks there")
			_, err = childrenBelow(img, []string{filepath.Join(dir, "none")})
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

// childrenBelow returns the issues of snapshots of a disk in folders.
func childrenBelow(img *image.Image, folders []string) ([]ondisk.Issue, error) {
	found, missed, err := img.OverlaysBelow(folders)
	return slices.Concat(image.SnapshotsAt(found), missed), err
}

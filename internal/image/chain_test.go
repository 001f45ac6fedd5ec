package image_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// snapshotOf is a VMDK without data that refers to a parent by name and content identifier.
func snapshotOf(parent, id string) []byte {
	v := vmdkforge.NewSparse(make([]byte, 64*sector))
	v.SetDescriptor(strings.NewReplacer("parentCID=ffffffff", "parentCID="+id,
		"createType=", fmt.Sprintf("parentFileNameHint=%q\ncreateType=", parent)).Replace(
		vmdkforge.Descriptor("monolithicSparse", `RW 64 SPARSE "0.vmdk"`)))
	return v.Bytes
}

// Faults in a chain of snapshots are reported with the name.
func TestChainsThatAreRefused(t *testing.T) {
	t.Parallel()
	const id, most = "4a5b6c7d", 16
	long := map[string][]byte{}
	for i := range most + 1 {
		long[fmt.Sprintf("%d.vmdk", i)] = snapshotOf(fmt.Sprintf("%d.vmdk", i+1), id)
	}
	long[fmt.Sprintf("%d.vmdk", most+1)] = []byte(vmdkforge.Descriptor("monolithicFlat", "RW 64 ZERO"))
	base := []byte(vmdkforge.Descriptor("monolithicFlat", "RW 64 ZERO"))
	nameless := vhdxforge.New(vhdxforge.Layout{Size: mib, Parent: map[string]string{
		"parent_linkage": "{83ed0ec1-24c8-49a6-a959-5e4bd1288791}",
	}}).Bytes
	for name, c := range map[string]struct {
		files map[string][]byte
		first string
		says  string
	}{
		"a parent": {map[string][]byte{"0.vmdk": snapshotOf("1.vmdk", id), "1.vmdk": base}, "0.vmdk", ""},
		"its own parent": {
			map[string][]byte{"0.vmdk": snapshotOf("0.vmdk", id)},
			"0.vmdk",
			"in the chain already",
		},
		"a parent of its own": {map[string][]byte{
			"0.vmdk": snapshotOf("1.vmdk", id),
			"1.vmdk": snapshotOf("1.vmdk", id),
		}, "0.vmdk", "in the chain already"},
		"as many as can be": {long, "1.vmdk", ""},
		"one too many":      {long, "0.vmdk", "of 16 parents; consolidate"},
		"a parent that changed": {
			map[string][]byte{"0.vmdk": snapshotOf("1.vmdk", "11111111"), "1.vmdk": base},
			"0.vmdk", "the parent was changed or replaced",
		},
		"a parent that is gone": {
			map[string][]byte{"0.vmdk": snapshotOf("1.vmdk", id)},
			"0.vmdk",
			`there is no "1.vmdk" in its folder`,
		},
		"a parent of no name": {
			map[string][]byte{"0.vhdx": nameless},
			"0.vhdx",
			`since its parent, and does not name it`,
		},
		"a parent of no content": {
			map[string][]byte{"0.vmdk": snapshotOf("1.vmdk", id), "1.vmdk": []byte("KDMV")},
			"0.vmdk", "1.vmdk",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, b := range c.files {
				imagetest.Write(t, dir, name, b)
			}
			img, err := image.Open(dir+"/"+c.first, image.Options{})
			if c.says == "" {
				require.NoError(t, err)
				require.NoError(t, img.Close())
				return
			}
			require.ErrorContains(t, err, c.says)
		})
	}
}

// Extents and parents may be in allowed folders: by their paths in an image, or by their base names.
func TestFilesInAllowedFolders(t *testing.T) {
	t.Parallel()
	const id = "4a5b6c7d"
	base := []byte(vmdkforge.Descriptor("monolithicFlat", "RW 64 ZERO"))
	root := t.TempDir()
	for _, folder := range []string{"own", "lib/deep", "more", "links"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	for name, b := range map[string][]byte{
		"own/extent.vmdk": []byte(vmdkforge.Descriptor("monolithicFlat", `RW 64 FLAT "../lib/flat.vmdk" 0`)),
		"own/path.vmdk":   snapshotOf("../lib/base.vmdk", id),
		"own/deep.vmdk":   snapshotOf("../lib/deep/only.vmdk", id), "lib/deep/only.vmdk": base,
		"own/name.vmdk": snapshotOf(`C:\gone\base.vmdk`, id),
		"own/same.vmdk": snapshotOf(`../gone/same.vmdk`, id),
		"lib/flat.vmdk": make([]byte, 64*sector), "lib/base.vmdk": base, "more/base.vmdk": base,
	} {
		imagetest.Write(t, root, name, b)
	}
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "raw", filepath.Join(root, "lib/base.img"), "1M")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "../lib/base.img",
		filepath.Join(root, "own/path.qcow2"))
	require.NoError(t, os.Link(filepath.Join(root, "lib/base.vmdk"), filepath.Join(root, "links/base.vmdk")))
	require.NoError(t, os.Symlink("../lib/base.vmdk", filepath.Join(root, "links/linked.vmdk")))
	imagetest.Write(t, root, "own/link.vmdk", snapshotOf("linked.vmdk", id))
	for _, c := range []struct{ name, allow, says string }{
		{"extent.vmdk", "lib", ""},
		{"path.qcow2", "lib", ""},
		{"path.vmdk", "lib", ""},
		{"deep.vmdk", "lib", ""},
		{"name.vmdk", "lib", ""},
		{"name.vmdk", "lib links", ""},
		{"name.vmdk", "lib more", "is ambiguous"},
		{"name.vmdk", "own", `there is no "base.vmdk" in its folder or a folder of --allow-folder`},
		{"link.vmdk", "links", "is a symbolic link"},
		{"same.vmdk", "lib", "in the chain already"},
	} {
		var allow []string
		for folder := range strings.FieldsSeq(c.allow) {
			allow = append(allow, filepath.Join(root, folder))
		}
		var o image.Options
		require.NoError(t, o.AllowFolders(allow))
		img, err := image.Open(filepath.Join(root, "own", c.name), o)
		if c.says != "" {
			require.ErrorContains(t, err, c.says, c)
			continue
		}
		require.NoError(t, err, c)
		further := filepath.Dir(img.Files()[1].Name)
		require.Equal(t, allow[0], strings.TrimSuffix(further, "/deep"), c)
		issues, err := img.Busy()
		require.NoError(t, err)
		require.Empty(t, issues)
		lock := imagetest.Write(t, further, filepath.Base(img.Files()[1].Name)+".lck", nil)
		issues, err = img.Busy()
		require.NoError(t, err)
		require.Len(t, issues, 1, c)
		require.Contains(t, issues[0].Text, "in another folder of the image, is the lock of a program")
		require.NoError(t, errors.Join(os.Remove(lock), img.Close()))
	}
}

// The parent of a differencing VHD or VHDX is found in an allowed folder, by the base name of its path and by its
// identity. The child shows its own bytes where it has them.
func TestParentsOfVHDInAllowedFolders(t *testing.T) {
	t.Parallel()
	disktest.OnUnix(t, "paths in the locators of this test")
	below := imagetest.Noise(50, 4*mib)
	over := slices.Concat(below[:mib], imagetest.Noise(51, mib), below[2*mib:])
	own := func(sector int64) bool { return sector >= 2048 && sector < 4096 }
	const other = "00000000-0000-4000-8000-000000000001"
	full := func(id string) []byte {
		return vhdxforge.New(vhdxforge.Layout{Size: 4 * mib, DataWrite: id}).Fill(below).Bytes
	}
	child := vhdxforge.New(vhdxforge.Layout{Size: 4 * mib, DataWrite: other, Parent: map[string]string{
		"parent_linkage": "{" + strings.ToUpper(vhdxforge.DataWriteGUID) + "}", "relative_path": `..\lib\base.vhdx`,
	}})
	child.AddBlock(1, vhdxforge.Present, over[mib:2*mib])
	for format, c := range map[string]struct{ parent, stranger, child []byte }{
		"vhd": {
			vhdforge.New(below, vhdforge.Layout{ID: 0xb0}).Bytes,
			vhdforge.New(below, vhdforge.Layout{ID: 0xb2}).Bytes,
			vhdforge.New(over, vhdforge.Layout{
				ID: 0xb1, Stored: own,
				Parent: &vhdforge.Parent{ID: 0xb0, Relative: `..\lib\base.vhd`, Absolute: `C:\lib\base.vhd`},
			}).Bytes,
		},
		"vhdx": {full(""), full(other), child.Bytes},
	} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			lib, top := t.TempDir(), imagetest.Write(t, t.TempDir(), "top."+format, c.child)
			imagetest.Write(t, lib, "base."+format, c.parent)
			_, err := image.Open(top, image.Options{})
			require.ErrorContains(t, err, "name its folder with --allow-folder")
			var o image.Options
			require.NoError(t, o.AllowFolders([]string{lib}))
			img, err := image.Open(top, o)
			require.NoError(t, err)
			disktest.CheckBytes(t, img.Disk, over)
			require.NoError(t, img.Close())
			imagetest.Write(t, lib, "base."+format, c.stranger)
			_, err = image.Open(top, o)
			require.ErrorContains(t, err, "the parent was changed or replaced")
		})
	}
}

// A file with the headers of two formats is refused, and the format of --format must be there.
func TestFormatsThatDisagree(t *testing.T) {
	t.Parallel()
	both := make([]byte, 8192)
	copy(both, "QFI\xfb\x00\x00\x00\x03")
	copy(both[len(both)-512:], "conectix")
	dir := t.TempDir()
	_, err := image.Open(imagetest.Write(t, dir, "both.img", both), image.Options{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, " and ")
	_, err = image.Open(imagetest.Write(t, dir, "disk.vmdk", snapshotOf("1.vmdk", "4a5b6c7d")),
		image.Options{Format: "qcow2"})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "qcow2")
	_, err = image.Open("", image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// Overlays made by qemu-img in other folders are found by each form of their backing file's name, in an allowed folder
// and below it; images that only have the same name as backing file are based on another disk.
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

// childrenBelow returns the issues about snapshots of a disk in folders.
func childrenBelow(img *image.Image, folders []string) ([]ondisk.Issue, error) {
	found, missed, err := img.OverlaysBelow(folders)
	return slices.Concat(image.SnapshotsAt(found), missed), err
}

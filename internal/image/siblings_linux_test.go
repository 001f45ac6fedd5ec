package image_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// QEMU locks byte 101 of a file that it has open for writing.
func TestQemuHasItOpen(t *testing.T) {
	dir, img := flatDisk(t)
	f, err := os.OpenFile(filepath.Join(dir, "disk-flat.vmdk"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	lock := func(kind int16, at int64) {
		l := unix.Flock_t{Type: kind, Start: at, Len: 1}
		require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l))
	}
	lock(unix.F_RDLCK, 100) // "consistent read": held by a reader
	issues, err := img.Busy()
	require.NoError(t, err)
	require.Empty(t, issues)
	lock(unix.F_RDLCK, 101) // "write"
	issues, err = img.Busy()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	require.Contains(t, issues[0].Text, "disk-flat.vmdk")
	require.Contains(t, issues[0].Text, "QEMU")
}

// A link to a child in the folder is not followed, and a FIFO does not hang.
func TestNeighboursThatAreNoFiles(t *testing.T) {
	dir, img := flatDisk(t)
	elsewhere := imagetest.Write(t, t.TempDir(), "child.vmdk", []byte(strings.Replace(child, "PARENT", "disk.vmdk", 1)))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, "link.vmdk")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo.vmdk"), 0o644))
	issues, err := img.Children()
	require.NoError(t, err)
	require.Empty(t, issues)
}

// TestOverlaysByEachName finds overlays made by qemu-img, by each form of the backing file's name that QEMU accepts,
// and no overlay of another disk.
func TestOverlaysByEachName(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	for _, format := range []string{"raw", "vmdk"} {
		dir := t.TempDir()
		base, other := filepath.Join(dir, "base"), filepath.Join(dir, "other")
		disktest.Run(t, "qemu-img", "create", "-q", "-f", format, base, "4M")
		disktest.Run(t, "qemu-img", "create", "-q", "-f", format, other, "4M")
		img := imagetest.Open(t, base)
		away := filepath.Join(t.TempDir(), "away")
		require.NoError(t, os.Symlink(base, away))
		require.NoError(t, os.Symlink("base", filepath.Join(dir, "link")))
		require.NoError(t, os.Symlink("other", filepath.Join(dir, "link to other")))
		overlays := map[string][]string{"qcow2": nil, "qed": nil}
		if format == "vmdk" {
			overlays["vmdk"] = nil
		}
		for overlay := range overlays {
			for i, name := range []string{
				"base", "./base", base, "link", filepath.Join(dir, "link"), away, "file:base", "file:link",
				"blkdebug::base", "blkdebug:rules:file:" + base, "blkverify:other:base",
				fmt.Sprintf(`json:{"driver":%q,"file":{"driver":"file","filename":"base"}}`, format),
				fmt.Sprintf(`json:{"driver":%q,"file.driver":"file","file.filename":"link"}`, format),
				`json:{"driver":"quorum","vote-threshold":1,"children":[{"file.filename":"other"},{"file":` +
					`{"driver":"blkdebug","image":{"driver":"file","filename":"base"}}}]}`,
			} {
				at := filepath.Join(dir, fmt.Sprintf("%s-%02d", overlay, i))
				if overlay == "vmdk" { // QEMU opens the parent of a VMDK when it makes one
					imagetest.Write(t, dir, filepath.Base(at), []byte(strings.Replace(child, "PARENT", name, 1)))
				} else {
					disktest.Run(t, "qemu-img", "create", "-q", "-u", "-f", overlay, "-F", format, "-b", name, at,
						"4M")
				}
				issues, err := img.Children()
				require.NoError(t, err)
				require.Len(t, issues, 1, "%s of %s by %s", overlay, format, name)
				require.Contains(t, issues[0].Text, filepath.Base(at))
				require.Equal(t, ondisk.Refuse, issues[0].Effect)
				user, err := img.OtherUser()
				require.NoError(t, err)
				require.Equal(t, filepath.Base(at), user, "%s of %s by %s", overlay, format, name)
				require.NoError(t, os.Remove(at))
			}
			for _, name := range []string{
				"other", "link to other", "file:other", "blkdebug:base:other", "nbd:unix:base",
			} {
				at := filepath.Join(dir, overlay)
				disktest.Run(t, "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", format, "-b", name, at,
					"4M")
				issues, err := img.Children()
				require.NoError(t, err)
				require.Empty(t, issues, name)
			}
		}
	}
}

// TestUnseenNeighbours hides an overlay from the user: each search warns about the file, and a move in place is refused
// if the file has the name of an image.
func TestUnseenNeighbours(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	for overlay, refused := range map[string]bool{"overlay.qcow2": true, "overlay.vmdk": true, "overlay": false} {
		dir, sub := t.TempDir(), t.TempDir()
		base := filepath.Join(dir, "base.img")
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "raw", base, "4M")
		deep := filepath.Join(sub, "vms", "closed")
		require.NoError(t, os.MkdirAll(deep, 0o755))
		for _, at := range []string{filepath.Join(dir, overlay), filepath.Join(deep, overlay)} {
			disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, at)
			require.NoError(t, os.Chmod(at, 0))
		}
		require.NoError(t, os.Chmod(deep, 0))
		require.NoError(t, os.Chmod(filepath.Dir(sub), 0o755))
		img := imagetest.Open(t, base)
		t.Run(overlay, func(t *testing.T) {
			disktest.OrdinaryUser(t, dir)
			want := []ondisk.Issue{{Code: "overlays-unseen", Effect: ondisk.Warn}}
			found, err := img.Children()
			require.NoError(t, err)
			requireUnseen(t, want, found, fmt.Sprintf("%q", overlay))
			found, err = childrenBelow(img, []string{sub})
			require.NoError(t, err)
			requireUnseen(t, want, found, deep+": permission denied")
			d, err := gate.OpenFolder(dir)
			require.NoError(t, err)
			defer d.Close()
			_, err = img.OtherUser()
			_, errFiles := image.OtherUser(d, []string{"base.img"}, func(n string) bool { return n == "base.img" })
			_, errOwn := image.OtherUser(d, []string{"base.img"}, func(n string) bool { return n == overlay })
			require.NoError(t, errOwn)
			if !refused {
				require.NoError(t, errors.Join(err, errFiles))
				return
			}
			require.ErrorContains(t, err, fmt.Sprintf("%q: permission denied", overlay))
			require.Equal(t, err, errFiles)
		})
	}
}

// requireUnseen requires issues whose texts contain a place, and which otherwise are as expected.
func requireUnseen(t *testing.T, want, got []ondisk.Issue, place string) {
	t.Helper()
	for i := range got {
		require.Contains(t, got[i].Text, place)
		require.NotEmpty(t, got[i].Remedy)
		got[i].Text, got[i].Remedy = "", ""
	}
	require.Equal(t, want, got)
}

// TestFoldersTooDeep warns of folders beyond the depth limit, and finds an overlay above it.
func TestFoldersTooDeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, img := flatDisk(t)
	at := dir
	for range 16 {
		at = filepath.Join(at, "d")
	}
	require.NoError(t, os.MkdirAll(at, 0o755))
	found, err := childrenBelow(img, []string{dir})
	require.NoError(t, err)
	require.Empty(t, found)
	require.NoError(t, os.Mkdir(filepath.Join(at, "d"), 0o755))
	found, err = childrenBelow(img, []string{dir})
	require.NoError(t, err)
	requireUnseen(t, []ondisk.Issue{{Code: "overlays-unseen", Effect: ondisk.Warn}}, found,
		filepath.Join(at, "d"))
}

// TestDataFilesByEachName finds the qcow2 whose data are in a file, by each form of its name.
func TestDataFilesByEachName(t *testing.T) {
	// Not parallel: a program started by another test has the files of this process until it runs, and qemu-img finds
	// their locks.
	disktest.Tool(t, "qemu-img")
	dir := t.TempDir()
	data, user := filepath.Join(dir, "data.raw"), filepath.Join(dir, "disk.qcow2")
	create := func() {
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+data+",data_file_raw=on", user,
			"4M")
	}
	create()
	require.NoError(t, os.Symlink("data.raw", filepath.Join(dir, "link")))
	imagetest.Write(t, dir, "other.raw", nil)
	img := imagetest.Open(t, data)
	for name, want := range map[string]string{
		data: "disk.qcow2", filepath.Join(dir, "link"): "disk.qcow2", "blkdebug::" + data: "disk.qcow2",
		filepath.Join(dir, "other.raw"): "",
	} {
		create()
		disktest.Run(t, "qemu-img", "amend", "-f", "qcow2", "-o", "data_file="+name, user)
		got, err := img.OtherUser()
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
}

// TestOverlaysBesideALink finds overlays in the folder of the link to the disk.
func TestOverlaysBesideALink(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	lib, vm := t.TempDir(), t.TempDir()
	base, link := filepath.Join(lib, "base.img"), filepath.Join(vm, "disk.img")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "raw", base, "4M")
	require.NoError(t, os.Symlink(base, link))
	other := imagetest.Write(t, vm, "other.img", imagetest.Noise(1, 64*sector))
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", other, filepath.Join(vm, "o.qcow2"))
	found, err := imagetest.Open(t, link).Children()
	require.NoError(t, err)
	require.Empty(t, found)
	disktest.Run(t, "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", "disk.img",
		filepath.Join(vm, "top.qcow2"), "4M")
	for path, want := range map[string]int{link: 1, base: 0, filepath.Join(lib, "again.img"): 0} {
		if want == 0 && path != base {
			require.NoError(t, os.Symlink("base.img", path))
		}
		found, err = imagetest.Open(t, path).Children()
		require.NoError(t, err)
		require.Len(t, found, want, path)
		for _, f := range found {
			require.Equal(t, "snapshot-parent", f.Code)
			require.Contains(t, f.Text, filepath.Join(vm, "top.qcow2"))
		}
	}
}

// For a path to a folder, a FIFO or no file at all, Open returns an error about the file, not about a reference.
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

// The user's path may contain links; the folder of the final file is the image's.
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

// Busy returns an error if the locks of a further folder cannot be listed. Not parallel: after a double close, the
// descriptor number may belong to another test.
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

// An unreadable OVF and a damaged image of another format are not searched for a name, but could refer to any file.
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

package image_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// A container whose header or footer is lost is raw by content. Copied without a word, a disk would be lost.
func TestContainersWithoutTheirHeaderAreNotTakenForRaw(t *testing.T) {
	qcow2 := qcow2forge.New(imagetest.Noise(71, mib), 16).Bytes
	clear(qcow2[:4])
	for _, tc := range []struct {
		name, format string
		issues       []string
	}{
		{"disk.qcow2", "", []string{image.CodeMisnamed}},
		{"DISK.VHD", "", []string{image.CodeMisnamed}},
		{"disk.vhdx", "", []string{image.CodeMisnamed}},
		{"disk-1-s001.vmdk", "", []string{image.CodeMisnamed}},
		{"disk.vmdk", "raw", []string{}},
		{"disk.img", "", []string{}},
		{"disk", "", []string{}},
		{"disk-flat.vmdk", "", []string{}},
		{"disk-1-f012.vmdk", "", []string{}},
	} {
		t.Run(tc.name+tc.format, func(t *testing.T) {
			path := imagetest.Write(t, t.TempDir(), tc.name, qcow2)
			img, err := image.Open(path, image.Options{Format: tc.format})
			require.NoError(t, err)
			defer img.Close()
			require.Equal(t, "raw", img.Format)
			require.Equal(t, tc.issues, imagetest.Codes(img.Issues, ondisk.Refuse))
		})
	}
}

// A fixed VHD that lost its last sector is the only format whose guest bytes stay where they were.
func TestFixedVHDWithoutItsFooter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.vhd")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vpc", "-o", "subformat=fixed,force_size=on", path, "1M")
	disktest.Run(t, "truncate", "-s", "1M", path)
	img := imagetest.Open(t, path)
	require.Equal(t, []string{image.CodeMisnamed}, imagetest.Codes(img.Issues, ondisk.Refuse))
}

// Renamed gives the text of an image other names of its files. An image in one file names none.
func TestRenamedFiles(t *testing.T) {
	t.Parallel()
	dir, img := flatDisk(t)
	to := func(name string) string { return "old " + name }
	was, now, err := img.Renamed(to)
	require.NoError(t, err)
	require.Equal(t, disktest.ReadFile(t, filepath.Join(dir, "disk.vmdk")), was)
	require.Equal(t, strings.ReplaceAll(string(was), "disk-flat.vmdk", "old disk-flat.vmdk"), string(now))
	require.NoError(t, os.Truncate(filepath.Join(dir, "disk.vmdk"), 10))
	_, _, err = img.Renamed(to)
	require.ErrorIs(t, err, ondisk.ErrChanged)

	was, now, err = imagetest.Open(t, imagetest.Write(t, dir, "one.img", make([]byte, 4096))).Renamed(to)
	require.NoError(t, err)
	require.Nil(t, was)
	require.Nil(t, now)
}

// A device with an unfinished copy is no disk.
func TestMarksOfUnfinishedCopies(t *testing.T) {
	t.Parallel()
	device := append(image.Mark(sector), make([]byte, mib)...)
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "device", device))
	marked, err := img.Marked()
	require.NoError(t, err)
	require.True(t, marked)
	require.Equal(t, []string{"unfinished"}, imagetest.Codes(img.Issues, ondisk.Refuse))
}

// An OVF names files as URIs do, and in chunks. One that cannot be parsed counts, too.
func TestNamesInAnOVF(t *testing.T) {
	t.Parallel()
	for text, name := range map[string]string{
		`<File href="Disk%201.vmdk" id="f"/>`:                   "Disk 1.vmdk",
		`<File href="a b.img" id="f" chunkSize="512"/>`:         "a b.img.000000000",
		`<File href="a%20b.img" id="f" chunkSize="512"/> <Fil`:  "a b.img.000000000",
		`<File href="cut &amp; more.img" id="f" size="10"`:      "cut & more.img",
		`<File href="CUT%20and%20more.img" id="f" size="10" <<`: "cut and more.img",
	} {
		dir := t.TempDir()
		imagetest.Write(t, dir, "vm.ovf", []byte(`<?xml version="1.0"?><Envelope xmlns="http://schemas.dmtf.org/ovf/`+
			`envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"><References>`+
			strings.ReplaceAll(text, " id=", " ovf:id=")+`</References></Envelope>`))
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		user, err := image.UserOf(d, name)
		require.NoError(t, err)
		require.Equal(t, "vm.ovf", user, text)
		named, err := image.IsNamed(d, name)
		require.NoError(t, err)
		require.True(t, named, text)
		require.NoError(t, d.Close())
		user, err = imagetest.Open(t, imagetest.Write(t, dir, name, make([]byte, mib))).OtherUser()
		require.NoError(t, err)
		require.Equal(t, "vm.ovf", user, text)
	}
}

// A folder that cannot be listed may have another user of a file.
func TestOtherUserThatIsNotListed(t *testing.T) {
	t.Parallel()
	behind := t.TempDir()
	imagetest.Write(t, behind, "disk.vmdk",
		[]byte(vmdkforge.Descriptor("monolithicFlat", `RW 64 FLAT "disk-flat.vmdk" 0`)))
	for want, fail := range map[string]syscall.Errno{"disk.vmdk": 0, "": syscall.EIO} {
		m := oddfs.Manners{Fail: map[string]syscall.Errno{"readdir": fail}}
		d, err := gate.OpenFolder(oddfs.Mount(t, behind, m))
		require.NoError(t, err)
		user, err := image.OtherUser(d, []string{"disk-flat.vmdk"}, func(string) bool { return false })
		require.Equal(t, want, user)
		require.Equal(t, want == "", errors.Is(err, syscall.EIO), err)
		require.NoError(t, d.Close())
	}
}

// Each format has its name; TestSchemaListsTheTables of cli compares the names with docs/schema.
func TestNamesOfFormats(t *testing.T) {
	t.Parallel()
	require.ElementsMatch(t, []string{"qcow2", "vdi", "vhd", "vhdx", "vmdk", "raw"}, image.Names())
}

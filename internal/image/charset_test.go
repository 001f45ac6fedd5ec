package image_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// inOtherCharsets are names of files in character sets of VMware: as text, and in the bytes of a descriptor. Sources:
// the tables of unicode.org, MAPPINGS/VENDORS/MICSFT.
var inOtherCharsets = []struct{ charset, text, stored string }{
	{"windows-1252", "Büro", "B\xfcro"},
	{"windows-1251", "диск", "\xe4\xe8\xf1\xea"},
	{"Shift_JIS", "表", "\x95\x5c"}, // its second byte is a backslash
	{"GBK", "系统", "\xcf\xb5\xcd\xb3"},
	{"Big5", "功", "\xa5\x5c"},
	{"EUC-KR", "디", "\xb5\xf0"},
	{"", "B\xfcro", "B\xfcro"}, // VMware takes it for the character set of its host
}

func flatDescriptor(charset, extent string) []byte {
	encoding := ""
	if charset != "" {
		encoding = fmt.Sprintf("encoding=%q\n", charset)
	}
	return []byte("# Disk DescriptorFile\nversion=1\n" + encoding + "CID=12345678\nparentCID=ffffffff\n" +
		"createType=\"monolithicFlat\"\nRW 2048 FLAT \"" + extent + "\" 0\nddb.adapterType = \"ide\"\n")
}

// putNamed writes a file, and skips the test where the file system takes text only.
func putNamed(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
		t.Skipf("the file system takes no name %q: %v", name, err)
	}
}

// The file of an extent has its name in UTF-8, or in the bytes of the descriptor. qemu-img knows the latter only.
func TestExtentsInOtherCharsets(t *testing.T) {
	disktest.OnUnix(t, "names that are not UTF-8")
	data := imagetest.Noise(31, mib)
	for _, tc := range inOtherCharsets {
		for _, onDisk := range []string{tc.text, tc.stored} {
			t.Run(fmt.Sprintf("%s %q", tc.charset, onDisk), func(t *testing.T) {
				dir := t.TempDir()
				path := imagetest.Write(t, dir, "d.vmdk", flatDescriptor(tc.charset, tc.stored+"-flat.vmdk"))
				putNamed(t, dir, onDisk+"-flat.vmdk", data)
				disktest.CheckBytes(t, imagetest.Open(t, path).Disk, data)
				id, err := image.Identify(path, nil)
				require.NoError(t, err)
				require.Contains(t, id.Extents, onDisk+"-flat.vmdk", "a scan takes it for a part of the disk")
				if onDisk == tc.stored {
					disktest.Run(t, "qemu-img", "compare", "-q", "-f", "vmdk", "-F", "raw", path,
						filepath.Join(dir, onDisk+"-flat.vmdk"))
				}
			})
		}
	}
}

// Where both names are there, the text is meant: programs on a host whose names are text write no other.
func TestTextBeforeBytes(t *testing.T) {
	disktest.OnUnix(t, "names that are not UTF-8")
	dir := t.TempDir()
	data := imagetest.Noise(32, mib)
	path := imagetest.Write(t, dir, "d.vmdk", flatDescriptor("windows-1252", "B\xfcro"))
	putNamed(t, dir, "B\xfcro", imagetest.Noise(33, mib))
	putNamed(t, dir, "Büro", data)
	disktest.CheckBytes(t, imagetest.Open(t, path).Disk, data)
}

// An extent in another folder is refused in any character set.
func TestExtentsElsewhereInOtherCharsets(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"\xfc/x", "..\\\xfc", "\xfc\\x\\y", "../B\xfcro"} {
		path := imagetest.Write(t, dir, "d.vmdk", flatDescriptor("windows-1252", name))
		_, err := image.Open(path, image.Options{})
		require.ErrorIs(t, err, ondisk.ErrReference, "%q", name)
	}
	path := imagetest.Write(t, dir, "d.vmdk", flatDescriptor("windows-1252", "B\xfcro"))
	_, err := image.Open(path, image.Options{})
	require.ErrorContains(t, err, `extent 0: file "Büro": `)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// A snapshot of VMware names its parent in the character set of its descriptor, and QEMU in bytes.
func TestParentsInOtherCharsets(t *testing.T) {
	disktest.OnUnix(t, "names that are not UTF-8")
	data := imagetest.Noise(34, mib)
	for _, onDisk := range []string{"Büro.vmdk", "B\xfcro.vmdk"} {
		dir := t.TempDir()
		putNamed(t, dir, onDisk, flatDescriptor("windows-1252", "flat"))
		imagetest.Write(t, dir, "flat", data)
		child := filepath.Join(dir, "child.vmdk")
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", child, "1M")
		b := disktest.ReadFile(t, child)
		head := fmt.Sprintf("# Disk DescriptorFile\nversion=1\nencoding=%q\nCID=00000002\nparentCID=12345678\n"+
			"parentFileNameHint=\"B\xfcro.vmdk\"\ncreateType=\"monolithicSparse\"\nRW 2048 SPARSE \"child.vmdk\"\n",
			"windows-1252")
		text := b[512 : 512+20*512]
		clear(text)
		copy(text, head)
		imagetest.Write(t, dir, "child.vmdk", b)
		img := imagetest.Open(t, child)
		require.Equal(t, onDisk, img.Chain[0].Name)
		disktest.CheckBytes(t, img.Disk, data)
		issues, err := imagetest.Open(t, filepath.Join(dir, onDisk)).Children()
		require.NoError(t, err)
		require.Equal(t, []string{"snapshot-parent"}, imagetest.Codes(issues, ondisk.Refuse))
	}
	dir := t.TempDir()
	putNamed(t, dir, "B\xfcro.raw", data)
	overlay := filepath.Join(dir, "overlay.qcow2")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", "B\xfcro.raw", "-F", "raw", overlay)
	disktest.CheckBytes(t, imagetest.Open(t, overlay).Disk, data)
}

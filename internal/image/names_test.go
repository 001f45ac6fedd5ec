package image_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// A container with a lost header or footer looks like a raw disk. Copied silently, a disk would be lost.
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

// A fixed VHD without its last sector is the only format whose guest bytes are still in place.
func TestFixedVHDWithoutItsFooter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.vhd")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vpc", "-o", "subformat=fixed,force_size=on", path, "1M")
	disktest.Run(t, "truncate", "-s", "1M", path)
	img := imagetest.Open(t, path)
	require.Equal(t, []string{image.CodeMisnamed}, imagetest.Codes(img.Issues, ondisk.Refuse))
}

// Renamed replaces the file names in the text of an image. An image in a single file contains no names.
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

// A device with an unfinished copy is not a disk.
func TestMarksOfUnfinishedCopies(t *testing.T) {
	t.Parallel()
	device := append(image.Mark(sector), make([]byte, mib)...)
	img := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "device", device))
	marked, err := image.Marked(img.Handles[0])
	require.NoError(t, err)
	require.True(t, marked)
	require.Equal(t, []string{"unfinished"}, imagetest.Codes(img.Issues, ondisk.Refuse))
}

// An OVF names files as URIs, possibly in chunks. An invalid one counts, too.
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

// A folder that cannot be listed may contain another user of a file.
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

// inOtherCharsets are file names in character sets of VMware: as text, and in the bytes of a descriptor. Sources: the
// tables of unicode.org, MAPPINGS/VENDORS/MICSFT.
var inOtherCharsets = []struct{ charset, text, stored string }{
	{"windows-1252", "Büro", "B\xfcro"},
	{"windows-1251", "диск", "\xe4\xe8\xf1\xea"},
	{"Shift_JIS", "表", "\x95\x5c"}, // its second byte is a backslash
	{"GBK", "系统", "\xcf\xb5\xcd\xb3"},
	{"Big5", "功", "\xa5\x5c"},
	{"EUC-KR", "디", "\xb5\xf0"},
	{"", "B\xfcro", "B\xfcro"}, // VMware assumes the character set of its host
}

func flatDescriptor(charset, extent string) []byte {
	encoding := ""
	if charset != "" {
		encoding = fmt.Sprintf("encoding=%q\n", charset)
	}
	return []byte("# Disk DescriptorFile\nversion=1\n" + encoding + "CID=12345678\nparentCID=ffffffff\n" +
		"createType=\"monolithicFlat\"\nRW 2048 FLAT \"" + extent + "\" 0\nddb.adapterType = \"ide\"\n")
}

// putNamed writes a file, and skips the test if the file system only accepts text.
func putNamed(t *testing.T, dir, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
		t.Skipf("the file system takes no name %q: %v", name, err)
	}
}

// The file of an extent is named in UTF-8, or in the bytes of the descriptor. qemu-img only supports the latter.
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

// If both names exist, the text is meant: programs on a host with text names write no other.
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

// A VMware snapshot names its parent in the character set of its descriptor, and QEMU in bytes.
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

func TestFileNamesKeepTheirBytes(t *testing.T) {
	for _, names := range []image.FileNames{nil, {}, {"a"}, {"\xff\xfe.img", "", "\u2028\x00<"}} {
		b, err := json.Marshal(names)
		require.NoError(t, err)
		var back image.FileNames
		require.NoError(t, json.Unmarshal(b, &back))
		require.Len(t, back, len(names))
		for i := range names {
			require.Equal(t, names[i], back[i])
		}
	}
	var n image.FileNames
	require.Error(t, json.Unmarshal([]byte(`["no base64!"]`), &n))
}

// A folder that is listed once gives the same results for a disk as when the disk is opened.
func TestLocksOfAFolder(t *testing.T) {
	names := []string{
		"a.vmdk", "a.vmdk.lck", "a-flat.vmdk", "a-flat.vmdk.lck", "b.vmdk.lck", "a.vmem", "a-8c1f.vmem", "a.1.vmem",
		"ab.vmem", "a-.vmem", "a.vmx", "vm.vmx.lck",
		".lck-01", "b.vmss", "x.lck", "a.lck", "lck", ".vmem", "vmem", "a_1.vmem",
		"2024-05-06T07-08-09-123456789Z.sav", "a.sav",
	}
	dir := t.TempDir()
	disk := make([]byte, 1<<20)
	var f image.Folder
	for _, n := range names {
		imagetest.Write(t, dir, n, nil)
		f.Add(n)
	}
	f.Done()
	imagetest.Write(t, dir, "a-flat.vmdk", disk)
	imagetest.Write(t, dir, "a.vmdk", []byte(vmdkforge.Descriptor("monolithicFlat", `RW 2048 FLAT "a-flat.vmdk" 0`)))
	alone, err := imagetest.Open(t, filepath.Join(dir, "a.vmdk")).Busy()
	require.NoError(t, err)
	require.Len(t, alone, 10)

	img, err := image.Open(filepath.Join(dir, "a.vmdk"),
		image.Options{Beside: &image.Beside{Locks: f.Locks([]string{"a.vmdk", "a-flat.vmdk"})}})
	require.NoError(t, err)
	defer img.Close()
	known, err := img.Busy()
	require.NoError(t, err)
	require.Equal(t, alone, known)
}

func TestLocksOfAFolderAreFew(t *testing.T) {
	var f image.Folder
	for i := range 5000 {
		f.Add(fmt.Sprintf(".lck-%04d", 4999-i))
		f.Add(fmt.Sprintf("a-%04d.vmem", 4999-i))
		f.Add(fmt.Sprintf("b%04d.vmem", i))
	}
	f.Done()
	want := image.FileNames{}
	for i := range 8 {
		want = append(want, fmt.Sprintf(".lck-%04d", i))
	}
	require.Equal(t, want, f.Locks([]string{"none.vmdk"}))
	for i := range 8 {
		want = append(want, fmt.Sprintf("a-%04d.vmem", i))
	}
	require.Equal(t, want, f.Locks([]string{"a.vmdk"}))
}

func TestIdentify(t *testing.T) {
	disk := make([]byte, 1<<20)
	copy(disk, "data")
	q := qcow2forge.New(disk, 16)
	q.SetBacking("/srv/base.img", "raw")
	iso := make([]byte, 64<<10)
	copy(iso[0x8001:], "CD001")
	long := fmt.Sprintf(`RW 1 FLAT "%0300d" 0`, 1)
	ovf := `<?xml version="1.0"?><Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" ` +
		`xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"><References><File ovf:href="d.vmdk" ovf:id="f1"/><File ` +
		`ovf:href="other.vmdk" ovf:id="f2"/></References><DiskSection><Info>d</Info><Disk ovf:capacity="1" ` +
		`ovf:diskId="d1" ovf:fileRef="f1"/></DiskSection></Envelope>`
	for name, c := range map[string]struct {
		content []byte
		want    image.Identity
	}{
		"empty":  {nil, image.Identity{Kind: image.Bare, Format: "raw"}},
		"a text": {[]byte("text"), image.Identity{Kind: image.Bare, Format: "raw"}},
		"a disk": {disk, image.Identity{Kind: image.Bare, Format: "raw"}},
		"qcow2": {q.Bytes, image.Identity{
			Kind: image.Disk, Format: "qcow2",
			Parents: image.FileNames{"base.img"},
		}},
		"sparse": {vmdkforge.NewSparse(disk).Bytes, image.Identity{
			Kind: image.Disk, Format: "vmdk",
			Extents: image.FileNames{"disk.vmdk"}, Claims: []int64{0},
		}},
		"COWD": {vmdkforge.NewCOWD(disk, 1, nil).Bytes, image.Identity{Kind: image.Extent, Format: "vmdk"}},
		"CD":   {iso, image.Identity{Kind: image.Medium, Format: "ISO 9660"}},
		"VDI": {
			append(append(make([]byte, 0x40), 0x7f, 0x10, 0xda, 0xbe), make([]byte, 448)...),
			image.Identity{Kind: image.Disk, Format: "vdi"},
		},
		"QED": {
			append([]byte("QED\x00"), make([]byte, 508)...),
			image.Identity{Kind: image.Unsupported, Format: "QED"},
		},
		"archive":     {tarforge.New(tarforge.Member{Name: "x"}), image.Identity{Kind: image.Pack, Format: "ova"}},
		"package.ovf": {[]byte(ovf), image.Identity{Kind: image.Pack, Format: "ovf"}},
		"cut.ovf":     {[]byte(ovf[:300]), image.Identity{Kind: image.Pack, Format: "ovf"}},
		"two formats": {vhdforge.NewFixed(slices.Clone(q.Bytes)).Bytes, image.Identity{
			Kind:   image.Disk,
			Format: "qcow2+vhd", Parents: image.FileNames{"base.img"},
		}},
		"descriptor": {
			[]byte(vmdkforge.Descriptor("twoGbMaxExtentFlat", `RW 1 FLAT "a" 0`, `RW 1 FLAT "a" 9`,
				`RW 1 FLAT "../up" 0`, `RW 1 FLAT "b/c" 0`, `RW 1 FLAT "C:d" 0`, long, `RW 1 ZERO`, `RW 1 FLAT "b"`)),
			image.Identity{
				Kind: image.Disk, Format: "vmdk", Extents: image.FileNames{"a", "b"},
				Claims: []int64{512, 512}, Views: image.FileNames{"a"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(path, c.content, 0o644))
			var m gate.Meter
			got, err := image.Identify(path, &m)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.LessOrEqual(t, m.Read(), int64(24<<10), "bytes, to know what a file is")
			disktest.OnUnix(t, "links")
			require.NoError(t, os.Symlink(name, filepath.Join(dir, "link")))
			_, err = image.Identify(filepath.Join(dir, "link"), nil)
			require.ErrorContains(t, err, "is a symbolic link")
		})
	}
}

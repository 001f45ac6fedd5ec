package image_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
)

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

// A folder that is listed once shows the same about a disk as when the disk is opened.
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

package image_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// boxed opens the image in the file "box" of a folder.
func boxed(t *testing.T, find func(string) (disk.Range, error), o image.Options) (*image.Image, error) {
	t.Helper()
	dir := t.TempDir()
	questionable(t, dir)
	s, err := image.OpenFiles(filepath.Join(dir, "box"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	img, err := s.OpenInside("in/base.vmdk", disk.Range{Off: boxDescriptor, Len: int64(len(flatText))}, find, o)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, img.Close()) })
	}
	return img, err
}

func inBox(string) (disk.Range, error) { return disk.Range{Off: boxDisk, Len: boxSize}, nil }

// An image in an archive refers to members of its own folder there, and a missing one is an error with the reason.
func TestMembersThatAnImageNames(t *testing.T) {
	t.Parallel()
	_, err := boxed(t, func(string) (disk.Range, error) { return disk.Range{}, disktest.ErrFault }, image.Options{})
	require.ErrorIs(t, err, disktest.ErrFault)
	_, err = boxed(t, func(string) (disk.Range, error) { return disk.Range{}, fs.ErrNotExist }, image.Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.ErrorContains(t, err, `member "in/base-flat.vmdk" of the archive`)

	dir := t.TempDir()
	text := strings.Replace(flatText, "base-flat.vmdk", "../base.vmdk", 1)
	s, err := image.OpenFiles(imagetest.Write(t, dir, "box", append([]byte(text), make([]byte, boxDisk+boxSize)...)),
		nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.OpenInside("in/x.vmdk", disk.Range{Len: int64(len(text))}, inBox, image.Options{})
	require.ErrorIs(t, err, ondisk.ErrReference)
}

// Each file of an image in a package is compared with the digests of the package.
func TestDigestsOfAnImage(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "in/base.vmdk", "in/base-flat.vmdk"} {
		var seen []string
		img, err := boxed(t, inBox, image.Options{Digest: func(_ context.Context, name string, _ driver.File) error {
			if seen = append(seen, name); name == bad {
				return disktest.ErrFault
			}
			return nil
		}})
		require.NoError(t, err)
		err = img.CheckDigests(t.Context())
		require.Contains(t, append(seen, ""), bad)
		require.Equal(t, bad != "", errors.Is(err, disktest.ErrFault), bad)
	}
}

// An archive that was replaced before its image is opened is refused; a modified one has newer times.
func TestArchivesThatChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		underWay, replace, want bool
	}{
		"as it was":               {false, false, false},
		"written":                 {false, false, true},
		"replaced":                {false, true, true},
		"under way, late times":   {true, false, false},
		"under way, but replaced": {true, true, true},
	} {
		dir := t.TempDir()
		questionable(t, dir)
		box := filepath.Join(dir, "box")
		folder, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		base := "box"
		if c.underWay {
			base, folder.Alias = "copy", map[string]string{"copy": "box"}
		}
		s, err := image.NewFileSet(folder, base)
		require.NoError(t, err)
		if c.replace {
			b := disktest.ReadFile(t, box)
			require.NoError(t, os.Rename(box, box+".old"))
			require.NoError(t, os.WriteFile(box, b, 0o644))
		} else if name != "as it was" {
			require.NoError(t, os.Chtimes(box, time.Unix(1, 0), time.Unix(1, 0)))
		}
		at := disk.Range{Off: boxDescriptor, Len: int64(len(flatText))}
		img, err := s.OpenInside("in/base.vmdk", at, inBox, image.Options{})
		require.Equal(t, c.want, errors.Is(err, ondisk.ErrChanged), "%s: %v", name, err)
		if err == nil {
			require.NoError(t, img.Close())
		}
		require.NoError(t, s.Close())
	}
}

// Files of a package are in its folder, or in a few folders below it.
func TestFilesOfAPackage(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	imagetest.Write(t, top, "outside", nil)
	dir := filepath.Join(top, "in")
	require.NoError(t, os.Mkdir(dir, 0o755))
	s, err := image.OpenFiles(imagetest.Write(t, dir, "first", nil), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.Open("../outside")
	require.ErrorIs(t, err, ondisk.ErrReference)
	_, err = s.OpenImage("none/disk.img", image.Options{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	const most = 16
	for i := range most + 1 {
		sub := fmt.Sprint(i)
		require.NoError(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
		imagetest.Write(t, filepath.Join(dir, sub), "file", nil)
		_, err = s.Open(sub + "/file")
		require.Equal(t, i == most, errors.Is(err, ondisk.ErrLimit), "%d: %v", i, err)
	}
	_, err = s.Open("0/file")
	require.NoError(t, err, "a folder that is open already does not count again")
}

// Each failing read during the identification of a file and its references is returned as an error.
func TestReadsOfAnIdentity(t *testing.T) {
	t.Parallel()
	d := newFolder(nil)
	d.files["disk.ovf"] = []byte("<?xml?><!--" + strings.Repeat("x", 6000) + "--><Envelope " +
		`xmlns="http://schemas.dmtf.org/ovf/envelope/1"/>` + strings.Repeat(" ", 40_000))
	d.files["disk.vmdk"] = snapshotOf("base.vmdk", "4a5b6c7d")
	for name, want := range map[string]string{"disk.ovf": "ovf", "disk.vmdk": "vmdk"} {
		disktest.EveryFault(t, name, func(f *disktest.Faults) error {
			d.faults = f
			id, err := image.IdentifyFile(recordedFile{d, name})
			if err == nil {
				require.Equal(t, want, id.Format)
			}
			return err
		})
	}
}

// A VHDX without a parent is recognised by less than its region tables, which have 64 KiB each. Spec: [MS-VHDX] 2.1.
func TestGlances(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "disk.vhdx")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vhdx", path, "64M")
	m := &gate.Meter{}
	id, err := image.Identify(path, m)
	require.NoError(t, err)
	require.Equal(t, "vhdx", id.Format)
	require.Less(t, m.Read(), int64(64<<10))
}

// A view needs the disk that it shows.
func TestViewsNameTheirSource(t *testing.T) {
	t.Parallel()
	dir, img := flatDisk(t)
	imagetest.Write(t, dir, "view.vmdk", []byte(strings.ReplaceAll(
		"# Disk DescriptorFile\nversion=1\nCID=0e2b1b2d\nparentCID=ffffffff\ncreateType=|twoGbMaxExtentFlat|\n"+
			"RW 8 FLAT |view-head.vmdk| 0\nRW 63 FLAT |disk-flat.vmdk| 1\n", "|", `"`)))
	issues, err := img.Children()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	require.Equal(t, "view-source", issues[0].Code)
	require.Equal(t, ondisk.Refuse, issues[0].Effect)
	require.Contains(t, issues[0].Text, "view.vmdk")
}

// Opening an extent does not search a folder for its image if a scan has already read that folder.
func TestAnExtentOfAKnownFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-o", "subformat=twoGbMaxExtentSparse",
		filepath.Join(dir, "disk.vmdk"), "4M")
	_, err := image.Open(filepath.Join(dir, "disk-s001.vmdk"), image.Options{Beside: &image.Beside{}})
	require.ErrorContains(t, err, "open the descriptor file that names this extent")
}

// An unreadable file could refer to any other, which then counts as used.
func TestFilesThatCouldBeNamed(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"broken.ovf": "<Envelope",
		"whole.ovf":  `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1"/>`, "note.txt": "<text>",
	} {
		dir := t.TempDir()
		imagetest.Write(t, dir, name, []byte(text))
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		named, err := image.IsNamed(d, "file")
		require.NoError(t, errors.Join(err, d.Close()))
		require.Equal(t, name == "broken.ovf", named, name)
	}
}

// A device that a program has opened exclusively is in use. Spec: open(2), O_EXCL.
func TestClaimedDevice(t *testing.T) {
	t.Parallel()
	device := disktest.LoopDevice(t, imagetest.Write(t, t.TempDir(), "disk.img", make([]byte, mib)))
	img, err := image.Open(device, image.Options{})
	require.NoError(t, err)
	issues, err := img.Busy()
	require.NoError(t, err)
	require.Empty(t, issues)
	keeper, err := os.OpenFile(device, os.O_RDONLY|os.O_EXCL, 0)
	require.NoError(t, err)
	issues, err = img.Busy()
	require.ErrorIs(t, img.Unchanged(), ondisk.ErrChanged, "it may have been written since")
	require.NoError(t, errors.Join(err, keeper.Close(), img.Unchanged(), img.Close()))
	require.Len(t, issues, 1)
	require.ErrorIs(t, issues[0].Err, ondisk.ErrBusy)
	require.Contains(t, issues[0].Text, "is mounted, or part of another device")
}

// A format returns an error for a disk that it cannot store because of its size or sector size, and writes nothing.
func TestDisksThatAFormatCannotHold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		format, sub  string
		size, sector int64
		class        error
	}{
		{"vhd", "", 0, 512, ondisk.ErrUnsupported},
		{"vhd", "fixed", -512, 512, ondisk.ErrUnsupported},
		{"vhd", "dynamic", 513, 512, ondisk.ErrUnsupported},
		{"vhd", "dynamic", 1 << 20, 4096, ondisk.ErrUnsupported},
		{"vhd", "dynamic", 2040<<30 + 512, 512, ondisk.ErrLimit},
		{"vhdx", "", 0, 512, ondisk.ErrUnsupported},
		{"vhdx", "fixed", -512, 512, ondisk.ErrUnsupported},
		{"vhdx", "dynamic", 513, 512, ondisk.ErrUnsupported},
		{"vhdx", "dynamic", 4096 + 512, 4096, ondisk.ErrUnsupported},
		{"vhdx", "dynamic", 64<<40 + 512, 512, ondisk.ErrLimit},
		{"vmdk", "monolithicSparse", 1 << 61, 512, ondisk.ErrLimit},
		{"vmdk", "streamOptimized", 1 << 61, 512, ondisk.ErrLimit},
		{"vmdk", "twoGbMaxExtentSparse", 1 << 41, 512, ondisk.ErrLimit},
		{"vmdk", "twoGbMaxExtentFlat", 1 << 41, 512, ondisk.ErrLimit},
		{"qcow2", "", 1 << 61, 512, ondisk.ErrLimit},
	} {
		t.Run(fmt.Sprint(tc.format, tc.sub, tc.size, "/", tc.sector), func(t *testing.T) {
			t.Parallel()
			f, _ := image.ByName(tc.format)
			d := newFolder(nil)
			_, err := f.Create(blindFile{recordedFile{d, "disk"}}, tc.size, driver.Options{
				Subformat: tc.sub, Name: "disk", SectorSize: tc.sector,
				Beside: func(suffix string) (driver.WriteFile, string, error) {
					return blindFile{recordedFile{d, suffix}}, suffix, nil
				},
			})
			require.ErrorIs(t, err, tc.class)
			require.Empty(t, d.steps)
		})
	}
}

// TestDamagedQED has the name of its backing file outside the file, or truncated: it can refer to any file.
func TestDamagedQED(t *testing.T) {
	t.Parallel()
	headed := func(flags byte, size uint32) []byte {
		b := make([]byte, 64)
		copy(b, "QED\x00")
		b[16] = flags // 1: QED_F_BACKING_FILE
		binary.LittleEndian.PutUint32(b[56:], 64)
		binary.LittleEndian.PutUint32(b[60:], size)
		return append(b, "disk"...)
	}
	for what, c := range map[string]struct {
		bytes []byte
		named bool
		user  string
	}{
		"behind the end": {headed(1, 5), true, ""}, "too long": {headed(1, 1<<20), true, ""},
		"a part of a header": {headed(1, 4)[:20], true, ""}, "complete": {headed(1, 4), true, "overlay"},
		"without a backing file": {headed(0, 4), false, ""}, "of another": {headed(1, 3), false, ""},
	} {
		dir := t.TempDir()
		imagetest.Write(t, dir, "overlay", c.bytes)
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		named, err := image.IsNamed(d, "disk")
		require.NoError(t, err)
		require.Equal(t, c.named, named, what)
		user, err := image.UserOf(d, "disk")
		require.NoError(t, err)
		require.Equal(t, c.user, user, what)
		require.NoError(t, d.Close())
	}
}

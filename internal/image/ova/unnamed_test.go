package ova_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
)

// envelope is an OVF whose files f1, f2, … have these attributes and are a disk each.
func envelope(files ...string) string {
	var refs, disks strings.Builder
	for i, attrs := range files {
		fmt.Fprintf(&refs, `<File ovf:id="f%d" %s/>`, i+1, attrs)
		fmt.Fprintf(&disks, `<Disk ovf:diskId="d%d" ovf:fileRef="f%d" ovf:capacity="1"/>`, i+1, i+1)
	}
	return `<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" ` +
		`xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"><References>` + refs.String() +
		`</References><DiskSection>` + disks.String() + `</DiskSection></Envelope>`
}

func openedPackage(t *testing.T, path string) *ova.Package {
	t.Helper()
	p, err := ova.Open(path, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// warnings are the codes of what is wrong with a package.
func warnings(p *ova.Package) (out []string) {
	for _, i := range p.Issues() {
		if i.Effect >= ondisk.Warn {
			out = append(out, i.Code)
		}
	}
	return out
}

// requireDisk opens an image of a package and holds its bytes against data.
func requireDisk(t *testing.T, p *ova.Package, d ova.Disk, data []byte) {
	t.Helper()
	img, err := p.Open(d, image.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	disktest.CheckBytes(t, img.Disk, data)
}

// An image in a package that no disk names is listed behind the disks; parts of others and files of other kinds are
// not.
func TestImagesThatNoDiskNames(t *testing.T) {
	data := noise(31, 2*mib)
	vmdk := vmdkforge.NewSparse(data).Bytes
	flat := vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW %d FLAT "b-flat.vmdk" 0`, len(data)/sector))
	p := openedArchive(t, envelope(`ovf:href="a.vmdk"`),
		tarforge.Member{Name: "a.vmdk", Data: vmdk}, tarforge.Member{Name: "vm.nvram", Data: data},
		tarforge.Member{Name: "b.vmdk", Data: []byte(flat)}, tarforge.Member{Name: "b-flat.vmdk", Data: data},
		tarforge.Member{Name: "c.bin", Data: vmdk}, tarforge.Member{Name: "d.vmdk", Data: []byte("ABCD")})
	require.Len(t, p.Disks(), 1)
	var names []string
	for _, d := range p.Images() {
		names = append(names, d.Member)
	}
	require.Equal(t, []string{"a.vmdk", "b.vmdk", "c.bin", "d.vmdk"}, names)
	requireDisk(t, p, p.Images()[1], data)
	requireDisk(t, p, p.Images()[2], data)
	_, err := p.Open(p.Images()[3], image.Options{})
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.Equal(t, []string{"ovf-image-unnamed", "ovf-image-unnamed", "ovf-image-unnamed"}, warnings(p))
}

// One file that cannot be found or followed does not hide the disks beside it.
func TestOneBadReference(t *testing.T) {
	data := noise(32, 2*mib)
	good := tarforge.Member{Name: "good.vmdk", Data: vmdkforge.NewSparse(data).Bytes}
	for name, c := range map[string]struct {
		attrs, says string
		kind        error
	}{
		"above the package":  {`ovf:href="../x.vmdk"`, "leaves", ondisk.ErrReference},
		"escaped dots":       {`ovf:href="%2e%2e/x.vmdk"`, "leaves", ondisk.ErrReference},
		"an absolute path":   {`ovf:href="/x.vmdk"`, "leaves", ondisk.ErrReference},
		"a file of the web":  {`ovf:href="http://192.0.2.1/x.vmdk"`, "leaves", ondisk.ErrReference},
		"control characters": {`ovf:href="&#x9b;x.vmdk"`, "x.vmdk", ondisk.ErrReference},
		"a missing file":     {`ovf:href="x.vmdk"`, `"x.vmdk", but the package has no such file`, ondisk.ErrReference},
		"a second reference": {`ovf:href="./good.vmdk"`, "twice", ondisk.ErrReference},
		"chunks": {
			`ovf:href="chunked.vmdk" ovf:chunkSize="512"`, `"chunked.vmdk.000000000"`,
			ondisk.ErrUnsupported,
		},
		"gzip": {
			`ovf:href="packed.vmdk" ovf:compression="gzip"`, `"packed.vmdk" with ovf:compression`,
			ondisk.ErrUnsupported,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := openedArchive(t, envelope(`ovf:href="good.vmdk"`, c.attrs), good,
				tarforge.Member{Name: "packed.vmdk", Data: []byte("\x1f\x8b")},
				tarforge.Member{
					Name: "chunked.vmdk.000000000",
					Data: good.Data[:512],
				}, tarforge.Member{Name: "chunked.vmdk.000000001", Data: good.Data[512:1024]})
			requireDisk(t, p, p.Disks()[0], data)
			_, err := p.Open(p.Disks()[1], image.Options{})
			require.ErrorIs(t, err, c.kind)
			require.ErrorContains(t, err, c.says)
		})
	}
	p := openedArchive(t, envelope(`ovf:href="good.vmdk" ovf:chunkSize="4294967296"`), good)
	requireDisk(t, p, p.Disks()[0], data)
}

// The files of an OVF may lie in folders inside of its own, and nowhere else.
func TestFilesInSubfolders(t *testing.T) {
	data := noise(33, 2*mib)
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "disks", "first one"), 0o755))
	vmdk := vmdkforge.NewSparse(data).Bytes
	imagetest.Write(t, filepath.Join(dir, "disks", "first one"), "a.vmdk", vmdk)
	imagetest.Write(t, outside, "a.vmdk", vmdk)
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "a.vmdk"), filepath.Join(dir, "disks", "b.vmdk")))
	path := imagetest.Write(t, dir, "vm.ovf",
		[]byte(envelope(`ovf:href="disks/first%20one/a.vmdk"`, `ovf:href="link/a.vmdk"`, `ovf:href="disks/b.vmdk"`,
			`ovf:href="disks/../../a.vmdk"`, `ovf:href="disks//a.vmdk"`, `ovf:href="vm.ovf/a.vmdk"`,
			`ovf:href="none/a.vmdk"`)))
	p := openedPackage(t, path)
	require.Len(t, p.Disks(), 7)
	require.Equal(t, "disks/first one/a.vmdk", p.Disks()[0].Member)
	requireDisk(t, p, p.Disks()[0], data)
	for _, d := range p.Disks()[1:] {
		_, err := p.Open(d, image.Options{})
		require.ErrorIs(t, err, ondisk.ErrReference, d.Member)
	}
	img := opened(t, path+"!disks/first one/a.vmdk")
	require.Equal(t, "disks/first one/a.vmdk", img.States()[0].Name)
	require.NoError(t, p.Unchanged())
}

// What an OVF lists and does not call a disk is a file beside it, with a verdict by its own name.
func TestUnnamedImageBesideAnOVF(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "a.vmdk", vmdkforge.NewSparse(noise(34, mib)).Bytes)
	text := strings.Replace(envelope(`ovf:href="a.vmdk"`), `ovf:fileRef="f1"`, "", 1)
	p := openedPackage(t, imagetest.Write(t, dir, "vm.ovf", []byte(text)))
	require.Empty(t, p.Images())
	require.Equal(t, []string{"ovf-image-unnamed"}, warnings(p))
	opened(t, filepath.Join(dir, "a.vmdk"))
}

// A scan reads little to know what an OVF is and which disks belong to it. One that cannot be read has none.
func TestIdentify(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "50%20.vmdk", nil)
	text := envelope(`ovf:href="a.vmdk"`, `ovf:href="b%20c.vmdk"`, `ovf:href="./50%20.vmdk"`, `ovf:href="sub/d.vmdk"`,
		`ovf:href="./a.vmdk"`)
	for name, c := range map[string]struct {
		text    string
		extents image.FileNames
	}{
		"vm.ovf": {text, image.FileNames{"a.vmdk", "b c.vmdk", "50%20.vmdk"}}, "cut.ovf": {text[:300], nil},
	} {
		var m gate.Meter
		id, err := ova.Identify(imagetest.Write(t, dir, name, []byte(c.text)), &m)
		require.NoError(t, err)
		require.Equal(t, image.Identity{Kind: image.Pack, Format: "ovf", Extents: c.extents}, id)
		require.LessOrEqual(t, m.Read(), int64(24<<10), "bytes")
	}
	id, err := ova.Identify(imagetest.Write(t, dir, "x.img", make([]byte, sector)), nil)
	require.NoError(t, err)
	require.Equal(t, image.Bare, id.Kind)
}

// An OVF that is not the first member is found, and said: DSP0243 2.1.1, section 5.3, has it first.
func TestOVFNotFirst(t *testing.T) {
	disk := tarforge.Member{Name: "disk.raw", Data: make([]byte, 512)}
	text := tarforge.Member{Name: "vm.ovf", Data: []byte(envelope(`ovf:href="disk.raw"`))}
	require.Empty(t, warnings(openedPackage(t, archived(t, text, disk))))
	p := openedPackage(t, archived(t, disk, text))
	require.Equal(t, []string{"ovf-not-first"}, warnings(p))
	requireDisk(t, p, p.Disks()[0], disk.Data)
}

// A file in chunks is known beside an OVF as in an archive.
func TestChunksBesideAnOVF(t *testing.T) {
	dir := t.TempDir()
	path := imagetest.Write(t, dir, "vm.ovf", []byte(envelope(`ovf:href="disk.vmdk" ovf:chunkSize="512"`)))
	imagetest.Write(t, dir, "disk.vmdk.000000000", make([]byte, 512))
	p := openedPackage(t, path)
	require.Empty(t, warnings(p))
	_, err := p.Open(p.Disks()[0], image.Options{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, `in chunks of 512 bytes, "disk.vmdk.000000000" and following (ovf:chunkSize)`)
}

// A name that leads out of a package has the remedy that helps, of a disk and of another file.
func TestNamesOutOfAPackage(t *testing.T) {
	path := imagetest.Write(t, t.TempDir(), "vm.ovf", []byte(strings.Replace(envelope(`ovf:href="../disk.vmdk"`),
		"</References>", `<File ovf:id="x" ovf:href="../x.nvram"/></References>`, 1)))
	p := openedPackage(t, path)
	for _, i := range p.Issues() {
		if i.Effect >= ondisk.Warn {
			require.Equal(t, "put the file into the package, and correct the ovf:href of the OVF", i.Remedy,
				i.Text)
		}
	}
	require.Equal(t, []string{"ovf-file-refused"}, warnings(p))
	_, err := p.Open(p.Disks()[0], image.Options{})
	require.ErrorIs(t, err, ondisk.ErrReference)
	require.ErrorContains(t, err, "leaves the package's folder")
	require.ErrorContains(t, err, "put the file into the package")
}

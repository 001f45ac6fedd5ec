package ova_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	sector = 512
	mib    = 1 << 20
)

// noise is a disk of random bytes with a hole in the middle.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never returns an error
	clear(b[n/3 : n/2])
	return b
}

func opened(t *testing.T, path string) *image.Image {
	t.Helper()
	img, err := ova.OpenImage(path, image.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, img.Close()) })
	return img
}

// An archive that tar of macOS has written is the package without the companions of its files.
func TestArchivesOfMacOS(t *testing.T) {
	data := noise(22, mib)
	double := []byte("\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        ")
	img := opened(t, archived(t, diskOVF(), tarforge.Member{Name: "._vm.ovf", Data: double},
		tarforge.Member{Name: "._disk.vmdk", Data: double}, tarforge.Member{Name: "disk.vmdk", Data: data}))
	disktest.CheckBytes(t, img.Disk, data)
}

// A disk inside of an archive is the disk that it is outside, whatever it consists of.
func TestDisksInsideArchives(t *testing.T) {
	data := noise(21, 3*mib+7*sector)
	flat := vmdkforge.Descriptor("monolithicFlat", fmt.Sprintf(`RW %d FLAT "disk-flat.vmdk" 0`, len(data)/sector))
	for name, members := range map[string][]tarforge.Member{
		"raw":    {{Name: "disk.vmdk", Data: data}},
		"sparse": {{Name: "disk.vmdk", Data: vmdkforge.NewSparse(data).Bytes}},
		"flat":   {{Name: "disk-flat.vmdk", Data: data}, {Name: "disk.vmdk", Data: []byte(flat)}},
	} {
		t.Run(name, func(t *testing.T) {
			path := archived(t, append([]tarforge.Member{diskOVF()}, members...)...)
			img := opened(t, path)
			disktest.CheckBytes(t, img.Disk, data)
			require.Len(t, img.Files(), len(members))
			require.Equal(t, "disk.vmdk", img.Files()[0].Name)
			used, ok := img.Uses(path)
			require.True(t, ok)
			require.Equal(t, "vm.ova", used)
			require.NoError(t, img.Unchanged())
			require.NoError(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
			require.ErrorIs(t, img.Unchanged(), ondisk.ErrChanged)
		})
	}
}

// The references of a disk in an archive lead only to members: a file beside the archive is not one of its files.
func TestArchivesHaveNoWayOut(t *testing.T) {
	descriptor := vmdkforge.Descriptor("monolithicFlat", `RW 8 FLAT "disk-flat.vmdk" 0`)
	path := archived(t, diskOVF(), tarforge.Member{Name: "disk.vmdk", Data: []byte(descriptor)})
	imagetest.Write(t, filepath.Dir(path), "disk-flat.vmdk", make([]byte, 8*sector))
	_, err := ova.OpenImage(path, image.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)

	link := tarforge.Member{
		Name: "disk-flat.vmdk", Type: '2',
		Edit: func(h forge.Bytes) { h.Text(157, "/etc/passwd") },
	}
	_, err = ova.OpenImage(archived(t, diskOVF(), tarforge.Member{Name: "disk.vmdk", Data: []byte(descriptor)}, link),
		image.Options{})
	require.ErrorIs(t, err, ondisk.ErrReference)
}

// A package that is not published leaves nothing, and has no name before it is.
func TestUnpublishedPackage(t *testing.T) {
	data := noise(22, 2*mib)
	path := archived(t, diskOVF(), tarforge.Member{Name: "disk.vmdk", Data: vmdkforge.NewSparse(data).Bytes})
	src, err := ova.Open(path, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, src.Close()) }()
	img, err := src.Open(src.Disks()[0], image.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	for _, name := range []string{"out.ova", "out.ovf"} {
		dir := t.TempDir()
		out, err := ova.Create(filepath.Join(dir, name), src, ova.CreateOptions{
			Rewrite: map[string]ova.Rewrite{"disk.vmdk": {Source: img, Size: img.Disk.Size()}},
		})
		require.NoError(t, err)
		require.NoError(t, out.Write(t.Context(), diskcopy.Unwatched{}, func(_ string, create ova.CreateDisk) error {
			o, err := create(store.CreateOptions{})
			require.NoError(t, err)
			_, err = diskcopy.Run(t.Context(), img.Disk, o, diskcopy.Options{Jobs: 4})
			require.NoError(t, err)
			require.NoError(t, o.Finish())
			again, err := o.Reopen()
			require.NoError(t, err)
			disktest.CheckBytes(t, again.Disk, data)
			return again.Close()
		}))
		require.NoFileExists(t, filepath.Join(dir, name))
		require.NotEmpty(t, disktest.Names(t, dir))
		require.NoError(t, out.Discard())
		require.Empty(t, disktest.Names(t, dir))
	}
}

// A folder has only the files in the OVF, so an archive with others cannot become one.
func TestFolderHasFilesOfTheOVF(t *testing.T) {
	disk := tarforge.Member{Name: "disk.vmdk", Data: vmdkforge.NewSparse(noise(22, 2*mib)).Bytes}
	src, err := ova.Open(archived(t, diskOVF(), disk, tarforge.Member{Name: "notes.txt", Data: []byte("mine")}), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, src.Close()) }()
	dir := t.TempDir()
	_, err = ova.Create(filepath.Join(dir, "out.ovf"), src, ova.CreateOptions{})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	require.ErrorContains(t, err, `"notes.txt"`)
	require.ErrorContains(t, err, "write an .ova")
	require.Empty(t, disktest.Names(t, dir))
	out, err := ova.Create(filepath.Join(dir, "out.ova"), src, ova.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, out.Discard())
}

// The texts of an OVF can be changed to other file names; otherwise the error has the reason.
func TestTextsWithOtherNames(t *testing.T) {
	t.Parallel()
	flat := vmdkforge.Descriptor("monolithicFlat", `RW 8 FLAT "disk-flat.vmdk" 0`)
	made := func(href string) (dir string, p *ova.Package) {
		dir = t.TempDir()
		imagetest.Write(t, dir, "disk.vmdk", sparse("").Data)
		imagetest.Write(t, dir, "flat.vmdk", []byte(flat))
		imagetest.Write(t, dir, "disk-flat.vmdk", make([]byte, 4096))
		imagetest.Write(t, dir, "spare.img", nil)
		imagetest.Write(t, dir, "vm.mf", fmt.Appendf(nil, "SHA256(vm.ovf)= %x\nSHA256(disk.vmdk)= %[1]x\n",
			sha256.Sum256(nil)))
		return dir, openedPackage(t, imagetest.Write(t, dir, "vm.ovf", []byte(envelope(
			`ovf:href="disk.vmdk"`, `ovf:href="disk-flat.vmdk"`, `ovf:href="`+href+`"`))))
	}
	other := func(name string) string { return "new-" + name }
	_, p := made("spare.img")
	texts, err := p.Renamed(other)
	require.NoError(t, err)
	require.Len(t, texts, 2)
	require.Equal(t, "vm.ovf", texts[0].Name)
	require.Contains(t, string(texts[0].Renamed), `ovf:href="new-disk.vmdk"`)
	require.Equal(t, fmt.Sprintf("SHA256(new-vm.ovf)= %x\nSHA256(new-disk.vmdk)= %x\n",
		sha256.Sum256(texts[0].Renamed), sha256.Sum256(nil)), string(texts[1].Renamed))
	_, err = p.Renamed(func(string) string { return "\x01" })
	require.ErrorContains(t, err, "with other names of its files")
	for _, name := range []string{"vm.mf", "vm.ovf", "disk.vmdk"} {
		dir, p := made("spare.img")
		require.NoError(t, os.Truncate(filepath.Join(dir, name), 0))
		_, err = p.Renamed(other)
		require.ErrorIs(t, err, ondisk.ErrChanged, name)
	}
	for href, class := range map[string]error{"../disk.vmdk": ondisk.ErrReference, "flat.vmdk": ondisk.ErrUnsupported} {
		_, p = made(href)
		_, err = p.Renamed(other)
		require.ErrorIs(t, err, class, href)
	}
}

// atPhase does something when a phase of a copy begins.
type atPhase func(phase string)

func (f atPhase) Begin(phase string, _ int64) { f(phase) }
func (atPhase) Add(int64)                     {}

// A package is opened again whenever it is read back. One whose file is missing by then is an error, at any step.
func TestPackagesThatAreGone(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	own, disk, notes := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk"), text("notes.txt", "mine")
	manifest := text("vm.mf", sum("SHA256", disk)+sum("SHA256", notes)+sum("SHA256", own))
	src := openedPackage(t, archived(t, own, disk, manifest, notes))
	fine := func() error { return nil }
	steps := 0
	for ; ; steps++ {
		dir := t.TempDir()
		left := steps
		_, err := rewritten(t, src, filepath.Join(dir, "out.ova"), atPhase(func(string) {
			if left--; left == -1 {
				_ = os.Remove(filepath.Join(dir, ".out.ova.partial")) // the copy must notice
			}
		}), fine)
		if left >= 0 {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, fs.ErrNotExist, "step %d", steps)
	}
	require.Greater(t, steps, 2, "a copy and digests")
	dir := t.TempDir()
	_, err := rewritten(t, src, filepath.Join(dir, "out.ova"), diskcopy.Unwatched{}, func() error {
		return os.Remove(filepath.Join(dir, ".out.ova.partial"))
	})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// rewritten writes a package in which one disk is copied by a job.
func rewritten(
	t *testing.T, src *ova.Package, path string, p diskcopy.Progress, job func() error,
) (*ova.Output, error) {
	t.Helper()
	img := opened(t, src.Path)
	rewrite := map[string]ova.Rewrite{"disk.vmdk": {Source: img, Size: img.Disk.Size()}}
	out, err := ova.Create(path, src, ova.CreateOptions{Rewrite: rewrite})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, out.Discard()) })
	return out, out.Write(t.Context(), p, func(_ string, create ova.CreateDisk) error {
		if err := job(); err != nil {
			return err
		}
		o, err := create(store.CreateOptions{})
		if err != nil {
			return err
		}
		if _, err = diskcopy.Run(t.Context(), img.Disk, o, diskcopy.Options{Jobs: 1}); err != nil {
			return err
		}
		return o.Finish()
	})
}

// The data on the storage are read back and compared with the written ones.
func TestPackagesAreReadBack(t *testing.T) {
	disktest.OnUnix(t, "what others do to a file that is written")
	t.Parallel()
	own, disk, notes := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk"), text("notes.txt", "mine")
	votes, signature := text("votes.txt", "ours"), text("vm.cert", "signed")
	manifest := text("vm.mf", sum("SHA256", disk)+sum("SHA256", votes)+sum("SHA256", notes)+sum("SHA256", own))
	fine := func() error { return nil }
	header := func(f forge.Bytes, name string) forge.Bytes {
		for at := 0; ; at += 512 {
			if strings.HasPrefix(string(f[at:]), name+"\x00") {
				return f[at:]
			}
		}
	}
	resum := func(h forge.Bytes) {
		h.Text(148, "        ")
		n := 0
		for _, b := range h[:512] {
			n += int(b)
		}
		h.Text(148, fmt.Sprintf("%06o\x00 ", n))
	}
	for name, c := range map[string]struct {
		phase string
		spoil func(f forge.Bytes)
		says  string
	}{
		"nothing": {"", nil, ""},
		"a copied file": {
			diskcopy.PhaseProve, func(f forge.Bytes) { header(f, "notes.txt").Text(512, "x") },
			`"notes.txt" differs from the data written`,
		},
		"the ovf": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			header(f, "vm.ovf").Text(512+int64(strings.Index(string(own.Data), "d1")), "dX")
		}, "differs in its texts"},
		"a header": {
			diskcopy.PhaseDigest, func(f forge.Bytes) { header(f, "notes.txt").Text(148, "x") },
			"read back out.ova",
		},
		"a name": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			h := header(f, "notes.txt")
			h.Text(0, "totes")
			resum(h)
		}, "differs in its members"},
		"a size": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			h := header(f, "notes.txt")
			h.Text(124, "00000000005")
			resum(h)
		}, "differs in its members"},
		"others' places": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			a, b := header(f, "notes.txt"), header(f, "votes.txt")
			a.Text(0, "votes")
			b.Text(0, "notes")
			resum(a)
			resum(b)
		}, "differs in its members"},
		"one more": {diskcopy.PhaseDigest, func(f forge.Bytes) {
			end := f[len(f)-1024:]
			copy(end, header(f, "notes.txt")[:512])
			end.Text(0, "votez.txt")
			end.Text(124, "00000000000")
			resum(end)
		}, "differs in its members"},
		"the end too soon": {
			diskcopy.PhaseDigest, func(f forge.Bytes) { clear(header(f, "notes.txt")[:512]) },
			"differs in its members",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := openedPackage(t, archived(t, own, disk, manifest, signature, votes, notes))
			dir := t.TempDir()
			partial := filepath.Join(dir, ".out.ova.partial")
			spoiled := false
			p := atPhase(func(phase string) {
				if phase != c.phase || spoiled {
					return
				}
				spoiled = true
				b := disktest.ReadFile(t, partial)
				c.spoil(b)
				f, err := os.OpenFile(partial, os.O_WRONLY, 0) // a file that is cut and written again is another damage
				require.NoError(t, err)
				_, err = f.WriteAt(b, 0)
				require.NoError(t, errors.Join(err, f.Close()))
			})
			out, err := rewritten(t, src, filepath.Join(dir, "out.ova"), p, fine)
			if c.says != "" {
				require.ErrorIs(t, err, ova.ErrDigest)
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			require.NoError(t, out.Publish())
			require.Equal(t, []string{"vm.cert"}, out.Dropped)
			require.Equal(t, "certificate-dropped", out.Issues()[0].Code)
			again := openedPackage(t, filepath.Join(dir, "out.ova"))
			require.NoError(t, again.Check(t.Context(), diskcopy.Unwatched{}))
			st := disktest.Stat(t, again.Path)
			last := again.Members[len(again.Members)-1]
			require.Equal(t, "notes.txt", last.Name)
			require.Zero(t, st.Size()%512)
			b := disktest.ReadFile(t, again.Path)
			require.Equal(t, make([]byte, 1024), b[len(b)-1024:], "two blocks of zeros end an archive")
		})
	}
	src := openedPackage(t, archived(t, own, disk, manifest, notes))
	failed := errors.New("the job failed")
	out := filepath.Join(t.TempDir(), "out.ova")
	_, err := rewritten(t, src, out, diskcopy.Unwatched{}, func() error { return failed })
	require.ErrorIs(t, err, failed)
}

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

// warnings returns the codes of faults of a package.
func warnings(p *ova.Package) (out []string) {
	for _, i := range p.Issues() {
		if i.Effect >= ondisk.Warn {
			out = append(out, i.Code)
		}
	}
	return out
}

// requireDisk opens an image of a package and compares its bytes with data.
func requireDisk(t *testing.T, p *ova.Package, d ova.Disk, data []byte) {
	t.Helper()
	img, err := p.Open(d, image.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	disktest.CheckBytes(t, img.Disk, data)
}

// An image in a package that no disk names is listed after the disks; parts of others and files of other kinds are not.
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

// The files of an OVF may be in folders below its own, and nowhere else.
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

// A file that an OVF lists but does not call a disk is a separate file, with its own verdict.
func TestUnnamedImageBesideAnOVF(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "a.vmdk", vmdkforge.NewSparse(noise(34, mib)).Bytes)
	text := strings.Replace(envelope(`ovf:href="a.vmdk"`), `ovf:fileRef="f1"`, "", 1)
	p := openedPackage(t, imagetest.Write(t, dir, "vm.ovf", []byte(text)))
	require.Empty(t, p.Images())
	require.Equal(t, []string{"ovf-image-unnamed"}, warnings(p))
	opened(t, filepath.Join(dir, "a.vmdk"))
}

// A scan reads little to recognize an OVF and its disks. An unreadable one has none.
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

// An OVF that is not the first member is found, and reported: DSP0243 2.1.1, section 5.3, requires it first.
func TestOVFNotFirst(t *testing.T) {
	disk := tarforge.Member{Name: "disk.raw", Data: make([]byte, 512)}
	text := tarforge.Member{Name: "vm.ovf", Data: []byte(envelope(`ovf:href="disk.raw"`))}
	require.Empty(t, warnings(openedPackage(t, archived(t, text, disk))))
	p := openedPackage(t, archived(t, disk, text))
	require.Equal(t, []string{"ovf-not-first"}, warnings(p))
	requireDisk(t, p, p.Disks()[0], disk.Data)
}

// A file in chunks is recognized beside an OVF as in an archive.
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

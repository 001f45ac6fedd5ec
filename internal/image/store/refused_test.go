package store_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// A copy has the permissions of its source, also while it is written.
func TestPermissionsOfACopy(t *testing.T) {
	disktest.OnUnix(t, "modes of files")
	t.Parallel()
	for _, mode := range []fs.FileMode{0o600, 0o444, 0o644} {
		src := imagetest.Write(t, t.TempDir(), "src.img", make([]byte, 64*kib))
		require.NoError(t, os.Chmod(src, mode))
		dir := t.TempDir()
		out := imagetest.Fill(t, imagetest.Open(t, src), filepath.Join(dir, "out.img"), imagetest.Kinds[0], 1)
		st := disktest.Stat(t, filepath.Join(dir, ".out.img.partial"))
		require.Equal(t, mode|0o600, st.Mode())
		require.NoError(t, out.Publish())
		st = disktest.Stat(t, filepath.Join(dir, "out.img"))
		require.Equal(t, mode, st.Mode())
	}
}

// Each name that a copy needs but cannot have is refused, and nothing is left.
func TestNamesThatACopyCannotHave(t *testing.T) {
	t.Parallel()
	small := func(name string) func(t *testing.T, dir string) string {
		return func(t *testing.T, dir string) string {
			t.Helper()
			return imagetest.Write(t, dir, name, make([]byte, 64*kib))
		}
	}
	for name, c := range map[string]struct {
		source func(t *testing.T, dir string) string
		dest   string
		beside map[string]string // names and texts of other files
		force  bool
		kind   error
		says   string
	}{
		"the source":      {small("out.vmdk"), "out.vmdk", nil, true, ondisk.ErrUsage, "are the same file"},
		"its second file": {small("out-flat.vmdk"), "out.vmdk", nil, false, ondisk.ErrUsage, "needs the name"},
		"its partial name": {
			small(".out.vmdk.partial"), "out.vmdk", nil, false, ondisk.ErrUsage,
			"has the temporary name of DEST",
		},
		"a colon for two files": {
			small("src.img"), "a:b.vmdk", nil, false, ondisk.ErrUsage,
			"would need a second file",
		},
		"a name that is long": {
			small("src.img"), strings.Repeat("n", 245) + ".vmdk", nil, false, ondisk.ErrOutput,
			"the name is too long",
		},
		"a trial with bytes": {
			small("src.img"), "out.vmdk",
			map[string]string{".out.vmdk.trial": "mine"},
			false,
			ondisk.ErrOutput, "trueup needs this name",
		},
		"an image that is open": {
			small("src.img"), "old.img",
			map[string]string{"old.img": "data", "old.img.lck": ""},
			true, nil, "cannot be replaced",
		},
		"an extent": {small("src.img"), "old-flat.vmdk", map[string]string{
			"old-flat.vmdk": "data",
			"old.vmdk":      descriptorOf("old-flat.vmdk"),
		}, true, ondisk.ErrUsage, "belongs to"},
		"a folder that is none": {small("src.img"), "none/", nil, false, ondisk.ErrUsage, "folder"},
		"what is left, a folder": {small("src.img"), "out.vmdk", map[string]string{
			"out-flat.vmdk":                "x",
			".out-flat.vmdk.replaced/file": "x",
		}, false, ondisk.ErrOutput, "remove .out-flat.vmdk.replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range c.beside {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o755))
				imagetest.Write(t, dir, file, []byte(text))
			}
			if strings.Contains(c.dest, ":") {
				disktest.OnUnix(t, "names with a colon")
			}
			src := imagetest.Open(t, c.source(t, dir))
			was := disktest.Names(t, dir)
			o := flat
			o.Force = c.force
			path := filepath.Join(dir, c.dest)
			if strings.HasSuffix(c.dest, "/") {
				path += "/"
			}
			_, err := store.Create(path, src.Disk.Size(), src, o)
			require.ErrorContains(t, err, c.says)
			if c.kind != nil {
				require.ErrorIs(t, err, c.kind)
			}
			require.Equal(t, was, disktest.Names(t, dir))
		})
	}
}

func descriptorOf(extent string) string {
	return fmt.Sprintf("# Disk DescriptorFile\ncreateType=\"monolithicFlat\"\nRW 8 FLAT %q 0\n", extent)
}

// The remains of a killed run's trial, and of a check of a folder, are removed.
func TestTrialsGo(t *testing.T) {
	t.Parallel()
	src, _ := source(t, 1)
	dir := t.TempDir()
	imagetest.Write(t, dir, ".out.vmdk.trial", nil)
	out, err := store.Create(filepath.Join(dir, "out.vmdk"), src.Disk.Size(), src, flat)
	require.NoError(t, err)
	require.NoError(t, out.Discard())
	require.NoError(t, store.TryFolder("--report", filepath.Join(dir, "report")))
	require.Empty(t, disktest.Names(t, dir))
}

// A file of a killed run stays if a descriptor refers to it; its mark is removed.
func TestFilesOfKilledRunsThatAreUsed(t *testing.T) {
	t.Parallel()
	src, _ := source(t, 1)
	dir := t.TempDir()
	imagetest.Write(t, dir, ".out.vmdk.partial", nil)
	left := imagetest.Write(t, dir, "out-flat.vmdk", make([]byte, 4096))
	require.NoError(t, os.Link(left, filepath.Join(dir, ".out-flat.vmdk.partial")))
	imagetest.Write(t, dir, "renamed.vmdk", []byte(descriptorOf("out-flat.vmdk")))
	_, err := store.Create(filepath.Join(dir, "out.vmdk"), src.Disk.Size(), src, flat)
	require.ErrorIs(t, err, ondisk.ErrOutput)
	require.Equal(t, []string{"out-flat.vmdk", "renamed.vmdk"}, disktest.Names(t, dir))
}

// Remains of a copy that cannot be removed or closed are reported.
func TestDiscardThatFails(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	src, _ := source(t, 1)
	dir := t.TempDir()
	out, err := store.Create(filepath.Join(dir, "out.img"), src.Disk.Size(), src, imagetest.Kinds[0])
	require.NoError(t, err)
	partial := filepath.Join(dir, ".out.img.partial")
	require.NoError(t, os.Remove(partial))
	require.NoError(t, os.Mkdir(partial, 0o755))
	err = out.Discard()
	require.ErrorIs(t, err, ondisk.ErrOutput)
	require.ErrorContains(t, err, "remove "+partial)
}

// The available formats are listed, and their limits are refused.
func TestRefusedTargets(t *testing.T) {
	t.Parallel()
	src, _ := source(t, 1)
	large := imagetest.Write(t, t.TempDir(), "large.img", make([]byte, 64*kib))
	img, err := image.Open(large, image.Options{SectorSize: 4096})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	dir := t.TempDir()
	for name, c := range map[string]struct {
		src  *image.Image
		dest string
		o    store.CreateOptions
		says string
	}{
		"a format": {
			src, "x.img",
			store.CreateOptions{Format: "qed"},
			"cannot be written; must be one of qcow2, vdi, vhd, vhdx, vmdk, raw",
		},
		"a subformat": {
			src, "x.img",
			store.CreateOptions{Format: "raw", Subformat: "flat"},
			"raw has no subformats",
		},
		"sectors": {
			img, "x.vhd",
			store.CreateOptions{Format: "vhd"},
			"the disk has sectors of 4096 bytes, and the format vhd cannot record that",
		},
		"another suffix": {
			src, "x.qcow2",
			store.CreateOptions{},
			"has the file extension of qcow2, but the copy would be raw",
		},
		"one of no writer": {
			src, "x.qed",
			store.CreateOptions{},
			"has the file extension of QED, a format that trueup cannot write",
		},
	} {
		_, err := store.Create(filepath.Join(dir, c.dest), c.src.Disk.Size(), c.src, c.o)
		require.ErrorContains(t, err, c.says, name)
	}
	require.Empty(t, disktest.Names(t, dir))
	d := disk.New(mib, sector, disk.Whole(nil, mib))
	kept := &image.Image{Format: "vmdk", Image: &driver.Image{Disk: d, Subformat: "vmfsSparse"}}
	_, err = store.Create(filepath.Join(dir, "x.vmdk"), mib, kept, store.CreateOptions{Swap: true})
	require.ErrorContains(t, err, "replace keeps the format, but trueup cannot write vmdk vmfsSparse")
	none := &image.Image{Format: "raw", Image: &driver.Image{Disk: d}}
	_, err = store.Create(filepath.Join(dir, "x.img"), mib, none, store.CreateOptions{Subformat: "flat"})
	require.ErrorContains(t, err, "raw has no subformats")
	for says, i := range map[string]*image.Image{
		"subformat vmfsSparse":      {Format: "vmdk", Image: &driver.Image{Disk: d, Subformat: "vmfsSparse"}},
		"several files inside":      {Format: "raw", Image: &driver.Image{Disk: d, Parts: make([]driver.File, 2)}},
		"qed\" cannot be written":   {Format: "qed", Image: &driver.Image{Disk: d}},
		"a disk of the subformat x": {Format: "vhd", Image: &driver.Image{Disk: d, Subformat: "x"}},
	} {
		require.ErrorContains(t, store.Rewritable(i), says)
	}
	files, err := image.OpenFiles(large, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, files.Close()) }()
	out, first, err := store.CreateFiles(filepath.Join(dir, "out.ovf"), files, false, false)
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	_, err = out.AddFile("a:b")
	require.ErrorIs(t, err, ondisk.ErrReference)
	imagetest.Write(t, dir, "taken.vmdk", nil)
	_, err = out.AddFile("taken.vmdk")
	require.ErrorIs(t, err, ondisk.ErrOutput)
	odd := &image.Image{Format: "qed", Image: &driver.Image{Disk: d}}
	_, err = out.CreateDisk(first, "x", mib, odd, store.CreateOptions{}, nil)
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// A package that was not started leaves no folder open. Not parallel, since it counts open files.
func TestPackagesThatAreNotBegun(t *testing.T) {
	disktest.OnUnix(t, "open files")
	src := imagetest.Write(t, t.TempDir(), "src.ovf", nil)
	files, err := image.OpenFiles(src, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, files.Close()) }()
	open := disktest.OpenFiles(t)
	_, _, err = store.CreateFiles(src, files, true, false)
	require.ErrorIs(t, err, ondisk.ErrUsage)
	_, _, err = store.CreateFiles(filepath.Join(src+".none", "out.ovf"), files, false, false)
	require.ErrorContains(t, err, "folder of DEST")
	require.Equal(t, open, disktest.OpenFiles(t))
}

// A disk of a package is opened with its maker's options. Missing files of the package are not read back, and a caller
// may refuse a file. Not parallel, since it counts calls.
func TestDisksOfAPackage(t *testing.T) {
	src, _ := source(t, 1)
	files, err := image.OpenFiles(imagetest.Write(t, t.TempDir(), "src.ovf", nil), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, files.Close()) }()
	behind := t.TempDir()
	var j oddfs.Journal
	mounted := oddfs.Mount(t, behind, oddfs.Manners{Journal: &j})
	out, first, err := store.CreateFiles(filepath.Join(mounted, "out.ovf"), files, false, false)
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	again := func() (*image.Image, error) { return src, nil }
	d, err := out.CreateDisk(first, "disk.img", src.Disk.Size(), src, store.CreateOptions{}, again)
	require.NoError(t, err)
	got, err := d.Reopen()
	require.NoError(t, err)
	require.Same(t, src, got)
	j.Restart(1)
	_, err = out.CreateDisk(first, "disk.img", src.Disk.Size(), src, store.CreateOptions{}, again)
	require.ErrorContains(t, err, "free space")
	require.Equal(t, "statfs", j.Failed())

	imagetest.Write(t, behind, "dropped.img", nil)
	dropped := func() error {
		set, err := out.ReadBack()
		require.NoError(t, err)
		defer set.Close()
		_, err = set.Dir.OpenAny("dropped.img", ondisk.ErrReference)
		return err
	}
	require.NoError(t, dropped())
	out.Without("dropped.img")
	require.ErrorIs(t, dropped(), fs.ErrNotExist)

	_, err = out.AddFile("second")
	require.NoError(t, err)
	var seen []string
	require.ErrorIs(t, out.EachFile(func(final, _ string, _ *sys.File) error {
		seen = append(seen, final)
		return errMarker
	}), errMarker)
	require.Equal(t, []string{"out.ovf"}, seen)
}

// If a file of a package cannot have its name, none of them gets one.
func TestPackageOfWhichOneNameIsTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files, err := image.OpenFiles(imagetest.Write(t, t.TempDir(), "src.ovf", nil), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, files.Close()) }()
	out, _, err := store.CreateFiles(filepath.Join(dir, "out.ovf"), files, false, false)
	require.NoError(t, err)
	for _, name := range []string{"one", "two", "three"} {
		_, err = out.AddFile(name)
		require.NoError(t, err)
	}
	imagetest.Write(t, dir, "three", []byte("mine"))
	require.ErrorIs(t, out.Publish(), fs.ErrExist)
	require.NoError(t, out.Discard())
	require.Equal(t, []string{"three"}, disktest.Names(t, dir))
}

var errMarker = errors.New("marker")

// The files of a run must differ: another path to the same file is an error.
func TestFilesOfARunAreApart(t *testing.T) {
	disktest.OnUnix(t, "links")
	dir := t.TempDir()
	file := imagetest.Write(t, dir, "file", []byte("text"))
	require.NoError(t, os.Link(file, filepath.Join(dir, "second")))
	for other, same := range map[string]bool{
		file: true, filepath.Join(dir, "second"): true, filepath.Join(dir, "new"): false, "": false,
	} {
		err := store.Apart(store.Use{Flag: "--out", Path: file}, store.Use{Flag: "DEST", Path: other})
		require.Equal(t, same, errors.Is(err, ondisk.ErrUsage), other)
	}
	require.NoError(t, store.Apart(store.Use{}, store.Use{Path: file}))

	require.NoError(t, store.TryFolder("--out", filepath.Join(dir, "new")))
	require.Equal(t, []string{"file", "second"}, disktest.Names(t, dir), "nothing is left of the trial")
	require.ErrorIs(t, store.TryFolder("--out", filepath.Join(dir, "none", "new")), ondisk.ErrOutput)

	real, err := filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	beside := t.TempDir()
	require.NoError(t, os.Symlink(file, filepath.Join(beside, "link")))
	folder, err := filepath.EvalSymlinks(beside)
	require.NoError(t, err)
	require.Equal(t, []string{real, folder, real},
		store.OutputFolders(filepath.Join(dir, "new"), "-", "", "/dev/null", filepath.Join(beside, "link")))
}

// A report has its name when it is complete, with the permissions of the one before; nothing else is left.
func TestReportFiles(t *testing.T) {
	disktest.OnUnix(t, "modes of files")
	dir := t.TempDir()
	path := filepath.Join(dir, "report")
	put := func(text string, end error) error {
		f, err := store.CreateReport(path, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		return f.End(end)
	}
	require.NoError(t, put("one", nil))
	require.NoError(t, os.Chmod(path, 0o640))
	require.NoError(t, put("two", nil))
	st := disktest.Stat(t, path)
	require.Equal(t, fs.FileMode(0o640), st.Mode())
	require.ErrorIs(t, put("three", errMarker), errMarker)
	b := disktest.ReadFile(t, path)
	require.Equal(t, "two", string(b))
	require.Equal(t, []string{"report"}, disktest.Names(t, dir))

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
	require.ErrorIs(t, put("four", nil), ondisk.ErrOutput)
	require.Equal(t, []string{"report"}, disktest.Names(t, dir))
	_, err := store.CreateReport(filepath.Join(dir, "none", "report"), 0o600)
	require.ErrorIs(t, err, ondisk.ErrOutput)
}

// A report never replaces a file that the run itself has made: a copy, or a file kept by an exchange.
func TestReportOverAFileOfTheRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "disk.orig")
	f, err := store.CreateReport(path, 0o600)
	require.NoError(t, err)
	imagetest.Write(t, dir, "disk.orig", []byte{0, 1})
	require.ErrorContains(t, f.End(nil), "would overwrite a file that is not text")
	require.Equal(t, []byte{0, 1}, disktest.ReadFile(t, path))
	require.Equal(t, []string{"disk.orig"}, disktest.Names(t, dir))
}

// The remains of a killed run's report are removed, but not the report of an active run, and nothing that is not a text
// file.
func TestStaleReports(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	dir := t.TempDir()
	path := filepath.Join(dir, "report")
	imagetest.Write(t, dir, ".report.4194305.partial", []byte("half a rep"))
	imagetest.Write(t, dir, ".report.4194306.partial", []byte{0, 1})
	imagetest.Write(t, dir, ".report.x.partial", []byte("another's"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, ".report.4194307.partial"), 0o700))
	first, err := store.CreateReport(path, 0o600)
	require.NoError(t, err)
	work := filepath.Base(first.Name())
	require.NoError(t, os.Rename(first.Name(), filepath.Join(dir, ".report.4194308.partial")))
	second, err := store.CreateReport(path, 0o600)
	require.NoError(t, err)
	require.NoError(t, second.End(nil))
	require.ElementsMatch(t, []string{
		".report.4194306.partial", ".report.4194307.partial", ".report.4194308.partial", ".report.x.partial", "report",
	}, disktest.Names(t, dir), work)
	require.NoError(t, first.Close())

	none := oddfs.Mount(t, dir, oddfs.Failing("readdir", syscall.EIO))
	_, err = store.CreateReport(filepath.Join(none, "report"), 0o600)
	require.ErrorIs(t, err, syscall.EIO, "what else is there is not known")
}

// No output replaces a file that unfinished work of another disk needs: --force does not apply.
func TestClaimedFilesAreSpared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := imagetest.Open(t, imagetest.Write(t, t.TempDir(), "src.img", make([]byte, 64*kib)))
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	// The names are vm.img and vm.orig.img, and vm.img and t.
	h, err := journal.Begin(d, "vm.img", filepath.Join(dir, "vm.img"), journal.Exchange, []byte(
		`{"Old":[{"Name":"dm0uaW1n","Other":"dm0ub3JpZy5pbWc="}],"New":[{"Name":"dm0uaW1n","Other":"dA=="}]}`), 0)
	require.NoError(t, err)
	require.NoError(t, errors.Join(h.Enter(journal.Kept), h.Close()))
	for _, name := range []string{"vm.img", "vm.orig.img", "t"} {
		path := imagetest.Write(t, dir, name, []byte("kept"))
		_, err := store.Create(path, 64*kib, src, store.CreateOptions{Format: "raw", Force: true})
		r, ok := errors.AsType[*ondisk.Refusal](err)
		require.True(t, ok, "%s: %v", name, err)
		require.Equal(t, "unfinished", r.Code)
		files, err := image.OpenFiles(src.Path, nil)
		require.NoError(t, err)
		defer files.Close()
		_, _, err = store.CreateFiles(path, files, true, false)
		require.ErrorContains(t, err, "cannot be written", name)
		if name == "t" { // the others have the names of images
			_, err = store.Place{Flag: "--out", Path: path}.Resolve()
			require.ErrorContains(t, err, "--out "+path+" cannot be written: it is a file of the disk")
		}
	}
	path := imagetest.Write(t, dir, "free.img", []byte("mine"))
	o, err := store.Create(path, 64*kib, src, store.CreateOptions{Format: "raw", Force: true})
	require.NoError(t, err)
	require.NoError(t, o.Discard())
}

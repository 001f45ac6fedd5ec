package store_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

var errMarker = errors.New("marker")

// Two files of a run are apart, by whatever names they are called.
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

// A report has its name when it is complete, with the permissions of the one before; nothing is left beside it.
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

// A report takes the place of no file that the run itself has made under its name: a copy, or what an exchange keeps.
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

// What a killed run left of a report is removed, unless it is at work, or no text, or no file.
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

// No output takes the place of a file that the open work of another disk needs: --force is for files of no use.
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

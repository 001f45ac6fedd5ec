package store_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

var errMarker = errors.New("marker")

// What a command may write over is decided by what stands there, and by what the command writes.
func TestWhatMayBeWrittenOver(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string { return imagetest.Write(t, dir, name, []byte(text)) }
	text, script, binary := write("text", "a text\n"), write("script", "#!/bin/sh\n"), write("binary", "\x00\x01")
	empty := write("empty", "")
	qcow := write("odd", string(qcow2forge.New(make([]byte, 1<<20), 16).Bytes))
	write("set.vmdk", vmdkforge.Descriptor("monolithicFlat", `RW 1 FLAT "extent" 0`))
	extent := write("extent", "a text\n")
	machine := write("a.vmx", "a text\n")
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Symlink(to, path))
		return path
	}
	mine := func(yes bool, err error) func(io.Reader) (bool, error) {
		return func(io.Reader) (bool, error) { return yes, err }
	}
	for name, c := range map[string]struct {
		place store.Place
		text  string // of the error; empty: it may
	}{
		"no name":                     {store.Place{}, "is empty"},
		"a name that ends in a slash": {store.Place{Path: dir + "/none/"}, "is a folder: name the file"},
		"a folder by its dot":         {store.Place{Path: dir + "/none/."}, "is a folder: name the file"},
		"the folder itself":           {store.Place{Path: "."}, "is a folder: name the file"},
		"the one above":               {store.Place{Path: dir + "/.."}, "is a folder: name the file"},
		"standard output":             {store.Place{Path: "-"}, "standard output"},
		"an open descriptor":          {store.Place{Path: "/dev/fd/7"}, "open descriptor"},
		"a report that is an image": {
			store.Place{Path: dir + "/new.vmdk", Role: store.Report},
			"has the name of an image",
		},
		"a file of a machine":        {store.Place{Path: machine}, "has the name of a virtual machine's own file"},
		"a folder that is not there": {store.Place{Path: dir + "/none/copy"}, "make it first"},
		"a folder that is a file":    {store.Place{Path: text + "/copy"}, "not a directory"},
		"a new file":                 {store.Place{Path: dir + "/new"}, ""},
		"a name that is too long": {
			store.Place{Path: dir + "/" + string(make([]byte, 300))},
			"invalid argument",
		},
		"a folder":                  {store.Place{Path: dir}, "is a folder: name the file"},
		"a FIFO":                    {store.Place{Path: fifo}, "is a FIFO"},
		"a copy over any file":      {store.Place{Path: binary}, ""},
		"a copy through a link":     {store.Place{Path: link("to-text", "text")}, "is a link to"},
		"a link that leads nowhere": {store.Place{Path: link("to-none", "none")}, "which is not there"},
		"a report over a text":      {store.Place{Path: text, Role: store.Report}, ""},
		"over an empty file":        {store.Place{Path: empty, Role: store.Report}, ""},
		"through a link":            {store.Place{Path: link("again", "text"), Role: store.Report}, ""},
		"through a link to a machine": {
			store.Place{Path: link("to-vmx", "a.vmx"), Role: store.Report},
			"has the name of",
		},
		"through a link to a FIFO": {
			store.Place{Path: link("to-fifo", "fifo"), Role: store.Report},
			"is a link to the FIFO",
		},
		"over what is no text":      {store.Place{Path: binary, Role: store.Report}, "no text"},
		"over a program":            {store.Place{Path: script, Role: store.Report}, "a program"},
		"over an image":             {store.Place{Path: qcow, Role: store.Report}, "would overwrite an image"},
		"over what an image needs":  {store.Place{Path: extent, Role: store.Report}, "a file that set.vmdk needs"},
		"a script over one of ours": {store.Place{Path: script, Role: store.Script, Mine: mine(true, nil)}, ""},
		"over one that was edited": {
			store.Place{Path: script, Role: store.Script, Mine: mine(false, nil)},
			"was edited",
		},
		"which is forced": {store.Place{Path: script, Role: store.Script, Force: true}, ""},
		"over one that cannot be read": {
			store.Place{Path: script, Role: store.Script, Mine: mine(false, errMarker)},
			"marker",
		},
		"a database, which knows itself": {store.Place{Path: binary, Role: store.Database}, ""},
	} {
		c.place.Flag = "DEST"
		_, err := c.place.Settle()
		if c.text == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.text, name)
		}
	}
}

// Two files of a run are apart, by whatever names they are called.
func TestFilesOfARunAreApart(t *testing.T) {
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

	require.NoError(t, store.SpareFiles("--out", "", file, []string{"file"}))
	require.ErrorIs(t, store.SpareFiles("--out", file, filepath.Join(dir, "dest"), []string{"file"}), ondisk.ErrUsage)
	require.NoError(t, store.SpareFiles("--out", file, filepath.Join(dir, "dest"), []string{"another"}))
	require.NoError(t, store.SpareFiles("--out", file, filepath.Join(t.TempDir(), "dest"), []string{"file"}))
	require.ErrorIs(t, store.SpareFiles("--out", file, filepath.Join(dir, "none", "dest"), []string{"file"}),
		fs.ErrNotExist)

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

// What a killed run left of a report is removed, unless it is at work, or no text, or no file.
func TestStaleReports(t *testing.T) {
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

	none := oddfs.Mount(t, dir, failing("readdir", syscall.EIO))
	_, err = store.CreateReport(filepath.Join(none, "report"), 0o600)
	require.ErrorIs(t, err, syscall.EIO, "what else is there is not known")
}

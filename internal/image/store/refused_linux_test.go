package store_test

import (
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// A view is beside the files that it needs, under a name that does not remove them.
func TestRefusedViews(t *testing.T) {
	t.Parallel()
	create := func(src, dest, says string) {
		img := imagetest.Open(t, src)
		o := store.CreateOptions{Format: "vmdk", Subformat: "twoGbMaxExtentFlat", Over: []disk.Piece{}}
		was := disktest.Names(t, filepath.Dir(dest))
		_, err := store.Create(dest, img.Disk.Size(), img, o)
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, says)
		require.Equal(t, was, disktest.Names(t, filepath.Dir(dest)))
	}
	dir, other := t.TempDir(), t.TempDir()
	data := make([]byte, 64*kib)
	src := imagetest.Write(t, dir, "src.img", data)
	create(imagetest.Write(t, dir, "a:b.img", data), filepath.Join(dir, "view.vmdk"),
		"cannot be a view of SOURCE: file name")
	create(imagetest.Write(t, dir, "view-flat.vmdk", data), filepath.Join(dir, "view.vmdk"),
		"has a name that DEST")
	create(src, filepath.Join(other, "view.vmdk"), "name a DEST there")
	imagetest.Write(t, other, "src.img", data)
	create(src, filepath.Join(other, "view.vmdk"), "name a DEST there")

	device := disktest.LoopDevice(t, imagetest.Write(t, t.TempDir(), "medium.img", make([]byte, mib)))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(device, &st))
	node := filepath.Join(dir, "node.img")
	require.NoError(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Rdev)))
	img, err := image.Open(node, image.Options{})
	require.NoError(t, err)
	_, err = store.Create(filepath.Join(dir, "view.vmdk"), mib, img, store.CreateOptions{
		Format: "vmdk",
		Over:   []disk.Piece{},
	})
	require.NoError(t, img.Close())
	require.ErrorContains(t, err, "name a DEST there")
}

// Whether a command may overwrite a file depends on that file and on the output.
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
		text  string // of the error; empty: allowed
	}{
		"no name":                     {store.Place{Copy: true}, "is empty"},
		"a name that ends in a slash": {store.Place{Path: dir + "/none/", Copy: true}, "is a folder: name the file"},
		"a folder by its dot":         {store.Place{Path: dir + "/none/.", Copy: true}, "is a folder: name the file"},
		"the folder itself":           {store.Place{Path: ".", Copy: true}, "is a folder: name the file"},
		"the one above":               {store.Place{Path: dir + "/..", Copy: true}, "is a folder: name the file"},
		"standard output":             {store.Place{Path: "-", Copy: true}, "standard output"},
		"an open descriptor":          {store.Place{Path: "/dev/fd/7", Copy: true}, "open descriptor"},
		"a report that is an image": {
			store.Place{Path: dir + "/new.vmdk"},
			"has the name of an image",
		},
		"a file of a machine": {
			store.Place{Path: machine, Copy: true},
			"has the name of a virtual machine's own file",
		},
		"a folder that is not there": {store.Place{Path: dir + "/none/copy", Copy: true}, "create it first"},
		"a folder that is a file":    {store.Place{Path: text + "/copy", Copy: true}, "not a directory"},
		"a new file":                 {store.Place{Path: dir + "/new", Copy: true}, ""},
		"a name that is too long": {
			store.Place{Path: dir + "/" + string(make([]byte, 300)), Copy: true},
			"invalid argument",
		},
		"a folder":                  {store.Place{Path: dir, Copy: true}, "is a folder: name the file"},
		"a FIFO":                    {store.Place{Path: fifo, Copy: true}, "is a device, a pipe"},
		"a copy over any file":      {store.Place{Path: binary, Copy: true}, ""},
		"a copy through a link":     {store.Place{Path: link("to-text", "text"), Copy: true}, "is a link to"},
		"a link that leads nowhere": {store.Place{Path: link("to-none", "none"), Copy: true}, "is a link to"},
		"a report over a text":      {store.Place{Path: text}, ""},
		"over an empty file":        {store.Place{Path: empty}, ""},
		"through a link":            {store.Place{Path: link("again", "text")}, ""},
		"through a link to a machine": {
			store.Place{Path: link("to-vmx", "a.vmx")},
			"has the name of",
		},
		"through a link to a FIFO": {
			store.Place{Path: link("to-fifo", "fifo")},
			"is a link to",
		},
		"over what is no text":      {store.Place{Path: binary}, "is not text"},
		"over a program":            {store.Place{Path: script}, "would overwrite a program"},
		"over an image":             {store.Place{Path: qcow}, "would overwrite an image"},
		"over what an image needs":  {store.Place{Path: extent}, "a file that set.vmdk needs"},
		"a script over one of ours": {store.Place{Path: script, Mine: mine(true, nil)}, ""},
		"over one that was edited": {
			store.Place{Path: script, Mine: mine(false, nil)},
			"was edited",
		},
		"over one that cannot be read": {
			store.Place{Path: script, Mine: mine(false, errMarker)},
			"marker",
		},
	} {
		c.place.Flag = "DEST"
		_, err := c.place.Resolve()
		if c.text == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.text, name)
		}
	}
}

// limited runs f under a limit on the size of files. The signal that comes with it is ignored by the Go runtime.
func limited(t *testing.T, size uint64, f func()) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: old.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &old)) }()
	f()
}

// A write that the storage refuses is an error of the output, not of the image.
func TestWriteErrorsOfTheOutput(t *testing.T) {
	src, _ := source(t, 1)
	out, err := store.Create(filepath.Join(t.TempDir(), "out.img"), src.Disk.Size(), src, imagetest.Kinds[0])
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	limited(t, 64*kib, func() {
		_, err = out.WriteAt(make([]byte, 4096), 128*kib)
	})
	require.ErrorIs(t, err, ondisk.ErrOutput)
	require.ErrorIs(t, err, syscall.EFBIG)
	require.ErrorContains(t, err, "out.img")
}

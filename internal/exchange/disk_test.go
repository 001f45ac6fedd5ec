package exchange_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/sys"
)

// kind is a disk before an exchange, and the files of its copy.
type kind struct {
	main string // name of the disk
	old  []string
	new  []string
	by   string // name of a finished copy; empty: it has partial names
}

// kinds are disks in one file, and disks with more and fewer files than their copies.
var kinds = map[string]kind{
	"raw":   {main: "vm.img", old: []string{"vm.img"}, new: []string{"vm.img"}},
	"slash": {main: `v\m.img`, old: []string{`v\m.img`}, new: []string{`v\m.img`}},
	"flat":  {main: "vm.vmdk", old: []string{"vm.vmdk", "vm-flat.vmdk"}, new: []string{"vm.vmdk", "vm-flat.vmdk"}},
	"named": {main: "vm.vmdk", old: []string{"vm.vmdk", "data.bin"}, new: []string{"vm.vmdk", "vm-flat.vmdk"}},
	"split": {
		main: "vm.vmdk",
		old:  []string{"vm.vmdk", "vm-f001.vmdk", "vm-f002.vmdk", "vm-f003.vmdk", "vm-ctk.vmdk"},
		new:  []string{"vm.vmdk", "vm-f001.vmdk", "vm-f002.vmdk"},
	},
	"grown": {
		main: "vm.vmdk", old: []string{"vm.vmdk", "vm-f001.vmdk"},
		new: []string{"vm.vmdk", "vm-f001.vmdk", "vm-f002.vmdk"},
	},
	"ova": {main: "vm.ova", old: []string{"vm.ova"}, new: []string{"vm.ova"}},
	"ovf": {
		main: "vm.ovf",
		old:  []string{"vm.ovf", "vm.mf", "vm.cert", "vm-disk1.img", "data.bin"},
		new:  []string{"vm.ovf", "vm.mf", "vm-disk1.img", "data.bin"},
	},
	"raw by": {main: "vm.img", old: []string{"vm.img"}, new: []string{"vm.img"}, by: "copy"},
	"split by": {
		main: "vm.vmdk", old: []string{"vm.vmdk", "vm-f001.vmdk", "vm-f002.vmdk", "vm-f003.vmdk", "vm-ctk.vmdk"},
		new: []string{"vm.vmdk", "vm-f001.vmdk", "vm-f002.vmdk"}, by: "copy",
	},
}

// sectors of the disk.
const sectors = 120

func partial(name string) string { return "." + name + ".partial" }

// copyName returns the name of a file of the copy before the exchange.
func (k kind) copyName(final string) string {
	if k.by == "" {
		return partial(final)
	}
	return k.by + strings.TrimPrefix(final, "vm")
}

// content returns the bytes of a file of a multi-file disk, unique to the disk.
func content(disk byte, names []string, i int) []byte {
	if strings.HasPrefix(filepath.Ext(names[0]), ".ov") {
		return packed(disk, names, i)
	}
	extents := slices.DeleteFunc(slices.Clone(names[1:]), func(n string) bool { return strings.Contains(n, "-ctk") })
	switch {
	case len(names) == 1:
		return bytes.Repeat([]byte{disk}, sectors*512)
	case strings.Contains(names[i], "-ctk"):
		return []byte("blocks that changed")
	case i > 0:
		return bytes.Repeat([]byte{disk + byte(i)}, sectors/len(extents)*512)
	}
	var lines []string
	for _, n := range extents {
		lines = append(lines, fmt.Sprintf("RW %d FLAT %q 0", sectors/len(extents), n))
	}
	text := vmdkforge.Descriptor("twoGbMaxExtentFlat", lines...)
	if len(extents) < len(names)-1 {
		text += "changeTrackPath=\"vm-ctk.vmdk\"\r\n"
	}
	return []byte(text)
}

// write puts a disk and its copy into a folder, the copy under partial names.
func (k kind) write(dir string) error {
	// A child of another test, forked in between, would have the files open for writing until its exec.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	var errs []error
	for i, n := range k.old {
		errs = append(errs, os.WriteFile(filepath.Join(dir, n), content('a', k.old, i), 0o640))
	}
	for i, n := range k.new {
		text := content('m', k.new, i)
		if k.by != "" && i == 0 {
			text = bytes.ReplaceAll(text, []byte(`"vm-f`), []byte(`"`+k.by+`-f`))
		}
		errs = append(errs, os.WriteFile(filepath.Join(dir, k.copyName(n)), text, 0o600))
	}
	return errors.Join(errs...)
}

// copied is the copy of a kind: an exchange.Output.
type copied struct {
	dir   string
	names []string
	files []*os.File
}

// EachFile opens the files of the copy.
func (c *copied) EachFile(each func(final, partial string, f *sys.File) error) error {
	for i, n := range c.names {
		if i == len(c.files) {
			f, err := os.OpenFile(filepath.Join(c.dir, partial(n)), os.O_RDWR, 0)
			if err != nil {
				return err
			}
			c.files = append(c.files, f)
		}
		if err := each(n, partial(n), sys.FromOS(c.files[i])); err != nil {
			return err
		}
	}
	return nil
}

// Release closes them.
func (c *copied) Release() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// publish exchanges a disk for its copy.
func (k kind) publish(dir string) (*exchange.Result, error) {
	x, done, err := k.source(filepath.Join(dir, k.main))
	if err != nil {
		return nil, err
	}
	defer done() //nolint:errcheck // read-only
	if k.by != "" {
		return k.take(x, filepath.Join(dir, k.copyName(k.main)))
	}
	c := &copied{dir: dir, names: k.new}
	if err := x.Prepare(c); err != nil {
		return nil, errors.Join(err, c.Release())
	}
	return x.Publish(c)
}

// published is publish without a refusal.
func (k kind) published(t testing.TB, dir string) *exchange.Result {
	t.Helper()
	r, err := k.publish(dir)
	require.NoError(t, err)
	return r
}

// take exchanges a disk for the finished copy at a path.
func (k kind) take(x *exchange.Source, path string) (*exchange.Result, error) {
	img, err := image.Open(path, image.Options{})
	if err != nil {
		return nil, err
	}
	defer img.Close()
	c, err := x.Take(img, true, nil, nil)
	if err != nil {
		return nil, err
	}
	var r *exchange.Result
	err = c.Begin()
	if err == nil {
		err = x.Prepare(c)
	}
	if err == nil {
		r, err = x.Publish(c)
	}
	return r, errors.Join(err, c.Discard())
}

// source opens the disk or the package at a path.
func (k kind) source(path string) (x *exchange.Source, done func() error, err error) {
	if ova.KindOf(path) != "" {
		p, err := ova.Open(path, nil)
		if err != nil {
			return nil, nil, err
		}
		x, err = exchange.NewPackage(p)
		return x, p.Close, err
	}
	img, err := image.Open(path, image.Options{})
	if err != nil {
		return nil, nil, err
	}
	x, err = exchange.New(img)
	return x, img.Close, err
}

// kept returns the name under which a file of the source is kept.
func (k kind) kept(name string) string {
	if filepath.Ext(name) == ".cert" {
		name += ".kept"
	}
	return exchange.OriginalOf(k.main, name)
}

// commands are those after an exchange.
var commands = map[string]func(context.Context, *journal.Held, exchange.Options) (journal.Done, error){
	"resume": exchange.Resume, "undo": exchange.Undo, "finish": exchange.Finish,
}

// goOn runs a command on the disk of a folder with options.
func (k kind) goOn(dir, command string, o exchange.Options) (d journal.Done, err error) {
	h, err := journal.Hold(filepath.Join(dir, k.main), "")
	if err != nil {
		return d, err
	}
	if h.Journal == nil { // it was not begun
		return d, errors.Join(h.Remove(), h.Close(), fs.ErrNotExist)
	}
	d, err = commands[command](context.Background(), h, o)
	return d, errors.Join(err, h.Close())
}

func (k kind) command(dir, command string, force bool) error {
	_, err := k.goOn(dir, command, exchange.Options{Force: force})
	return err
}

// sums returns the digests of the bytes and the modes of the files of a folder.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, n := range disktest.Names(t, dir) {
		b := disktest.ReadFile(t, filepath.Join(dir, n))
		st := disktest.Stat(t, filepath.Join(dir, n))
		out[n] = fmt.Sprintf("%x %v", sha256.Sum256(b), st.Mode())
	}
	return out
}

// shows returns the disk that a path leads to, as QEMU reads it: 'a' for the source, 'm' for the copy.
func shows(t *testing.T, path string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "raw")
	format := "vmdk"
	switch filepath.Ext(path) {
	case ".img":
		format = "raw"
	case ".ova", ".ovf":
		path, format = unpacked(t, path), "raw"
	}
	disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", path, out)
	b := disktest.ReadFile(t, out)
	require.NotEmpty(t, b)
	end := len(bytes.TrimRight(b, "\x00")) - 1
	switch first, last := b[0], b[end]; {
	case first < 'm' && last < 'm':
		return "old"
	case first >= 'm' && last >= 'm':
		return "new"
	}
	return "a mix"
}

// fresh writes the disk into a new folder. before holds the digests of its files without the copy.
func (k kind) fresh(t *testing.T) (dir string, before map[string]string) {
	t.Helper()
	if strings.Contains(k.main, `\`) {
		disktest.OnUnix(t, "names with a backslash")
	}
	dir = t.TempDir()
	require.NoError(t, k.write(dir))
	before = sums(t, dir)
	for _, n := range k.new {
		delete(before, k.copyName(n))
	}
	return dir, before
}

// requireExchanged requires a complete exchange.
func (k kind) requireExchanged(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, k.main)
	require.Equal(t, "new", shows(t, path))
	require.Equal(t, "old", shows(t, filepath.Join(dir, exchange.OriginalOf(k.main, k.main))))
	want := []string{journal.PathOf(k.main)}
	for _, n := range k.old {
		want = append(want, k.kept(n))
	}
	now := sums(t, dir)
	for i, n := range k.new {
		want = append(want, n)
		require.Equal(t, fmt.Sprintf("%x %v", sha256.Sum256(content('m', k.new, i)), os.FileMode(0o640)), now[n], n)
	}
	require.ElementsMatch(t, want, disktest.Names(t, dir))
	w, err := journal.At(path)
	require.NoError(t, err)
	require.Equal(t, journal.Kept, w.Phase)
}

package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// order is an output to write: one of outputs, from a source, at a path. Few writes it with more and more open files.
type order struct {
	Kind, Source, Path string
	Few                bool
}

// told is the result of an output: the codes of its notes, and the error.
type told struct{ Notes, Error string }

// write writes an output.
func (o order) write() (x told) {
	var notes []string
	var err error
	if o.Few {
		err = disktest.FewDescriptors(func() error { _, err := outputs[o.Kind](o.Source, o.Path); return err })
	} else {
		notes, err = outputs[o.Kind](o.Source, o.Path)
	}
	if err != nil {
		x.Error = err.Error()
	}
	x.Notes = strings.Join(notes, " ")
	return x
}

// outputs are ways to write a file at a path from an image. They return the codes of the notes.
var outputs = map[string]func(src, path string) (notes []string, err error){
	"two files": func(src, path string) ([]string, error) { return writeCopy(src, path, flat) },
	"replaced": func(src, path string) ([]string, error) {
		return writeCopy(src, path,
			forced(imagetest.Kinds[1]))
	},
	"after a kill":         func(src, path string) ([]string, error) { return writeCopy(src, path, flat) },
	"package":              writePackage,
	"package after a kill": writePackage,
	"report":               writeReport,
}

// startsWith is the initial content of an output's folder.
var startsWith = map[string]func(t *testing.T, src, dir string){
	"replaced": func(t *testing.T, src, dir string) {
		t.Helper()
		imagetest.Copy(t, imagetest.Open(t, src), filepath.Join(dir, "out.vmdk"), flat)
	},
	"after a kill": afterKill, "package after a kill": afterKill,
	"report": func(t *testing.T, _, dir string) {
		t.Helper()
		require.NoError(t, os.Chmod(imagetest.Write(t, dir, "out.vmdk.txt", []byte("an old report\n")), 0o640))
		imagetest.Write(t, dir, ".out.vmdk.txt.4194305.partial", []byte("half of"))
	},
}

// afterKill has the remains of a run that was killed while it renamed its files.
func afterKill(t *testing.T, _, dir string) {
	t.Helper()
	imagetest.Write(t, dir, ".out.vmdk.partial", []byte("half of"))
	left := imagetest.Write(t, dir, "out-flat.vmdk", make([]byte, 4096))
	require.NoError(t, os.Link(left, filepath.Join(dir, ".out-flat.vmdk.partial")))
}

func writeCopy(src, path string, o store.CreateOptions) (notes []string, err error) {
	img, err := image.Open(src, image.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, img.Close()) }()
	out, err := store.Create(path, img.Disk.Size(), img, o)
	if err != nil {
		return nil, err
	}
	fill := func() error {
		_, err := diskcopy.Run(context.Background(), img.Disk, out, diskcopy.Options{Jobs: 1, Pack: out.Pack()})
		return errors.Join(err, out.Finish())
	}
	proved := func() error {
		again, err := out.Reopen()
		if err != nil {
			return err
		}
		return errors.Join(same(img.Disk, again.Disk), again.Close())
	}
	return finish(out.Parts, fill, proved)
}

// same reports a difference between two disks.
func same(a, b disk.Disk) error {
	var all [2][]byte
	for i, d := range []disk.Disk{a, b} {
		var err error
		if all[i], err = io.ReadAll(io.NewSectionReader(d, 0, d.Size())); err != nil {
			return err
		}
	}
	if string(all[0]) != string(all[1]) {
		return errors.New("the copy differs")
	}
	return nil
}

// finish publishes an output if the steps before succeed, and discards it otherwise.
func finish(out *store.Parts, steps ...func() error) (notes []string, err error) {
	for _, step := range append(steps, out.Publish) {
		if err := step(); err != nil {
			return nil, errors.Join(err, out.Discard())
		}
	}
	return imagetest.Codes(out.Notes(), ondisk.Note), out.Discard()
}

// writeReport writes a text, in place of another one.
func writeReport(_, path string) (notes []string, err error) {
	if path, err = (store.Place{Flag: "--out", Path: path + ".txt"}).Resolve(); err != nil {
		return nil, err
	}
	if err := store.TryFolder("--out", path); err != nil {
		return nil, err
	}
	f, err := store.CreateReport(path, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString("a new report\n")
	return nil, f.End(err)
}

// writePackage copies the source twice, as two files of a package.
func writePackage(src, path string) (notes []string, err error) {
	files, err := image.OpenFiles(src, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	out, first, err := store.CreateFiles(path, files, false, false)
	if err != nil {
		return nil, err
	}
	data := make([]byte, files.First().Size())
	fill := func() error {
		if _, err := files.First().ReadAt(data, 0); err != nil {
			return err
		}
		second, err := out.AddFile("out-flat.vmdk")
		if err != nil {
			return err
		}
		_, err1 := first.WriteAt(data, 0)
		_, err2 := second.WriteAt(data, 0)
		return errors.Join(err1, err2, first.Sync(), second.Sync())
	}
	proved := func() error {
		set, err := out.ReadBack()
		if err != nil {
			return err
		}
		got, err := io.ReadAll(io.NewSectionReader(set.First(), 0, set.First().Size()))
		if string(got) != string(data) {
			err = errors.Join(err, errors.New("the copy differs"))
		}
		return errors.Join(err, set.Close())
	}
	return finish(out, fill, proved)
}

// mustFail lists calls without which there is no copy, or none that survives a loss of power.
var mustFail = []string{
	"create .out.vmdk.partial", "create .out-flat.vmdk.partial", "fsync", "fsyncdir", "truncate",
	"write",
}

// mayFail is the number of calls of each kind that may fail without effect: a trial of links fails like on a file
// system without, a file that cannot be read because of a lock is unlocked, closing a file unlocks it, second names
// stay, and an unreadable old image is replaced anyway. A file system of unknown kind counts as one without leases,
// which show writers.
var mayFail = map[string]map[string]int{
	"two files": {"link": 1, "lock": 1, "open": 1, "read": 1, "unlink": 2},
	"package":   {"link": 1, "lock": 1, "open": 1, "read": 1, "unlink": 1},
	"report":    {"lock": 2, "open": 1, "read": 1},

	"after a kill":         {"link": 1, "lock": 2, "open": 2, "read": 3, "unlink": 1},
	"package after a kill": {"link": 1, "lock": 2, "open": 2, "read": 2, "unlink": 1},
	"replaced": {
		"link": 2, "lock": 1, "open": 4, "opendir": 1, "readdir": 1, "read": 8, "statfs": 2, "unlink": 2,
	},
}

// manners are file systems that lack calls of a publication, with the notes of a copy of two files there.
var manners = map[string]struct {
	oddfs.Manners
	notes string
}{
	"a disk":             {},
	"no links":           {oddfs.Failing("link", syscall.EPERM), "dest-no-links"},
	"no flags of rename": {oddfs.Failing("rename2", syscall.EINVAL), ""},
	"neither links nor flags": {
		oddfs.Failing("link", syscall.EPERM, "rename2", syscall.EINVAL),
		"dest-no-links dest-look-and-rename",
	},
	"no locks, no permissions": {
		oddfs.Failing("lock", syscall.ENOLCK, "chmod", syscall.EPERM), "dest-permissions dest-no-locks",
	},
	"locks that bar readers":    {oddfs.Manners{Mandatory: true, LocksWhole: true}, "dest-no-locks"},
	"names that are not synced": {oddfs.Failing("fsyncdir", syscall.EINVAL), "dest-folder-not-synced"},
}

// TestEveryCallOfAnOutputFails makes each call on the file system of an output fail in turn, on several kinds of file
// systems. The output is then complete or unchanged, and an error reports it. Without a fault, the order of calls is
// safe against a loss of power. With few descriptors, the result is also complete or absent.
func TestEveryCallOfAnOutputFails(t *testing.T) {
	t.Parallel()
	if oddfs.Answered(t, order.write) {
		return
	}
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	src := readOnlySource(t)
	for kind, on := range map[string][]string{
		"two files": slices.Collect(maps.Keys(manners)), "replaced": {"a disk", "neither links nor flags"},
		"package":      {"a disk"},
		"after a kill": {"a disk"}, "package after a kill": {"a disk"}, "report": {"a disk"},
	} {
		for _, name := range on {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				m := manners[name]
				c := outputCalls{kind: kind, src: src, behind: t.TempDir()}
				if kind == "two files" {
					c.notes = m.notes
				}
				m.Journal = &c.j
				c.path = filepath.Join(oddfs.Mount(t, c.behind, m.Manners), "out.vmdk")
				each := c.j.EachFails
				if kind == "replaced" {
					each = c.j.EachFailsByName
				}
				each(func(fails bool) { c.run(t, fails) })
				c.j.RequireNoticed(t, mayFail[kind])
				if name == "a disk" && kind != "report" {
					requireOrder(t, kind, c.done)
				}
				// the first try removes the remains of the kill
				if name == "a disk" && !strings.HasSuffix(kind, "after a kill") {
					few := outputCalls{kind: kind, few: true, src: src, behind: t.TempDir(), ask: c.ask}
					few.path = filepath.Join(few.behind, "out.vmdk")
					few.run(t, false)
					require.Equal(t, c.new, few.new)
				}
			})
		}
	}
}

// readOnlySource is an image with permissions that no new file has.
func readOnlySource(t *testing.T) string {
	t.Helper()
	_, data := source(t, 1)
	src := imagetest.Write(t, t.TempDir(), "src.img", data[:64*kib])
	require.NoError(t, os.Chmod(src, 0o440))
	return src
}

// Outputs that a file system does not allow are refused before a byte is written, without touching files of another
// run.
func TestOutputsThatAFileSystemRefuses(t *testing.T) {
	t.Parallel()
	if oddfs.Answered(t, order.write) {
		return
	}
	src := readOnlySource(t)
	for name, c := range map[string]struct {
		m    oddfs.Manners
		says string
		left []string
	}{
		"locked by another": {
			oddfs.Failing("lock", syscall.EAGAIN), "in use by another run", []string{".out.vmdk.partial"},
		},
		"made by another": {oddfs.Failing("create .out.vmdk.partial", syscall.EEXIST), "in use by another run", nil},
		"not to be made":  {oddfs.Failing("create .out.vmdk.partial", syscall.EACCES), "create ", nil},
		"no trial":        {oddfs.Failing("create .out.vmdk.trial", syscall.EACCES), "create ", nil},
		"not to be read":  {oddfs.Failing("read", syscall.EIO), "read back ", nil},
		"no names":        {oddfs.Failing("rename2", syscall.EIO), "rename ", nil},
		"no names without flags": {
			oddfs.Failing("rename2", syscall.EINVAL, "rename", syscall.EIO), "rename ", nil,
		},
		"no sync":            {oddfs.Failing("fsync", syscall.EIO), "sync ", nil},
		"no sync of folders": {oddfs.Failing("fsyncdir", syscall.EIO), "sync ", nil},
		"not to be measured": {oddfs.Failing("statfs", syscall.EIO), "free space", nil},
		"an old one that cannot be opened": {
			oddfs.Failing("open", syscall.EACCES), "read back ", []string{"out.vmdk", "out-flat.vmdk"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var j oddfs.Journal
			c.m.Journal = &j
			o := outputCalls{kind: "two files", src: src, behind: t.TempDir()}
			if len(c.left) == 2 {
				o.kind = "replaced"
				startsWith[o.kind](t, src, o.behind)
			}
			o.path = filepath.Join(oddfs.Mount(t, o.behind, c.m), "out.vmdk")
			_, said := o.write(t)
			require.Contains(t, said, c.says)
			require.ElementsMatch(t, c.left, disktest.Names(t, o.behind))
			require.NotContains(t, j.Done(), "write")
		})
	}
}

// outputCalls is one output that is written repeatedly.
type outputCalls struct {
	kind, src, path string
	few             bool              // with more and more open files
	behind          string            // the folder of the output
	notes           string            // its content when no call fails
	old, new        map[string]string // sums of the files before and after
	done            []string          // calls without a failure
	j               oddfs.Journal
	ask             func(order) told
}

// write writes the output in a process.
func (c *outputCalls) write(t *testing.T) (notes, said string) {
	t.Helper()
	if c.ask == nil {
		c.ask = oddfs.Asker[order, told](t)
	}
	x := c.ask(order{c.kind, c.src, c.path, c.few})
	return x.Notes, x.Error
}

func (c *outputCalls) run(t *testing.T, fails bool) {
	t.Helper()
	for name := range sums(t, c.behind) {
		require.NoError(t, os.Remove(filepath.Join(c.behind, name)))
	}
	if start := startsWith[c.kind]; start != nil {
		start(t, c.src, c.behind)
	}
	c.old = sums(t, c.behind)
	notes, said := c.write(t)
	failed, now := c.j.Failed(), sums(t, c.behind)
	if !fails {
		require.Empty(t, said)
		require.Equal(t, c.notes, notes)
		require.NotEmpty(t, now)
		for name := range now {
			require.False(t, strings.HasPrefix(name, "."), name)
		}
		c.new, c.done = now, c.j.Done()
		return
	}
	// One of the last calls is the kernel's own and happens in some runs only: then no call was left to fail.
	if failed == "" {
		require.Empty(t, said)
		require.Equal(t, c.new, now)
		return
	}
	if said == "" {
		c.j.Ignored()
		require.NotContains(t, mustFail, failed)
	} else {
		requireNamed(t, failed, said)
	}
	// The file under the final name is the copy, or the old one; no error claims that the copy exists. Remains of a
	// killed run may disappear at any time.
	is, main := c.new, "out.vmdk"
	if c.kind == "report" {
		main += ".txt"
	}
	if said != "" && now[main] != c.new[main] {
		is = c.old
	}
	for name, sum := range is {
		if !strings.HasPrefix(name, ".") && (said == "" || !strings.HasSuffix(c.kind, "after a kill")) {
			require.Equal(t, sum, now[name], "%s failed: %s: %s", failed, said, name)
		}
	}
	// A partial name stays if it could not be removed, or could belong to another run.
	stays := strings.HasPrefix(failed, "unlink") || strings.Contains(said, "in use by another run") ||
		strings.Contains(said, "file exists")
	for name, sum := range now {
		if strings.HasSuffix(name, ".replaced") && now[main] == c.new[main] {
			continue // the next run removes what it marks
		}
		if is[name] == "" && (!strings.HasPrefix(name, ".") || !stays) {
			require.Equal(t, c.old[name], sum, "%s failed: %s: %s is left", failed, said, name)
		}
	}
}

// sums returns the sums and the modes of the files of a folder.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range disktest.Names(t, dir) {
		path := filepath.Join(dir, name)
		b := disktest.ReadFile(t, path)
		st, err := os.Lstat(path)
		require.NoError(t, err)
		out[name] = fmt.Sprintf("%x %v", sha256.Sum256(b), st.Mode())
	}
	return out
}

// guesses are texts of errors that do not have the failing call, but only its consequence.
var guesses = []string{"in use by another run", "without file locks", "permission denied", "exists"}

// requireNamed requires that the report of a failing call names its error, or is a guess.
func requireNamed(t *testing.T, failed, said string) {
	t.Helper()
	if failed == "unlink out-flat.vmdk" ||
		!slices.ContainsFunc(guesses, func(text string) bool { return strings.Contains(said, text) }) {
		require.Contains(t, said, syscall.EIO.Error(), failed)
	}
}

// requireOrder requires that fsync is tried on file and folder before a byte is written, that bytes are durable before
// a file gets its name, that second files get their names before DEST, and that all names are durable at the end.
func requireOrder(t *testing.T, kind string, done []string) {
	t.Helper()
	if kind == "replaced" {
		require.Contains(t, done, "link .out-flat.vmdk.replaced", "the mark for a run after a kill")
	}
	done = slices.DeleteFunc(done, func(op string) bool {
		return !slices.Contains([]string{
			"write", "fsync", "fsyncdir", "link out-flat.vmdk", "rename2 out.vmdk",
			"rename out.vmdk",
		}, op)
	})
	done = slices.Compact(done)
	end := slices.Index(done, "fsyncdir") + 1
	require.Equal(t, []string{"fsync", "fsyncdir"}, done[:end], kind)
	want := []string{"link out-flat.vmdk", "fsyncdir", "rename2 out.vmdk", "fsyncdir"}
	if kind == "replaced" {
		want = []string{"rename out.vmdk", "fsyncdir"}
	}
	tail := len(done) - len(want)
	require.Equal(t, want, done[tail:], kind)
	require.Equal(t, "fsync", done[tail-1], kind)
	require.Contains(t, done[end:tail], "write", kind)
}

package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
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
)

// callsEnv makes the test a process that writes one output: a process cannot wait for a file system that it serves
// itself. It has the kind of the output, the source and the path of the output.
const callsEnv = "TRUEUP_TEST_CALLS"

// outputs are ways to write a copy of an image at a path.
var outputs = map[string]func(src, path string) error{
	"two files": func(src, path string) error { return writeCopy(src, path, flat) },
	"replaced":  func(src, path string) error { return writeCopy(src, path, forced(imagetest.Kinds[1])) },
	"package":   writePackage,
}

func writeCopy(src, path string, o store.CreateOptions) error {
	img, err := image.Open(src, image.Options{})
	if err != nil {
		return err
	}
	out, err := store.Create(path, img.Disk.Size(), img, o)
	if err != nil {
		return err
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
	return errors.Join(finish(out, fill, proved), img.Close())
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
func finish(out *store.Output, steps ...func() error) error {
	for _, step := range append(steps, out.Publish) {
		if err := step(); err != nil {
			return errors.Join(err, out.Discard())
		}
	}
	return out.Discard()
}

// writePackage copies the source twice, as two files of a package.
func writePackage(src, path string) error {
	files, err := image.OpenFiles(src, nil)
	if err != nil {
		return err
	}
	out, first, err := store.CreateFiles(path, files, false)
	if err != nil {
		return err
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
	return errors.Join(finish(out, fill, proved), files.Close())
}

// mustFail are the calls without which there is no copy, or none that survives a loss of power.
var mustFail = []string{"create .out.vmdk.partial", "create .out-flat.vmdk.partial", "fsync", "fsyncdir", "truncate", "write"}

// mayFail is how many calls of each kind may fail without an effect: a trial of links fails as on a file system without,
// a file that a lock keeps from being read is unlocked, second names stay, and an old image that cannot be read is
// replaced all the same.
var mayFail = map[string]map[string]int{
	"two files": {"link": 1, "open": 1, "read": 1, "unlink": 1},
	"package":   {"link": 1, "open": 1, "read": 1, "unlink": 1},
	"replaced":  {"link": 2, "open": 1, "opendir": 1, "readdir": 1, "read": 5, "unlink": 2},
}

// manners are those of file systems that lack calls of a publication.
var manners = map[string]map[string]syscall.Errno{
	"a disk":                   nil,
	"no links":                 {"link": syscall.EPERM},
	"no flags of rename":       {"rename2": syscall.EINVAL},
	"neither links nor flags":  {"link": syscall.EPERM, "rename2": syscall.EINVAL},
	"no locks, no permissions": {"lock": syscall.ENOLCK, "chmod": syscall.EPERM},
}

// TestEveryCallOfAnOutputFails has each call on the file system of an output fail in turn, on file systems of several
// manners. The output is complete afterwards, or what it was, and an error says so. Without a fault the order of calls
// is that in which a loss of power does no harm.
func TestEveryCallOfAnOutputFails(t *testing.T) {
	t.Parallel()
	if args := strings.Split(os.Getenv(callsEnv), "\n"); len(args) == 3 {
		err := outputs[args[0]](args[1], args[2])
		fmt.Fprintf(os.Stderr, "end: %v", err)
		return
	}
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	_, data := source(t, 1)
	src := imagetest.Write(t, t.TempDir(), "src.img", data[:64*kib])
	for kind, on := range map[string][]string{
		"two files": slices.Collect(maps.Keys(manners)), "replaced": {"a disk", "neither links nor flags"}, "package": {"a disk"},
	} {
		for _, name := range on {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				fail := manners[name]
				c := outputCalls{kind: kind, src: src, behind: t.TempDir(), before: t.TempDir()}
				if kind == "replaced" {
					imagetest.Copy(t, imagetest.Open(t, src), filepath.Join(c.before, "out.vmdk"), flat)
				}
				c.old = sums(t, c.before)
				c.path = filepath.Join(oddfs.Mount(t, c.behind, oddfs.Manners{Fail: fail, Journal: &c.j}), "out.vmdk")
				c.j.EachFails(func(fails bool) { c.run(t, fails) })
				c.j.RequireNoticed(t, mayFail[kind])
				if fail == nil {
					requireOrder(t, kind, c.done)
				}
			})
		}
	}
}

// outputCalls is one output, written again and again.
type outputCalls struct {
	kind, src, path string
	behind, before  string            // the folder of the output, and what it has before
	old, new        map[string]string // sums of the files before and after
	done            []string          // calls when none fails
	j               oddfs.Journal
}

func (c *outputCalls) run(t *testing.T, fails bool) {
	t.Helper()
	for name := range sums(t, c.behind) {
		require.NoError(t, os.Remove(filepath.Join(c.behind, name)))
	}
	require.NoError(t, os.CopyFS(c.behind, os.DirFS(c.before)))
	cmd := exec.Command(os.Args[0], "-test.run=^TestEveryCallOfAnOutputFails$")
	cmd.Env = append(os.Environ(), callsEnv+"="+strings.Join([]string{c.kind, c.src, c.path}, "\n"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	_, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	said, found := strings.CutPrefix(stderr.String(), "end: ")
	require.True(t, found, stderr.String())
	failed, now := c.j.Failed(), sums(t, c.behind)
	if !fails {
		require.Equal(t, "<nil>", said)
		require.Contains(t, now, "out.vmdk")
		c.new, c.done = now, c.j.Done()
		return
	}
	require.NotEmpty(t, failed)
	if said == "<nil>" {
		c.j.Ignored()
		require.NotContains(t, mustFail, failed)
	}
	// What has a name is the copy, or what was there before; that the copy is there is what no error says.
	is := c.new
	if said != "<nil>" && now["out.vmdk"] != c.new["out.vmdk"] {
		is = c.old
	}
	for name, sum := range is {
		require.Equal(t, sum, now[name], "%s failed: %s: %s", failed, said, name)
	}
	for name, sum := range now {
		if is[name] == "" && !strings.HasPrefix(name, ".") {
			require.Equal(t, c.old[name], sum, "%s failed: %s: %s is left", failed, said, name)
		}
	}
}

// sums returns the sums of the files of a folder.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, name := range imagetest.Names(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		out[name] = fmt.Sprintf("%x", sha256.Sum256(b))
	}
	return out
}

// requireOrder requires that the file system is asked for its calls before a byte is written, that bytes are durable
// before a file has its name, the names of second files before that of DEST, and that one before the end.
func requireOrder(t *testing.T, kind string, done []string) {
	t.Helper()
	done = slices.DeleteFunc(done, func(op string) bool {
		return !slices.Contains([]string{"write", "fsync", "fsyncdir", "link out-flat.vmdk", "rename2 out.vmdk", "rename out.vmdk"}, op)
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

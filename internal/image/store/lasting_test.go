package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/unfinished"
)

// ended leaves what a copy that can go on leaves when it is ended in front of its publication.
func ended(t *testing.T, src *image.Image, path string, o store.CreateOptions) {
	t.Helper()
	o.Order = []byte("order")
	out := imagetest.Fill(t, src, path, o, 2)
	_, written := out.Counts()
	require.Positive(t, written)
	out.Keep(false)
	require.NoError(t, out.Discard())
}

// goOn completes such a copy.
func goOn(t *testing.T, src *image.Image, path string, o store.CreateOptions) (written int64) {
	t.Helper()
	w, err := unfinished.Hold(path, "")
	require.NoError(t, err)
	o.Order, o.Going = w.Plan(), w
	out := imagetest.Fill(t, src, path, o, 2)
	_, written = out.Counts()
	require.NoError(t, out.Publish())
	return written
}

// A DEST can have the name of another one's extent. The files of an unfinished copy are kept from every run but the one
// that goes on with it.
//
// Tests of files that are closed and locked again run alone: a program that another test starts holds them for a
// moment.
func TestFilesOfOtherUnfinishedCopies(t *testing.T) {
	src, data := source(t, 1)
	raw := imagetest.Kinds[0]
	for name, c := range map[string]struct {
		first, second   string
		began, follows  store.CreateOptions
		refused, caught bool // caught: the second copy needs no file of that name
	}{
		"a disk named as an extent":      {"out.vmdk", "out-flat.vmdk", flat, raw, true, false},
		"in another case":                {"out.vmdk", "OUT-flat.vmdk", flat, raw, false, false},
		"an extent named as a disk":      {"out-flat.vmdk", "out.vmdk", raw, flat, true, false},
		"the other name of an extent":    {"out-1-flat.vmdk", "out.vmdk", raw, flat, false, true},
		"a disk beside, without extents": {"out-flat.vmdk", "out.vmdk", raw, imagetest.Kinds[1], false, true},
		"an extent of a disk in pieces":  {"out.vmdk", "out-s001.vmdk", imagetest.Kinds[4], raw, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "in another case" {
				disktest.OnUnix(t, "names in two cases")
			}
			dir := t.TempDir()
			first, second := filepath.Join(dir, c.first), filepath.Join(dir, c.second)
			ended(t, src, first, c.began)
			left := disktest.Names(t, dir)
			if out, err := store.Create(second, src.Disk.Size(), src, c.follows); c.refused {
				var r *ondisk.Refusal
				require.ErrorAs(t, err, &r)
				require.Equal(t, "unfinished", r.Code)
				require.Contains(t, r.Reason, "belongs to "+first)
				require.Contains(t, r.Remedy, "trueup resume")
			} else {
				require.NoError(t, err)
				require.NoError(t, out.Discard())
			}
			require.Equal(t, left, disktest.Names(t, dir))
			if c.caught { // two copies that can go on, side by side
				ended(t, src, second, c.follows)
				w, err := unfinished.Hold(second, "")
				require.NoError(t, err)
				_, err = store.Settle(w, true)
				require.NoError(t, err)
				require.NoError(t, w.Close())
				require.Equal(t, left, disktest.Names(t, dir))
			}
			require.Less(t, goOn(t, src, first, c.began), int64(len(data)/4), "the data stood there")
			imagetest.Shows(t, first, data)
		})
	}
}

// A journal that cannot be read may be that of a file beside DEST, which stays.
func TestJournalOfAnotherCopyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	src, _ := source(t, 1)
	dir := t.TempDir()
	afterKill(t, "", dir)
	require.NoError(t, os.Remove(filepath.Join(dir, ".out.vmdk.partial")))
	imagetest.Write(t, dir, "out-flat.vmdk"+unfinished.Suffix, []byte("no journal"))
	want := disktest.Names(t, dir)
	imagetest.Write(t, dir, ".out.vmdk.partial", nil)
	_, err := store.Create(filepath.Join(dir, "out.vmdk"), src.Disk.Size(), src, imagetest.Kinds[1])
	require.ErrorContains(t, err, "out-flat.vmdk"+unfinished.Suffix)
	require.Equal(t, want, disktest.Names(t, dir))
}

// A copy of any format that goes on writes few of its bytes again, whatever size its files have on the way.
func TestResumedCopiesWriteLittle(t *testing.T) {
	src, data := source(t, 1)
	others := []store.CreateOptions{{Format: "vhd"}, {Format: "vhdx"}, {Format: "qcow2"}}
	for _, kind := range slices.Concat(imagetest.Kinds, others) {
		path := filepath.Join(t.TempDir(), "out."+kind.Format)
		ended(t, src, path, kind)
		require.Less(t, goOn(t, src, path, kind), int64(len(data)/4), kind)
		imagetest.Shows(t, path, data)
	}
}

// The journal of a run that had not begun keeps no other from writing.
func TestJournalThatWasNotBegun(t *testing.T) {
	t.Parallel()
	src, _ := source(t, 1)
	path := filepath.Join(t.TempDir(), "out.img")
	require.NoError(t, os.WriteFile(unfinished.JournalOf(path), nil, 0o600))
	out, err := store.Create(path, src.Disk.Size(), src, imagetest.Kinds[0])
	require.NoError(t, err)
	require.NoError(t, out.Discard())
}

// A journal is no name of a DEST or of a report: --force would replace the way on from hours of work.
func TestJournalsAreNotWritten(t *testing.T) {
	src, _ := source(t, 1)
	path := filepath.Join(t.TempDir(), "out.img")
	ended(t, src, path, imagetest.Kinds[0])
	_, err := store.Create(path, src.Disk.Size(), src, forced(imagetest.Kinds[0]))
	var r *ondisk.Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, "unfinished", r.Code)
	for _, role := range []store.Purpose{store.Copy, store.Report, store.Database} {
		_, err := (store.Place{Flag: "DEST", Path: path + unfinished.Suffix, Role: role, Force: true}).Settle()
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, "a journal of trueup")
	}
	goOn(t, src, path, imagetest.Kinds[0])
}

// mayFailToResume is how many calls of each kind may fail without an effect when a copy goes on: see mayFail. The
// second name of a file stays, and the journal, or its removal does not last. The lock of the journal ends with it.
var mayFailToResume = map[string]int{"fsyncdir": 1, "link": 1, "lock": 1, "open": 1, "read": 1, "unlink": 2}

// TestEveryCallOfAResumeFails has each call on the file system of a copy that goes on fail in turn. The copy is
// complete then, or the next run completes it.
func TestEveryCallOfAResumeFails(t *testing.T) {
	t.Parallel()
	if oddfs.Answered(t, order.write) {
		return
	}
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	begun, c := t.TempDir(), outputCalls{kind: "resumed", src: readOnlySource(t), behind: t.TempDir()}
	ended(t, imagetest.Open(t, c.src), filepath.Join(begun, "out.vmdk"), flat)
	require.NoError(t, os.Truncate(filepath.Join(begun, ".out-flat.vmdk.partial"), 128*kib)) // twice the disk
	c.path = filepath.Join(oddfs.Mount(t, c.behind, oddfs.Manners{Journal: &c.j}), "out.vmdk")
	var want map[string]string
	c.j.EachFails(func(fails bool) {
		for name := range sums(t, c.behind) {
			require.NoError(t, os.Remove(filepath.Join(c.behind, name)))
		}
		for name := range sums(t, begun) {
			b, err := os.ReadFile(filepath.Join(begun, name))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(c.behind, name), b, 0o640))
		}
		// It was killed while it gave its files their names.
		require.NoError(t, os.Link(filepath.Join(c.behind, ".out-flat.vmdk.partial"),
			filepath.Join(c.behind, "out-flat.vmdk")))
		_, said := c.write(t)
		failed, now := c.j.Failed(), sums(t, c.behind)
		if !fails {
			require.Empty(t, said)
			require.Len(t, now, 2)
			requireFlushedFirst(t, c.j.Done())
			want = now
			return
		}
		if said == "" {
			c.j.Ignored()
		} else {
			requireNamed(t, failed, said)
			if now["out.vmdk"] != "" {
				require.Equal(t, want["out.vmdk"], now["out.vmdk"], failed)
				require.Equal(t, want["out-flat.vmdk"], now["out-flat.vmdk"], failed)
			}
		}
		c.j.Restart(0)
		if _, again := c.write(t); !strings.Contains(again, syscall.ENOENT.Error()) { // the journal was removed
			require.Empty(t, again, failed)
		}
		now = sums(t, c.behind)
		for name, sum := range want {
			require.Equal(t, sum, now[name], "%s failed: %s: %s", failed, said, name)
		}
	})
	c.j.RequireNoticed(t, mayFailToResume)
}

// requireFlushedFirst requires that bytes of an earlier run are durable before they are compared, and that the journal
// says that the copy is complete before DEST has its name.
func requireFlushedFirst(t *testing.T, done []string) {
	t.Helper()
	linked, named := slices.Index(done, "link out-flat.vmdk"), slices.Index(done, "rename2 out.vmdk")
	require.Subset(t, done[linked:named], []string{"write", "fsync"})
	locked := linked - 1
	for done[locked] != "lock" {
		locked--
	}
	adopted := done[locked:linked]
	require.Contains(t, adopted[:slices.Index(adopted, "read")], "fsync")
}

// What stands behind the end of a file that a copy goes on with goes.
func TestResumedCopiesEndWhereTheyShould(t *testing.T) {
	src, data := source(t, 1)
	path := filepath.Join(t.TempDir(), "out.img")
	ended(t, src, path, imagetest.Kinds[0])
	partial := filepath.Join(filepath.Dir(path), ".out.img.partial")
	require.NoError(t, os.Truncate(partial, int64(len(data))+4096))
	goOn(t, src, path, imagetest.Kinds[0])
	require.Equal(t, data, disktest.ReadFile(t, path))
}

// A file with a second name is not gone on with: what it is called there would be written, too.
func TestFilesWithASecondNameAreNotGoneOnWith(t *testing.T) {
	src, _ := source(t, 1)
	dir := t.TempDir()
	path := filepath.Join(dir, "out.img")
	ended(t, src, path, imagetest.Kinds[0])
	require.NoError(t, os.Link(filepath.Join(dir, ".out.img.partial"), filepath.Join(dir, "other.img")))
	w, err := unfinished.Hold(path, "")
	require.NoError(t, err)
	o := imagetest.Kinds[0]
	o.Order, o.Going = []byte("order"), w
	_, err = store.Create(path, src.Disk.Size(), src, o)
	require.ErrorIs(t, err, ondisk.ErrReference)
	require.ErrorContains(t, err, "it has a second name")
	require.NoError(t, w.Close())
}

// resume goes on with a copy whose files lie at a path.
func resume(src, path string) (notes []string, err error) {
	w, err := unfinished.Hold(path, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if complete, err := store.Settle(w, false); complete || err != nil {
		return nil, err
	}
	o := flat
	o.Order, o.Going = w.Plan(), w
	return writeCopy(src, path, o)
}

package store_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
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

// A journal is no name of a DEST or of a report: --force would replace the way on from hours of work.
func TestJournalsAreNotWritten(t *testing.T) {
	src, _ := source(t, 1)
	path := filepath.Join(t.TempDir(), "out.img")
	ended(t, src, path, imagetest.Kinds[0])
	for _, role := range []store.Purpose{store.Copy, store.Report, store.Database} {
		_, err := (store.Place{Flag: "DEST", Path: path + unfinished.Suffix, Role: role, Force: true}).Settle()
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, "a journal of trueup")
	}
	goOn(t, src, path, imagetest.Kinds[0])
}

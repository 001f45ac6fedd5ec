package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// viewName is the view that tests make of a disk, in the folder of the disk.
const viewName = "the-view.vmdk"

// requireSameView makes a view of a disk, has QEMU compare it with the aligned copy, and removes it.
func requireSameView(t testing.TB, source, aligned string, flags ...string) {
	t.Helper()
	removeView(t, sameView(t, source, aligned, flags...))
}

// sameView is requireSameView that leaves the view.
func sameView(t testing.TB, source, aligned string, flags ...string) (view string) {
	t.Helper()
	view = filepath.Join(filepath.Dir(source), viewName)
	r := trueup(t, append([]string{"view", source, view}, flags...)...)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	format := "raw"
	if filepath.Ext(aligned) == ".vmdk" {
		format = "vmdk"
	}
	require.Contains(t, disktest.Run(t, "qemu-img", "compare", "-f", "vmdk", "-F", format, view, aligned), "identical")
	return view
}

// removeView removes the two files of a view.
func removeView(t testing.TB, view string) {
	t.Helper()
	require.NoError(t, os.Remove(view))
	require.NoError(t, os.Remove(strings.TrimSuffix(view, ".vmdk")+"-head.vmdk"))
}

// changeTimes lists the files of a folder and when each was last written.
func changeTimes(t testing.TB, dir string) map[string]time.Time {
	t.Helper()
	times := map[string]time.Time{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		times[e.Name()] = info.ModTime()
	}
	return times
}

// flatCorpus are raw disks and flat VMDKs of the corpus, and the flags that they need.
var flatCorpus = map[string][]string{
	"dfvfs/mbr.raw.gz": nil, "imagemounter/test.mbr.xz": nil, "mbrman/disk2.img": nil,
	"vmdk-rs/monolithicFlat.vmdk": {"--boundary", "1M"},
}

// TestViewIsTheCopy compares view and copy of disks that others made, and of such that only a text can hold. A view is
// refused for what a copy is refused.
func TestViewIsTheCopy(t *testing.T) {
	t.Parallel()
	same := func(t *testing.T, source string, flags ...string) {
		t.Helper()
		before := changeTimes(t, filepath.Dir(source))
		dest := filepath.Join(t.TempDir(), "copy.raw")
		r := trueup(t, append([]string{"align", "--to", "raw", source, dest}, flags...)...)
		name := filepath.Base(t.Name())
		// the last has a block for each partition
		if want, ok := map[string]int{"dynamic-disk": 4, "disk2.img": 0}[name]; ok {
			require.Equal(t, want, r.code)
			require.Equal(t, 4, trueup(t, "view", source, filepath.Join(filepath.Dir(source),
				viewName)).code)
		} else {
			require.Equal(t, 0, r.code, r.stderr)
			requireSameView(t, source, dest, flags...)
		}
		require.Equal(t, before, changeTimes(t, filepath.Dir(source)))
	}
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same(t, disktest.Materialize(t, disktest.Fixture(t, path)), "--allow-unbootable")
		})
	}
	for _, name := range slices.Sorted(maps.Keys(flatCorpus)) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(disktest.CorpusSet(t, filepath.Dir(name)), filepath.Base(name))
			if strings.HasSuffix(name, "z") {
				path = disktest.Corpus(t, name)
			}
			same(t, path, flatCorpus[name]...)
		})
	}
}

package store_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

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
			_, err = store.Place{Flag: "--out", Path: path}.Settle()
			require.ErrorContains(t, err, "--out "+path+" cannot be written: it is a file of the disk")
		}
	}
	path := imagetest.Write(t, dir, "free.img", []byte("mine"))
	o, err := store.Create(path, 64*kib, src, store.CreateOptions{Format: "raw", Force: true})
	require.NoError(t, err)
	require.NoError(t, o.Discard())
}

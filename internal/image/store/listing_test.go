//go:build linux

package store_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/units"
)

// If any listing of the folder fails, the folder may contain a file of the source. An unreadable file has no digest.
func TestListingsOfDest(t *testing.T) {
	behind := t.TempDir()
	img, err := image.Open(imagetest.Write(t, t.TempDir(), "src.img", make([]byte, units.MiB)), image.Options{})
	require.NoError(t, err)
	defer img.Close()
	imagetest.Write(t, behind, "out.img", make([]byte, units.MiB))
	j := &oddfs.Journal{}
	path := filepath.Join(oddfs.Mount(t, behind, oddfs.Manners{Journal: j}), "out.img")
	create := func() error {
		out, err := store.Create(path, units.MiB, img, store.CreateOptions{Format: "raw", Force: true})
		if err == nil {
			err = out.Discard()
		}
		return err
	}
	j.Restart(0)
	require.NoError(t, create())
	failed := 0
	for n, op := range j.Done() {
		if !strings.HasPrefix(op, "opendir") {
			continue
		}
		j.Restart(n + 1)
		err := create()
		if !strings.HasPrefix(j.Failed(), "opendir") {
			continue // the kernel has resolved names in another order
		}
		failed++
		require.Error(t, err, "operation %d: %s", n, op)
	}
	require.Greater(t, failed, 1)
	j.Restart(0)
	out, err := store.Create(path, units.MiB, img, store.CreateOptions{Format: "raw", Force: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	require.NoError(t, out.Finish())
	quiet := func(int64) {}
	want, err := out.Sums(t.Context(), quiet, quiet)
	require.NoError(t, err)
	refused := 0
	for n := 1; ; n++ {
		j.Restart(n)
		got, err := out.Sums(t.Context(), quiet, quiet)
		if err == nil { // the rest of a read that fails halfway is read again
			require.Equal(t, want, got)
		} else {
			require.ErrorIs(t, err, syscall.EIO, j.Failed())
			refused++
		}
		if j.Failed() == "" {
			require.Greater(t, refused, 1, "a look at the size, and a read")
			j.Restart(0) // calls at the end of the test do not fail
			return
		}
	}
}

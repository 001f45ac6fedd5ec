package ova_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// gone removes the partial file of a copy when a phase begins, after so many others.
type gone struct {
	left    int
	partial string
}

func (g *gone) Begin(string, int64) {
	if g.left--; g.left == -1 {
		_ = os.Remove(g.partial) // the copy must notice
	}
}
func (*gone) Add(int64) {}

// A package is opened anew whenever it is read back. One whose file is gone by then is an error, at any step.
func TestPackagesThatAreGone(t *testing.T) {
	t.Parallel()
	own, disk, notes := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk"), text("notes.txt", "mine")
	manifest := text("vm.mf", sum("SHA256", disk)+sum("SHA256", notes)+sum("SHA256", own))
	src := openedPackage(t, archived(t, own, disk, manifest, notes))
	fine := func() error { return nil }
	steps := 0
	for ; ; steps++ {
		dir := t.TempDir()
		g := &gone{steps, filepath.Join(dir, ".out.ova.partial")}
		_, err := rewritten(t, src, filepath.Join(dir, "out.ova"), g, fine)
		if g.left >= 0 {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, fs.ErrNotExist, "step %d", steps)
	}
	require.Greater(t, steps, 2, "a copy and digests")
	dir := t.TempDir()
	_, err := rewritten(t, src, filepath.Join(dir, "out.ova"), &gone{left: steps}, func() error {
		return os.Remove(filepath.Join(dir, ".out.ova.partial"))
	})
	require.ErrorIs(t, err, fs.ErrNotExist)
}

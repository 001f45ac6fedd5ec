//go:build linux && !386

package ova_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/store"
)

// The blocks that end an archive are in its size. One that cannot get it is no package.
func TestSizeThatIsRefused(t *testing.T) {
	dir := oddfs.Mount(t, t.TempDir(), oddfs.Manners{Fail: map[string]syscall.Errno{"truncate": syscall.EFBIG}})
	src := openedPackage(t, archived(t, text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk")))
	out, err := ova.Create(filepath.Join(dir, "out.ova"), src, ova.CreateOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, out.Discard()) }()
	require.ErrorIs(t, out.Write(t.Context(), unwatched{}, nil), syscall.EFBIG)
}

// Room that cannot be asked for is no room. A write that fails is an error, or done once more: the kernel divides long
// ones.
func TestWritesThatFail(t *testing.T) {
	src := openedPackage(t, archived(t, text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk")))
	img := opened(t, src.Path)
	j := &oddfs.Journal{}
	dir := oddfs.Mount(t, t.TempDir(), oddfs.Manners{Journal: j})
	path := filepath.Join(dir, "out.ova")
	var done []string
	job := func(fail int) ([]byte, error) {
		j.Restart(fail)
		rewrite := map[string]ova.Rewrite{"disk.vmdk": {Source: img, Size: img.Disk.Size()}}
		out, err := ova.Create(path, src, ova.CreateOptions{Rewrite: rewrite, Force: true})
		if err != nil {
			return nil, err
		}
		err = out.Write(t.Context(), unwatched{}, func(_ string, create ova.CreateDisk) error {
			o, err := create(store.CreateOptions{})
			if err != nil {
				return err
			}
			_, err = diskcopy.Run(t.Context(), img.Disk, o, diskcopy.Options{Jobs: 1})
			return errors.Join(err, o.Finish())
		})
		if err == nil {
			err = out.Publish()
		}
		done = j.Done()
		j.Restart(0)
		if err = errors.Join(err, out.Discard()); err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}
	_, err := job(0)
	require.NoError(t, err)
	want, err := job(0)
	require.NoError(t, err)
	failed := 0
	for n, op := range slices.Clone(done) {
		if op != "write" && op != "statfs" {
			continue
		}
		if got, err := job(n + 1); err == nil {
			require.Equal(t, want, got, "operation %d: %s", n, op)
		} else {
			require.ErrorIs(t, err, syscall.EIO, "operation %d: %s", n, op)
			failed++
		}
	}
	require.Greater(t, failed, 4, "for room, and to write a disk, two headers and an OVF")
}

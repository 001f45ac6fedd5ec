//go:build linux && !386

package ova_test

import (
	"errors"
	"path/filepath"
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

// Room that cannot be asked for is no room, whenever it is asked for.
func TestRoomThatIsNotKnown(t *testing.T) {
	src := openedPackage(t, archived(t, text("vm.ovf", envelope(`ovf:href="disk.vmdk"`)), sparse("disk.vmdk")))
	img := opened(t, src.Path)
	j := &oddfs.Journal{}
	dir := oddfs.Mount(t, t.TempDir(), oddfs.Manners{Journal: j})
	job := func() error {
		rewrite := map[string]ova.Rewrite{"disk.vmdk": {Source: img, Size: img.Disk.Size()}}
		out, err := ova.Create(filepath.Join(dir, "out.ova"), src, ova.CreateOptions{Rewrite: rewrite})
		if err != nil {
			return err
		}
		err = out.Write(t.Context(), unwatched{}, func(_ string, create ova.CreateDisk) error {
			o, err := create(store.CreateOptions{})
			if err != nil {
				return err
			}
			_, err = diskcopy.Run(t.Context(), img.Disk, o, diskcopy.Options{Jobs: 1})
			return errors.Join(err, o.Finish())
		})
		return errors.Join(err, out.Discard())
	}
	j.Restart(0)
	require.NoError(t, job())
	asked := 0
	for n, op := range j.Done() {
		if op == "statfs" {
			asked++
			j.Restart(n + 1)
			require.ErrorIs(t, job(), syscall.EIO, "operation %d", n)
		}
	}
	require.Positive(t, asked)
}

//go:build linux

package ova_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
)

// A file that cannot be read may be a package.
func TestUnreadablePackages(t *testing.T) {
	dir := t.TempDir()
	imagetest.Write(t, dir, "plain.img", make([]byte, mib))
	imagetest.Write(t, dir, "vm.ovf", []byte(envelope()))
	broken := oddfs.Mount(t, dir, oddfs.Manners{Fail: map[string]syscall.Errno{"read": syscall.EIO}})
	for want, path := range map[error]string{
		nil: filepath.Join(dir, "vm.ovf"), ondisk.ErrNoMatch: filepath.Join(dir, "plain.img"),
		fs.ErrNotExist: filepath.Join(dir, "absent"), syscall.EIO: filepath.Join(broken, "vm.ovf"),
	} {
		d, err := gate.OpenFolder(filepath.Dir(path))
		require.NoError(t, err)
		p, err := ova.OpenIn(d, filepath.Base(path))
		require.ErrorIs(t, err, want)
		if err == nil {
			require.NoError(t, p.Close())
		}
	}
}

// rewrites writes a package with one disk copied by a job, and returns its files.
func rewrites(t *testing.T, src *ova.Package, img *image.Image, behind, path string) (map[string]string, error) {
	t.Helper()
	for _, name := range disktest.Names(t, behind) {
		require.NoError(t, os.Remove(filepath.Join(behind, name)))
	}
	rewrite := map[string]ova.Rewrite{"disk.vmdk": {Source: img, Size: img.Disk.Size()}}
	out, err := ova.Create(path, src, ova.CreateOptions{Rewrite: rewrite})
	if err != nil {
		return nil, err
	}
	err = out.Write(t.Context(), diskcopy.Unwatched{}, func(_ string, create ova.CreateDisk) error {
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
	files := map[string]string{}
	for _, name := range disktest.Names(t, behind) {
		files[name] = string(disktest.ReadFile(t, filepath.Join(behind, name)))
	}
	return files, errors.Join(err, out.Discard())
}

// Unknown free space is no refusal. A failing call is an error, or is repeated: the kernel divides long ones. All files
// are flushed after the last byte, and before they get their names.
func TestCallsThatFail(t *testing.T) {
	own := text("vm.ovf", envelope(`ovf:href="disk.vmdk"`, `ovf:href="more.img"`))
	disk := text("disk.vmdk", string(vmdkforge.NewSparse(noise(41, 256*sector)).Bytes))
	more := text("more.img", strings.Repeat("more", 1024))
	calls := []string{"fsync", "open", "statfs", "truncate", "write"}
	manifest := text("vm.mf", sum("SHA256", own)+sum("SHA256", disk)+sum("SHA256", more))
	src := openedPackage(t, archived(t, own, manifest, disk, more))
	img := opened(t, src.Path+"!disk.vmdk")
	for name, files := range map[string]int{"out.ova": 1, "out.ovf": 4} {
		j, behind := &oddfs.Journal{}, t.TempDir()
		path := filepath.Join(oddfs.Mount(t, behind, oddfs.Manners{Journal: j}), name)
		want, err := rewrites(t, src, img, behind, path)
		require.NoError(t, err)
		require.Len(t, want, files)
		failed := map[string]int{}
		done := j.Done()
		named := slices.IndexFunc(done, func(op string) bool {
			return strings.HasPrefix(op, "link out.") || op == "rename2 out.ova"
		})
		require.Positive(t, named, done)
		flushed := 0 // between the last write and the first name
		for _, op := range done[:named] {
			switch op {
			case "write":
				flushed = 0
			case "fsync":
				flushed++
			}
		}
		require.Equal(t, files, flushed, done)
		made := map[string]int{}
		for _, op := range done {
			if !slices.Contains(calls, op) {
				continue
			}
			made[op]++
			j.RestartFailing(op, made[op])
			got, err := rewrites(t, src, img, behind, path)
			switch {
			case j.Failed() == "": // the kernel divided fewer writes
			case err == nil:
				require.Contains(t, []string{"open", "write"}, op)
				require.Equal(t, want, got, op)
			default:
				require.ErrorIs(t, err, syscall.EIO, op)
				failed[op]++
			}
		}
		require.Greater(t, failed["write"], 4, "a disk, two headers and an OVF")
	}
}

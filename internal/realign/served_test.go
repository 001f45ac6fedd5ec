package realign

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

// held reports whether QEMU could not open a file for writing. Spec: QEMU block/file-posix.c, RAW_LOCK_SHARED_BASE.
func held(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	locked, err := sys.Of(f).LockedByte(201)
	require.NoError(t, err)
	return locked
}

// A served disk is the planned one, and its source is held until the end; a change of the source is found.
func TestServedDisk(t *testing.T) {
	t.Parallel()
	raw := oldLinux(t, t.TempDir())
	s := open(t, raw)
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	view, err := s.View(p)
	require.NoError(t, err)
	want, err := io.ReadAll(io.NewSectionReader(view, 0, view.Size()))
	require.NoError(t, err)
	v, err := s.Serve(t.Context(), p)
	require.NoError(t, err)
	disktest.CheckBytes(t, v.Disk, want)
	require.True(t, held(t, raw))
	require.NoError(t, v.Fit())
	require.NoError(t, os.Chtimes(raw, time.Unix(1, 0), time.Unix(1, 0)))
	require.ErrorIs(t, v.Fit(), ondisk.ErrChanged)
	v.Close()
	require.False(t, held(t, raw))
}

// What a copy would be refused for is not served, and its source is not held.
func TestDisksThatAreNotServed(t *testing.T) {
	t.Parallel()
	raw := oldLinux(t, t.TempDir())
	s := open(t, raw)
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	p.Patches[0].Old = append([]byte{^p.Patches[0].Old[0]}, p.Patches[0].Old[1:]...)
	_, err = s.Serve(t.Context(), p)
	require.ErrorIs(t, err, verify.ErrDifferent)
	require.False(t, held(t, raw))

	dir := t.TempDir()
	smallPackage(t, dir)
	one := filepath.Join(dir, "one.vmdk")
	b := disktest.ReadFile(t, one)
	require.NoError(t, os.WriteFile(one, append(b, make([]byte, 512)...), 0o644)) // not what the manifest says
	m := member(t, filepath.Join(dir, "vm.ovf")+"!one.vmdk")
	p, err = m.Plan(Goal{})
	require.NoError(t, err)
	_, err = m.Serve(t.Context(), p)
	require.ErrorIs(t, err, ova.ErrDigest)
	require.False(t, held(t, one))
}

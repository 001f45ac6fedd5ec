package realign

import (
	"bytes"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// A cost that could not be computed is an error, whichever read of the source fails. A partition that does not exist
// has no plan.
func TestCostOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	s := open(t, oldLinux(t, t.TempDir()))
	_, err := s.PlanAmong(nil, Goal{Only: []int{9}}, nil)
	require.ErrorContains(t, err, "has no partition 9")
	p, err := s.PlanAmong(nil, Goal{}, nil)
	require.NoError(t, err)
	disktest.EveryReadCounts(t, s.Image.Disk, func(d disk.Disk) error {
		was := s.Image.Disk
		defer func() { s.Image.Disk = was }()
		s.Image.Disk = d
		_, err := s.Cost(p)
		return err
	})
}

// Files are counted in partitions, and on disks that are one volume. mke2fs makes two folders: the root and lost+found.
func TestFragmentsOfVolumes(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(files, "one"), bytes.Repeat([]byte("text "), 10_000), 0o644))
	whole := filepath.Join(dir, "whole.img")
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext2", "-d", files, whole, "4m")
	for number, path := range []string{whole, oldLinux(t, dir)} {
		got, err := open(t, path).Fragments()
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, number, got[0].Number)
		require.NoError(t, got[0].Err)
		require.EqualValues(t, 1, got[0].Files.Number)
		require.EqualValues(t, 2, got[0].Folders.Number)
	}
}

// counted counts the bytes that are read of a disk.
type counted struct {
	disk.Disk
	read *atomic.Int64
}

func (c counted) ReadAt(p []byte, off int64) (int, error) {
	c.read.Add(int64(len(p)))
	return c.Disk.ReadAt(p, off)
}

// The proof of a copy does not read its source again.
func TestTheSourceIsReadOnce(t *testing.T) {
	t.Parallel()
	s := open(t, oldLinux(t, t.TempDir()))
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	var read [2]atomic.Int64
	was := s.Image.Disk
	for i, full := range []bool{false, true} {
		s.Image.Disk = counted{was, &read[i]}
		to := File{Path: filepath.Join(t.TempDir(), "copy.img")}
		_, err := (&Job{Full: full, Jobs: 2}).Write(t.Context(), s, p, to)
		require.NoError(t, err)
	}
	require.Positive(t, read[0].Load())
	require.Equal(t, read[0].Load(), read[1].Load())
}

package ntfs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Sorting the runs of a file takes longer than reading them, and a volume can have many such files.
func TestFilesOfManyRunsCost(t *testing.T) {
	n := newFileSystem(guestfile.NewBudget(), filetest.Memory(make([]byte, 70<<20)))
	n.cluster, n.clusters = 512, 1<<20
	v := &value{fs: n, found: true, size: 512, initialised: 512, clusters: guestfile.MaxRuns, runs: filetest.ManyRuns()}
	filetest.EndsWithin(t, 100, func() error {
		_, err := v.file("file")
		return err
	})
}

// File systems that share a budget end together.
func TestSharedBudget(t *testing.T) {
	volume := filetest.RawImage(t, mkntfs(t, 2<<20))
	b := guestfile.NewBudget()
	_, err := Open(b, volume)
	require.NoError(t, err)
	b.Runs.Limit = 1
	_, err = Open(b, volume)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	b = guestfile.NewBudget()
	first, err := Open(b, volume)
	require.NoError(t, err)
	b.Work.Limit = 1
	_, err = first.List("")
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = Open(b, volume)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

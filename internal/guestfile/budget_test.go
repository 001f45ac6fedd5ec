package guestfile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// manyRuns are as many stretches as a file can have, the last one first on the disk.
func manyRuns() []Run {
	runs := make([]Run, maxRuns)
	for i := range runs {
		runs[i] = Run{Off: int64(i) * 512, Len: 512, At: int64(len(runs)-i) * 1024}
	}
	return runs
}

// To sort the stretches of a file takes longer than to read them, and a volume can have many such files.
func TestFilesOfManyRunsCost(t *testing.T) {
	n := NewBudget().ntfs(memory(make([]byte, 70<<20)))
	n.cluster, n.clusters = 512, 1<<20
	v := &ntfsValue{fs: n, found: true, size: 512, initialised: 512, clusters: maxRuns, runs: manyRuns()}
	m := &extMap{fs: &extFS{meter: NewBudget().of(nil)}, runs: v.runs}
	for name, open := range map[string]func() error{
		"ext": m.disjoint,
		"ntfs": func() error {
			_, err := v.file("file")
			return err
		},
	} {
		var err error
		files := 0
		for ; err == nil; files++ {
			err = open()
		}
		require.ErrorIs(t, err, ondisk.ErrLimit, name)
		require.Less(t, files, 100, name)
	}
}

// File systems that share a budget end together.
func TestSharedBudget(t *testing.T) {
	volume := rawImage(t, mkntfs(t, 2<<20))
	b := NewBudget()
	_, err := b.NTFS(volume)
	require.NoError(t, err)
	b.runs.Limit = 1
	_, err = b.NTFS(volume)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	b = NewBudget()
	first, err := b.NTFS(volume)
	require.NoError(t, err)
	b.work.Limit = 1
	_, err = first.List("")
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = b.NTFS(volume)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

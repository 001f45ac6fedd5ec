package freespace_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

type source struct{ err error }

func (s source) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	if s.err != nil {
		return 0, s.err
	}
	return len(p), nil
}

func parts(n int, kind volume.Kind) (out []freespace.Part) {
	for i := range n {
		r := disk.Range{Off: int64(i) << 20, Len: 1 << 20}
		out = append(out, freespace.Part{Number: i + 1, Kind: kind, Range: r})
	}
	return out
}

func zeros(err error) disk.Disk {
	return disk.New(1<<30, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 1<<30 - off, Src: source{err}, Off: off}, nil
	})
}

// Every file system whose files are read has its files counted.
func TestEveryReaderHasAWalk(t *testing.T) {
	t.Parallel()
	for _, kind := range slices.Sorted(maps.Keys(boot.Readers)) {
		got, err := freespace.Count(zeros(nil), parts(1, kind))
		require.NoError(t, err)
		require.Len(t, got, 1, kind)
		require.ErrorIs(t, got[0].Err, ondisk.ErrNoMatch, kind)
	}
	got, err := freespace.Count(zeros(nil), parts(3, volume.Unknown))
	require.NoError(t, err)
	require.NotNil(t, got)
	require.Empty(t, got)
}

func TestErrorsOfReadingSurface(t *testing.T) {
	t.Parallel()
	bad := errors.New("input/output error")
	_, err := freespace.Count(zeros(bad), parts(1, volume.NTFS))
	require.ErrorIs(t, err, bad)
}

// A table can name thousands of volumes.
func TestVolumesAreBounded(t *testing.T) {
	t.Parallel()
	got, err := freespace.Count(zeros(nil), parts(500, volume.FAT16))
	require.NoError(t, err)
	require.Len(t, got, 129)
	require.ErrorIs(t, got[128].Err, ondisk.ErrLimit)
	got, err = freespace.Count(zeros(nil), []freespace.Part{
		{Kind: volume.NTFS, Range: disk.Range{Off: 1 << 29, Len: 1 << 30}},
		{Kind: volume.NTFS, Range: disk.Range{Off: -1, Len: 9}},
	})
	require.NoError(t, err)
	require.Empty(t, got, "parts that leave the disk")
}

// Of a divided volume those parts are looked at that lie in one place, and the others are named.
func TestPartsOfAVolume(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	r := disk.Range{Off: 10 * mib, Len: 100 * mib}
	names := func(v *volume.Volume) (out []string) {
		for _, p := range freespace.PartsOf(3, r, v) {
			require.Equal(t, 3, p.Number)
			out = append(out, fmt.Sprint(p.Name, " ", p.Kind, " ", p.Off/mib, " ", p.Len/mib))
		}
		return out
	}
	require.Equal(t, []string{" ntfs 10 100"}, names(&volume.Volume{Kind: volume.NTFS}))
	divided := []volume.Part{
		{Name: "a", Start: 0, Size: 40 * mib},
		{Name: "b", Start: 40 * mib, Size: 20 * mib},
		{Name: "long", Start: 90 * mib, Size: 20 * mib},
	}
	require.Equal(t, []string{"a  10 40", "b  50 20"}, names(&volume.Volume{Kind: volume.LVM2, Parts: divided}))
	require.Equal(t, []string{" ntfs 10 100", "b  50 20"}, names(&volume.Volume{Kind: volume.NTFS, Parts: divided}),
		"a is the NTFS")

	lvm := &volume.Volume{Kind: volume.LVM2, Parts: []volume.Part{
		{Name: "elsewhere", Start: -1, Size: mib},
		{Name: "empty", Size: mib},
	}}
	got, err := freespace.Count(zeros(nil), freespace.PartsOf(1, r, lvm))
	require.NoError(t, err)
	require.Len(t, got, 2)
	for i, want := range []string{"several places", "only in NTFS"} {
		require.ErrorIs(t, got[i].Err, ondisk.ErrUnsupported)
		require.ErrorContains(t, got[i].Err, want)
	}
}

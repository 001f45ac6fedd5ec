package realign

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/verify"
)

// Another byte in the copy is found and placed.
func TestVerifyFindsOneByte(t *testing.T) {
	dir := t.TempDir()
	raw := oldLinux(t, dir)
	dest := filepath.Join(dir, "copy.raw")
	s := open(t, raw)
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	_, err = (&Job{Full: true, Jobs: 2}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	where := starts(t, dest)[1][0]*sector + 12345
	f, err := os.OpenFile(dest, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0}, where)
	require.NoError(t, errors.Join(err, f.Close()))
	_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, open(t, dest), nil)
	require.NoError(t, err)
	require.Len(t, diffs, 1)
	require.Equal(t, where-where%sector, diffs[0].Off)

	require.NoError(t, os.Truncate(dest, diskSize/2))
	_, diffs, err = (&Job{Jobs: 1}).Verify(t.Context(), s, open(t, dest), nil)
	require.NoError(t, err)
	require.NotEmpty(t, diffs, "half of the disk is missing")
}

// A view in which anything but the plan has changed is refused.
func TestViewHoldsThePlan(t *testing.T) {
	s := open(t, oldLinux(t, t.TempDir()))
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	require.NotEmpty(t, p.Patches)
	_, err = s.View(p)
	require.NoError(t, err)
	p.Patches[0].Old = append([]byte{^p.Patches[0].Old[0]}, p.Patches[0].Old[1:]...)
	_, err = s.View(p)
	require.ErrorIs(t, err, verify.ErrDifferent)

	p, err = s.Plan(Goal{})
	require.NoError(t, err)
	i := slices.IndexFunc(p.Pieces, func(x disk.Shift) bool { return x.From == 63*sector })
	require.GreaterOrEqual(t, i, 0)
	p.Pieces[i].From += sector // not the file system that was there
	_, err = s.View(p)
	require.Error(t, err)
	_, err = s.Result(p)
	require.Error(t, err)
}

// What is no copy of the disk is a difference, and no error.
func TestVerifyOfAnotherDisk(t *testing.T) {
	dir := t.TempDir()
	s := open(t, oldLinux(t, dir))
	other := filepath.Join(dir, "other.raw")
	disktest.MakeBlank(t, other, diskSize)
	disktest.RunInput(t, "2048,20000,83\n", "sfdisk", "-q", other)
	p, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, open(t, other), nil)
	require.NoError(t, err)
	require.Nil(t, p)
	require.Len(t, diffs, 1)

	img, err := image.Open(other, image.Options{SectorSize: 4096})
	require.NoError(t, err)
	large, err := Read(img, Reading{})
	require.NoError(t, err)
	defer Others{large}.Close()
	_, diffs, err = (&Job{Jobs: 1}).Verify(t.Context(), s, large, nil)
	require.NoError(t, err)
	require.Contains(t, diffs[0].Text, "sectors of 4096 bytes, want 512")
}

// A copy that is malformed when it is read back was not written by what was planned; one that cannot be read at all is
// an error of the storage.
func TestReadBack(t *testing.T) {
	for err, different := range map[error]bool{
		ondisk.ErrFormat: true, ondisk.ErrUnsupported: true,
		ondisk.ErrReference: true, io.ErrUnexpectedEOF: false,
	} {
		got := readBack(err)
		require.ErrorIs(t, got, err)
		require.Equal(t, different, errors.Is(got, verify.ErrDifferent), "%v", err)
	}
}

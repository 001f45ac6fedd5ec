package realign

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
)

// A sector of the source that cannot be read ends the run, wherever it is met, and nothing is left of DEST.
func TestBadSectorsOfTheSource(t *testing.T) {
	raw := oldLinux(t, t.TempDir())
	good := open(t, raw)
	to := t.TempDir()
	dest := filepath.Join(to, "copy.raw")
	disktest.EveryBadSector(t, good.Image.Disk, func(d disk.Disk) (sum string, err error) {
		defer func() {
			if err != nil {
				require.Empty(t, disktest.Names(t, to))
			}
		}()
		img, err := image.Open(raw, image.Options{})
		require.NoError(t, err)
		img.Disk = d
		s, err := Read(img, Reading{})
		if err != nil {
			return "", err
		}
		defer s.Close()
		p, err := s.Plan(Goal{})
		if err != nil {
			return "", err
		}
		if _, err := (&Job{Full: true, Jobs: 1}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"}); err != nil {
			return "", err
		}
		b := disktest.ReadFile(t, dest)
		require.NoError(t, os.Remove(dest))
		return fmt.Sprintf("%x", sha256.Sum256(b)), nil
	})
}

// A bad sector is no difference of a copy, on either side.
func TestBadSectorsOfAVerifiedCopy(t *testing.T) {
	dir := t.TempDir()
	s := open(t, oldLinux(t, dir))
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	dest := filepath.Join(dir, "copy.raw")
	_, err = (&Job{Jobs: 1}).Write(t.Context(), s, p, File{Path: dest, Format: "raw"})
	require.NoError(t, err)
	d := open(t, dest)
	for _, side := range []*Source{s, d} {
		disktest.EveryBadSector(t, side.Image.Disk, func(bad disk.Disk) (string, error) {
			was := side.Image.Disk
			defer func() { side.Image.Disk = was }()
			side.Image.Disk = bad
			_, diffs, err := (&Job{Jobs: 1}).Verify(t.Context(), s, d, nil)
			return fmt.Sprint(diffs), err
		})
	}
}

package vhd_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/ondisk"
)

func TestHostileVHD(t *testing.T) { hostile.Check(t, hostile.VHD(), imagetest.Issues) }

// A disk that is shown has all of its bytes.
func TestHostileVHDsThatAreKept(t *testing.T) {
	seen := 0
	for _, r := range hostile.VHD() {
		if r.End != hostile.Kept {
			continue
		}
		seen++
		img := imagetest.Open(t, r.Write(t, t.TempDir()))
		code := map[bool]string{true: "vhd-footers", false: "vhd-saved-state"}[strings.HasPrefix(r.Name, "T28")]
		require.Equal(t, []string{code}, imagetest.Codes(img.Issues, ondisk.Refuse), r.Name)
		disktest.CheckBytes(t, img.Disk, hostile.Disk())
	}
	require.Equal(t, 7, seen)
}

// A read meets an entry that leaves the data. Of blocks that share a place only the walk knows.
func TestReadsOfHostileVHDTables(t *testing.T) {
	seen := 0
	for _, r := range hostile.VHD() {
		if r.End != hostile.Broken {
			continue
		}
		seen++
		img := imagetest.Open(t, r.Write(t, t.TempDir()))
		_, err := img.Disk.ReadAt(make([]byte, 10), 3*mib)
		if slices.Contains(r.Says, "1 blocks at a place in use") {
			require.NoError(t, err, r.Name)
			continue
		}
		require.ErrorIs(t, err, ondisk.ErrFormat, r.Name)
		require.ErrorContains(t, err, "vhd block allocation table at 0x604", r.Name)
	}
	require.Equal(t, 9, seen)
}

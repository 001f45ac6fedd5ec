package image_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Content that could be of more than one kind, or of another than the user thinks, is never read as raw.
func TestHostileFiles(t *testing.T) { hostile.Check(t, hostile.Files(), imagetest.Issues) }

// LUKS is content of a disk in any image, and no format of images.
func TestLUKSInImages(t *testing.T) {
	hostile.Check(t, hostile.LUKSInImages(), imagetest.Issues)
	for _, r := range hostile.LUKSInImages() {
		img := imagetest.Open(t, r.Write(t, t.TempDir()))
		require.Equal(t, int64(hostile.Sectors*512), img.Disk.Size(), r.Name)
		head := make([]byte, 6)
		_, err := io.ReadFull(io.NewSectionReader(img.Disk, 0, 6), head)
		require.NoError(t, err)
		require.Equal(t, "LUKS\xba\xbe", string(head), r.Name)
		l, err := layout.Read(img.Disk, table.Geometry{})
		require.NoError(t, err)
		require.Nil(t, l.Table, r.Name)
		require.Equal(t, volume.LUKS, l.Volume.Kind, r.Name)
	}
}

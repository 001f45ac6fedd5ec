package image_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// Each format has sizes that it cannot have. Nothing is written of them.
func TestDisksThatAFormatCannotHold(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		format, sub  string
		size, sector int64
		class        error
	}{
		{"vhd", "", 0, 512, ondisk.ErrUnsupported},
		{"vhd", "fixed", -512, 512, ondisk.ErrUnsupported},
		{"vhd", "dynamic", 513, 512, ondisk.ErrUnsupported},
		{"vhd", "dynamic", 1 << 20, 4096, ondisk.ErrUnsupported},
		{"vhd", "dynamic", 2040<<30 + 512, 512, ondisk.ErrLimit},
		{"vhdx", "", 0, 512, ondisk.ErrUnsupported},
		{"vhdx", "fixed", -512, 512, ondisk.ErrUnsupported},
		{"vhdx", "dynamic", 513, 512, ondisk.ErrUnsupported},
		{"vhdx", "dynamic", 4096 + 512, 4096, ondisk.ErrUnsupported},
		{"vhdx", "dynamic", 64<<40 + 512, 512, ondisk.ErrLimit},
		{"vmdk", "monolithicSparse", 1 << 61, 512, ondisk.ErrLimit},
		{"vmdk", "streamOptimized", 1 << 61, 512, ondisk.ErrLimit},
		{"vmdk", "twoGbMaxExtentSparse", 1 << 41, 512, ondisk.ErrLimit},
		{"vmdk", "twoGbMaxExtentFlat", 1 << 41, 512, ondisk.ErrLimit},
		{"qcow2", "", 1 << 61, 512, ondisk.ErrLimit},
	} {
		t.Run(fmt.Sprint(tc.format, tc.sub, tc.size, "/", tc.sector), func(t *testing.T) {
			t.Parallel()
			all := image.Writable()
			f := all[slices.IndexFunc(all, func(f driver.Format) bool { return f.Name == tc.format })]
			d := newFolder(nil)
			_, err := f.Create(blindFile{recordedFile{d, "disk"}}, tc.size, driver.Options{
				Subformat: tc.sub, Name: "disk", SectorSize: tc.sector,
				Beside: func(suffix string) (driver.WriteFile, string, error) {
					return blindFile{recordedFile{d, suffix}}, suffix, nil
				},
			})
			require.ErrorIs(t, err, tc.class)
			require.Empty(t, d.steps)
		})
	}
}

package image_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/tarforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/units"
)

// FuzzIdentify gives a file any content: what it is found to be is bounded, names nothing outside of its folder, and
// takes little reading.
func FuzzIdentify(f *testing.F) {
	disk := make([]byte, 256*units.KiB)
	f.Add([]byte(vmdkforge.Descriptor("twoGbMaxExtentFlat", `RW 1 FLAT "a" 0`, `RW 1 FLAT "../b" 0`)), "x.vmdk")
	f.Add([]byte(vmdkforge.NewSparse(disk).Bytes), "x.vmdk")
	f.Add([]byte(vhdforge.NewFixed(disk[:64<<10]).Bytes), "x.vhd")
	f.Add([]byte(tarforge.New(tarforge.Member{Name: "x.ovf"})), "x.ova")
	f.Add([]byte(`<?xml version="1.0"?><Envelope><References><File href="d" id="f"/></References></Envelope>`), "x.ovf")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		if name != filepath.Base(name) || len(name) > 200 || name == "." || name == ".." || name == "/" {
			name = "x"
		}
		path := filepath.Join(dir, name)
		if os.WriteFile(path, content, 0o600) != nil {
			t.Skip("no file has such a name")
		}
		defer os.Remove(path)
		m := gate.NewMeter(64 * units.MiB)
		id, err := image.Identify(path, m)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(id.Extents)+len(id.Parents), 2*4096)
		for _, n := range append(append(image.FileNames{}, id.Extents...), id.Parents...) {
			require.Equal(t, filepath.Base(n), n, "a name in the folder")
		}
		require.LessOrEqual(t, m.Read(), int64(len(content))+units.MiB, "bytes, to know what a file is")
	})
}

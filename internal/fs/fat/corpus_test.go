package fat

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
)

// Images of the corpus were made by Linux and by Windows.
func TestFATCorpus(t *testing.T) {
	for rel, start := range map[string]int64{
		"imagemounter/test.fat12.xz": 0, "keramics/fat16.qcow2.xz": 0, "dftt/6-fat-undel.dd.xz": 0,
		"osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz": 262144,
	} {
		t.Run(rel, func(t *testing.T) {
			img := filetest.RawCorpus(t, rel, start, 131072)
			g, err := alone(filetest.RawImage(t, img))
			require.NoError(t, err)
			t.Setenv("MTOOLS_SKIP_CHECK", "1")
			out := t.TempDir()
			// mcopy fails on an empty volume.
			disktest.Run(t, "sh", "-c", `"$0" -s -n -i "$1" :: "$2"; true`, disktest.Tool(t, "mcopy"), img, out)
			var names []string
			require.NoError(t, filepath.WalkDir(out, func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				names = append(names, strings.TrimPrefix(path, out+"/"))
				f, err := g.Open(names[len(names)-1])
				require.NoError(t, err)
				want, err := os.ReadFile(path)
				disktest.EqualBytes(t, want, filetest.ReadAll(t, f))
				return err
			}))
			require.ElementsMatch(t, names, filetest.WalkFS(t, g, ""))
			t.Log(names)
		})
	}
}

package ext

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
)

// Images of the corpus were made by Linux itself.
func TestExtCorpus(t *testing.T) {
	for rel, start := range map[string]int64{
		"imagemounter/test.ext3.xz": 0, "dfvfs/ext2.qcow2.xz": 0,
		"osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz": 2048,
	} {
		t.Run(rel, func(t *testing.T) {
			img := filetest.RawCorpus(t, rel, start, 129024)
			volume, err := alone(filetest.RawImage(t, img))
			require.NoError(t, err)
			g := volume.(*fileSystem)
			out := t.TempDir()
			disktest.Run(t, "debugfs", "-R", "rdump / "+out, img)
			var names []string
			require.NoError(t, filepath.WalkDir(out, func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					names = append(names, strings.TrimPrefix(path, out+"/"))
				}
				return err
			}))
			require.Subset(t, filetest.WalkFS(t, g, ""), names)
			for p, runs := range debugfsRuns(t, img, g.block, names) {
				f, err := g.Open(p)
				require.NoError(t, err)
				want, err := guestfile.NewFile(g.volume, p, f.Size(), runs)
				require.NoError(t, err)
				require.Equal(t, filetest.RunsOf(t, want), filetest.RunsOf(t, f))
				data := disktest.ReadFile(t, filepath.Join(out, p))
				disktest.EqualBytes(t, data, filetest.ReadAll(t, f))
			}
			if rel == "dfvfs/ext2.qcow2.xz" {
				f, err := g.Open("a_link")
				require.NoError(t, err)
				require.Equal(t, "a_directory/another_file", f.Path)
			}
		})
	}
}

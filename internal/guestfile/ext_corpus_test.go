package guestfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// Images of the corpus were made by Linux itself.
func TestExtCorpus(t *testing.T) {
	for rel, start := range map[string]int64{"imagemounter/test.ext3.xz": 0, "dfvfs/ext2.qcow2.xz": 0, "osv-scalibr/valid-ext-exfat-fat32-ntfs.vmdk.xz": 2048} {
		t.Run(rel, func(t *testing.T) {
			img := rawCorpus(t, rel, start, 129024)
			volume, err := Ext(rawImage(t, img))
			require.NoError(t, err)
			g := volume.(*extFS)
			out := t.TempDir()
			disktest.Run(t, "debugfs", "-R", "rdump / "+out, img)
			var names []string
			require.NoError(t, filepath.WalkDir(out, func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					names = append(names, strings.TrimPrefix(path, out+"/"))
				}
				return err
			}))
			require.Subset(t, walkFS(t, g, ""), names)
			for p, runs := range debugfsRuns(t, img, g.block, names) {
				f, err := g.Open(p)
				require.NoError(t, err)
				want, err := newFile(g.volume, p, f.Size(), runs)
				require.NoError(t, err)
				require.Equal(t, runsOf(t, want), runsOf(t, f))
				data, err := os.ReadFile(filepath.Join(out, p))
				require.NoError(t, err)
				disktest.EqualBytes(t, data, readAll(t, f))
			}
			if rel == "dfvfs/ext2.qcow2.xz" {
				f, err := g.Open("a_link")
				require.NoError(t, err)
				require.Equal(t, "a_directory/another_file", f.Path)
			}
		})
	}
}

// rawCorpus is an image of the corpus as a raw file, from a sector on; all of it when that is 0.
func rawCorpus(t testing.TB, rel string, start, sectors int64) string {
	t.Helper()
	path := disktest.Corpus(t, rel)
	out := filepath.Join(t.TempDir(), "raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", path, out)
	if start == 0 {
		return out
	}
	part := filepath.Join(t.TempDir(), "partition")
	disktest.Run(t, "dd", "if="+out, "of="+part, "conv=sparse", "status=none", fmt.Sprintf("skip=%d", start), fmt.Sprintf("count=%d", sectors))
	return part
}

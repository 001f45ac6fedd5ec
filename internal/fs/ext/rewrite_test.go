package ext

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// scatter makes a file in many pieces, and one with blocks that are taken and not written.
func scatter(t testing.TB, img string, blocks int) []byte {
	t.Helper()
	tmp := t.TempDir()
	one, big := filepath.Join(tmp, "one"), filepath.Join(tmp, "big")
	data := filetest.Noise(7, blocks*4096)
	require.NoError(t, os.WriteFile(one, filetest.Noise(8, 4096), 0o600))
	require.NoError(t, os.WriteFile(big, data, 0o600))
	var script strings.Builder
	for i := range 2 * blocks {
		fmt.Fprintf(&script, "write %s s%d\n", one, i)
	}
	for i := 0; i < 2*blocks; i += 2 {
		fmt.Fprintf(&script, "rm s%d\n", i)
	}
	fmt.Fprintf(&script, "write %s pieces\n", big)
	commands := filepath.Join(tmp, "script")
	require.NoError(t, os.WriteFile(commands, []byte(script.String()), 0o600))
	disktest.Output(t, "debugfs", "-w", "-f", commands, img)
	return data
}

// What is written to the places of bytes is what other programs read, nothing else changes, and a check of the volume
// is content.
func TestExtRewriteInPlace(t *testing.T) {
	dir := filetest.WriteTree(t, map[string][]byte{"other": filetest.Noise(1, 9999)})
	for _, k := range []extKind{extKinds[0], extKinds[3], extKinds[5], extKinds[6], extKinds[9], extKinds[13]} {
		t.Run(k.name, func(t *testing.T) {
			img := makeExt(t, k, dir)
			data := scatter(t, img, 500)
			g := opened(t, filetest.RawImage(t, img))
			f, err := g.Open("pieces")
			require.NoError(t, err)
			equalRuns(t, img, g.(*fileSystem), f)
			if !strings.Contains(k.name, "bigalloc") {
				require.Greater(t, len(filetest.RunsOf(t, f)), 200)
			}
			filetest.Rewrite(t, img, f, data, 10_001, 1_200_000)
			before := filetest.Noise(1, 9999)
			require.Equal(t, string(data), disktest.Output(t, "debugfs", "-R", "cat /pieces", img))
			require.Equal(t, string(before), disktest.Output(t, "debugfs", "-R", "cat /other", img))
			disktest.Run(t, "e2fsck", "-fn", img)
		})
	}
}

func equalRuns(t *testing.T, img string, g *fileSystem, f *guestfile.File) {
	t.Helper()
	want, err := guestfile.NewFile(g.volume, f.Path, f.Size(), debugfsRuns(t, img, g.block, []string{f.Path})[f.Path])
	require.NoError(t, err)
	require.NotEmpty(t, filetest.RunsOf(t, f))
	require.Equal(t, filetest.RunsOf(t, want), filetest.RunsOf(t, f))
}

// Blocks that are taken and not written read as zeros, and have no place.
func TestExtUninitialised(t *testing.T) {
	img := makeExt(t, extKinds[5], filetest.WriteTree(t, map[string][]byte{"file": filetest.Noise(1, 10_000)}))
	disktest.Run(t, "debugfs", "-w", "-R", "fallocate /file 3 40", img)
	disktest.Run(t, "debugfs", "-w", "-R", "set_inode_field /file size 150000", img)
	g := opened(t, filetest.RawImage(t, img))
	f, err := g.Open("file")
	require.NoError(t, err)
	equalRuns(t, img, g.(*fileSystem), f)
	b := filetest.ReadAll(t, f)
	disktest.EqualBytes(t, filetest.Noise(1, 10_000), b[:10_000])
	require.True(t, ondisk.IsZero(b[12_288:]))
	_, err = f.Where(12_280, 8)
	require.NoError(t, err)
	_, err = f.Where(12_281, 8)
	require.ErrorIs(t, err, guestfile.ErrHole)
}

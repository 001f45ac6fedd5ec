package ext

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

func digest(t testing.TB, r io.Reader) [sha256.Size]byte {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, r)
	require.NoError(t, err)
	return [sha256.Size]byte(h.Sum(nil))
}

var extStretch = regexp.MustCompile(`\((\d+)(?:-(\d+))?(\[u\])?\):(\d+)`)

// debugfsRuns are the places of files as debugfs prints them: "(0-11):24-35, (IND):36, (12):37". Stretches that are
// taken but not written are marked "[u]" and left out.
func debugfsRuns(t testing.TB, img string, block int64, paths []string) map[string][]guestfile.Run {
	t.Helper()
	var script strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&script, "stat \"/%s\"\n", p)
	}
	commands := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(commands, []byte(script.String()), 0o600))
	parts := strings.Split(disktest.Output(t, "debugfs", "-f", commands, img), "debugfs: stat ")[1:]
	require.Len(t, parts, len(paths))
	out := map[string][]guestfile.Run{}
	for i, p := range paths {
		var runs []guestfile.Run
		_, lists, _ := strings.Cut(parts[i], "\nBLOCKS:")
		if _, extents, ok := strings.Cut(parts[i], "\nEXTENTS:"); ok {
			lists = extents
		}
		for _, m := range extStretch.FindAllStringSubmatch(lists, -1) {
			first, at := disktest.Number(t, m[1]), disktest.Number(t, m[4])
			last := first
			if m[2] != "" {
				last = disktest.Number(t, m[2])
			}
			if m[3] == "" {
				runs = append(runs, guestfile.Run{Off: first * block, Len: (last - first + 1) * block, At: at * block})
			}
		}
		slices.SortFunc(runs, func(a, b guestfile.Run) int { return cmp.Compare(a.Off, b.Off) })
		out[p] = runs
	}
	return out
}

// equalDebugfs holds the places of all files, and the bytes of all, against debugfs.
func equalDebugfs(t *testing.T, img string, g *fileSystem, names []string) {
	t.Helper()
	mapped := 0
	for name, runs := range debugfsRuns(t, img, g.block, names) {
		f, err := g.Open(name)
		require.NoError(t, err)
		if f.Fixed != nil { // inline
			require.Less(t, f.Size(), int64(1000))
			require.Empty(t, runs, name)
			if f.Size() > 0 {
				_, err := f.Where(0, 1)
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				require.ErrorContains(t, err, "within its inode")
			}
			continue
		}
		want, err := guestfile.NewFile(g.volume, name, f.Size(), runs)
		require.NoError(t, err)
		require.Equal(t, filetest.RunsOf(t, want), filetest.RunsOf(t, f), name)
		mapped++
	}
	require.Greater(t, mapped, 10)
	out := t.TempDir()
	disktest.Run(t, "debugfs", "-R", "rdump / "+out, img)
	for _, name := range names {
		f, err := g.Open(name)
		require.NoError(t, err)
		other, err := os.Open(filepath.Join(out, name))
		require.NoError(t, err)
		var theirs io.Reader = other
		if f.Fixed != nil { // debugfs shows all 60 bytes that the inode has room for
			theirs = io.LimitReader(other, f.Size())
		}
		require.Equal(t, digest(t, theirs), digest(t, io.NewSectionReader(f, 0, f.Size())), name)
		require.NoError(t, other.Close())
	}
}

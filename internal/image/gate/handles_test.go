package gate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// manyFiles is a folder with so many files, all open; file i holds its number.
func manyFiles(t *testing.T, n int) (string, []*File) {
	t.Helper()
	path := t.TempDir()
	d, err := OpenFolder(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	files := make([]*File, n)
	for i := range files {
		name := fmt.Sprintf("disk-s%03d.vmdk", i)
		require.NoError(t, os.WriteFile(filepath.Join(path, name), fmt.Appendf(nil, "%08d", i), 0o644))
		files[i], err = d.Open(name)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		for _, f := range files {
			require.NoError(t, f.Close())
		}
		require.Empty(t, d.handles.open)
	})
	return path, files
}

func openHandles(files []*File) (n int) {
	for _, f := range files {
		if f.open != nil {
			n++
		}
	}
	return n
}

// A disk in pieces of 2 GB has more files than a process may have open.
func TestFilesTakeTurns(t *testing.T) {
	_, files := manyFiles(t, 3*maxHandles)
	require.Equal(t, maxHandles, openHandles(files))
	require.NotNil(t, files[0].open, "the first one carries the locks")
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for w := range errs {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 5))
			for range 2000 {
				i := rnd.IntN(len(files))
				b := make([]byte, 8)
				if _, err := files[i].ReadAt(b, 0); err != nil || string(b) != fmt.Sprintf("%08d", i) {
					errs[w] = fmt.Errorf("file %d: %q: %w", i, b, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, maxHandles, openHandles(files))
	require.NotNil(t, files[0].open)
}

// A file that gave its place away is opened again by name, and another one may have got the name meanwhile.
func TestReopenedFileMustBeTheSame(t *testing.T) {
	path, files := manyFiles(t, maxHandles+10)
	require.Nil(t, files[1].open, "it was not used for longest")
	name := filepath.Join(path, files[1].name)
	require.NoError(t, os.Rename(name, name+".old"))
	require.NoError(t, os.WriteFile(name, []byte("00000001"), 0o644))
	_, err := files[1].ReadAt(make([]byte, 8), 0)
	require.ErrorIs(t, err, ondisk.ErrChanged)
	require.ErrorIs(t, files[1].Unchanged(), ondisk.ErrChanged)
}

// The names of a folder are few, and one that was not looked at could matter.
func TestFoldersOfManyNames(t *testing.T) {
	t.Parallel()
	d, path := openedFolder(t)
	for i := range 3 {
		require.NoError(t, os.WriteFile(filepath.Join(path, fmt.Sprint(i)), nil, 0o600))
	}
	names, err := d.names(func(string) bool { return true }, 3)
	require.NoError(t, err)
	require.Equal(t, []string{"0", "1", "2"}, names)
	_, err = d.names(func(string) bool { return true }, 2)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = d.names(func(n string) bool { return n != "1" }, 2)
	require.NoError(t, err)
}

package disktest

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// moduleOf makes a module whose folder is the working directory.
func moduleOf(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	files["go.mod"] = "module x\n"
	for name, text := range files {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
}

func TestMade(t *testing.T) {
	DataFile(t, "/var/lib/dpkg/status")
	moduleOf(t, map[string]string{"recipe": "one", "other": "x"})
	var fills atomic.Int32
	made := func(name string) string {
		return Made(t, name, []string{"recipe"}, func(dir string) {
			n := fills.Add(1)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "disk"), []byte(strconv.Itoa(int(n))), 0o600))
		})
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { made("disk") })
	}
	all.Wait()
	require.EqualValues(t, 1, fills.Load(), "it is made once")
	first := made("disk")
	require.Equal(t, "1", string(ReadFile(t, filepath.Join(first, "disk"))))
	require.Equal(t, ".cache", filepath.Base(filepath.Dir(filepath.Dir(first))))
	require.NoError(t, os.WriteFile("other", nil, 0o600))
	require.Equal(t, first, made("disk"), "no part of the recipe")
	require.NotEqual(t, first, made("disk2"))

	require.NoError(t, os.WriteFile("recipe", []byte("two"), 0o600))
	second := made("disk")
	require.NotEqual(t, first, second)
	require.Equal(t, "3", string(ReadFile(t, filepath.Join(second, "disk"))))
	require.DirExists(t, first, "another process may read it")
	old := time.Now().Add(-2 * obsolete)
	require.NoError(t, os.Chtimes(first, old, old))
	require.NoError(t, os.WriteFile("recipe", []byte("three"), 0o600))
	third := made("disk")
	require.NoDirExists(t, first)
	require.Len(t, Names(t, filepath.Dir(third)), 3, "nothing is left of the work")
}

// A recipe that fails leaves nothing, and is tried again.
func TestMadeFails(t *testing.T) {
	DataFile(t, "/var/lib/dpkg/status")
	moduleOf(t, map[string]string{"recipe": "one"})
	ended := make(chan struct{})
	go func() { // a skip ends its goroutine as a panic does
		defer close(ended)
		defer func() { _ = recover() }()
		Made(t, "disk", []string{"recipe"}, func(string) { panic("no tool") })
	}()
	<-ended
	require.Empty(t, Names(t, ".cache/testdisks"))
	require.DirExists(t, Made(t, "disk", []string{"recipe"}, func(string) {}))
}

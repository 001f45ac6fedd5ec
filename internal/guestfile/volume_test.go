package guestfile

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
)

// rawImage shows a raw file as a disk.
func rawImage(t testing.TB, path string) disk.Disk {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	st, err := f.Stat()
	require.NoError(t, err)
	return disk.New(st.Size(), 512, func(off int64) (disk.Run, error) { return disk.Run{Len: st.Size() - off, Src: f, Off: off}, nil })
}

// memory shows bytes as a disk.
func memory(b []byte) disk.Disk {
	return disk.New(int64(len(b)), 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: int64(len(b)) - off, Src: bytes.NewReader(b), Off: off}, nil
	})
}

// noise is bytes that no other seed gives.
func noise(seed uint64, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 5))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

// writeTree makes a folder of files; names that end in "/" are folders.
func writeTree(t testing.TB, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if strings.HasSuffix(name, "/") {
			require.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		require.NoError(t, os.WriteFile(path, data, 0o600))
	}
	return dir
}

// readAll reads a file of a guest.
func readAll(t testing.TB, f *File) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	require.NoError(t, err)
	require.Len(t, b, int(f.Size()))
	return b
}

// walkFS gives all regular files of a file system, in the order of its folders.
func walkFS(t testing.TB, g FS, dir string) []string {
	t.Helper()
	var out []string
	list, err := g.List(dir)
	require.NoError(t, err, dir)
	for _, e := range list {
		path := strings.TrimPrefix(dir+"/"+e.Name, "/")
		if e.Dir {
			out = append(out, walkFS(t, g, path)...)
		} else {
			out = append(out, path)
		}
	}
	return out
}

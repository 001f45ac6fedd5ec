// Package filetest tests readers of files in guests: it makes trees of files, compares them, and damages their volumes.
package filetest

import (
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// RawImage opens a raw file as a disk.
func RawImage(t testing.TB, path string) disk.Disk {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	st, err := f.Stat()
	require.NoError(t, err)
	return disk.New(st.Size(), 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: st.Size() - off, Src: f, Off: off}, nil
	})
}

// Memory returns bytes as a disk.
func Memory(b []byte) disk.Disk { return disktest.ShortDisk(b, int64(len(b))) }

// Reader opens the files of one volume.
type Reader func(volume disk.Disk) (guestfile.FS, error)

// Alone returns the reader of a file system, with a separate budget for each volume.
func Alone(open func(*guestfile.Budget, disk.Disk) (guestfile.FS, error)) Reader {
	return func(volume disk.Disk) (guestfile.FS, error) { return open(guestfile.NewBudget(), volume) }
}

// Sound opens a volume, which must succeed.
func (r Reader) Sound(t testing.TB, volume disk.Disk) guestfile.FS {
	t.Helper()
	g, err := r(volume)
	require.NoError(t, err)
	return g
}

// File opens a file that exists.
func File(t testing.TB, g guestfile.FS, path string) *guestfile.File {
	t.Helper()
	f, err := g.Open(path)
	require.NoError(t, err, path)
	return f
}

// EqualFolder requires that files of a volume equal those that a tool copied into a folder, and returns their paths.
func EqualFolder(t testing.TB, g guestfile.FS, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name := strings.TrimPrefix(path, dir+"/")
		names = append(names, name)
		disktest.EqualBytes(t, disktest.ReadFile(t, path), ReadAll(t, File(t, g, name)))
		return nil
	}))
	return names
}

// Noise returns bytes that are unique to a seed.
func Noise(seed uint64, n int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 5))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

// WriteTree makes a folder of files; names that end in "/" are folders.
func WriteTree(t testing.TB, files map[string][]byte) string {
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

// ReadAll reads a file of a guest.
func ReadAll(t testing.TB, f *guestfile.File) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	require.NoError(t, err)
	require.Len(t, b, int(f.Size()))
	return b
}

// WalkFS returns all regular files of a file system, in the order of its folders.
func WalkFS(t testing.TB, g guestfile.FS, dir string) []string {
	t.Helper()
	var out []string
	list, err := g.List(dir)
	require.NoError(t, err, dir)
	for _, e := range list {
		path := strings.TrimPrefix(dir+"/"+e.Name, "/")
		if e.Dir {
			out = append(out, WalkFS(t, g, path)...)
		} else {
			out = append(out, path)
		}
	}
	return out
}

// RunsOf returns the runs of a file from its map.
func RunsOf(t testing.TB, f *guestfile.File) (out []guestfile.Run) {
	t.Helper()
	for off := int64(0); off < f.Size(); {
		r, err := f.Run(off)
		require.NoError(t, err)
		if r.Src != nil {
			out = append(out, guestfile.Run{Off: off, Len: r.Len, At: r.Off})
		}
		off += r.Len
	}
	return out
}

// RawCorpus writes an image of the corpus as a raw file: a number of sectors from start on, or the rest if that is 0. A
// start of 0 means the whole image.
func RawCorpus(t testing.TB, rel string, start, sectors int64) string {
	t.Helper()
	path := disktest.Corpus(t, rel)
	out := filepath.Join(t.TempDir(), "raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", path, out)
	if start == 0 {
		return out
	}
	part := filepath.Join(t.TempDir(), "partition")
	args := []string{"if=" + out, "of=" + part, "conv=sparse", "status=none", fmt.Sprintf("skip=%d", start)}
	if sectors > 0 {
		args = append(args, fmt.Sprintf("count=%d", sectors))
	}
	disktest.Run(t, "dd", args...)
	return part
}

// Rewrite replaces the bytes [off, off+n) of a file, at their positions in the image, and in data.
func Rewrite(t testing.TB, img string, f *guestfile.File, data []byte, off, n int64) {
	t.Helper()
	places, err := f.Where(off, n)
	require.NoError(t, err)
	change := Noise(99, int(n))
	copy(data[off:], change)
	w, err := os.OpenFile(img, os.O_RDWR, 0)
	require.NoError(t, err)
	defer w.Close()
	for _, r := range places {
		_, err := w.WriteAt(change[:r.Len], r.Off)
		require.NoError(t, err)
		change = change[r.Len:]
	}
	require.Empty(t, change)
}

// ManyRuns returns the maximum number of runs of a file, in reverse order on the disk.
func ManyRuns() []guestfile.Run {
	runs := make([]guestfile.Run, guestfile.MaxRuns)
	for i := range runs {
		runs[i] = guestfile.Run{Off: int64(i) * 512, Len: 512, At: int64(len(runs)-i) * 1024}
	}
	return runs
}

// EndsWithin requires that an action reaches a limit within a number of repetitions.
func EndsWithin(t *testing.T, times int, act func() error) {
	t.Helper()
	var err error
	done := 0
	for ; err == nil; done++ {
		err = act()
	}
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.Less(t, done, times)
}

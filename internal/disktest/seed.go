package disktest

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/trueup/trueup/internal/disk"
)

// ShortDisk returns a disk of size bytes that begins with data and is zero after it: what a fuzz target makes of its
// input, so that a disk of terabytes is a few bytes of seed.
func ShortDisk(data []byte, size int64) disk.Disk {
	data = data[:min(int64(len(data)), size)]
	return disk.New(size, 512, func(off int64) (disk.Run, error) {
		if rest := int64(len(data)) - off; rest > 0 {
			return disk.Run{Len: rest, Src: bytes.NewReader(data), Off: off}, nil
		}
		return disk.Run{Len: size - off}, nil
	})
}

// Memory returns a disk of bytes.
func Memory(b []byte) disk.Disk { return ShortDisk(b, int64(len(b))) }

// Head returns what the first n bytes of a disk are, or less where it ends.
func Head(t testing.TB, d disk.Disk, n int64) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(d, 0, min(n, d.Size())))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Seeds returns the first n bytes of images of the shared corpus, unpacked. A fuzz target has other seeds too, so what
// is missing is omitted.
func Seeds(t testing.TB, n int64, rel ...string) [][]byte {
	t.Helper()
	dir := corpusPath(t)
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	if _, err := exec.LookPath("xz"); err != nil {
		return nil
	}
	var out [][]byte
	for _, name := range rel {
		f, err := os.Open(Corpus(t, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.LimitReader(f, n))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

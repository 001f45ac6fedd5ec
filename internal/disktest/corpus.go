package disktest

import (
	"compress/bzip2"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Corpus returns the path of an unpacked image of the shared corpus, by its name in the corpus's README, such as
// "vmdk-rs/monolithicSparse.vmdk.xz". The corpus is beside the repository; without it, the test is skipped.
func Corpus(t testing.TB, rel string) string {
	t.Helper()
	path := filepath.Join(corpusDir(t), filepath.FromSlash(rel))
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("corpus: %v", err)
	}
	if unpackedName(path) == path {
		return path
	}
	return unpack(t, path, t.TempDir())
}

// CorpusSet unpacks a folder of the corpus into a new folder and returns that. The names have no .xz, .gz or .bz2, so
// that a descriptor finds its extents.
func CorpusSet(t testing.TB, dir string) string {
	t.Helper()
	from := filepath.Join(corpusDir(t), filepath.FromSlash(dir))
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatalf("corpus: %v", err)
	}
	to := t.TempDir()
	for _, entry := range entries {
		unpack(t, filepath.Join(from, entry.Name()), to)
	}
	return to
}

// CorpusDir returns the corpus without unpacking it.
func CorpusDir(t testing.TB) string {
	t.Helper()
	return corpusDir(t)
}

// HasCorpus reports whether the shared corpus exists, for a test that has other images too.
func HasCorpus(t testing.TB) bool {
	t.Helper()
	_, err := os.Stat(corpusPath(t))
	return err == nil
}

// corpusPath returns ../shared/corpus, relative to the module root.
func corpusPath(t testing.TB) string {
	t.Helper()
	ofThisMachine()
	return filepath.Join(filepath.Dir(moduleRoot(t)), "shared", "corpus")
}

// corpusDir returns the corpus, and skips the test without one.
func corpusDir(t testing.TB) string {
	t.Helper()
	corpus := corpusPath(t)
	if _, err := os.Stat(corpus); err != nil {
		t.Skip("the shared corpus is not beside this repository")
	}
	return corpus
}

// moduleRoot walks up from the test's folder to go.mod.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test's folder")
		}
		dir = parent
	}
}

// unpackedName returns the path without the suffix of its compression.
func unpackedName(path string) string {
	switch ext := filepath.Ext(path); ext {
	case ".xz", ".gz", ".bz2":
		return strings.TrimSuffix(path, ext)
	}
	return path
}

// unpack writes the contents of the packed file at path into dir and returns the path of the new file. A file that is
// not packed is copied.
func unpack(t testing.TB, path, dir string) string {
	t.Helper()
	if filepath.Ext(path) == ".xz" {
		Tool(t, "xz") // before anything is open that a skipped test would leave open
	}
	src, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	to := filepath.Join(dir, filepath.Base(unpackedName(path)))
	dst, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := decompress(t, dst, src); err != nil {
		t.Fatalf("corpus: %s: %v", path, err)
	}
	if err := dst.Close(); err != nil {
		t.Fatal(err)
	}
	return to
}

// decompress copies src to dst, unpacked according to its suffix.
func decompress(t testing.TB, dst io.Writer, src *os.File) error {
	t.Helper()
	var plain io.Reader = src
	switch filepath.Ext(src.Name()) {
	case ".gz":
		packed, err := gzip.NewReader(src)
		if err != nil {
			return err
		}
		plain = packed
	case ".bz2":
		plain = bzip2.NewReader(src)
	case ".xz":
		// The standard library has no xz.
		cmd := exec.Command(Tool(t, "xz"), "--decompress", "--stdout")
		cmd.Stdin, cmd.Stdout = src, dst
		return cmd.Run()
	}
	_, err := io.Copy(dst, plain)
	return err
}

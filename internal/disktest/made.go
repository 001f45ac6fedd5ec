package disktest

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// obsolete is the age at which Made removes a replaced folder: no test reads it any longer.
const obsolete = 24 * time.Hour

// making holds a *sync.Mutex for each folder of Made.
var making sync.Map

// Made returns a folder with the output of fill, which tests may only read. It is kept in .cache/testdisks until its
// recipe or a package of the machine changes. The recipe is the name, and files and folders of the module. If the
// machine has no list of its packages, or .cache is read-only, the folder is removed with the test.
func Made(t testing.TB, name string, recipe []string, fill func(dir string)) string {
	t.Helper()
	once := func() string {
		dir := t.TempDir()
		fill(dir)
		return dir
	}
	root := moduleRoot(t)
	kept := filepath.Join(root, ".cache", "testdisks")
	key := sha256.New()
	if !addFiles(key, "/var/lib/dpkg/status") || os.MkdirAll(kept, 0o755) != nil {
		return once()
	}
	for _, source := range recipe {
		if !addFiles(key, filepath.Join(root, source)) {
			t.Fatalf("%s: the recipe cannot be read", source)
		}
	}
	dir := filepath.Join(kept, fmt.Sprintf("%s-%x", name, key.Sum(nil)[:8]))
	lock, _ := making.LoadOrStore(dir, &sync.Mutex{})
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	// Another process may make the same folder; the first complete one gets the name.
	work, err := os.MkdirTemp(kept, name+"-making-") //nolint:usetesting // it stays under another name
	if err != nil {
		return once()
	}
	defer os.RemoveAll(work)
	fill(work)
	if err := os.Chmod(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(work, dir); err != nil {
		if _, there := os.Stat(dir); there != nil {
			t.Fatal(err)
		}
	}
	removeObsolete(t, kept, name, dir)
	return dir
}

// addFiles adds names and contents of a file, or of the files of a folder, to a digest. It reports success.
func addFiles(to hash.Hash, path string) bool {
	return filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		fmt.Fprintf(to, "%s\x00%d\x00%s", entry.Name(), len(text), text)
		return err
	}) == nil
}

// removeObsolete removes older folders of a name, and leftovers of killed processes.
func removeObsolete(t testing.TB, kept, name, current string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(kept, name+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		info, err := os.Stat(dir)
		if dir != current && err == nil && time.Since(info.ModTime()) > obsolete {
			os.RemoveAll(dir)
		}
	}
}

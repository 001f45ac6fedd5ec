package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/trueup/trueup/internal/sys"
)

// suffixes are those of the files that SQLite keeps for a database: itself, the log and its index where the file system
// is local, a journal elsewhere.
var suffixes = []string{"", "-wal", "-shm", "-journal"}

// minPage is the length of the smallest page of a database. SQLite takes a shorter file for an empty one and would
// write over it.
const minPage = 512

// place is where a catalogue is, or will be, with all links followed. It opens nothing: to close a file takes the locks
// away that this process has on it (POSIX, fcntl), and another run in it could have it open.
func place(path string) (string, error) {
	if path == "" {
		return "", errors.New("no name given")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	folder, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("its folder: %w: make it first, or name another file", sys.Cause(err))
	}
	st, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return filepath.Join(folder, filepath.Base(abs)), nil
	case err != nil:
		return "", sys.Cause(err)
	case st.IsDir():
		return "", foreign{errors.New("a folder: name a file")}
	case !st.Mode().IsRegular():
		return "", foreign{errors.New("not an ordinary file: name another one")}
	case st.Size() > 0 && st.Size() < minPage:
		return "", foreign{errors.New(noDatabase)}
	}
	return filepath.EvalSymlinks(abs)
}

// source names a file for SQLite. As a URI any byte of a name is a byte, and none begins the options.
func source(file string) string {
	u := url.URL{Scheme: "file", OmitHost: true, Path: file}
	return u.String() + "?_defensive=1&_error_rc=1"
}

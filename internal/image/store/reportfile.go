package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// ReportFile is a report that gets its name when it is complete. Until then it has one that no other file has: a file
// that is there could be an image. It is locked, so that a later run knows it from what a killed run left.
type ReportFile struct {
	*os.File
	path string
}

// CreateReport starts a report at a path that a Place has settled. It gets the permissions of the one that it replaces,
// else those of mode that the umask leaves.
func CreateReport(path string, mode fs.FileMode) (*ReportFile, error) {
	if err := removeStaleReports(path); err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "%s: what a killed run left of it: %w", path, err)
	}
	partial := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.partial", filepath.Base(path), os.Getpid()))
	for {
		f, err := os.OpenFile(partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrOutput, "%w", err)
		}
		// A file system without locks leaves its stale files to the user.
		_ = sys.Of(f).LockWaiting(sys.Exclusive)
		if !namedBy(partial, f) { // another run took it for a stale one before it was locked
			_ = f.Close()
			continue
		}
		old, err := os.Stat(path)
		if err == nil {
			err = f.Chmod(old.Mode().Perm())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, ondisk.In(ondisk.ErrOutput, "%w", errors.Join(err, os.Remove(partial), f.Close()))
		}
		return &ReportFile{f, path}, nil
	}
}

// End publishes the report, unless writing it met an error. Either way nothing is left beside it.
func (f *ReportFile) End(err error) error {
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), f.path)
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "%w", errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// namedBy reports whether a path leads to an open file.
func namedBy(path string, f *os.File) bool {
	named, err := os.Lstat(path)
	open, openErr := f.Stat()
	return err == nil && openErr == nil && os.SameFile(named, open)
}

// removeStaleReports removes what killed runs left of a report. What is locked is at work, and what is no text was
// never a report.
func removeStaleReports(path string) error {
	mine := regexp.MustCompile(`^\.` + regexp.QuoteMeta(filepath.Base(path)) + `\.[0-9]+\.partial$`)
	dir, err := gate.OpenFolder(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names(mine.MatchString)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeStaleReport(dir, n, filepath.Join(filepath.Dir(path), n)); err != nil {
			return err
		}
	}
	return nil
}

func removeStaleReport(d *gate.Folder, name, path string) error {
	stale, err := openStale(d, name)
	if err != nil {
		return nil // another's, or gone
	}
	f := stale.Handed(path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || stale.Lock(sys.Exclusive) != nil {
		return nil // no file, or at work
	}
	head, err := sample(f)
	if err != nil || !isText(head) || !namedBy(path, f) {
		return err
	}
	if err := d.At.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

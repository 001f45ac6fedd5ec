package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/trueup/trueup/internal/ondisk"
)

// TryFolder tries whether a file can be made where a flag wants one, before hours of work that would end in an error.
func TryFolder(flag, path string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".trueup-*")
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "folder of %s %s: %w", flag, path, err)
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		return ondisk.In(ondisk.ErrOutput, "%s %s: %w", flag, path, err)
	}
	return nil
}

// Use is a file that a run reads or writes, and the flag that names it.
type Use struct{ Flag, Path string }

// Apart refuses a written file that is one of the others: one would overwrite the other. Empty paths are no files.
func Apart(written Use, others ...Use) error {
	for _, other := range others {
		if written.Path != "" && other.Path != "" && SameFile(written.Path, other.Path) {
			return ondisk.In(ondisk.ErrUsage, "%s %s would overwrite %s %s; name another file",
				written.Flag, written.Path, other.Flag, other.Path)
		}
	}
	return nil
}

// SameFile reports whether two paths lead to one file, or would when it is there.
func SameFile(a, b string) bool {
	there, err := os.Stat(a)
	if other, oerr := os.Stat(b); err == nil && oerr == nil {
		return os.SameFile(there, other)
	}
	here, err := os.Stat(filepath.Dir(a))
	other, oerr := os.Stat(filepath.Dir(b))
	return err == nil && oerr == nil && os.SameFile(here, other) && filepath.Base(a) == filepath.Base(b)
}

// SpareFiles refuses a report, named by flag, that would overwrite one of the files that are written beside dest.
func SpareFiles(flag, out, dest string, files []string) error {
	if out == "" {
		return nil
	}
	here, err := os.Stat(filepath.Dir(dest))
	if err != nil {
		return fmt.Errorf("folder of DEST: %w", err)
	}
	there, err := os.Stat(filepath.Dir(out))
	for _, f := range files {
		if err == nil && os.SameFile(here, there) && filepath.Base(out) == f {
			return ondisk.In(ondisk.ErrUsage, "%s %s would overwrite %s of DEST", flag, out, f)
		}
	}
	return nil
}

// OutputFolders lists the folders in which files of these names are written: that of the name, and that of what a link
// leads to. What is not a regular file, and what lies among the devices, is not written.
func OutputFolders(paths ...string) (out []string) {
	for _, path := range paths {
		folder, err := filepath.EvalSymlinks(filepath.Dir(path))
		if path == "" || path == "-" || err != nil || folder == "/dev" {
			continue
		}
		out = append(out, folder)
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if st, err := os.Stat(real); err == nil && st.Mode().IsRegular() {
				out = append(out, filepath.Dir(real))
			}
		}
	}
	return out
}

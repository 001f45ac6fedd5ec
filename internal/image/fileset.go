package image

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// opened are open files of one folder, and of folders inside of it.
type opened struct {
	dir   *folder
	base  string // name of the first
	under string // where the folder lies in that of a package; empty for its own
	files []*file
}

// States lists the files, for an image also those of its parents and the archive around it.
func (o *opened) States() []State {
	var out []State
	for _, f := range o.files {
		s := stateOf(f)
		s.Name = path.Join(o.under, s.Name)
		out = append(out, s)
	}
	return out
}

// Uses reports whether a path leads to one of the files, and its name.
func (o *opened) Uses(path string) (name string, ok bool) {
	st, err := sys.Stat(path)
	if err != nil {
		return "", false
	}
	for _, f := range o.files {
		if f.stat.Same(st) {
			return f.name, true
		}
	}
	return "", false
}

// Unchanged checks that every file is as it was when it was opened.
func (o *opened) Unchanged() error {
	for _, f := range o.files {
		if err := f.unchanged(); err != nil {
			return err
		}
	}
	return nil
}

// Close closes all files.
func (o *opened) Close() error { return errors.Join(o.closeFiles(), o.dir.Close()) }

func (o *opened) closeFiles() error {
	var errs []error
	for _, f := range o.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// FileSet is an open file with others of its folder, read-only: those of a package.
type FileSet struct {
	opened
	within   map[string]*folder // folders inside of the first file's, by their paths
	siblings *siblings          // of the images among the files
}

// siblings are what the images of a folder name, once that was asked for: each disk of a package asks, and the folder
// may be large.
type siblings struct{ names map[string]driver.Names }

// OpenFiles opens a file. The user's own path may lead through links. A meter counts what is read; nil: it is not
// counted.
func OpenFiles(path string, meter *Meter) (*FileSet, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, plainPathError(err)
	}
	dir, err := openFolder(filepath.Dir(real))
	if err != nil {
		return nil, err
	}
	dir.count(meter)
	return newFileSet(dir, filepath.Base(real))
}

// newFileSet opens a file through an open folder, which is the set's from then on.
func newFileSet(dir *folder, base string) (*FileSet, error) {
	f, err := dir.openAny(base, ondisk.ErrReference)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &FileSet{opened{dir: dir, base: base, files: []*file{f}}, map[string]*folder{}, &siblings{}}, nil
}

// First is the file that was named.
func (s *FileSet) First() driver.File { return s.files[0] }

// Has reports whether the folder has a file of this name.
func (s *FileSet) Has(name string) bool {
	_, underWay := s.dir.alias[name]
	return underWay || s.dir.exists(name)
}

// Open opens a further file, by its path from the folder on. No link is followed.
func (s *FileSet) Open(name string) (driver.File, error) {
	if err := CheckPath(name); err != nil {
		return nil, err
	}
	dir, err := s.folderOf(name)
	if err != nil {
		return nil, err
	}
	f, err := dir.open(path.Base(name))
	if err != nil {
		return nil, err
	}
	f.name = name
	s.files = append(s.files, f)
	return f, nil
}

// OpenImage opens an image among the files, through handles of its own.
func (s *FileSet) OpenImage(name string, o Options) (*Image, error) {
	from, err := s.folderOf(name)
	if err != nil {
		return nil, err
	}
	at := path.Dir(name)
	if at != "." {
		o.Beside = nil
	}
	dir, err := from.again()
	if err != nil {
		return nil, err
	}
	img, err := openIn(dir, path.Base(name), o)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if at == "." {
		img.siblings = s.siblings
	} else {
		img.under = at
	}
	return img, nil
}

// OpenInside opens an image that lies in the first file, an archive, through handles of its own. It can name other
// members, of which find gives the place.
func (s *FileSet) OpenInside(
	name string, at disk.Range, find func(name string) (disk.Range, error), o Options,
) (*Image, error) {
	dir, err := s.dir.again()
	if err != nil {
		return nil, err
	}
	f, err := dir.openAny(s.base, ondisk.ErrReference)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	underWay := s.dir.alias != nil // times of a file that is written change late on a network
	if f.ID() != s.files[0].ID() || !underWay && s.files[0].unchanged() != nil {
		return nil, errors.Join(fmt.Errorf("file %.256q %w", s.base, ErrChanged), f.Close(), dir.Close())
	}
	img, err := inArchive(newSection(f, name, at), find, o)
	if err != nil {
		return nil, errors.Join(err, f.Close(), dir.Close())
	}
	return img, nil
}

// Section is a stretch of the first file as a file of its own: a member of an archive.
func (s *FileSet) Section(name string, at disk.Range) driver.File {
	return newSection(s.files[0], name, at)
}

// Close closes all files.
func (s *FileSet) Close() error {
	errs := []error{s.opened.Close()}
	for _, d := range s.within {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// maxWithin is how many folders inside of its own a package of an OVF can have files in.
const maxWithin = 16

// folderOf opens the folder that a file of the set lies in. No link is followed.
func (s *FileSet) folderOf(name string) (*folder, error) {
	at, dir := path.Dir(name), s.dir
	if at == "." {
		return dir, nil
	}
	if d := s.within[at]; d != nil {
		return d, nil
	}
	if len(s.within) == maxWithin {
		return nil, fmt.Errorf("files of the OVF: %w of %d folders", ondisk.ErrLimit, maxWithin)
	}
	dir, err := dir.enter(at)
	if err == nil {
		s.within[at] = dir
	}
	return dir, err
}

// again is the folder through a handle of its own.
func (d *folder) again() (*folder, error) {
	at, err := d.at.Again()
	if err != nil {
		return nil, fmt.Errorf("open the folder again: %w", err)
	}
	out := newFolder(at)
	out.alias, out.meter, out.recent = d.alias, d.meter, d.recent
	return out, nil
}

// enter opens a folder inside of d by its path, without following a link.
func (d *folder) enter(at string) (*folder, error) {
	above := d.at
	for i, part := range strings.Split(at, "/") {
		next, err := above.Enter(part)
		if i > 0 {
			err = errors.Join(err, above.Close())
		}
		switch {
		case sys.NotFolder(err):
			return nil, fmt.Errorf("folder %.256q is a link or no folder: %w, want one inside of the package's folder", at,
				ondisk.ErrReference)
		case err != nil:
			return nil, fmt.Errorf("folder %.256q: %w", at, err)
		}
		above = next
	}
	sub := newFolder(above)
	sub.handles, sub.meter, sub.recent = d.handles, d.meter, d.recent
	return sub, nil
}

// maxFolders is how many folders a path in a package can have.
const maxFolders = 16

// CheckPath refuses, before any look-up, what is not the path of a file inside of the folder.
func CheckPath(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) > maxFolders {
		return fmt.Errorf("file name %.256q: %w of %d folders", name, ondisk.ErrLimit, maxFolders)
	}
	for _, part := range parts {
		if part == ".." || (part == "" && len(parts) > 1) {
			return fmt.Errorf("file name %.256q leaves the package's folder: %w, want a name inside of it", name,
				ondisk.ErrReference)
		}
		if err := checkName(part); err != nil {
			return err
		}
	}
	return nil
}

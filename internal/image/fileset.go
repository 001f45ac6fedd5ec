package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// FileSet is an open file with others of its folder, read-only: those of a package.
type FileSet struct {
	gate.Opened
	within   map[string]*gate.Folder // folders inside of the first file's, by their paths
	siblings *siblingCache           // of the images among the files
}

// siblingCache holds what the images of a folder name, once that was asked for: each disk of a package asks, and the
// folder may be large.
type siblingCache struct{ names map[string]driver.Names }

// OpenFiles opens a file. The user's own path may lead through links. A meter counts what is read; nil: it is not
// counted.
func OpenFiles(path string, meter *gate.Meter) (*FileSet, error) {
	dir, base, err := gate.Follow(path, meter)
	if err != nil {
		return nil, err
	}
	return NewFileSet(dir, base)
}

// NewFileSet opens a file through an open folder, which is the set's from then on.
func NewFileSet(dir *gate.Folder, base string) (*FileSet, error) {
	f, err := dir.OpenAny(base, ondisk.ErrReference)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &FileSet{
		gate.Opened{Dir: dir, Base: base, Handles: []*gate.File{f}},
		map[string]*gate.Folder{},
		&siblingCache{},
	}, nil
}

// First returns the file that was named.
func (s *FileSet) First() driver.File { return s.Handles[0] }

// Has reports whether the folder has a file of this name.
func (s *FileSet) Has(name string) bool {
	_, underWay := s.Dir.Alias[name]
	return underWay || s.Dir.Exists(name)
}

// Open opens a further file, by its path from the folder on. No link is followed.
func (s *FileSet) Open(name string) (driver.File, error) {
	if err := gate.CheckPath(name); err != nil {
		return nil, err
	}
	dir, err := s.folderOf(name)
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenAs(path.Base(name), name)
	if err != nil {
		return nil, err
	}
	s.Handles = append(s.Handles, f)
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
	o.Allow, o.Search = nil, nil // a package is complete
	dir, err := from.Again()
	if err != nil {
		return nil, err
	}
	img, err := OpenIn(dir, path.Base(name), o)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if at == "." {
		img.siblings = s.siblings
	} else {
		img.Under = at
	}
	return img, nil
}

// OpenInside opens an image that lies in the first file, an archive, through handles of its own. It can name other
// members, of which find gives the place.
func (s *FileSet) OpenInside(
	name string, at disk.Range, find func(name string) (disk.Range, error), o Options,
) (*Image, error) {
	dir, err := s.Dir.Again()
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenAny(s.Base, ondisk.ErrReference)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if s.Dir.Alias == nil { // times of a file that is written change late on a network
		err = s.Handles[0].Unchanged()
	}
	if err == nil && f.ID() != s.Handles[0].ID() {
		err = fmt.Errorf("file %.256q %w", s.Base, ondisk.ErrChanged)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), dir.Close())
	}
	img, err := inArchive(dir, newSection(f, name, at), find, o)
	if err != nil {
		return nil, errors.Join(err, f.Close(), dir.Close())
	}
	return img, nil
}

// Section returns a stretch of the first file as a file of its own: a member of an archive.
func (s *FileSet) Section(name string, at disk.Range) driver.File {
	return newSection(s.Handles[0], name, at)
}

// Close closes all files.
func (s *FileSet) Close() error {
	for _, d := range s.within {
		_ = d.Close() // only names were looked up in it
	}
	return s.Opened.Close()
}

// maxWithin is how many folders inside of its own a package of an OVF can have files in.
const maxWithin = 16

// folderOf opens the folder that a file of the set lies in. No link is followed.
func (s *FileSet) folderOf(name string) (*gate.Folder, error) {
	at, dir := path.Dir(name), s.Dir
	if at == "." {
		return dir, nil
	}
	if d := s.within[at]; d != nil {
		return d, nil
	}
	if len(s.within) == maxWithin {
		return nil, fmt.Errorf("files of the OVF: %w of %d folders", ondisk.ErrLimit, maxWithin)
	}
	dir, err := dir.Enter(at)
	if err == nil {
		s.within[at] = dir
	}
	return dir, err
}

// section is a file that lies inside of another one, in one piece. Nothing is extracted.
type section struct {
	disk.Disk
	f    *gate.File
	name string // with its folders in the archive
	off  int64
}

func newSection(f *gate.File, name string, at disk.Range) *section {
	d := disk.New(at.Len, units.SectorSize, func(off int64) (disk.Run, error) {
		return disk.Run{Len: at.Len - off, Src: f, Off: at.Off + off}, nil
	})
	return &section{d, f, name, at.Off}
}

func (s *section) Name() string { return path.Base(s.name) }
func (s *section) ID() string   { return fmt.Sprintf("%s:%d", s.f.ID(), s.off) }

// inArchive opens an image that lies in an archive, whose members are the only files that it can name: by their plain
// names, in its own folder.
func inArchive(dir *gate.Folder, main *section, find func(name string) (disk.Range, error), o Options) (*Image, error) {
	f := main.f
	img := &Image{
		Opened: gate.Opened{Dir: dir, Base: f.Name(), Handles: []*gate.File{f}}, members: []*section{main},
		digest: o.Digest,
	}
	c := &chain{img: img, above: []driver.File{main}, sector: o.SectorSize}
	c.gate = func(name string, _ int) (driver.File, error) {
		if err := gate.CheckName(name); err != nil {
			return nil, err
		}
		name = path.Join(path.Dir(main.name), name)
		at, err := find(name)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("member %.256q of the archive: %w", name, sys.ErrNotExist)
		}
		if err != nil {
			return nil, err
		}
		s := newSection(f, name, at)
		img.members = append(img.members, s)
		return s, nil
	}
	var err error
	if img.Format, img.Image, err = c.open(main, o.Format); err != nil {
		return nil, err
	}
	img.checkExtension(main.name, o)
	return img, nil
}

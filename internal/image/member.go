package image

import (
	"fmt"
	"io"
	"path"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// member is a file that lies inside of another one, in one piece. Nothing is extracted.
type member struct {
	f    *file
	name string // with its folders in the archive
	off  int64
	size int64
}

func (m *member) Name() string { return path.Base(m.name) }
func (m *member) Size() int64  { return m.size }
func (m *member) ID() string   { return fmt.Sprintf("%s:%d", m.f.ID(), m.off) }

func (m *member) ReadAt(p []byte, off int64) (int, error) {
	if off >= m.size {
		return 0, io.EOF
	}
	if int64(len(p)) > m.size-off {
		n, err := m.f.ReadAt(p[:m.size-off], m.off+off)
		if err == nil {
			err = io.EOF
		}
		return n, err
	}
	return m.f.ReadAt(p, m.off+off)
}

// Extent tells the holes that the archive itself has.
func (m *member) Extent(off, limit int64) (disk.Extent, error) {
	e, err := m.f.Extent(m.off+off, limit)
	e.Off = off
	return e, err
}

// inArchive opens an image that lies in the archive, whose members are the only files that it can name. It takes over f.
func inArchive(f *file, entries []entry, main *member, o Options) (*Image, error) {
	img := &Image{dir: f.dir, base: f.name, files: []*file{f}, members: []*member{main}}
	c := &chain{img: img, above: []driver.File{main}, sector: o.SectorSize, gate: func(name string, _ int) (driver.File, error) {
		m, err := lookup(f, entries, path.Dir(main.name), name)
		if err == nil {
			img.members = append(img.members, m)
		}
		return m, err
	}}
	var err error
	if img.Format, img.Image, err = c.open(main, o.Format); err != nil {
		return nil, err
	}
	img.misnamed(main.name, o)
	return img, nil
}

// lookup is the gate to the members of an archive: a file, by its plain name, in the folder of the image that names it.
func lookup(f *file, entries []entry, folder, name string) (*member, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	full := path.Join(folder, name)
	for _, e := range entries {
		if e.name == full {
			return newMember(f, e)
		}
	}
	return nil, fmt.Errorf("member %.256q of the archive: %w", full, sys.ErrNotExist)
}

func newMember(f *file, e entry) (*member, error) {
	if !e.regular() {
		kind := tarKinds[e.kind]
		if kind == "" {
			kind = fmt.Sprintf("of the kind %q", e.kind)
		}
		return nil, fmt.Errorf("member %.256q of the archive is %s: %w, want a regular file", e.name, kind, ondisk.ErrReference)
	}
	return &member{f: f, name: e.name, off: e.off, size: e.size}, nil
}

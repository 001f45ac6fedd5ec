package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

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

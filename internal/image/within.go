package image

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// maxWithin is how many folders inside of its own a package of an OVF can have files in.
const maxWithin = 16

// folderOf opens the folder that a file of an OVF lies in: that of the OVF, or one inside of it. No link is followed.
func (p *Package) folderOf(name string) (*folder, error) {
	at, dir := path.Dir(name), p.dir
	if at == "." {
		return dir, nil
	}
	if d := p.within[at]; d != nil {
		return d, nil
	}
	if len(p.within) == maxWithin {
		return nil, fmt.Errorf("files of the OVF: %w of %d folders", ondisk.ErrLimit, maxWithin)
	}
	dir, err := p.dir.enter(at)
	if err == nil {
		p.within[at] = dir
	}
	return dir, err
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
			return nil, fmt.Errorf("folder %.256q is a link or no folder: %w, want one inside of the package's folder", at, ondisk.ErrReference)
		case err != nil:
			return nil, fmt.Errorf("folder %.256q: %w", at, err)
		}
		above = next
	}
	sub := newFolder(above)
	sub.handles, sub.meter, sub.recent = d.handles, d.meter, d.recent
	return sub, nil
}

// checkPath refuses, before any look-up, what is not the path of a file inside of the folder.
func checkPath(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) > maxFolders {
		return fmt.Errorf("file name %.256q: %w of %d folders", name, ondisk.ErrLimit, maxFolders)
	}
	for _, part := range parts {
		if part == ".." || (part == "" && len(parts) > 1) {
			return fmt.Errorf("file name %.256q leaves the package's folder: %w, want a name inside of it", name, ondisk.ErrReference)
		}
		if err := checkName(part); err != nil {
			return err
		}
	}
	return nil
}

package realign

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
)

// Reading is what the user states about an image that is read. The zero value states nothing.
type Reading struct {
	Format     string // that the image must have
	SectorSize int64  // of the disk, bytes
	Like       int64  // sector size of a raw image when the user says none, bytes; 0 for its own
}

// Options returns the options of opening the image. A format that does not exist is refused.
func (r Reading) Options() (image.Options, error) {
	format := image.FormatName(r.Format)
	o := image.Options{Format: format, SectorSize: cmp.Or(r.SectorSize, r.Like)}
	if format != "" && !slices.Contains(image.Names(), format) {
		return o, ondisk.In(ondisk.ErrUsage, "--format %q, want one of %s", r.Format, strings.Join(image.Names(), ", "))
	}
	return o, nil
}

// Agrees refuses an image whose sectors have another size than the user states.
func (r Reading) Agrees(img *image.Image) error {
	if got := img.Disk.SectorSize(); r.SectorSize != 0 && got != r.SectorSize {
		return &ondisk.FormatError{
			What: "image", Field: "sector size", Got: got,
			Want: fmt.Sprintf("%d, as --sector-size says (only a raw image can be read with another size than its own)",
				r.SectorSize),
		}
	}
	return nil
}

// OpenMember opens a disk of a package and reads it. Errors name it as the user can.
func OpenMember(p *ova.Package, d ova.Disk, r Reading) (*Source, error) {
	o, err := r.Options()
	if err != nil {
		return nil, err
	}
	img, err := p.Open(d, o)
	if err != nil {
		return nil, fmt.Errorf("%s!%s: %w", p.Path, d.Member, err)
	}
	return Read(img, r)
}

package image

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// userSays stands in errors for the command line, which wants a format.
const userSays = "--format"

// maxChain is how many parents an image can have, one behind the other.
const maxChain = 16

// chain opens an image and those that it completes.
type chain struct {
	img   *Image
	above []driver.File // the named files of the images that are being opened
	// gate opens a further file by its plain name, where the image lies and nowhere else. level is 0 for a file of the
	// image itself, 1 for one of its parent, …
	gate func(name string, level int) (driver.File, error)
	// sector is the size of the sectors of the image that the user named, for a format that cannot say it; 0 when it is
	// not said.
	sector int64
}

// open opens the image in main, which has the format want unless that is empty.
func (c *chain) open(main driver.File, want string) (string, *driver.Image, error) {
	level := len(c.above) - 1
	var parent *driver.Image
	src := &driver.Source{
		File: main, Level: level,
		Open: func(name string) (driver.File, error) { return c.gate(name, level) },
	}
	if level == 0 {
		src.SectorSize = c.sector
	}
	src.Parent = func(ref driver.ParentRef) (_ *driver.Image, err error) {
		parent, err = c.parent(ref)
		return parent, err
	}
	says := userSays
	if level > 0 {
		says = "its child"
	}
	f, err := detect(main, want, says)
	if err != nil {
		return "", nil, err
	}
	img, err := f.Open(src)
	if err == nil && parent != nil {
		img.Inherit(parent)
	}
	return f.Name, img, err
}

// parent opens the image that the last one in c.above completes.
func (c *chain) parent(ref driver.ParentRef) (*driver.Image, error) {
	f, err := c.find(ref)
	if err != nil {
		return nil, err
	}
	for _, a := range c.above {
		if a.ID() == f.ID() {
			return nil, ondisk.Field("parent of "+c.last().Name(), "name", 0, f.Name(),
				"an image that is not in the chain already")
		}
	}
	if len(c.above) > maxChain {
		return nil, fmt.Errorf("chain of images: %w of %d parents; consolidate the snapshots", ondisk.ErrLimit, maxChain)
	}
	c.above = append(c.above, f)
	at := len(c.img.Chain)
	c.img.Chain = append(c.img.Chain, Link{Name: f.Name()}) // its own parents come behind it
	format, img, err := c.open(f, ref.Format)
	if err != nil {
		return nil, fmt.Errorf("parent %.256q: %w", f.Name(), err)
	}
	c.above = c.above[:len(c.above)-1]
	c.img.Chain[at] = Link{f.Name(), format, img.Subformat, img.ContentID}
	if ref.ID != "" && !strings.EqualFold(ref.ID, img.ContentID) {
		return nil, &ondisk.Refusal{
			Code: "reference", Remedy: "put the right parent beside it, or take the child from a backup that has both",
			Reason: fmt.Sprintf("the parent %.256q has the content id %s, but %q was made on %s: it was changed or replaced "+
				"since, and both together are no disk",
				f.Name(), img.ContentID, c.last().Name(), ref.ID),
		}
	}
	return img, nil
}

func (c *chain) last() driver.File { return c.above[len(c.above)-1] }

// find looks for the parent in the image's own folder, and nowhere else.
func (c *chain) find(ref driver.ParentRef) (driver.File, error) {
	var tried []string
	for _, stored := range ref.Names {
		name := localName(stored, ref.ID != "")
		f, err := c.gate(name, len(c.above))
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		if quoted := fmt.Sprintf("%.256q", name); !slices.Contains(tried, quoted) {
			tried = append(tried, quoted)
		}
	}
	if len(tried) == 0 {
		return nil, &ondisk.Refusal{
			Code: "reference", Remedy: "consolidate the snapshots where the parent is known",
			Reason: fmt.Sprintf("%q holds only what changed since its parent, and does not name that", c.last().Name()),
		}
	}
	return nil, &ondisk.Refusal{
		Code: "reference", Remedy: "put the parent into the same folder, or consolidate the snapshots where it is",
		Reason: fmt.Sprintf("the parent of %q is missing: there is no %s in its folder, and its data is not complete "+
			"without it", c.last().Name(), strings.Join(tried, " and no ")),
	}
}

// localName returns the name in the image's folder that a stored name leads to. A path is what the machine that wrote
// it had: with an identity to compare, the file may have moved together with the child.
func localName(stored string, hasID bool) string {
	name := stored
	for _, here := range []string{"./", `.\`} {
		name = strings.TrimPrefix(name, here)
	}
	if hasID && strings.ContainsAny(name, `/\`) {
		return lastName(name)
	}
	return name
}

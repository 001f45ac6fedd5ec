package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
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
	// gate opens a further file by its plain name, where the last image of above lies and nowhere else. level is 0 for
	// a file of the image that the user named, 1 for one of its parent, …
	gate func(name string, level int) (driver.File, error)
	// reach is gate for a file that is named by a path, in allowed folders too; nil in an archive.
	reach         func(name string, level int) (driver.File, error)
	allow, search []string // see Options
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
		Open: func(name string) (driver.File, error) { return c.extent(name, level) },
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
	if end := beyond(main); end != nil && f.Stream != nil && errors.Is(err, end) {
		img, err = openHead(main, f)
	}
	if err == nil && parent != nil {
		img.Inherit(parent)
	}
	return f.Name, img, err
}

// extent opens a further file of an image: where the image lies, or by a path into an allowed folder.
func (c *chain) extent(name string, level int) (driver.File, error) {
	if c.reach != nil && isPath(name) {
		return c.reach(name, level)
	}
	return c.gate(name, level)
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
		return nil, fmt.Errorf("chain of images: %w of %d parents; consolidate the snapshots", ondisk.ErrLimit,
			maxChain)
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
			Reason: fmt.Sprintf("the parent %.256q has the content id %s, but %q was made on %s: it was changed or "+
				"replaced since, and both together are no disk",
				f.Name(), img.ContentID, c.last().Name(), ref.ID),
		}
	}
	return img, nil
}

func (c *chain) last() driver.File { return c.above[len(c.above)-1] }

// file returns the file of the last image, which lies in no archive.
func (c *chain) file() *gate.File {
	f, _ := c.last().(*gate.File)
	return f
}

// place is where a parent may be.
type place struct {
	name string
	open func(name string, level int) (driver.File, error)
}

// find looks for the parent in the folder of the image, and where the user allows it.
func (c *chain) find(ref driver.ParentRef) (driver.File, error) {
	var tried []string
	for _, p := range c.places(ref) {
		f, err := p.open(p.name, len(c.above))
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		quoted := fmt.Sprintf("%.256q", p.name)
		if !slices.Contains(tried, quoted) && (ref.ID == "" || !strings.Contains(p.name, "/")) {
			tried = append(tried, quoted)
		}
	}
	if len(tried) == 0 {
		return nil, &ondisk.Refusal{
			Code: "reference", Remedy: "consolidate the snapshots where the parent is known",
			Reason: fmt.Sprintf("%q holds only what changed since its parent, and does not name that", c.last().Name()),
		}
	}
	where, remedy := "its folder", "put the parent into the same folder, or consolidate the snapshots where it is"
	if len(c.allow) > 0 {
		where = "its folder or one that is allowed"
	}
	if ref.ID != "" && c.reach != nil {
		remedy = "put the parent into the same folder, name its folder with --allow-folder, or consolidate the " +
			"snapshots where it is"
	}
	return nil, &ondisk.Refusal{
		Code: "reference", Remedy: remedy,
		Reason: fmt.Sprintf("the parent of %q is missing: there is no %s in %s, and its data is not complete "+
			"without it", c.last().Name(), strings.Join(tried, " and no "), where),
	}
}

// places lists where a parent may be, in order. With an identity to compare, the image's own folder comes first, and
// its own name last: a child is often named as its parent in another folder.
func (c *chain) places(ref driver.ParentRef) (out []place) {
	var last []place
	for _, stored := range ref.Names {
		name := localName(stored, ref.ID != "")
		switch {
		case ref.ID == "" && c.reach != nil && isPath(name):
			out = append(out, place{name, c.reach})
		case ref.ID != "" && name == lastName(c.last().Name()):
			last = append(last, place{name, c.gate})
		default:
			out = append(out, place{name, c.gate})
		}
	}
	if ref.ID == "" || c.reach == nil || len(c.allow) == 0 {
		return append(out, last...)
	}
	for _, stored := range ref.Names {
		at := strings.ReplaceAll(strings.TrimPrefix(stored, "file://"), `\`, "/")
		if isPath(at) && !strings.HasPrefix(at, "//") { // which Windows takes for a share or a device
			out = append(out, place{at, c.reachInside})
		}
	}
	if len(c.search) > 0 && len(ref.Names) > 0 {
		out = append(out, place{lastName(ref.Names[0]), c.searchFolders})
	}
	return append(out, last...)
}

// isPath reports whether a name can be a path of this machine: not a URL, nor one with a drive.
func isPath(name string) bool { return strings.Contains(name, "/") && !strings.ContainsAny(name, `:\`) }

// reachInside is reach for a path that another machine may have written: outside of the allowed folders it means
// nothing.
func (c *chain) reachInside(name string, level int) (driver.File, error) {
	f, err := c.reach(name, level)
	if errors.Is(err, gate.ErrOutside) {
		err = fs.ErrNotExist
	}
	return f, err
}

// searchFolders looks for a parent by its name in the allowed folders themselves. Two files of this name are refused.
func (c *chain) searchFolders(name string, level int) (driver.File, error) {
	var found driver.File
	for _, folder := range c.search {
		f, err := c.reachInside(path.Join(filepath.ToSlash(folder), name), level)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case found != nil && found.ID() != f.ID():
			return nil, &ondisk.Refusal{
				Code: "reference", Remedy: "allow the folder of the right one only",
				Reason: fmt.Sprintf("the parent of %q can be %q or %q", c.last().Name(), found.Name(), f.Name()),
			}
		default:
			found = f
		}
	}
	if found == nil {
		return nil, fs.ErrNotExist
	}
	return found, nil
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

package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// formatFlag is the source of a format in errors: the command line.
const formatFlag = "--format"

// maxChain limits the length of a chain of parents.
const maxChain = 16

// chain opens an image and its parents.
type chain struct {
	img   *Image
	above []driver.File // main files of the images being opened, the last on top
	// gate opens another file by its plain name, in the folder of the last image of above. level is 0 for a file of the
	// main image, 1 for its parent, …
	gate func(name string, level int) (driver.File, error)
	// reach is gate for a path, also into allowed folders; nil in an archive.
	reach         func(name string, level int) (driver.File, error)
	allow, search []string // see Options
	// sector is the sector size of the main image, for a format that does not store it; 0 if unspecified.
	sector int64
	place  disk.Range // of the disk in a raw file
}

// open opens the image in main. want is the required format, or empty.
func (c *chain) open(main driver.File, want string) (string, *driver.Image, error) {
	level := len(c.above) - 1
	var parent *driver.Image
	src := &driver.Source{
		File: main, Level: level,
		Open: func(name string) (driver.File, error) { return c.extent(name, level) },
	}
	if level == 0 {
		src.SectorSize, src.Place = c.sector, c.place
	}
	src.Parent = func(ref driver.ParentRef) (_ *driver.Image, err error) {
		parent, err = c.parent(ref)
		return parent, err
	}
	requiredBy := formatFlag
	if level > 0 {
		requiredBy = "its child"
	}
	f, err := detect(main, want, requiredBy)
	if err != nil {
		return "", nil, err
	}
	img, err := f.Open(src)
	if err == nil && parent != nil {
		img.Inherit(parent)
	}
	return f.Name, img, err
}

// extent opens another file of an image, in its folder or by a path into an allowed folder.
func (c *chain) extent(name string, level int) (driver.File, error) {
	if c.reach != nil && isPath(name) {
		return c.reach(name, level)
	}
	return c.gate(name, level)
}

// parent opens the parent of the last image in c.above.
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
	c.img.Chain = append(c.img.Chain, Link{Name: f.Name()}) // its own parents follow
	format, img, err := c.open(f, ref.Format)
	if err != nil {
		return nil, fmt.Errorf("parent %.256q: %w", f.Name(), err)
	}
	c.above = c.above[:len(c.above)-1]
	c.img.Chain[at] = Link{f.Name(), format, img.Subformat, img.ContentID}
	if ref.ID != "" && !strings.EqualFold(ref.ID, img.ContentID) {
		return nil, &ondisk.Refusal{
			Code: "reference", Remedy: "put the right parent into the same folder, or restore both from one backup",
			Reason: fmt.Sprintf("the parent %.256q has the content id %s, but %q was created on top of %s: the "+
				"parent was changed or replaced since, and the two do not fit together",
				f.Name(), img.ContentID, c.last().Name(), ref.ID),
		}
	}
	return img, nil
}

func (c *chain) last() driver.File { return c.above[len(c.above)-1] }

// file returns the main file of the last image, or nil for a file in an archive.
func (c *chain) file() *gate.File {
	f, _ := c.last().(*gate.File)
	return f
}

// place is a candidate for the parent.
type place struct {
	name string
	open func(name string, level int) (driver.File, error)
}

// find finds the parent in the folder of the image and in the allowed folders.
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
			Code: "reference", Remedy: "consolidate the snapshots on the host of the virtual machine",
			Reason: fmt.Sprintf("%q holds only the changes since its parent, and does not name it", c.last().Name()),
		}
	}
	where, remedy := "its folder", "put the parent into the same folder, or consolidate the snapshots on its host"
	if len(c.allow) > 0 {
		where = "its folder or a folder of --allow-folder"
	}
	if ref.ID != "" && c.reach != nil {
		remedy = "put the parent into the same folder, name its folder with --allow-folder, or consolidate the " +
			"snapshots on its host"
	}
	return nil, &ondisk.Refusal{
		Code: "reference", Remedy: remedy,
		Reason: fmt.Sprintf("the parent of %q is missing: there is no %s in %s, and its data is not complete "+
			"without it", c.last().Name(), strings.Join(tried, " and no "), where),
	}
}

// places lists the candidates for a parent, in order. With an identity to compare, the image's own folder comes first.
// The image's own name comes last, since a parent in another folder often has the same name.
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
		if isPath(at) && !strings.HasPrefix(at, "//") { // a share or a device on Windows
			out = append(out, place{at, c.reachInside})
		}
	}
	if len(c.search) > 0 && len(ref.Names) > 0 {
		out = append(out, place{lastName(ref.Names[0]), c.searchFolders})
	}
	return append(out, last...)
}

// isPath reports whether a name can be a path of this machine: no URL, and no path with a drive.
func isPath(name string) bool { return strings.Contains(name, "/") && !strings.ContainsAny(name, `:\`) }

// reachInside is reach for a path from another machine. Outside of the allowed folders, it is treated as missing.
func (c *chain) reachInside(name string, level int) (driver.File, error) {
	f, err := c.reach(name, level)
	if errors.Is(err, gate.ErrOutside) {
		err = fs.ErrNotExist
	}
	return f, err
}

// searchFolders finds a parent by its name in the allowed folders themselves. It returns an error for two different
// files of this name.
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
				Code: "reference", Remedy: "give --allow-folder for the folder of the right one only",
				Reason: fmt.Sprintf("the parent of %q is ambiguous: %q or %q", c.last().Name(), found.Name(), f.Name()),
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

// localName returns the name in the image's folder for a stored name. A path comes from the machine that wrote it. With
// an identity to compare, only its last component is used, since the file may have moved with the child.
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

// Limits of the search for snapshots in subfolders.
const (
	maxBelow = 1 << 14 // folders
	maxDeep  = 16      // nesting
)

// OverlaysBelow returns the paths of snapshots and views of this disk in other folders and their subfolders. They refer
// to a file of the disk by a path, or to its ContentID. No link is followed. missed are warnings about unreadable files
// and folders.
func (img *Image) OverlaysBelow(folders []string) (found []string, missed []ondisk.Issue, err error) {
	if img.members != nil || img.Remote != nil {
		return nil, nil, nil
	}
	seen := map[sys.ID]bool{}
	if own, err := img.Dir.At.Stat("."); err == nil {
		seen[own.ID] = true // searched by Children
	}
	for _, folder := range folders {
		d, err := gate.OpenFolder(folder)
		if err != nil {
			return found, missed, fmt.Errorf("%s: %w", folder, gate.PlainError(err))
		}
		w := below{img: img, seen: seen}
		err = errors.Join(w.look(d, folder, 0), d.Close())
		if found, missed = append(found, w.found...), append(missed, w.issues()...); err != nil {
			return found, missed, err
		}
	}
	return found, missed, nil
}

// OverlaysNear is OverlaysBelow for home, the folder of the disk, and for the allowed folders. An incomplete search of
// home is only a warning, since the user has not requested it.
func (img *Image) OverlaysNear(home string, allowed []string) (found []string, missed []ondisk.Issue, err error) {
	found, missed, bad := img.OverlaysBelow([]string{home})
	if bad != nil {
		missed = append(missed, ondisk.Issue{
			Code: CodeUnseen, Effect: ondisk.Warn,
			Text:   fmt.Sprintf("not searched everywhere for overlays (snapshots, linked clones): %v", bad),
			Remedy: "name the folders that can hold overlays with --allow-folder; they must be readable",
		})
	}
	further, more, err := img.OverlaysBelow(allowed)
	return append(found, further...), append(missed, more...), err
}

// childrenBesideLink finds snapshots of this disk in the folder of the user's link, which they may name as their
// parent.
func (img *Image) childrenBesideLink() ([]ondisk.Issue, error) {
	if st, err := sys.Lstat(img.Path); err != nil || st.Mode&fs.ModeSymlink == 0 || img.known != nil {
		return nil, nil // no link
	}
	at := filepath.Dir(img.Path)
	d, err := gate.OpenFolder(at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, gate.PlainError(err))
	}
	defer d.Close()
	own, errOwn := img.Dir.At.Stat(".")
	here, errHere := d.At.Stat(".")
	if errOwn == nil && errHere == nil && own.Same(here) {
		return nil, nil
	}
	w := below{img: img}
	if err := w.folder(d, at); err != nil {
		if err = w.pass(at, err); err != nil {
			return nil, err
		}
	}
	return append(SnapshotsAt(w.found), w.issues()...), nil
}

// below is a search in subfolders.
type below struct {
	img   *Image
	seen  map[sys.ID]bool // folders
	found []string        // paths
	unseen
}

// look reads the images of a folder, and then descends into its subfolders, to a limited depth.
func (w *below) look(d *gate.Folder, at string, deep int) error {
	st, err := d.At.Stat(".")
	if err != nil {
		return err
	}
	if !w.seen[st.ID] {
		if w.seen[st.ID] = true; len(w.seen) > maxBelow {
			return ondisk.In(ondisk.ErrLimit, "%s: more than %d folders; allow a smaller folder", at, maxBelow)
		}
		if err := w.folder(d, at); err != nil {
			return w.pass(at, err)
		}
	}
	inner, err := d.Names(func(n string) bool {
		st, err := d.At.Lstat(n)
		return err == nil && st.Mode.IsDir()
	})
	if err != nil {
		return w.pass(at, err)
	}
	if deep == maxDeep && len(inner) > 0 {
		w.add(fmt.Errorf("%s: %w of %d nested folders", filepath.Join(at, inner[0]), ondisk.ErrLimit, maxDeep))
		return nil
	}
	for _, n := range inner {
		if err := w.enter(d, n, filepath.Join(at, n), deep+1); err != nil {
			return err
		}
	}
	return nil
}

// pass records an unreadable folder and skips a missing one. Any other error ends the walk.
func (w *below) pass(at string, err error) error {
	err = fmt.Errorf("%s: %w", at, err)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case sys.Denied(err):
		w.add(err)
		return nil
	}
	return err
}

// enter looks into a subfolder, whose path is at.
func (w *below) enter(d *gate.Folder, name, at string, deep int) error {
	sub, err := d.At.Enter(name)
	if err != nil {
		return w.pass(at, err)
	}
	folder := gate.NewFolder(sub)
	return errors.Join(w.look(folder, at, deep), folder.Close())
}

// folder finds snapshots in one folder.
func (w *below) folder(d *gate.Folder, at string) error {
	siblings, err := readSiblings(d, "")
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(siblings)) {
		if w.img.completedBy(siblings[name], at) {
			w.found = append(w.found, filepath.Join(at, name))
		}
		if err := siblings[name].Unseen; err != nil {
			w.add(fmt.Errorf("%s: %w", at, err))
		}
	}
	return nil
}

// completedBy reports whether an image in a folder is a snapshot or a view of this disk.
func (img *Image) completedBy(n driver.Names, at string) bool {
	if n.Lineage != "" && n.Lineage == img.ContentID {
		return true
	}
	return slices.ContainsFunc(slices.Concat(n.Parents, n.Views), func(parent string) bool {
		parent = filepath.FromSlash(parent)
		if !filepath.IsAbs(parent) {
			parent = filepath.Join(at, parent)
		}
		st, err := sys.Stat(parent)
		return err == nil && slices.ContainsFunc(img.Handles, func(f *gate.File) bool {
			return f.Level == 0 && f.Is(st)
		})
	})
}

// SnapshotsAt returns the issues for the paths of snapshots.
func SnapshotsAt(paths []string) []ondisk.Issue { return snapshots(paths, "%.1024q") }

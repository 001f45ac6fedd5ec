package exchange

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// eachAt hands over the image at a name, or each disk of the package there. One that does not open has its file only.
func (x *run) eachAt(
	base string, use func(img *image.Image) ([]ondisk.Issue, error),
) (out []ondisk.Issue, err error) {
	again, err := x.Dir.Again()
	if err != nil {
		return nil, err
	}
	if p, disks, _ := openPackage(again, base); p != nil { // a disk that cannot be opened has its own error later
		for _, img := range disks {
			found, bad := use(img)
			out, err = append(out, found...), errors.Join(err, bad, img.Close())
		}
		return out, errors.Join(err, p.Close())
	}
	dir := gate.NewFolder(x.Dir.At)
	img, err := image.OpenIn(dir, base, image.Options{})
	if err != nil {
		f, err := dir.OpenAny(base, ondisk.ErrReference)
		if err != nil {
			return nil, nil //nolint:nilerr // there is nothing
		}
		img = &image.Image{
			Image: &driver.Image{}, Opened: gate.Opened{Dir: dir, Base: base, Handles: []*gate.File{f}},
		}
	}
	out, err = use(img)
	return out, errors.Join(err, img.CloseFiles())
}

// overlaysOfUndo refuses an undo by which an overlay in another folder loses the copy, or the name of the original.
func (x *run) overlaysOfUndo(o Options) error {
	if !x.keeps(x.d) {
		return nil // the copy was no disk yet, or is none any more
	}
	x.notes = append(x.notes, elsewhere(o, "one in another folder that was made since the exchange would mix the new "+
		"layout with the old one"))
	err := x.overlays(string(x.New[0].Name), o, "give --force if it was made before the exchange "+
		"and needs the original")
	if err == nil {
		err = x.overlays(string(x.Old[0].Other), o, "give --force if it is to be based on the disk at "+
			"its old name (qemu-img rebase -u)")
	}
	return err
}

// overlaysOfFinish refuses a finish by which an overlay in another folder loses the original.
func (x *run) overlaysOfFinish(o Options) error {
	if !slices.ContainsFunc(x.Old, func(f file) bool { return x.d.is(f.Other, f) }) {
		return nil // no file of it is removed
	}
	x.notes = append(x.notes, elsewhere(o, "one of the original in another folder has lost its base"))
	return x.overlays(string(x.Old[0].Other), o, "give --force to lose it")
}

// overlays refuses to remove the base of an overlay below the folder of the disk or in o.Search. It notes folders and
// files that it could not read.
func (x *run) overlays(base string, o Options, force string) error {
	var found []string
	missed, err := x.eachAt(base, func(img *image.Image) ([]ondisk.Issue, error) {
		beside, err := img.Children()
		beside = slices.DeleteFunc(beside, func(i ondisk.Issue) bool {
			return i.Effect == ondisk.Refuse // what needs a name of the disk, free has refused
		})
		near, below, bad := img.OverlaysNear(x.home(), o.Search)
		found = append(found, near...)
		return slices.Concat(beside, below), errors.Join(err, bad)
	})
	for _, i := range missed {
		if !slices.ContainsFunc(x.notes, func(n ondisk.Issue) bool { return n.Text == i.Text }) {
			x.notes = append(x.notes, i)
		}
	}
	if err != nil || len(found) == 0 || o.Force {
		return err
	}
	return &ondisk.Refusal{
		Code: "reference", Reason: fmt.Sprintf("%.1024q needs the disk %q", found[0], base),
		Remedy: "consolidate or remove it first; or " + force,
	}
}

// home returns the path of the folder of the disk.
func (x *run) home() string {
	if real, err := filepath.EvalSymlinks(x.Work.Path); err == nil {
		return filepath.Dir(real)
	}
	return filepath.Dir(x.Work.Path)
}

// elsewhere warns of overlays in folders that are not searched: the disk does not hold who names it.
func elsewhere(o Options, harm string) ondisk.Issue {
	seen := "its folder and below"
	if len(o.Search) > 0 {
		seen += ", and in those of --allow-folder,"
	}
	return ondisk.Issue{
		Code: "overlays-elsewhere", Effect: ondisk.Warn,
		Text:   fmt.Sprintf("overlays of it (linked clones, snapshots) were looked for in %s only: %s", seen, harm),
		Remedy: "give --allow-folder DIR where other folders can hold some: those in DIR and below are refused",
	}
}

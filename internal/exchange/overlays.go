package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// free refuses a disk, or the disks of a package, that a program has open, or that something beside it needs. force
// says what --force does to an overlay below the folder of the disk or in o.Search; empty: none is looked for.
func (x *run) free(base name, files []string, o Options, force string) error {
	// Its own files need it under the other names that the exchange gives them, too: a VMDK names itself.
	own := []string{string(x.Old[0].Name), string(x.Old[0].Other)}
	for _, f := range slices.Concat(x.Old, x.New) {
		if x.d.is(f.Other, f) {
			own = append(own, string(f.Other))
		}
	}
	user, err := otherUser(x.Dir, files, own...)
	if err != nil {
		return err
	}
	if user != "" {
		return needed(user, base, "remove it, or consolidate it first")
	}
	disks, err := x.openToAsk(base)
	if err != nil {
		return err
	}
	for _, img := range disks.images {
		busy, bad := img.UsedBy(x.Writers)
		if bad == nil && len(busy) > 0 {
			bad = &ondisk.Refusal{Code: "busy", Reason: busy[0].Text, Remedy: busy[0].Remedy}
		}
		if bad == nil && force != "" {
			bad = x.overlays(img, base, o, force)
		}
		err = cmp.Or(err, bad)
	}
	return errors.Join(err, disks.close())
}

func needed(user string, base name, remedy string) error {
	return &ondisk.Refusal{
		Code: "reference", Reason: fmt.Sprintf("%.1024q needs the disk %v", user, base), Remedy: remedy,
	}
}

// openToAsk opens the image at a name, or the package there. One that does not open has its file only: it has its own
// error later.
func (x *run) openToAsk(base name) (*opened, error) {
	disks, err := openAt(x.Dir, string(base), nil, image.Options{})
	if disks != nil {
		return disks, nil
	}
	dir, errDir := x.Dir.Again()
	if errDir != nil {
		return nil, errors.Join(err, errDir)
	}
	f, err := dir.OpenAny(string(base), ondisk.ErrReference)
	if err != nil {
		return &opened{}, dir.Close() // there is nothing
	}
	return &opened{images: []*image.Image{{
		Image: &driver.Image{}, Opened: gate.Opened{Dir: dir, Base: string(base), Handles: []*gate.File{f}},
	}}}, nil
}

// overlays refuses to remove the base of an overlay below the folder of the disk or in o.Search. It notes folders and
// files that it could not read.
func (x *run) overlays(img *image.Image, base name, o Options, force string) error {
	missed, err := img.Children()
	missed = slices.DeleteFunc(missed, func(i ondisk.Issue) bool {
		return i.Effect == ondisk.Refuse // what needs a name of the disk, free has refused
	})
	found, below, bad := img.OverlaysNear(x.home(), o.Search)
	for _, i := range slices.Concat(missed, below) {
		if !slices.ContainsFunc(x.notes, func(n ondisk.Issue) bool { return n.Text == i.Text }) {
			x.notes = append(x.notes, i)
		}
	}
	err = errors.Join(err, bad)
	if err == nil && len(found) > 0 && !o.Force {
		err = needed(found[0], base, "consolidate or remove it first; or "+force)
	}
	return err
}

// home returns the path of the folder of the disk.
func (x *run) home() string {
	if real, err := filepath.EvalSymlinks(x.Work.Path); err == nil {
		return filepath.Dir(real)
	}
	return filepath.Dir(x.Work.Path)
}

// elsewhere warns of overlays in folders that are not searched: the disk does not hold who names it.
func (x *run) elsewhere(o Options, harm string) {
	seen := "its folder and below"
	if len(o.Search) > 0 {
		seen += ", and in those of --allow-folder,"
	}
	x.notes = append(x.notes, ondisk.Issue{
		Code: "overlays-elsewhere", Effect: ondisk.Warn,
		Text:   fmt.Sprintf("overlays of it (linked clones, snapshots) were looked for in %s only: %s", seen, harm),
		Remedy: "give --allow-folder DIR where other folders can hold some: those in DIR and below are refused",
	})
}

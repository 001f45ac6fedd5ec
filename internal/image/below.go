package image

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Bounds of the search for snapshots below other folders.
const (
	maxBelow = 1 << 14 // folders
	maxDeep  = 16      // one in the other
)

// ChildrenBelow finds snapshots of this disk in other folders and below them, see OverlaysBelow.
func (img *Image) ChildrenBelow(folders []string) ([]ondisk.Issue, error) {
	found, missed, err := img.OverlaysBelow(folders)
	return slices.Concat(snapshotsAt(found), missed), err
}

// OverlaysBelow returns the paths of the snapshots and views of this disk in other folders and below them: those that
// name a file of it by a path, or have the identity of its content as that of their parent. No link is followed. missed
// are warnings of files and folders that could not be looked at.
func (img *Image) OverlaysBelow(folders []string) (found []string, missed []ondisk.Issue, err error) {
	if img.members != nil || img.Remote != nil {
		return nil, nil, nil
	}
	seen := map[sys.ID]bool{}
	if own, err := img.Dir.At.Stat("."); err == nil {
		seen[own.ID] = true // Children looks there
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

// OverlaysNear is OverlaysBelow for home, the folder of the disk, and for the folders that a user allows. A search of
// home that ends early is a warning: nobody has asked for it.
func (img *Image) OverlaysNear(home string, allowed []string) (found []string, missed []ondisk.Issue, err error) {
	found, missed, bad := img.OverlaysBelow([]string{home})
	if bad != nil {
		missed = append(missed, ondisk.Issue{
			Code: CodeUnseen, Effect: ondisk.Warn,
			Text:   fmt.Sprintf("overlays of it (snapshots, linked clones): not all folders were searched: %v", bad),
			Remedy: "name the folders that can hold some with --allow-folder, which have to be read",
		})
	}
	further, more, err := img.OverlaysBelow(allowed)
	return append(found, further...), append(missed, more...), err
}

// ChildrenNear is OverlaysNear with an issue for each overlay.
func (img *Image) ChildrenNear(home string, allowed []string) ([]ondisk.Issue, error) {
	found, missed, err := img.OverlaysNear(home, allowed)
	return slices.Concat(snapshotsAt(found), missed), err
}

// childrenBesideLink finds snapshots of this disk beside the link that the user named: they can name that, too.
func (img *Image) childrenBesideLink() ([]ondisk.Issue, error) {
	if st, err := sys.Lstat(img.Path); err != nil || st.Mode&fs.ModeSymlink == 0 || img.known != nil {
		return nil, nil // it is no link
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
	return append(snapshotsAt(w.found), w.issues()...), nil
}

// below is a walk over folders.
type below struct {
	img   *Image
	seen  map[sys.ID]bool // folders
	found []string        // paths
	unseen
}

// look reads what the images of a folder name, and then looks into the folders in it. The depth is bounded.
func (w *below) look(d *gate.Folder, at string, deep int) error {
	st, err := d.At.Stat(".")
	if err != nil {
		return err
	}
	if !w.seen[st.ID] {
		if w.seen[st.ID] = true; len(w.seen) > maxBelow {
			return ondisk.In(ondisk.ErrLimit, "%s: more than %d folders; allow a smaller one", at, maxBelow)
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
		w.add(fmt.Errorf("%s: %w of %d folders one in the other", filepath.Join(at, inner[0]), ondisk.ErrLimit,
			maxDeep))
		return nil
	}
	for _, n := range inner {
		sub, err := d.At.Enter(n)
		if err == nil {
			folder := gate.NewFolder(sub)
			err = errors.Join(w.look(folder, filepath.Join(at, n), deep+1), folder.Close())
		} else {
			err = w.pass(filepath.Join(at, n), err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pass notes a folder that this user may not read, and passes over one that is gone. Any other error ends the walk.
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

// folder looks for snapshots in one folder.
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

func snapshotsAt(paths []string) (out []ondisk.Issue) {
	for _, p := range paths {
		out = append(out, ondisk.Issue{
			Code: "snapshot-parent", Effect: ondisk.Refuse,
			Text: fmt.Sprintf("%.1024q is a snapshot of this disk: the disk alone is not the machine's present state",
				p),
			Remedy: "consolidate or remove the snapshots first",
		})
	}
	return out
}

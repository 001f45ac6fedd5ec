package store

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// extentNames returns the names that a further file of an image can have.
func extentNames(base, suffix string) (name, other string) {
	ext := filepath.Ext(base)
	stem := strings.TrimSuffix(base, ext)
	return stem + suffix + ext, stem + "-1" + suffix + ext
}

// extentSuffix is what formats put between stem and extension: the flat extent, those of a disk in pieces of 2 GB, and
// the head of a view.
var extentSuffix = regexp.MustCompile(`^(-1)?-(flat|head|[fs][0-9]{3,4})$`)

// isExtentName reports whether a name is one that a further file of the image base can have.
func isExtentName(base, name string) bool {
	ext := filepath.Ext(base)
	rest, ok := strings.CutPrefix(name, strings.TrimSuffix(base, ext))
	rest, ends := strings.CutSuffix(rest, ext)
	return ok && ends && extentSuffix.MatchString(rest)
}

// createExtent creates a further file of the image: NAME-flat.vmdk. With --force the one that DEST uses now must live
// until the descriptor has been exchanged, so the new one takes the other of two names.
func (o *Parts) createExtent(src *image.Image, suffix string) (driver.WriteFile, string, error) {
	name, other := extentNames(o.base, suffix)
	if err := gate.CheckName(other); err != nil {
		return nil, "", ondisk.In(ondisk.ErrUsage, "DEST would need a second file: %w", err)
	}
	if o.uses(name) {
		name = other
	}
	if f := sourceFile(o.dir, name, &src.Opened); f != "" && o.swaps {
		p, err := o.newPart(name)
		return p, name, err
	} else if f != "" {
		return nil, "", ondisk.In(ondisk.ErrUsage, "DEST %s needs the name %s, which leads to the source's file %s; "+
			"name another file", o.path, o.shown(name), f)
	}
	if o.dir.Exists(name) {
		return nil, "", ondisk.In(ondisk.ErrOutput,
			"%s exists and does not belong to %s; move it away, or choose another name for DEST", o.shown(name), o.path)
	}
	p, err := o.newPart(name)
	return p, name, err
}

// uses reports whether the image that is replaced has a file of a name.
func (o *Parts) uses(name string) bool {
	return slices.ContainsFunc(o.old, func(n string) bool {
		return n == name || o.caseless &&
			strings.EqualFold(n, name)
	})
}

// owns reports whether a name is one that a further file of DEST can have.
func (o *Parts) owns(name string) bool {
	if o.caseless {
		return isExtentName(strings.ToLower(o.base), strings.ToLower(name))
	}
	return isExtentName(o.base, name)
}

// findCase finds out whether the folder finds a file by its name in another case: it finds DEST, and has no file of
// just that name.
func (o *Parts) findCase() error {
	alike, err := o.dir.Names(func(n string) bool { return strings.EqualFold(n, o.base) })
	o.caseless = len(alike) == 1 && alike[0] != o.base && o.dir.SameFile(alike[0], o.base)
	return err
}

// replacedName returns the name of a second link to an extent that waits for its removal, since DEST has got another.
func replacedName(name string) string { return "." + name + journal.Replaced }

// cutMark takes a name apart that killed runs leave: the file that it stands for, and ".partial" or ".replaced". Other
// names have no mark.
func cutMark(name string) (inner, mark string) {
	rest, ok := strings.CutPrefix(name, ".")
	for _, mark := range []string{journal.Partial, journal.Replaced} {
		if inner, ends := strings.CutSuffix(rest, mark); ok && ends {
			return inner, mark
		}
	}
	return "", ""
}

// removeLeft removes the further files that killed runs have left. This run holds the lock of DEST's partial file by
// now. Such a file has a second link as a mark. One that could be in use stays, without the mark.
func (o *Parts) removeLeft() error {
	left, err := o.dir.Names(func(n string) bool {
		inner, mark := cutMark(n)
		return mark != "" && o.owns(inner)
	})
	if err != nil {
		return err
	}
	for _, n := range left {
		if err := o.removeMarked(cutMark(n)); err != nil {
			return err
		}
	}
	return nil
}

// removeMarked removes a mark, and the file behind it when nothing uses that.
func (o *Parts) removeMarked(n, mark string) error {
	if w, err := o.otherWork(n); w != nil || err != nil {
		return err
	}
	// Named, and DEST was not: its partial file was there when this run began.
	unpublished := mark == journal.Partial && o.stale && o.dir.SameFile(n, partialName(n))
	// DEST got another extent, and this one was not removed.
	replaced := mark == journal.Replaced && len(o.old) > 0 && o.dir.SameFile(n, replacedName(n))
	if unpublished || replaced {
		if err := o.removeUnused(n); err != nil {
			return err
		}
	}
	if mark == journal.Partial {
		return o.removeStale(partialName(n))
	}
	if err := o.dir.At.Remove(replacedName(n)); err != nil {
		return ondisk.In(ondisk.ErrOutput, "remove %s: %w", replacedName(n), err)
	}
	return nil
}

// otherWork returns the open work on another DEST that has files of a name, final or partial; nil: there is none. DEST
// can be named as the extent of another one, and the other way round.
func (o *Parts) otherWork(name string) (*journal.Work, error) {
	lower := strings.ToLower(name)
	journals, err := o.dir.Names(func(n string) bool {
		dest, ok := strings.CutSuffix(n, journal.Suffix)
		folded := strings.ToLower(dest)
		return ok && !strings.EqualFold(dest, o.base) && (folded == lower || isExtentName(folded, lower))
	})
	if err != nil {
		return nil, err
	}
	for _, n := range journals {
		dest := strings.TrimSuffix(n, journal.Suffix)
		w, err := journal.Beside(o.dir, dest)
		if err != nil || w != nil && (w.Kind == journal.Copy || w.Blocks) {
			if w != nil {
				w.Path = o.shown(dest)
			}
			return w, err
		}
	}
	return nil, nil //nolint:nilnil // nothing is open
}

// refuseOther refuses a name whose partial file belongs to another DEST: hours of work may stand in it.
func (o *Parts) refuseOther(name string) error {
	w, err := o.otherWork(name)
	if w == nil {
		return err
	}
	i := w.Issue()
	return &ondisk.Refusal{
		Code: i.Code, Remedy: i.Remedy,
		Reason: fmt.Sprintf("DEST %s needs the name %s, which belongs to %s: %s", o.path, o.shown(partialName(name)),
			w.Path, i.Text),
	}
}

// removeUnused removes a file of a killed run, unless DEST or any VMDK of the folder uses it.
func (o *Parts) removeUnused(name string) error {
	if o.uses(name) || o.unreadable {
		return nil
	}
	if named, err := image.IsNamed(o.dir, name); named || err != nil {
		return err // a descriptor that was renamed since uses it
	}
	if err := o.dir.At.Remove(name); err != nil {
		return ondisk.In(ondisk.ErrOutput, "remove unfinished %s: %w", name, err)
	}
	return nil
}

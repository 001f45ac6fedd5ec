package exchange

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// run is an exchange that this process has locked.
type run struct {
	*plan
	*journal.Held
	d     *folder
	notes []ondisk.Issue // of a search for overlays
}

// begun returns the exchange of a journal.
func begun(h *journal.Held) (*run, error) {
	p, err := readPlan(h.Plan())
	if err != nil {
		return nil, err
	}
	if string(p.Old[0].Name) != h.Base {
		return nil, ondisk.Field("journal of an exchange", "name of the disk", 0, string(p.Old[0].Name), h.Base)
	}
	return &run{plan: p, Held: h, d: &folder{Folder: h.Dir, sync: h.SyncFolder}}, nil
}

// start writes the journal of an exchange. From then on the next run goes on from it.
func (p *plan) start(d *folder, path string) (*journal.Held, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return journal.Begin(d.Folder, string(p.Old[0].Name), path, journal.Exchange, b, 0)
}

// inSteps makes changes of names, each durable before the next.
func (x *run) inSteps(steps ...func() error) error {
	for _, step := range steps {
		if err := errors.Join(step(), x.SyncFolder()); err != nil {
			return err
		}
	}
	return nil
}

// forward completes the exchange, from whatever point it has reached.
func (x *run) forward() error {
	main := x.New[0]
	var err error
	switch {
	case !x.several():
		err = x.inSteps(func() error { return x.d.swap(x.Old[0], main) })
	case x.d.is(main.Name, main):
		err = x.inSteps(x.takeSeals, x.dropNames)
	default:
		err = x.inSteps(x.check, x.keepOthers, x.nameKept, x.breakSeals, x.showKept, x.takeOthers,
			func() error { return x.d.take(main) }, x.takeSeals, x.dropNames)
	}
	if err != nil {
		return err
	}
	return x.Enter(journal.Kept)
}

// check makes sure that nothing of the exchange was changed before its next step.
func (x *run) check() error {
	o := x.Old[0]
	if !x.untouched() && !x.d.holds(o.Name, o.Kept) {
		return foreign(o.Name)
	}
	for _, f := range x.New {
		if !x.d.is(f.Name, f) && !x.d.is(f.Other, f) {
			return gone(f)
		}
	}
	return nil
}

// keepOthers gives the other files of the source their new names: step 1.
func (x *run) keepOthers() error {
	for _, f := range x.Old[1:] {
		if f.text() {
			continue
		}
		if err := x.d.keep(f); err != nil {
			return err
		}
	}
	return nil
}

// nameKept makes the source a disk under its new names: step 2.
func (x *run) nameKept() error {
	for _, f := range x.Old {
		if !f.text() {
			continue
		}
		if x.d.has(f.Other) && !x.d.holds(f.Other, f.Kept) {
			return foreign(f.Other)
		}
		if err := x.d.write(f.Other, f.Kept, f.Name); err != nil {
			return err
		}
	}
	return nil
}

// breakSeals removes the names of the source's manifest and certificate. They do not fit what the path leads to next.
func (x *run) breakSeals() error {
	for _, f := range x.Old {
		if err := x.breakSeal(f, x.d.named); err != nil {
			return err
		}
	}
	return nil
}

// breakSeal removes the name of a manifest or a certificate, which has to be that of the file.
func (x *run) breakSeal(f file, named func(f file) bool) error {
	if !f.Seal {
		return nil
	}
	stands, err := x.d.stands(f.Name)
	switch {
	case err != nil || !stands:
		return err
	case !named(f):
		return foreign(f.Name)
	}
	return x.d.remove(f.Name)
}

// showKept leads the path of the disk to the source by its new names: step 3.
func (x *run) showKept() error {
	o := x.Old[0]
	return x.d.write(o.Name, o.Kept, o.Name, o.Other)
}

// takeOthers gives the other files of the copy their names: step 4.
func (x *run) takeOthers() error { return x.takeThose(false) }

// takeSeals gives the manifest of the copy its name, when all that it has digests of has its own.
func (x *run) takeSeals() error { return x.takeThose(true) }

func (x *run) takeThose(seals bool) error {
	for _, f := range x.New[1:] {
		if f.Seal != seals {
			continue
		}
		if seals && x.d.has(f.Name) && !x.d.is(f.Name, f) {
			return foreign(f.Name)
		}
		if err := x.d.take(f); err != nil {
			return err
		}
	}
	return nil
}

// dropNames removes the old names of files that the copy has no files for, and what it has left of itself.
func (x *run) dropNames() error {
	if err := x.dropLeft(nil); err != nil {
		return err
	}
	for _, f := range x.Old[1:] {
		if x.d.is(f.Other, f) {
			if err := x.d.drop(f.Name, f, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropLeft removes the files of the copy that get no name.
func (x *run) dropLeft(removed *[]string) error {
	for _, f := range x.Left {
		if !x.d.same(f.Name, f) {
			continue // it is gone, and another file can have got its inode
		}
		if err := x.d.drop(f.Name, f, removed); err != nil {
			return err
		}
	}
	return nil
}

// back brings the original back, from whatever point the exchange or an undo has reached. It returns what was removed.
func (x *run) back() (removed []string, err error) {
	if err := x.Enter(journal.Undoing); err != nil {
		return nil, err
	}
	if x.several() {
		err = x.inSteps(x.holdCopy, x.sealsOff, x.showBack, x.othersBack, x.headBack, x.sealsBack)
	} else {
		err = x.inSteps(x.oneBack)
	}
	if err != nil {
		return nil, err
	}
	err = x.inSteps(func() error { return x.cleanUp(&removed) })
	if err == nil {
		err = x.Remove()
	}
	return removed, err
}

// oneBack gives a source in one file its name again.
func (x *run) oneBack() error {
	o, n := x.Old[0], x.New[0]
	for _, at := range []name{o.Name, o.Other, n.Other} {
		if x.d.is(at, o) {
			if string(at) == string(o.Name) {
				return nil
			}
			return failed("rename to", o.Name, x.d.At.Rename(string(at), string(o.Name)))
		}
	}
	return gone(o)
}

// untouched reports whether the path of the disk leads to the source as it was before the exchange. An OVF that states
// no sizes has the same bytes in the copy.
func (x *run) untouched() bool {
	return x.d.holds(x.Old[0].Name, x.Old[0].Was) && !x.d.is(x.New[0].Name, x.New[0])
}

// holdCopy gives the first file of the copy a second name until the end of an undo: the inode of a removed file could
// be that of the next one that is written. Without links, an undo that is interrupted can ask for --force.
func (x *run) holdCopy() error {
	n := x.New[0]
	if !x.d.is(n.Name, n) || x.d.is(n.Other, n) {
		return nil
	}
	err := x.d.At.Link(string(n.Name), string(n.Other))
	if sys.Unsupported(err) {
		return nil
	}
	return failed("link", n.Other, err)
}

// sealsOff removes the manifest of the copy, which does not fit what the path leads to next.
func (x *run) sealsOff() error {
	if !x.d.is(x.New[0].Name, x.New[0]) {
		return nil
	}
	for _, f := range x.New {
		was := slices.Index(names(x.Old), string(f.Name))
		named := func(f file) bool { return x.d.is(f.Name, f) || was >= 0 && x.d.named(x.Old[was]) }
		if err := x.breakSeal(f, named); err != nil {
			return err
		}
	}
	return nil
}

// showBack leads the path of the disk to the source by its new names, unless it leads to the source already.
func (x *run) showBack() error {
	for _, f := range x.Old {
		if !f.text() && !x.d.is(f.Name, f) && !x.d.is(f.Other, f) {
			return gone(f)
		}
	}
	if x.untouched() {
		return nil
	}
	if err := x.keepOthers(); err != nil {
		return err
	}
	return x.showKept()
}

// othersBack gives the other files of the source their names again, in place of those of the copy.
func (x *run) othersBack() error { return x.thoseBack(false) }

// sealsBack gives the manifest and the certificate of the source their names again.
func (x *run) sealsBack() error {
	for _, f := range x.Old[1:] {
		if !f.text() {
			continue
		}
		if err := x.d.write(f.Name, f.Was, f.Other, x.Old[0].Name); err != nil {
			return err
		}
	}
	return x.thoseBack(true)
}

func (x *run) thoseBack(seals bool) error {
	for _, f := range x.Old[1:] {
		if f.Seal != seals || f.text() || x.d.is(f.Name, f) {
			continue
		}
		from, tmp := f.Other, unfinishedName(f.Name)
		if err := x.d.remove(tmp); err != nil {
			return err
		}
		err := x.d.At.Link(string(from), string(tmp))
		if err == nil {
			from = tmp
		}
		if err == nil || sys.Unsupported(err) {
			err = x.d.At.Rename(string(from), string(f.Name))
		}
		if err != nil {
			return failed("link or rename to", f.Name, err)
		}
	}
	return nil
}

// headBack leads the path of the disk to the source by its own names.
func (x *run) headBack() error {
	if x.untouched() {
		return nil
	}
	o := x.Old[0]
	return x.d.write(o.Name, o.Was, o.Name, o.Other)
}

// cleanUp removes the second names of the source, and what is left of the copy.
func (x *run) cleanUp(removed *[]string) error {
	for _, f := range x.Old {
		var err error
		if !f.text() {
			err = x.d.drop(f.Other, f, removed)
		} else if x.d.has(f.Other) {
			*removed = append(*removed, string(f.Other))
			err = x.d.remove(f.Other)
		}
		if err = errors.Join(err, x.d.remove(unfinishedName(f.Name)), x.d.remove(unfinishedName(f.Other))); err != nil {
			return err
		}
	}
	return x.dropCopy(removed)
}

// dropCopy removes what is left of the copy: of its names those that the source has no files for.
func (x *run) dropCopy(removed *[]string) error {
	if err := x.dropLeft(removed); err != nil {
		return err
	}
	for _, f := range x.New {
		var err error
		if f.unnamed() || x.d.same(f.Other, f) { // else another file can have got both name and inode
			err = x.d.drop(f.Other, f, removed)
		}
		if !slices.Contains(names(x.Old), string(f.Name)) {
			err = errors.Join(err, x.d.drop(f.Name, f, removed))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// names lists the files of the disk at the path.
func names(files []file) (out []string) {
	for _, f := range files {
		out = append(out, string(f.Name))
	}
	return out
}

// unfinishedError returns the error of an exchange that did not come to its end.
func unfinishedError(path string, err error) error {
	return fmt.Errorf("%w; the exchange is not complete: %s goes on, %s takes it back", err,
		shell.Command("resume", nil, path), shell.Command("undo", nil, path))
}

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
	d       *folder
	removed []string       // names of files that are gone by this run
	notes   []ondisk.Issue // of a search for overlays
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
	return &run{plan: p, Held: h, d: &folder{Folder: h.Dir}}, nil
}

// start writes the journal of an exchange. From then on the next run goes on from it.
func (p *plan) start(d *folder, path string) (*journal.Held, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return journal.Begin(d.Folder, string(p.Old[0].Name), path, journal.Exchange, b, 0)
}

// step is a part of an exchange, and its inverse in an undo. Both look for what is done already, so that they can be
// repeated.
type step struct {
	several  bool               // only where the first file of the disk names others
	done     func(x *run) bool  // the steps before are done, too
	do, undo func(x *run) error // nil: nothing
}

// steps lists the steps in their order. An undo walks them from the end.
var steps = []step{
	{do: (*run).check},
	{do: (*run).keepFiles, undo: (*run).cleanUp},
	{several: true, do: (*run).nameKept},
	{several: true, do: (*run).breakSeals, undo: (*run).sealsBack},
	{several: true, do: (*run).showKept, undo: (*run).headBack},
	{several: true, do: (*run).takeOthers, undo: (*run).othersBack},
	{done: (*run).shown, do: (*run).takeFirst, undo: (*run).firstBack},
	{several: true, do: (*run).takeSeals, undo: (*run).sealsOff},
	{several: true, do: (*run).dropNames, undo: (*run).holdCopy},
}

// durably makes one direction of a step, and the names that it changes durable.
func (x *run) durably(s step, do func(x *run) error) error {
	if do == nil || s.several && !x.several() {
		return nil
	}
	return errors.Join(do(x), x.SyncFolder())
}

// forward completes the exchange, from whatever point it has reached.
func (x *run) forward() error {
	reached := 0
	for i, s := range steps {
		if s.done != nil && s.done(x) {
			reached = i + 1
		}
	}
	for _, s := range steps[reached:] {
		if err := x.durably(s, s.do); err != nil {
			return err
		}
	}
	return x.Enter(journal.Kept)
}

// back brings the original back, from whatever point the exchange or an undo has reached. It returns what was removed.
func (x *run) back() (removed []string, err error) {
	if err := x.Enter(journal.Undoing); err != nil {
		return nil, err
	}
	for _, s := range slices.Backward(steps) {
		if err := x.durably(s, s.undo); err != nil {
			return x.removed, err
		}
	}
	return x.removed, x.Remove()
}

// check makes sure that nothing of the exchange was changed before its next step.
func (x *run) check() error {
	o, n := x.Old[0], x.New[0]
	ours := x.untouched() || x.d.holds(o.Name, o.Kept)
	if !x.several() {
		ours = !x.d.has(o.Name) || x.d.is(o.Name, o) || x.d.is(n.Name, n)
	}
	if !ours {
		return foreign(o.Name)
	}
	for _, f := range x.New {
		if !x.d.there(f) {
			return gone(f)
		}
	}
	return nil
}

// keepFiles gives the files of the source second names.
func (x *run) keepFiles() error {
	for _, f := range x.Old {
		if f.text() {
			continue
		}
		if err := x.keep(f); err != nil {
			return err
		}
	}
	return nil
}

// keep gives a file of the source its second name, or another one where the file system has no links.
func (x *run) keep(f file) error {
	partial := x.New[0].Other // of the copy, which the source gets in an exchange of names
	switch {
	case x.d.is(f.Other, f):
		return nil
	case x.d.has(f.Other):
		return foreign(f.Other)
	case x.d.is(partial, f):
		return failed("rename to", f.Other, x.d.At.Rename(string(partial), string(f.Other)))
	case !x.d.is(f.Name, f):
		return gone(f)
	}
	err := x.d.At.Link(string(f.Name), string(f.Other))
	if sys.Unsupported(err) && !x.several() {
		if err = x.d.At.Exchange(string(partial), string(f.Name)); err == nil {
			return errors.Join(x.SyncFolder(), x.keep(f))
		}
	}
	if sys.Unsupported(err) {
		x.d.bare = true
		err = x.d.At.Rename(string(f.Name), string(f.Other))
	}
	return failed("link or rename to", f.Other, err)
}

// nameKept makes the source a disk under its second names.
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

// showKept leads the path of the disk to the source by its second names.
func (x *run) showKept() error {
	o := x.Old[0]
	return x.d.write(o.Name, o.Kept, o.Name, o.Other)
}

// takeOthers gives the other files of the copy their names.
func (x *run) takeOthers() error { return x.takeThose(false) }

// takeFirst gives the first file of the copy its name.
func (x *run) takeFirst() error { return x.d.take(x.New[0]) }

// shown reports whether the path of the disk leads to the copy, and a source in one file has its second name.
func (x *run) shown() bool {
	o, n := x.Old[0], x.New[0]
	return x.d.is(n.Name, n) && (x.several() || x.d.is(o.Other, o))
}

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
	if err := x.dropLeft(); err != nil {
		return err
	}
	for _, f := range x.Old[1:] {
		if x.d.is(f.Other, f) {
			if err := x.drop(f.Name, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropLeft removes the files of the copy that get no name.
func (x *run) dropLeft() error {
	for _, f := range x.Left {
		if !x.d.same(f.Name, f) {
			continue // it is gone, and another file can have got its inode
		}
		if err := x.drop(f.Name, f); err != nil {
			return err
		}
	}
	return nil
}

// drop removes a name of a file, if it has it, and notes that.
func (x *run) drop(n name, f file) error {
	if !x.d.is(n, f) {
		return nil
	}
	err := x.d.remove(n)
	if err == nil {
		x.removed = append(x.removed, string(n))
	}
	return err
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

// firstBack leads the path of the disk to the source by its second names, unless it leads to the source already. A
// source in one file gets its name again.
func (x *run) firstBack() error {
	if !x.several() {
		return x.nameBack(x.Old[0])
	}
	for _, f := range x.Old {
		if !f.text() && !x.d.there(f) {
			return gone(f)
		}
	}
	if x.untouched() {
		return nil
	}
	if err := x.keepFiles(); err != nil {
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
		if f.Seal == seals && !f.text() {
			if err := x.nameBack(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// nameBack gives a file of the source its name again, in place of what has it. While a descriptor leads to the second
// names, it keeps its own.
func (x *run) nameBack(f file) error {
	from, tmp := f.Other, unfinishedName(f.Name)
	switch partial := x.New[0].Other; {
	case x.d.is(f.Name, f):
		return nil
	case x.several():
		if err := x.d.remove(tmp); err != nil {
			return err
		}
		err := x.d.At.Link(string(from), string(tmp))
		if err != nil && !sys.Unsupported(err) {
			return failed("link or rename to", f.Name, err)
		}
		if err == nil {
			from = tmp
		}
	case x.d.is(partial, f): // names were exchanged, on a file system without links
		from = partial
	case !x.d.is(from, f):
		return gone(f)
	}
	return failed("rename to", f.Name, x.d.At.Rename(string(from), string(f.Name)))
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
func (x *run) cleanUp() error {
	for _, f := range x.Old {
		var err error
		if !f.text() {
			err = x.drop(f.Other, f)
		} else if x.d.has(f.Other) {
			x.removed = append(x.removed, string(f.Other))
			err = x.d.remove(f.Other)
		}
		if err = errors.Join(err, x.d.remove(unfinishedName(f.Name)), x.d.remove(unfinishedName(f.Other))); err != nil {
			return err
		}
	}
	return x.dropCopy()
}

// dropCopy removes what is left of the copy: of its names those that the source has no files for.
func (x *run) dropCopy() error {
	if err := x.dropLeft(); err != nil {
		return err
	}
	for _, f := range x.New {
		var err error
		if f.unnamed() || x.d.same(f.Other, f) { // else another file can have got both name and inode
			err = x.drop(f.Other, f)
		}
		if !slices.Contains(names(x.Old), string(f.Name)) {
			err = errors.Join(err, x.drop(f.Name, f))
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

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

// step is a part of an exchange: what it does with each of its files, and how an undo takes that back. Both look for
// what is done already, so that they can be repeated.
type step struct {
	name     string
	files    func(x *run) []file
	done     func(x *run) bool          // nothing is left of this step, nor of those before it
	do, undo func(x *run, f file) error // nil: nothing
}

// steps lists the steps in their order. An undo walks them from the end. A disk in one file has neither texts nor seals
// nor other files.
var steps = []step{
	{name: "copy", files: copied, do: (*run).find, undo: (*run).dropCopy},
	{name: "left of the copy", files: left, undo: (*run).dropLeft},
	{name: "source", files: first, do: (*run).look},
	{name: "second names", files: data, do: (*run).keep, undo: (*run).dropSecond},
	{name: "second texts", files: texts, do: (*run).writeSecond, undo: (*run).dropSecond},
	{name: "seals of the source", files: seals, do: (*run).breakSeal, undo: (*run).sealBack},
	{name: "path to the second names", files: firstText, do: (*run).showSecond, undo: (*run).headBack},
	{name: "other files of the copy", files: copiedOthers, do: (*run).take},
	{name: "other files of the source", files: others, undo: (*run).nameBack},
	{name: "path to the copy", files: first, done: (*run).shown, do: (*run).showCopy, undo: (*run).firstBack},
	{name: "seals of the copy", files: copiedSeals, do: (*run).takeSeal, undo: (*run).sealOff},
	{name: "left of the exchange", files: left, do: (*run).dropLeft},
	{name: "names of no file", files: data, do: (*run).dropName},
	{name: "second name of the copy", files: firstText, undo: (*run).holdCopy},
}

// first returns the first file of the source, and firstText that one where it names others.
func first(x *run) []file     { return x.Old[:1] }
func firstText(x *run) []file { return chosen(x.Old[:1], file.text) }

// data returns the files of the source that are known by their inodes, others those behind the first that are no
// seals.
func data(x *run) []file { return chosen(x.Old, func(f file) bool { return !f.text() }) }

func others(x *run) []file {
	return chosen(x.Old[1:], func(f file) bool { return !f.text() && !f.Seal })
}
func texts(x *run) []file { return chosen(x.Old, file.text) }
func seals(x *run) []file { return chosen(x.Old, func(f file) bool { return f.Seal }) }

// copied returns the files of the copy, and left those that get no name.
func copied(x *run) []file       { return x.New }
func copiedOthers(x *run) []file { return chosen(x.New[1:], func(f file) bool { return !f.Seal }) }
func copiedSeals(x *run) []file  { return chosen(x.New, func(f file) bool { return f.Seal }) }
func left(x *run) []file         { return x.Left }

func chosen(files []file, which func(f file) bool) (out []file) {
	for _, f := range files {
		if which(f) {
			out = append(out, f)
		}
	}
	return out
}

// durably does with the files of a step what one direction of it does, and makes the names durable.
func (x *run) durably(s step, do func(x *run, f file) error) error {
	files := s.files(x)
	if do == nil || len(files) == 0 {
		return nil
	}
	for _, f := range files {
		if err := do(x, f); err != nil {
			return err
		}
	}
	return x.SyncFolder()
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

// find requires a file of the copy.
func (x *run) find(f file) error {
	if !x.d.there(f) {
		return gone(f)
	}
	return nil
}

// look requires that the path leads to one of the disks of the exchange.
func (x *run) look(o file) error {
	ours := x.untouched() || x.d.holds(o.Name, o.Kept)
	if !o.text() {
		ours = !x.d.has(o.Name) || x.d.is(o.Name, o) || x.d.is(o.Name, x.New[0])
	}
	if !ours {
		return foreign(o.Name)
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
			if err = x.SyncFolder(); err == nil {
				err = x.keep(f)
			}
			return err
		}
	}
	if sys.Unsupported(err) {
		x.d.bare = true
		err = x.d.At.Rename(string(f.Name), string(f.Other))
	}
	return failed("link or rename to", f.Other, err)
}

// writeSecond writes a text of the source that names the others by their second names, under its own.
func (x *run) writeSecond(f file) error {
	if x.d.has(f.Other) && !x.d.holds(f.Other, f.Kept) {
		return foreign(f.Other)
	}
	return x.d.write(f.Other, f.Kept, f.Name)
}

// dropSecond removes the second name of a file of the source, and what a step has left of it.
func (x *run) dropSecond(f file) error {
	var err error
	if !f.text() {
		err = x.drop(f.Other, f)
	} else if x.d.has(f.Other) {
		x.removed = append(x.removed, string(f.Other))
		err = x.d.remove(f.Other)
	}
	return errors.Join(err, x.d.remove(unfinishedName(f.Name)), x.d.remove(unfinishedName(f.Other)))
}

// breakSeal removes the name of a manifest or a certificate of the source, which does not fit what the path leads to
// next.
func (x *run) breakSeal(f file) error { return x.unname(f.Name, x.d.named(f)) }

// unname removes the name of a file of the exchange.
func (x *run) unname(n name, ours bool) error {
	stands, err := x.d.stands(n)
	switch {
	case err != nil || !stands:
		return err
	case !ours:
		return foreign(n)
	}
	return x.d.remove(n)
}

// sealBack gives a manifest or a certificate of the source its name again.
func (x *run) sealBack(f file) error {
	if f.text() {
		return x.d.write(f.Name, f.Was, f.Other, x.Old[0].Name)
	}
	return x.nameBack(f)
}

// showSecond leads the path of the disk to the source by its second names.
func (x *run) showSecond(o file) error { return x.d.write(o.Name, o.Kept, o.Name, o.Other) }

// headBack leads the path of the disk to the source by its own names.
func (x *run) headBack(o file) error {
	if x.untouched() {
		return nil
	}
	return x.d.write(o.Name, o.Was, o.Name, o.Other)
}

// untouched reports whether the path of the disk leads to the source as it was before the exchange. An OVF that states
// no sizes has the same bytes in the copy.
func (x *run) untouched() bool {
	return x.d.holds(x.Old[0].Name, x.Old[0].Was) && !x.d.is(x.New[0].Name, x.New[0])
}

// take gives a file of the copy its name, in place of what has it.
func (x *run) take(f file) error {
	switch {
	case x.d.is(f.Name, f):
		return nil
	case !x.d.is(f.Other, f):
		return gone(f)
	}
	return failed("rename to", f.Name, x.d.At.Rename(string(f.Other), string(f.Name)))
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

// shown reports whether the path of the disk leads to the copy, and a source in one file has its second name.
func (x *run) shown() bool {
	o, n := x.Old[0], x.New[0]
	return x.d.is(n.Name, n) && (x.several() || x.d.is(o.Other, o))
}

// showCopy leads the path of the disk to the copy.
func (x *run) showCopy(file) error { return x.take(x.New[0]) }

// firstBack leads the path of the disk to the source by its second names, unless it leads to the source already. A
// source in one file gets its name again.
func (x *run) firstBack(o file) error {
	if !o.text() {
		return x.nameBack(o)
	}
	for _, f := range data(x) {
		if !x.d.there(f) {
			return gone(f)
		}
	}
	if x.untouched() {
		return nil
	}
	for _, f := range data(x) {
		if err := x.keep(f); err != nil {
			return err
		}
	}
	return x.showSecond(o)
}

// takeSeal gives a manifest of the copy its name, when all that it has digests of has its own.
func (x *run) takeSeal(f file) error {
	if x.d.has(f.Name) && !x.d.is(f.Name, f) {
		return foreign(f.Name)
	}
	return x.take(f)
}

// sealOff removes a manifest of the copy, which does not fit what the path leads to next.
func (x *run) sealOff(f file) error {
	if !x.d.is(x.New[0].Name, x.New[0]) {
		return nil
	}
	was := slices.Index(names(x.Old), string(f.Name))
	return x.unname(f.Name, x.d.is(f.Name, f) || was >= 0 && x.d.named(x.Old[was]))
}

// holdCopy gives the first file of the copy a second name until the end of an undo: the inode of a removed file could
// be that of the next one that is written. Without links, an undo that is interrupted can ask for --force.
func (x *run) holdCopy(file) error {
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

// dropName removes the old name of a file that the copy has no file for.
func (x *run) dropName(f file) error {
	if !x.d.is(f.Other, f) {
		return nil
	}
	return x.drop(f.Name, f)
}

// dropLeft removes a file of the copy that gets no name.
func (x *run) dropLeft(f file) error {
	if !x.d.same(f.Name, f) {
		return nil // it is gone, and another file can have got its inode
	}
	return x.drop(f.Name, f)
}

// dropCopy removes what is left of a file of the copy: its name if the source has no file for it.
func (x *run) dropCopy(f file) (err error) {
	if f.unnamed() || x.d.same(f.Other, f) { // else another file can have got both name and inode
		err = x.drop(f.Other, f)
	}
	if !slices.Contains(names(x.Old), string(f.Name)) {
		err = errors.Join(err, x.drop(f.Name, f))
	}
	return err
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

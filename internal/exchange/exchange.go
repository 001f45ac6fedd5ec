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

// run is an exchange whose journal this process has locked.
type run struct {
	*plan
	*journal.Held
	d       *folder
	removed []string       // names that this run has removed
	notes   []ondisk.Issue // from the search for overlays
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

// start writes the journal of an exchange. From then on a later run can continue it.
func (p *plan) start(d *folder, path string) (*journal.Held, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return journal.Begin(d.Folder, string(p.Old[0].Name), path, journal.Exchange, b, 0)
}

// step is a step of an exchange: the files it processes, its action for each file, and the reverse action of an undo.
// Both actions detect finished work, so they can be repeated. An undo also runs the reverse actions of steps that never
// ran, so these do nothing then.
type step struct {
	name     string
	files    func(x *run) []file
	done     func(x *run) bool          // this step and all earlier ones are complete
	do, undo func(x *run, f file) error // nil without an action
}

// steps lists the steps in order. An undo runs them from the end. A disk in one file has no texts, seals or other
// files. A resume begins behind the last step whose done holds, and repeats all others: a step in front of that one was
// complete. The last step stays last, because its reverse action keeps the inode of the copy in use during an undo.
var steps = []step{
	{name: "copy", files: copied, do: (*run).find, undo: (*run).dropCopy},
	{name: "left of the copy", files: left, undo: (*run).dropLeft},
	{name: "source", files: first, do: (*run).look},
	{name: "second names", files: data, do: (*run).keep, undo: (*run).dropSecond},
	{name: "second texts", files: texts, do: (*run).writeSecond, undo: (*run).dropSecond},
	{name: "seals of the source", files: seals, do: (*run).breakSeal, undo: (*run).sealBack},
	{name: "path to the second names", files: firstText, do: (*run).showSecond, undo: (*run).headBack},
	{name: "other files of the copy", files: copiedOthers, do: (*run).finalName},
	{name: "other files of the source", files: others, undo: (*run).nameBack},
	{name: "path to the copy", files: first, done: (*run).shown, do: (*run).showCopy, undo: (*run).firstBack},
	{name: "seals of the copy", files: copiedSeals, do: (*run).takeSeal, undo: (*run).sealOff},
	{name: "left of the exchange", files: left, do: (*run).dropLeft},
	{name: "names of no file", files: data, do: (*run).dropName},
	{name: "second name of the copy", files: firstText, undo: (*run).holdCopy},
}

// first returns the first file of the source, and firstText returns it only if it names other files.
func first(x *run) []file     { return x.Old[:1] }
func firstText(x *run) []file { return chosen(x.Old[:1], file.text) }

// data returns the source files that are identified by inode. others returns all files after the first, except texts
// and seals.
func data(x *run) []file { return chosen(x.Old, func(f file) bool { return !f.text() }) }

func others(x *run) []file {
	return chosen(x.Old[1:], func(f file) bool { return !f.text() && !f.Seal })
}
func texts(x *run) []file { return chosen(x.Old, file.text) }
func seals(x *run) []file { return chosen(x.Old, func(f file) bool { return f.Seal }) }

// copied returns the files of the copy, and left returns its files without a final name.
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

// durably runs one direction of a step for all of its files, and makes the names durable. The step itself syncs the
// files that it writes.
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

// forward completes the exchange from its current step.
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

// back restores the original from the current step of the exchange or of an undo. It returns the removed names.
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

// find returns an error if a file of the copy is missing.
func (x *run) find(f file) error {
	if !x.d.there(f) {
		return missingError(f)
	}
	return nil
}

// look returns an error unless the path leads to one of the two disks of the exchange.
func (x *run) look(o file) error {
	ours := x.untouched() || x.d.holds(o.Name, o.Kept)
	if !o.text() {
		ours = !x.d.has(o.Name) || x.d.is(o.Name, o) || x.d.is(o.Name, x.New[0])
	}
	if !ours {
		return foreignError(o.Name)
	}
	return nil
}

// keep gives a file of the source its second name as a hard link. Without hard links it exchanges the names of source
// and copy if the disk is a single file, and otherwise renames the file.
func (x *run) keep(f file) error {
	partial := x.New[0].Other // partial name of the copy, which the source gets in an exchange of names
	switch {
	case x.d.is(f.Other, f):
		return nil
	case x.d.has(f.Other):
		return foreignError(f.Other)
	case x.d.is(partial, f):
		return failed("rename to", f.Other, x.d.At.Rename(string(partial), string(f.Other)))
	case !x.d.is(f.Name, f):
		return missingError(f)
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

// writeSecond writes the second text of a source file, which names the other files by their second names.
func (x *run) writeSecond(f file) error {
	if x.d.has(f.Other) && !x.d.holds(f.Other, f.Kept) {
		return foreignError(f.Other)
	}
	return x.d.write(f.Other, f.Kept, f.Name)
}

// dropSecond removes the second name of a source file, which has its own name again, and temporary files of an
// interrupted step.
func (x *run) dropSecond(f file) error {
	var err error
	if x.d.is(f.Other, f) || f.text() && x.d.has(f.Other) {
		err = x.d.remove(f.Other)
	}
	return errors.Join(err, x.d.remove(unfinishedName(f.Name)), x.d.remove(unfinishedName(f.Other)))
}

// breakSeal removes the name of a manifest or certificate of the source, because its digests will not match the next
// disk at the path.
func (x *run) breakSeal(f file) error { return x.unname(f.Name, x.d.named(f)) }

// unname removes the name of a file of the exchange.
func (x *run) unname(n name, ours bool) error {
	exists, err := x.d.exists(n)
	switch {
	case err != nil || !exists:
		return err
	case !ours:
		return foreignError(n)
	}
	return x.d.remove(n)
}

// sealBack restores the name of a manifest or certificate of the source.
func (x *run) sealBack(f file) error {
	if f.text() {
		return x.d.write(f.Name, f.Was, f.Other, x.Old[0].Name)
	}
	return x.nameBack(f)
}

// showSecond makes the path of the disk lead to the source by its second names.
func (x *run) showSecond(o file) error { return x.d.write(o.Name, o.Kept, o.Name, o.Other) }

// headBack makes the path of the disk lead to the source by its own names.
func (x *run) headBack(o file) error {
	if x.untouched() {
		return nil
	}
	return x.d.write(o.Name, o.Was, o.Name, o.Other)
}

// untouched reports whether the path of the disk leads to the source as it was before the exchange. It checks the copy,
// too, because an OVF without sizes has the same bytes in the copy.
func (x *run) untouched() bool {
	return x.d.holds(x.Old[0].Name, x.Old[0].Was) && !x.d.is(x.New[0].Name, x.New[0])
}

// finalName gives a file of the copy its final name, and replaces any file of that name.
func (x *run) finalName(f file) error {
	switch {
	case x.d.is(f.Name, f):
		return nil
	case !x.d.is(f.Other, f):
		return missingError(f)
	}
	return failed("rename to", f.Name, x.d.At.Rename(string(f.Other), string(f.Name)))
}

// nameBack restores the name of a source file, and replaces any file of that name. In a disk of several files, the file
// also keeps its second name if the file system has hard links, because the descriptor still uses that name.
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
		return missingError(f)
	}
	return failed("rename to", f.Name, x.d.At.Rename(string(from), string(f.Name)))
}

// shown reports whether the path of the disk leads to the copy. A source in one file must also have its second name.
func (x *run) shown() bool {
	o, n := x.Old[0], x.New[0]
	return x.d.is(n.Name, n) && (x.several() || x.d.is(o.Other, o))
}

// showCopy makes the path of the disk lead to the copy.
func (x *run) showCopy(file) error { return x.finalName(x.New[0]) }

// firstBack makes the path of the disk lead to the source by its second names, unless it leads to the source already.
// For a source in one file it restores the name.
func (x *run) firstBack(o file) error {
	if !o.text() {
		return x.nameBack(o)
	}
	for _, f := range data(x) {
		if !x.d.there(f) {
			return missingError(f)
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

// takeSeal gives a manifest of the copy its name, after the files in it have theirs.
func (x *run) takeSeal(f file) error {
	if x.d.has(f.Name) && !x.d.is(f.Name, f) {
		return foreignError(f.Name)
	}
	return x.finalName(f)
}

// sealOff removes a manifest of the copy, because its digests will not match the next disk at the path.
func (x *run) sealOff(f file) error {
	if !x.d.is(x.New[0].Name, x.New[0]) {
		return nil
	}
	was := slices.Index(names(x.Old), string(f.Name))
	return x.unname(f.Name, x.d.is(f.Name, f) || was >= 0 && x.d.named(x.Old[was]))
}

// holdCopy gives the first file of the copy a second name until the end of an undo. Otherwise the next new file could
// reuse the inode of the removed copy. Without hard links, an interrupted undo may require --force.
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

// dropName removes the old name of a source file if the copy has no file of that name.
func (x *run) dropName(f file) error {
	if !x.d.is(f.Other, f) {
		return nil
	}
	return x.removeFile(f.Name, f)
}

// dropLeft removes a file of the copy without a final name.
func (x *run) dropLeft(f file) error {
	if !x.d.same(f.Name, f) {
		return nil // it was removed, and another file can have its inode
	}
	return x.removeFile(f.Name, f)
}

// dropCopy removes the remaining names of a file of the copy. It keeps the final name if the source has a file of that
// name.
func (x *run) dropCopy(f file) (err error) {
	if f.unnamed() || x.d.same(f.Other, f) { // otherwise another file can have both name and inode
		err = x.removeFile(f.Other, f)
	}
	if !slices.Contains(names(x.Old), string(f.Name)) {
		err = errors.Join(err, x.removeFile(f.Name, f))
	}
	return err
}

// removeFile removes a name and records it, if the name leads to the file.
func (x *run) removeFile(n name, f file) error {
	if !x.d.is(n, f) {
		return nil
	}
	err := x.d.remove(n)
	if err == nil {
		x.removed = append(x.removed, string(n))
	}
	return err
}

// names lists the names of files.
func names(files []file) (out []string) {
	for _, f := range files {
		out = append(out, string(f.Name))
	}
	return out
}

// unfinishedError adds the commands that continue or undo the exchange to an error.
func unfinishedError(path string, err error) error {
	return fmt.Errorf("%w; the exchange is not complete: %s completes it, %s reverses it", err,
		shell.Command("resume", nil, path), shell.Command("undo", nil, path))
}

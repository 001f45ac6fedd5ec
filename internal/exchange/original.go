package exchange

import (
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// mark stands in the names of files that are kept.
const mark = ".orig"

// maxJournal bounds a journal by which an original is known, in bytes: thousands of files, and two descriptors.
const maxJournal = 4 << 20

// DiskOf returns the name of the disk whose original would have a name; empty for a name of no original.
func DiskOf(original string) string {
	at := strings.LastIndex(original, mark)
	if at < 0 {
		return ""
	}
	disk := original[:at] + original[at+len(mark):]
	if OriginalOf(disk, disk) != original {
		return ""
	}
	return disk
}

// OriginalBeside returns the work that keeps a file as the original of a disk beside it, or that is about to. Its path
// is the name of that disk. It is nil for any other file: one that no journal names, that is not the source any more,
// or that has no disk beside it.
func OriginalBeside(d *gate.Folder, base string) (*journal.Work, error) {
	disk := DiskOf(base)
	if disk == "" {
		return nil, nil //nolint:nilnil // it is no original
	}
	w, err := journal.Beside(d, disk)
	if w == nil || err != nil || w.Kind != journal.Exchange {
		return nil, nil //nolint:nilnil // the row of the disk says so
	}
	f, err := d.OpenAny(journal.PathOf(disk), ondisk.ErrReference)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if f.Size() > maxJournal {
		return nil, ondisk.In(ondisk.ErrLimit, "%q has %d bytes, at most %d are read", journal.PathOf(disk),
			f.Size(), maxJournal)
	}
	j, err := journal.Read(f)
	if err != nil {
		return nil, err
	}
	p, err := readPlan(j.Plan())
	if err != nil || string(p.Old[0].Name) != disk || string(p.Old[0].Other) != base {
		return nil, err
	}
	if !w.Blocks && !p.keeps(&folder{Folder: d}) {
		return nil, nil //nolint:nilnil // it is another file
	}
	w.Written = p.written(&folder{Folder: d})
	return w, nil
}

// written reports whether a file of the source was written since the exchange began.
func (p *plan) written(d *folder) bool {
	return slices.ContainsFunc(p.Old, func(f file) bool {
		return !f.text() && !d.same(f.Name, f) && !d.same(f.Other, f)
	})
}

// keeps reports whether the source of an exchange has its own names, and its old one leads to another disk.
func (p *plan) keeps(d *folder) bool {
	o := p.Old[0]
	if !d.has(o.Name) || d.is(o.Name, o) || o.text() && d.holds(o.Name, o.Kept) {
		return false
	}
	for _, f := range p.Old {
		if f.text() && !d.holds(f.Other, f.Kept) || !f.text() && !d.is(f.Other, f) {
			return false
		}
	}
	return true
}

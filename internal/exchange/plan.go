// Package exchange gives an aligned copy the names of its source, and keeps the source under names of its own beside
// it. A journal records what has which name. At every moment the path of the disk leads to a complete one, but on file
// systems with neither links nor an exchange of names, where it is missing between two renames.
//
// A disk in one file is exchanged by a second link and a rename. One whose first file names others takes more steps,
// each durable before the next: its other files get second names, and a descriptor beside it names these. The path
// leads to the source by the second names then, while the other files of the copy take the place of those of the
// source, which nothing names any more. The descriptor of the copy is the last.
//
// A package in a folder takes the same steps: its OVF is that descriptor. Its manifest and certificate are seals, with
// digests of the others: their names are removed before the path leads to the second names, and those of the copy
// follow at the end. In between it is a package without a manifest.
//
// The steps are a table. Files are known again by their inodes, so that each step can be repeated. An undo walks the
// table from the end.
package exchange

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// name is the name of a file in the journal. It holds bytes, since JSON would change those that are not UTF-8.
type name []byte

// file is one file of the source or of the copy.
type file struct {
	Name  name // of the disk
	Other name // of the source: its own from now on; of the copy: until it has its name
	// What it was when the exchange began. The device is not kept, since its number can change with a mount. The inode
	// of a removed file is used again: it is 0 for a file of the source that is known by its bytes.
	Inode    uint64
	Size     int64 // bytes
	Modified int64 // ns since 1970
	// Of a file of the source that names others: its bytes, and those that name them by their other names. The first
	// file of several is one. Nil for any other file.
	Was, Kept []byte
	// Seal marks a manifest or a certificate, which holds digests of the other files.
	Seal bool
	// Disks describes, for the first file, the disks that it leads to. Journals of earlier versions have none.
	Disks []shape `json:",omitempty"`
}

// unnamed reports whether a file of the copy had no name of its own before the exchange.
func (f file) unnamed() bool { return filepath.Ext(string(f.Other)) == journal.Partial }

// text reports whether a file of the source is known by its bytes.
func (f file) text() bool { return f.Was != nil }

// plan is what the journal keeps. The first files are those that the user names.
type plan struct {
	Old, New []file
	Left     []file `json:",omitempty"` // of the copy, which the exchange removes: its descriptor with other names
}

// several reports whether the first file of the disk names others.
func (p *plan) several() bool { return p.Old[0].text() }

// maxFiles bounds the files of a disk in a journal.
const maxFiles = 1 << 14

// readPlan decodes the plan of a journal.
func readPlan(b []byte) (*plan, error) {
	p := &plan{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, ondisk.In(ondisk.ErrFormat, "journal of an exchange: %w", err)
	}
	if len(p.Old) == 0 || len(p.New) == 0 || len(p.Old)+len(p.New)+len(p.Left) > maxFiles ||
		!p.several() && len(p.Old)+len(p.New) > 2 || string(p.Old[0].Name) != string(p.New[0].Name) {
		return nil, ondisk.In(ondisk.ErrFormat, "journal of an exchange: %d old and %d new files, of which "+
			"one is no disk",
			len(p.Old), len(p.New))
	}
	slashes := "/\x00" + string(os.PathSeparator) // a backslash is a letter where it separates no folders
	bad := func(n string) bool {
		return n == "" || n == "." || n == ".." || len(n) > journal.MaxName || strings.ContainsAny(n, slashes)
	}
	seen, all := map[string]bool{}, map[string]bool{}
	for _, f := range append(append([]file{}, p.Old...), p.New...) {
		for _, n := range []string{string(f.Name), string(f.Other)} {
			if bad(n) {
				return nil, ondisk.Field("journal of an exchange", "name", 0, n, "the name of a file in its folder")
			}
		}
		if (f.Was == nil) != (f.Kept == nil) {
			return nil, ondisk.Field("journal of an exchange", "bytes", 0, string(f.Name), "both or none of a file")
		}
		if seen[string(f.Other)] || string(f.Name) == string(f.Other) {
			return nil, ondisk.Field("journal of an exchange", "name", 0, string(f.Other), "another name for each file")
		}
		seen[string(f.Other)] = true
		all[string(f.Name)], all[string(f.Other)] = true, true
	}
	for _, f := range p.Left {
		if n := string(f.Name); bad(n) || all[n] {
			return nil, ondisk.Field("journal of an exchange", "name", 0, n, "a further file in its folder")
		}
	}
	return p, nil
}

// OriginalOf returns the name that a file of a disk has when it is kept: disk.vmdk becomes disk.orig.vmdk, and its
// disk-flat.vmdk disk.orig-flat.vmdk.
func OriginalOf(disk, file string) string {
	stem := strings.TrimSuffix(disk, filepath.Ext(disk))
	if rest, ok := strings.CutPrefix(file, stem); ok && stem != "" {
		return stem + mark + rest
	}
	ext := filepath.Ext(file)
	return strings.TrimSuffix(file, ext) + mark + ext
}

// TooLong returns a name that the exchange of a file of a disk needs and that no file can have; empty if there is none.
func TooLong(disk, file string) string {
	other := OriginalOf(disk, file)
	for _, n := range []string{other, string(unfinishedName(name(other))), journal.PathOf(disk)} {
		if len(n) > journal.MaxName {
			return n
		}
	}
	return ""
}

func fileOf(is, other string, st sys.Info) file {
	return file{Name: name(is), Other: name(other), Inode: st.Inode, Size: st.Size, Modified: st.Modified}
}

// String returns what messages call the file.
func (n name) String() string { return fmt.Sprintf("%.256q", string(n)) }

// mark stands in the names of files that are kept.
const mark = ".orig"

// maxPlan bounds the plan by which an original is known, in bytes: thousands of files, and two descriptors.
const maxPlan = 4 << 20

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
		return nil, nil //nolint:nilerr,nilnil // the row of the disk says so
	}
	j, err := journal.ReadBeside(d, disk, maxPlan)
	if err != nil {
		return nil, err
	}
	p, err := readPlan(j.Plan())
	if err != nil || string(p.Old[0].Name) != disk || string(p.Old[0].Other) != base {
		return nil, err
	}
	in := &folder{Folder: d}
	if !w.Blocks && !p.keeps(in) {
		return nil, nil //nolint:nilnil // it is another file
	}
	w.Written = slices.ContainsFunc(p.Old, func(f file) bool { return !f.text() && !in.intact(f) })
	return w, nil
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

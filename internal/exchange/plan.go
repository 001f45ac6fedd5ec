// Package exchange gives an aligned copy the names of its source, and keeps the source under second names in the same
// folder. A journal records all names. The path of the disk leads to a complete disk at every moment. The exception is
// a file system without hard links and without an exchange of names, where the path is missing between two renames.
//
// A disk in one file is exchanged by a hard link and a rename. If the first file of a disk names other files, more
// steps are needed, each durable before the next: the other files get second names, and a second descriptor names
// these. Then the path leads to the source by its second names, and the other files of the copy replace the files of
// the source under their own names, which are no longer in use. The descriptor of the copy comes last.
//
// A package in a folder is exchanged in the same steps, with its OVF as the descriptor. Its manifest and certificate
// are seals with digests of the other files. Their names are removed before the path leads to the second names, and the
// seals of the copy follow at the end. In between the package has no manifest.
//
// The steps are a table. Inodes identify the files, so each step can be repeated. An undo runs the table from the end.
package exchange

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// name is a file name in the journal. It holds bytes, because JSON would change names that are not UTF-8.
type name []byte

// file is a file of the source or of the copy.
type file struct {
	Name  name // name as a file of the disk at the path: the first name of the source, the final name of the copy
	Other name // of the source: its second name; of the copy: its name until the exchange
	// State at the beginning of the exchange. The device number is omitted, because a mount can change it. Inode is 0
	// for a source file that is identified by its bytes, because inodes of removed files are reused.
	Inode    uint64
	Size     int64 // bytes
	Modified int64 // ns since 1970
	// Bytes of a source file that names other files: its original bytes, and the bytes with their second names. The
	// first file of a disk in several files has them. Nil for any other file.
	Was, Kept []byte
	// Seal marks a manifest or certificate, which holds digests of the other files.
	Seal bool
	// Disks describes the disks of the first file. Journals of earlier versions have none.
	Disks []shape `json:",omitempty"`
}

// unnamed reports whether a file of the copy had only a temporary name before the exchange.
func (f file) unnamed() bool { return filepath.Ext(string(f.Other)) == journal.Partial }

// text reports whether a source file is identified by its bytes.
func (f file) text() bool { return f.Was != nil }

// plan is the plan in the journal. The first files are the ones named by the user.
type plan struct {
	Old, New []file
	Left     []file `json:",omitempty"` // files of the copy that the exchange removes: its descriptor with other names
}

// several reports whether the first file of the disk names other files.
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
		return nil, ondisk.In(ondisk.ErrFormat, "journal of an exchange: %d old and %d new files are not two disks",
			len(p.Old), len(p.New))
	}
	slashes := "/\x00" + string(os.PathSeparator) // a backslash is a letter unless it separates folders
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
			return nil, ondisk.Field("journal of an exchange", "bytes", 0, string(f.Name), "both texts or neither")
		}
		if seen[string(f.Other)] || string(f.Name) == string(f.Other) {
			return nil, ondisk.Field("journal of an exchange", "name", 0, string(f.Other), "a unique name of each file")
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

// OriginalOf returns the name under which a file of a disk is kept: disk.vmdk becomes disk.orig.vmdk, and its
// disk-flat.vmdk becomes disk.orig-flat.vmdk.
func OriginalOf(disk, file string) string {
	stem := strings.TrimSuffix(disk, filepath.Ext(disk))
	if rest, ok := strings.CutPrefix(file, stem); ok && stem != "" {
		return stem + mark + rest
	}
	ext := filepath.Ext(file)
	return strings.TrimSuffix(file, ext) + mark + ext
}

// TooLong returns the first name for the exchange of a file that exceeds the limit of file names, or an empty string.
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

// String returns the quoted name for messages.
func (n name) String() string { return fmt.Sprintf("%.256q", string(n)) }

// mark is part of the names of kept files.
const mark = ".orig"

// maxPlan bounds the plan of an original that is looked up, in bytes: thousands of files, and two descriptors.
const maxPlan = 4 << 20

// DiskOf returns the name of the disk with this original, or an empty string if original is not the name of one.
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

// OriginalBeside returns the work that keeps, or will keep, a file as the original of a disk in the same folder. Its
// path is the name of that disk. It returns nil if no journal names the file as an original, or if the file is no
// longer the source.
func OriginalBeside(d *gate.Folder, base string) (*journal.Work, error) {
	disk := DiskOf(base)
	if disk == "" {
		return nil, nil //nolint:nilnil // it is no original
	}
	w, err := journal.Beside(d, disk)
	if w == nil || err != nil || w.Kind != journal.Exchange {
		return nil, nil //nolint:nilerr,nilnil // the row of the disk reports it
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

// keeps reports whether the source of an exchange has its second names, and its old name leads to another disk.
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

// folder is the folder of an exchange. Its methods compare and change the names of files.
type folder struct {
	*gate.Folder
	bare bool // a name was changed without a link or an exchange
}

// is reports whether a name leads to a file, by its inode.
func (d *folder) is(n name, f file) bool {
	st, err := d.At.Lstat(string(n))
	return err == nil && st.Mode.IsRegular() && st.Inode == f.Inode && f.Inode != 0
}

// same reports whether name n leads to file f, and f was not written since.
func (d *folder) same(n name, f file) bool {
	st, err := d.At.Lstat(string(n))
	return err == nil && d.is(n, f) && st.Size == f.Size && st.Modified == f.Modified
}

// there reports whether a file has one of its names.
func (d *folder) there(f file) bool { return d.is(f.Name, f) || d.is(f.Other, f) }

// intact reports whether a file has one of its names and was not written since.
func (d *folder) intact(f file) bool { return d.same(f.Name, f) || d.same(f.Other, f) }

// written returns the first file that was written since, or nil.
func (d *folder) written(files []file) *file {
	for i, f := range files {
		if d.there(f) && !d.intact(f) {
			return &files[i]
		}
	}
	return nil
}

// writable reports whether a program has a file open for writing.
func (d *folder) writable(n name) (bool, error) {
	f, err := d.OpenAny(string(n), ondisk.ErrReference)
	if err != nil {
		return false, err
	}
	return f.Written(), f.Close()
}

// has reports whether a name exists in the folder.
func (d *folder) has(n name) bool { return d.Exists(string(n)) }

// exists is has, but returns an error if the name cannot be examined.
func (d *folder) exists(n name) (bool, error) {
	_, err := d.At.Lstat(string(n))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, failed("look at", n, err)
}

func failed(verb string, n name, err error) error {
	return ondisk.OutputError(err, "%s %v", verb, n)
}

// missingError returns the error of a file that has neither of its names.
func missingError(f file) error {
	return ondisk.In(ondisk.ErrChanged, "the file that was %v has neither that name nor %v: find it by its inode, "+
		"%d, and rename it to one of them", f.Name, f.Other, f.Inode)
}

// foreignError returns the error of a name that belongs to another file.
func foreignError(n name) error {
	return ondisk.In(ondisk.ErrChanged, "%v is not a file of the exchange: move it away", n)
}

// holds reports whether a file has exactly these bytes. It returns false for an unreadable file.
func (d *folder) holds(n name, b []byte) bool {
	f, err := d.OpenAny(string(n), ondisk.ErrReference)
	if err != nil {
		return false
	}
	defer f.Close()
	if f.Size() != int64(len(b)) {
		return false
	}
	got := make([]byte, len(b))
	return ondisk.ReadFull(f, got, 0) == nil && bytes.Equal(got, b)
}

// named reports whether a source file has its original name and, for a text, its original bytes.
func (d *folder) named(f file) bool {
	return d.is(f.Name, f) || f.text() && d.holds(f.Name, f.Was)
}

// holdsName reports whether a name holds its source file, or the text with the second names.
func (d *folder) holdsName(f file) bool { return d.named(f) || f.text() && d.holds(f.Name, f.Kept) }

// unfinishedName returns the temporary name of a file that is being written.
func unfinishedName(n name) name { return name("." + string(n) + journal.Renamed) }

// write durably writes a file and atomically replaces any file of that name. It copies the owner and attributes of the
// first existing file of like.
func (d *folder) write(n name, b []byte, like ...name) (err error) {
	if d.holds(n, b) {
		return nil
	}
	tmp := unfinishedName(n)
	if err := d.remove(tmp); err != nil {
		return err
	}
	f, err := d.At.Create(string(tmp), 0o600)
	if err != nil {
		return failed("create", tmp, err)
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = d.copyAttributes(sys.FromOS(f), like)
	}
	if err == nil {
		err = f.Sync()
	}
	_ = f.Close() // its bytes are durable
	if err == nil {
		err = d.At.Rename(string(tmp), string(n))
	}
	if err != nil {
		return errors.Join(failed("write", n, err), d.remove(tmp))
	}
	return nil
}

// copyAttributes gives a file the owner and attributes of the first existing file of like. Attributes that the file
// system does not support were reported with the copy.
func (d *folder) copyAttributes(f *sys.File, like []name) error {
	from, err := d.At.Open(string(like[0]))
	if errors.Is(err, fs.ErrNotExist) && len(like) > 1 {
		return d.copyAttributes(f, like[1:])
	}
	if err != nil {
		return fmt.Errorf("attributes of %v: %w", like[0], err)
	}
	defer from.Close()
	_, err = f.Adopt(from)
	return err
}

// remove removes a name if it exists.
func (d *folder) remove(n name) error {
	return failed("remove", n, d.Remove(string(n)))
}

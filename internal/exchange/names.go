package exchange

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// folder changes names in a folder.
type folder struct {
	*gate.Folder
	bare bool // a name was changed without a link or an exchange
}

// is reports whether a name leads to a file, by its inode.
func (d *folder) is(n name, f file) bool {
	st, err := d.At.Lstat(string(n))
	return err == nil && st.Mode.IsRegular() && st.Inode == f.Inode && f.Inode != 0
}

// same reports whether a name leads to a file that was not written since.
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
	if err == nil {
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "%s %v: %w", verb, n, err)
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
	if err := d.At.Remove(string(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("remove", n, err)
	}
	return nil
}

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

// folder changes the names of a folder. Each step looks first whether it was done.
type folder struct {
	*gate.Folder
	bare bool // a name changed without a link or an exchange
}

// is reports whether a name leads to a file.
func (d *folder) is(n name, f file) bool {
	st, err := d.At.Lstat(string(n))
	return err == nil && st.Mode.IsRegular() && st.Inode == f.Inode && f.Inode != 0
}

// same reports whether a file has its name and was not written since.
func (d *folder) same(n name, f file) bool {
	st, err := d.At.Lstat(string(n))
	return err == nil && d.is(n, f) && st.Size == f.Size && st.Modified == f.Modified
}

// there reports whether a file has one of its names.
func (d *folder) there(f file) bool { return d.is(f.Name, f) || d.is(f.Other, f) }

// intact reports whether a file has one of its names and was not written since.
func (d *folder) intact(f file) bool { return d.same(f.Name, f) || d.same(f.Other, f) }

// written returns the first of some files that was written since; nil if none was.
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

// has reports whether a name stands in the folder.
func (d *folder) has(n name) bool { return d.Exists(string(n)) }

// stands is has for a name of which it must be known.
func (d *folder) stands(n name) (bool, error) {
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

// gone returns the error of a file that has neither of its names.
func gone(f file) error {
	return ondisk.In(ondisk.ErrChanged, "the file that was %v has neither that name nor %v any more: find it by its "+
		"inode %d and give it one of them", f.Name, f.Other, f.Inode)
}

// foreign returns the error of a name that another file has.
func foreign(n name) error {
	return ondisk.In(ondisk.ErrChanged, "%v is not a file of the exchange: move it away", n)
}

// holds reports whether a file has just these bytes. One that cannot be read has others.
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

// named reports whether a file of the source has the name that it had.
func (d *folder) named(f file) bool {
	return d.is(f.Name, f) || f.text() && d.holds(f.Name, f.Was)
}

// holdsName reports whether a file of the exchange has its name, or the text that leads to the second names.
func (d *folder) holdsName(f file) bool { return d.named(f) || f.text() && d.holds(f.Name, f.Kept) }

// unfinishedName returns the name that a file has while it is written.
func unfinishedName(n name) name { return name("." + string(n) + journal.Renamed) }

// write puts a file with these bytes under a name, whole and durable, in place of what has the name. It gets the owner
// and the attributes of the first of the files like that is there.
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
		err = d.adopt(sys.Of(f), like)
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

// adopt gives a file the owner and the attributes of the first of others that is there. What the file system does not
// keep was reported with the copy.
func (d *folder) adopt(f *sys.File, like []name) error {
	from, err := d.At.Open(string(like[0]))
	if errors.Is(err, fs.ErrNotExist) && len(like) > 1 {
		return d.adopt(f, like[1:])
	}
	if err != nil {
		return fmt.Errorf("attributes of %v: %w", like[0], err)
	}
	defer from.Close()
	_, err = f.Adopt(from)
	return err
}

// remove removes a name, which need not be there.
func (d *folder) remove(n name) error {
	if err := d.At.Remove(string(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("remove", n, err)
	}
	return nil
}

package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// UnknownRoom is the free space of a file system that does not say how much it has.
const UnknownRoom = math.MaxInt64

// Free returns the space in bytes that an ordinary user can still take where the output goes.
func (o *Parts) Free() (int64, error) {
	free, known, err := o.dir.At.Free()
	if err != nil {
		return 0, ondisk.In(ondisk.ErrOutput, "free space: %w", err)
	}
	if !known {
		o.notes.add("dest-room-unknown", "", "the file system does not say how much room it has: whether the copy "+
			"fits shows when it is written")
		return UnknownRoom, nil
	}
	return free, nil
}

// Room returns what was free before the files of the output had a size: FAT and exFAT give a file its room with that.
func (o *Output) Room() int64 { return o.room }

// Reopen opens what was written, through a handle of its own, as a later reader will.
func (o *Output) Reopen() (*image.Image, error) { return o.again() }

// image opens the image that was written.
func (o *Parts) image(format string, sector int64) (*image.Image, error) {
	d, err := o.reader()
	if err != nil {
		return nil, err
	}
	img, err := image.OpenIn(d, o.base, image.Options{Format: format, SectorSize: sector})
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	img.Path = o.base
	return img, nil
}

// reader returns the folder as it will be: the partial files stand there under their final names.
func (o *Parts) reader() (*gate.Folder, error) {
	d, err := o.dir.Again()
	if err != nil {
		return nil, fmt.Errorf("reopen %s: %w", o.path, err)
	}
	d.Alias = map[string]string{}
	for _, p := range o.parts {
		d.Alias[p.final] = partialName(p.final)
	}
	for _, name := range o.hidden {
		d.Alias[name] = partialName(name) // a name of no file
	}
	return d, nil
}

// Files returns the final names, the named one first.
func (o *Parts) Files() []string {
	var out []string
	for _, p := range o.parts {
		out = append(out, p.final)
	}
	return out
}

// Sum is the SHA-256 of a file.
type Sum struct {
	File   string // its final name
	SHA256 [sha256.Size]byte
}

// Sums reads all files as they lie on the storage now, the named one first. begin receives how many bytes there are,
// add how many were read.
func (o *Parts) Sums(ctx context.Context, begin, add func(n int64)) ([]Sum, error) {
	var total int64
	for _, p := range o.parts {
		st, err := p.Stat()
		if err != nil {
			return nil, p.wrap("read", err)
		}
		total += st.Size()
	}
	begin(total)
	var out []Sum
	buf := make([]byte, units.MiB)
	for _, p := range o.parts {
		h := sha256.New()
		for at := int64(0); ; {
			n, err := p.ReadAt(buf, at)
			h.Write(buf[:n])
			at += int64(n)
			add(int64(n))
			if errors.Is(err, io.EOF) {
				break
			}
			if err = cmp.Or(ctx.Err(), p.wrap("read", err)); err != nil {
				return nil, err
			}
		}
		out = append(out, Sum{p.final, [sha256.Size]byte(h.Sum(nil))})
	}
	return out, nil
}

// SHA256Sums lists digests as sha256sum does, of files in a folder as the user wrote it. Where a name holds a backslash
// or ends a line, its line begins with a backslash, and the name is escaped (GNU coreutils, cksum output modes).
func SHA256Sums(folder string, sums []Sum) string {
	var out strings.Builder
	escape := strings.NewReplacer("\\", `\\`, "\n", `\n`, "\r", `\r`)
	for _, s := range sums {
		name := folder + s.File
		if escaped := escape.Replace(name); escaped != name {
			out.WriteByte('\\')
			name = escaped
		}
		fmt.Fprintf(&out, "%x  %s\n", s.SHA256, name)
	}
	return out.String()
}

// Publish gives the files their names: the second ones first, then the one that users name, so that DEST is absent or
// complete at every moment. Then the folder is synced. After an error nothing has its name; what fails when DEST has it
// is a note.
func (o *Parts) Publish() error {
	for _, p := range o.parts {
		if p.mode&0o600 == 0o600 {
			continue
		}
		if err := o.permit(p, p.mode); err != nil {
			return err
		}
	}
	for i, p := range o.parts[1:] {
		if err := o.link(p); err != nil {
			return errors.Join(err, o.unlink(o.parts[1:1+i])) // this one's name is another's
		}
	}
	if len(o.parts) > 1 {
		if err := o.syncFolder(); err != nil {
			return errors.Join(err, o.unpublish())
		}
	}
	for _, n := range o.replace {
		// The extents that DEST uses now get the mark of a file that waits for its removal, in case this run is killed
		// before it can remove them. A file system without links leaves them to the user then.
		_ = o.dir.At.Link(n, replacedName(n))
	}
	if err := o.rename(o.parts[0], o.force); err != nil {
		return errors.Join(err, o.unpublish())
	}
	if err := o.syncFolder(); err != nil {
		return errors.Join(err, o.retract())
	}
	for _, p := range o.parts[1:] {
		o.removePartialName(partialName(p.final))
	}
	o.removeReplaced()
	if err := o.close(); err != nil { // all bytes were synced and read again before
		o.notes.add("dest-close", "", "%v; the copy itself is complete and verified", err)
	}
	return nil
}

// removeReplaced removes the extents of the image that DEST replaced, unless another descriptor uses them. Failing
// leaves a file too many, which loses nothing.
func (o *Parts) removeReplaced() {
	for _, n := range o.replace {
		if named, err := image.IsNamed(o.dir, n); err == nil && !named {
			_ = o.dir.At.Remove(n)
		}
		_ = o.dir.At.Remove(replacedName(n))
	}
}

// retract takes DEST back when its name might not survive a loss of power. An image that DEST replaced cannot come
// back, so that the new one stays then: it is complete.
func (o *Parts) retract() error {
	if o.force {
		return nil
	}
	if err := o.dir.At.Remove(o.base); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ondisk.In(ondisk.ErrOutput, "%s stands under its name, complete, and cannot be taken away: %w; remove "+
			"it by hand", o.path, err)
	}
	return o.unpublish()
}

// link gives a part its name, which must be free, as a second one. File systems without links rename: there, a kill
// before the next step leaves a file that the next run reports.
func (o *Parts) link(p *partialFile) error {
	if o.limits.links != nil {
		o.notes.add("dest-no-links", "", "the file system has no hard links (%v): a run that is killed in its last "+
			"moment could leave %s behind without %s",
			o.limits.links, p.shown, o.path)
		return o.rename(p, false)
	}
	return o.nameError(p, o.dir.At.Link(partialName(p.final), p.final))
}

// rename gives a part its name in place of the partial one, and replaces only when it may.
func (o *Parts) rename(p *partialFile, replace bool) error {
	from, at := partialName(p.final), o.dir.At
	switch {
	case replace:
		return o.nameError(p, at.Rename(from, p.final))
	case !o.limits.noExclusive:
		return o.nameError(p, at.RenameNew(from, p.final))
	case o.limits.links == nil:
		err := o.nameError(p, at.Link(from, p.final))
		if err == nil {
			o.removePartialName(from)
		}
		return err
	}
	o.notes.add("dest-look-and-rename", "", "the file system has neither hard links (%v) nor a rename that replaces "+
		"nothing: a file that another program named %s in the last moment would be replaced", o.limits.links, p.shown)
	if _, err := at.Lstat(p.final); !errors.Is(err, fs.ErrNotExist) {
		return publishError(p.shown, cmp.Or[error](err, sys.ErrExist))
	}
	return o.nameError(p, at.Rename(from, p.final))
}

// nameError returns the error of a call that gave a part its name, unless the part has it. A server can have carried
// out what it reports as failed, or as done before when a call was repeated.
func (o *Parts) nameError(p *partialFile, err error) error {
	if err != nil && o.dir.LeadsTo(p.final, sys.Of(p.File)) {
		o.removePartialName(partialName(p.final))
		return nil
	}
	return publishError(p.shown, err)
}

// removePartialName removes a partial name that is no longer needed.
func (o *Parts) removePartialName(partial string) {
	if err := o.dir.At.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.notes.add("dest-leftover", "remove it by hand", "%s, a second name of a file of the copy, could not "+
			"be removed: %v",
			o.shown(partial), err)
	}
}

func publishError(name string, err error) error {
	if err == nil {
		return nil
	}
	return ondisk.In(ondisk.ErrOutput, "publish %s: %w", name, err)
}

// unpublish takes back the names of second files when DEST could not get its own.
func (o *Parts) unpublish() error {
	for _, n := range o.replace {
		_ = o.dir.At.Remove(replacedName(n)) // the mark, see Publish
	}
	return o.unlink(o.parts[1:])
}

// unlink takes back the final names of parts that have them.
func (o *Parts) unlink(parts []*partialFile) error {
	for _, p := range parts {
		if err := o.dir.At.Remove(p.final); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return publishError(p.shown, err)
		}
	}
	return nil
}

func (o *Parts) syncFolder() error {
	err := o.dir.At.Sync()
	if sys.Unsupported(err) {
		o.notes.add("dest-folder-not-synced", "sync or unmount the file system before the machine is switched off",
			"the file system cannot make names of files durable (%v): a loss of power soon after the run "+
				"could lose DEST", err)
		return nil
	}
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "sync folder: %w", err)
	}
	return nil
}

// EachFile passes the files of an output, the one that users name first, with the names that they will have and have.
func (o *Parts) EachFile(each func(final, partial string, f *sys.File) error) error {
	for _, p := range o.parts {
		if err := each(p.final, partialName(p.final), sys.Of(p.File)); err != nil {
			return err
		}
	}
	return nil
}

// Release closes the files and leaves them under the names that they have. Discard is harmless after that.
func (o *Parts) Release() error {
	if o.dir == nil {
		return nil
	}
	return o.close()
}

// Discard removes what was written. It is harmless after Publish.
func (o *Parts) Discard() error {
	if o.dir == nil {
		return nil
	}
	var errs []error
	for _, p := range o.parts {
		if err := o.dir.At.Remove(partialName(p.final)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, ondisk.In(ondisk.ErrOutput, "remove %s: %w", o.shown(partialName(p.final)), err))
		}
	}
	return errors.Join(append(errs, o.close())...)
}

func (o *Parts) close() error {
	var errs []error
	for _, p := range o.parts {
		errs = append(errs, p.Close())
	}
	_ = o.dir.Close() // its names are durable, or do not matter
	o.parts, o.dir = nil, nil
	return errors.Join(errs...)
}

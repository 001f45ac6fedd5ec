// Package image opens and creates disk images: it knows the list of formats, finds the one that a file has by its
// content, and is the only way to the file system.
package image

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

// Image is an opened image and the files it consists of.
type Image struct {
	*driver.Image
	Path   string // as the user wrote it
	Format string
	Chain  []Link // the images that this one completes, nearest first
	opened
	// members are the files inside of the archive that files[0] is; nil for an image that is in none.
	members  []*section
	siblings *siblings // shared by all disks of a package; nil for an image that is in none
	known    *Beside   // what the folder holds; nil: it is looked at
	digest   func(ctx context.Context, name string, f driver.File) error
}

// Link is one image of a chain.
type Link struct{ Name, Format, Subformat, ContentID string }

// FileInfo is one file of an image.
type FileInfo struct {
	Name      string
	Size      int64 // bytes
	Allocated int64 // bytes that it takes on its file system
}

// Options of Open.
type Options struct {
	Format string // name of the format, empty to find it by content; it is held against the content either way
	// SectorSize in bytes of a raw image, which cannot say it. 0: that of its device, 512 in a file.
	SectorSize int64
	// Beside is what a look at the image's whole folder found; nil: the folder is looked at.
	Beside *Beside
	Meter  *Meter // of what is read from its files; nil: nothing is counted
	// Digest compares a file of the image with the digests that its package has of it; nil for an image in no package.
	Digest func(ctx context.Context, name string, f driver.File) error
}

// Open opens the image at path, read-only. The user's own path may lead through links; names inside the image may not.
func Open(path string, o Options) (*Image, error) {
	if path == "" {
		return nil, ondisk.In(ErrUsage, "the name of the image is empty")
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, plainPathError(err)
	}
	dir, err := openFolder(filepath.Dir(real))
	if err != nil {
		return nil, err
	}
	dir.count(o.Meter)
	img, err := openIn(dir, filepath.Base(real), o)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	img.Path = path
	return img, nil
}

// fourK is the one size of sectors, in bytes, that disks have beside 512.
const fourK = 4096

// openIn opens base through an open folder.
func openIn(dir *folder, base string, o Options) (*Image, error) {
	main, err := dir.openNamed(base)
	if err != nil {
		return nil, err
	}
	img := &Image{opened: opened{dir: dir, base: base, files: []*file{main}}, known: o.Beside, digest: o.Digest}
	sector := o.SectorSize
	if sector == 0 && main.sector == fourK {
		sector = fourK // any other size, such as that of a CD, is not one that disks have
	}
	c := &chain{img: img, above: []driver.File{main}, gate: img.beside, sector: sector}
	img.Format, img.Image, err = c.open(main, o.Format)
	if err != nil {
		return nil, errors.Join(named(base, img.owned(err)), img.closeFiles())
	}
	img.misnamed(base, o)
	if o.Format == raw.Format.Name {
		err = img.ordered(main)
	}
	return img, err
}

// beside is the gate to further files in the folder of the image.
func (img *Image) beside(name string, level int) (driver.File, error) {
	f, err := img.dir.open(name)
	if err != nil {
		return nil, err
	}
	f.level = level
	img.files = append(img.files, f)
	return f, nil
}

// detect finds the one format that the content has. Two matches are an error: whichever came first would be a guess, and
// a guest can write what looks like a header into its own disk.
// says is who wants the format.
func detect(f driver.File, want, says string) (driver.Format, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return found, err
	case want == raw.Format.Name && says == userSays: // an order, whatever the content looks like
		return raw.Format, nil
	case len(names) > 1:
		return found, &ondisk.FormatError{
			What: "image", Field: "format", Got: strings.Join(names, " and "),
			Want: "the content of one format; if the guest wrote one of the headers, remove it inside the guest",
		}
	case want != "" && !matches(want, found.Name, names):
		return found, &ondisk.FormatError{What: "image", Field: "format", Got: contentName(names), Want: want + ", as " + says + " says"}
	case len(names) == 1 && found.Name == raw.Format.Name:
		remedy := other.remedy
		if remedy == "" {
			remedy = "convert it with qemu-img convert -O vmdk (or raw), and take the result"
		}
		return found, fmt.Errorf("%s: recognised, %w; %s", names[0], ondisk.ErrUnsupported, remedy)
	}
	return found, nil
}

// recognise lists the formats that the content has: the last one that is read, the names of all, and the last one that is not read.
func recognise(f driver.File) (found driver.Format, names []string, other recognised, err error) {
	size := f.Size()
	e, _ := spareEnds.Get().(*ends)
	defer spareEnds.Put(e)
	head, err := e.readHead(f)
	if err != nil {
		return found, nil, other, err
	}
	tail := e.tail[:min(size, tailSize)]
	if err := ondisk.ReadFull(f, tail, size-int64(len(tail))); err != nil {
		return found, nil, other, err
	}
	found = raw.Format
	for _, c := range Formats {
		if c.Detect(head, tail) {
			found, names = c, append(names, c.Name)
		}
	}
	for _, c := range others {
		if c.detect(head, tail) && (c.kind != Packed || !hasTable(head)) {
			names, other = append(names, c.name), c
		}
	}
	return found, names, other, nil
}

func matches(want, found string, names []string) bool {
	if len(names) == 0 {
		return want == raw.Format.Name
	}
	return strings.EqualFold(want, names[0]) || (want == found && found != raw.Format.Name)
}

func contentName(names []string) string {
	if len(names) == 0 {
		return "no known header"
	}
	return names[0]
}

// plainPathError drops the name of the system call from an error of the path package: the path comes with the message.
func plainPathError(err error) error {
	var pe interface{ Unwrap() error }
	if errors.As(err, &pe) && pe.Unwrap() != nil {
		return pe.Unwrap()
	}
	return err
}

// Files lists the files of the image, the named one first.
func (img *Image) Files() []FileInfo {
	var out []FileInfo
	for _, m := range img.members {
		out = append(out, FileInfo{m.Name(), m.Size(), m.Size()})
	}
	if img.members != nil {
		return out
	}
	for _, f := range img.files {
		out = append(out, FileInfo{f.name, f.Size(), f.Allocated()})
	}
	return out
}

// State is what tells that a file is unchanged.
type State struct {
	Name              string
	Size, Allocated   int64 // bytes
	Device, Inode     uint64
	Modified, Changed int64 // ns since 1970; Changed of the inode
}

// stateOf is that of a file when it was opened first.
func stateOf(f *file) State {
	return State{
		Name: f.name, Size: f.Size(), Allocated: f.Allocated(), Device: f.stat.Device, Inode: f.stat.Inode,
		Modified: f.stat.Modified, Changed: f.stat.Changed,
	}
}

// CheckDigests compares the files of an image in a package with the package's manifest.
func (img *Image) CheckDigests(ctx context.Context) error {
	if img.digest == nil {
		return nil
	}
	for _, m := range img.members {
		if err := img.digest(ctx, m.name, m); err != nil {
			return err
		}
	}
	for _, f := range img.files {
		if img.members != nil {
			break
		}
		if err := img.digest(ctx, path.Join(img.under, f.name), f); err != nil {
			return err
		}
	}
	return nil
}

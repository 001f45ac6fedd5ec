// Package unpack opens images in compressed files and in archives. It unpacks them into an unnamed temporary file, the
// spool. An unpacked image can reference only files of the same archive.
package unpack

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Way holds the options for unpacking an image.
type Way struct {
	// Refuse returns the error of a command that reads no packed images. kind, such as gzip, is for its message. If
	// Refuse is nil, all kinds are read.
	Refuse func(kind string) error
	Spool  string               // folder of the spool; if empty, images that need a spool are refused
	Head   bool                 // unpack only the first bytes of a stream, into memory instead of a spool
	Begin  func(packed int64)   // called before packed bytes are unpacked, with their number
	Add    func(packed int64)   // called after packed bytes were unpacked, with their number
	Warn   func(message string) // called with warnings for the user
}

// box is a compressed file or an archive.
type box struct {
	ctx  context.Context //nolint:containedctx // of one opening
	way  Way
	path string // as the user wrote it, without a member
	file *gate.File
	dir  *gate.Folder

	base  content  // file with the members of a tar, or the unpacked stream; nil for zip
	zip   *archive // nil for tar
	spool *spool   // nil until a file is unpacked
	files []file   // members of an archive; nil for a single compressed image
}

// content is an unpacked file, or a part of it.
type content interface {
	ReadAt(p []byte, off int64) (int, error)
	Size() int64
	Extent(off, limit int64) (disk.Extent, error)
}

// file is a member of an archive.
type file struct {
	name string
	at   disk.Range // in base
	zip  *zip.File  // nil for tar
	bad  error      // error of an invalid name
}

// size returns the unpacked size of the file.
func (f *file) size() int64 {
	if f.zip != nil {
		return ondisk.I64(f.zip.UncompressedSize64)
	}
	return f.at.Len
}

// Open opens an image in a compressed file or in an archive: disk.vmdk.gz, images.zip!disk.vmdk, or images.zip if it
// has only one image. For any other or missing file it returns ErrNoMatch.
func Open(ctx context.Context, name string, o image.Options, w Way) (*image.Image, error) {
	at, member := ova.SplitPath(name)
	dir, base, err := gate.Follow(at, o.Meter)
	if err != nil {
		return nil, unopened(err)
	}
	f, err := dir.OpenAny(base, ondisk.ErrUnsupported)
	if err != nil {
		return nil, errors.Join(unopened(err), dir.Close())
	}
	b := &box{ctx: ctx, way: w, path: at, dir: dir, file: f}
	main, from, err := b.open(name, member)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	from.Size = main.Size()
	img, err := image.OpenAlone(main, name, o, func(name string) (driver.File, error) {
		return b.further(main.name, name)
	})
	if err == nil {
		img.Unpacked, img.Packed = &from, f
	}
	return img, err
}

// unopened returns the error of a file that cannot be opened. For a missing or special file it is ErrNoMatch, because
// opening the file as an image reports more.
func unopened(err error) error {
	if errors.Is(err, fs.ErrNotExist) || !sys.FromSystem(err) {
		return ondisk.ErrNoMatch
	}
	return err
}

// open opens the file named by the user.
func (b *box) open(name, member string) (f *open, from image.Unpacked, err error) {
	kind, err := b.recognise()
	if err == nil && b.way.Refuse != nil {
		err = b.way.Refuse(kind)
	}
	if err == nil {
		err = b.list(kind)
	}
	if err != nil {
		return nil, from, err
	}
	from = image.Unpacked{File: b.file.Name(), Kind: kind, Stored: b.file.Size()}
	switch {
	case b.files != nil && b.way.Head:
		return nil, from, b.unjudged(kind)
	case b.files == nil && member != "":
		return nil, from, ondisk.In(ondisk.ErrUsage, "%.256q is not an archive, and there is no file "+
			"%.256q", b.path, name)
	case b.files == nil:
		f = b.opened(b.base, b.stem())
		from.Partly = f.Beyond() != nil
		return f, from, nil
	}
	chosen, err := b.choose(member)
	if err != nil {
		return nil, from, err
	}
	from.Member = chosen.name
	c, err := b.content(chosen)
	return b.opened(c, chosen.name), from, err
}

// ErrArchive is the error of an archive with an image if only the first bytes are unpacked.
var ErrArchive = ondisk.In(ondisk.ErrUnsupported, "archive with an image")

// unjudged returns the error of an archive that is not unpacked. It recognizes images by their names.
func (b *box) unjudged(kind string) error {
	of, where := "an archive", "it"
	if formats[kind].open != nil {
		of, where = "a tar archive", "its first "+units.Format(HeadSize)
	}
	images := slices.DeleteFunc(slices.Clone(b.files), func(f file) bool { return !image.Named(f.name, f.size()) })
	switch len(images) {
	case 0:
		return ondisk.In(ondisk.ErrUnsupported, "%s, and no file in %s has the name of an image", of, where)
	case 1:
		return ondisk.In(ErrArchive, "%s with the image %.256q", of, images[0].name)
	}
	return ondisk.In(ErrArchive, "%s with %d images in %s, such as %.256q", of, len(images), where, images[0].name)
}

// Kinds of archives, as users write them.
const (
	Tar     = "tar"
	zipFile = "zip"
)

// Reads reports whether files of a kind, such as gzip, can be unpacked.
func Reads(kind string) bool { return formats[kind].open != nil || kind == zipFile || kind == Tar }

// recognise returns the kind of the file: a compression format, or an archive of plain files.
func (b *box) recognise() (kind string, err error) {
	id, err := image.IdentifyFile(b.file)
	switch {
	case err != nil && !ondisk.Understood(err):
		return "", err
	case err != nil: // opening it as an image reports the cause
	case id.Kind == image.Packed && Reads(id.Format):
		return id.Format, nil
	case id.Kind == image.Pack && id.Format == "ova":
		files, err := ova.Files(b.file)
		if err != nil && !ondisk.Understood(err) {
			return "", err
		}
		named := strings.EqualFold(path.Ext(b.file.Name()), ".ova") // a damaged OVA if it has no OVF
		if err == nil && !named && !slices.ContainsFunc(files, ofOVF) {
			return Tar, nil
		}
	}
	return "", ondisk.ErrNoMatch
}

func ofOVF(f ova.File) bool { return strings.EqualFold(path.Ext(f.Name), ".ovf") }

// list unpacks a stream and lists the members of an archive. With Head, the list ends with the unpacked bytes.
func (b *box) list(kind string) (err error) {
	switch kind {
	case zipFile:
		return b.listZip()
	case Tar:
		b.base = b.file
	default:
		r, err := OpenStream(kind, b.file)
		if err != nil {
			return err
		}
		if b.base, err = b.unpack(kind, r, b.file.Size()); err != nil {
			return err
		}
		id, err := image.IdentifyFile(b.opened(b.base, b.stem()))
		switch {
		case err != nil && !ondisk.Understood(err):
			return err
		case err != nil:
			return nil //nolint:nilerr // opening the image reports the cause
		case id.Kind == image.Packed:
			return fmt.Errorf("the %s stream holds another compressed file (%s): %w; unpack it first", kind,
				id.Format, ondisk.ErrUnsupported)
		case id.Kind != image.Pack || id.Format != "ova":
			return nil
		}
	}
	files, err := ova.Files(b.base)
	b.files = []file{}
	for _, f := range files {
		b.files = append(b.files, file{name: f.Name, at: f.Range})
	}
	if errors.Is(err, ErrBeyond) {
		return nil
	}
	return err
}

// listZip lists the members of a zip archive without unpacking them.
func (b *box) listZip() error {
	archive, err := openZip(b.file)
	if err != nil {
		return err
	}
	b.zip, b.files = archive, []file{}
	for _, x := range archive.zip.File {
		if strings.HasSuffix(x.Name, "/") || x.Mode()&fs.ModeSymlink != 0 {
			continue // other modes count as files: a member that zip read from a pipe has the mode of a pipe
		}
		name, bad := ova.MemberName(x.Name)
		if bad != nil {
			name = x.Name
		}
		if b.find(name) != nil {
			return fmt.Errorf("member %.256q occurs twice in the archive: %w", name,
				ondisk.ErrReference)
		}
		b.files = append(b.files, file{name: name, zip: x, bad: bad})
	}
	return nil
}

// stem returns the file name without the extension of the compression format.
func (b *box) stem() string {
	name := filepath.Base(b.file.Name())
	return strings.TrimSuffix(name, filepath.Ext(name))
}

// find returns a member of the archive by name, or nil.
func (b *box) find(name string) *file {
	if i := slices.IndexFunc(b.files, func(f file) bool { return f.name == name }); i >= 0 {
		return &b.files[i]
	}
	return nil
}

// shown bounds the number of images that a message lists.
const shown = 10

// choose returns the member named by the user, or the only image.
func (b *box) choose(member string) (*file, error) {
	if f := b.find(member); f != nil {
		return f, f.bad
	}
	images, err := b.images()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, f := range images[:min(len(images), shown)] {
		paths = append(paths, shell.Quote(b.path+"!"+f.name))
	}
	list := strings.Join(paths, ", ")
	if more := len(images) - len(paths); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	switch {
	case len(images) == 0:
		return nil, fmt.Errorf("the archive has no image (files in it: %d): %w", len(b.files), ondisk.ErrUnsupported)
	case member != "":
		return nil, ondisk.In(ondisk.ErrUsage, "the archive has no file %.256q; its images are %s", member, list)
	case len(images) > 1:
		return nil, ondisk.In(ondisk.ErrUsage, "the archive has %d images, name one of them: %s", len(images), list)
	}
	return images[0], images[0].bad
}

// images returns the images of the archive, without their extents and parents.
func (b *box) images() ([]*file, error) {
	var finder image.Finder
	for i := range b.files {
		if err := b.ctx.Err(); err != nil {
			return nil, err
		}
		f := &b.files[i]
		head, err := b.head(f)
		if err != nil {
			return nil, err
		}
		id, err := image.IdentifyFile(head)
		finder.Add(f.name, head.Size(), id, err)
	}
	var out []*file
	for _, name := range finder.Images() {
		out = append(out, b.find(name))
	}
	return out, nil
}

// further opens a file that an image references, next to it in the archive.
func (b *box) further(main, name string) (driver.File, error) {
	if b.files == nil {
		return nil, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("it refers to the file %.256q, and trueup opens no further "+
				"files for a compressed image", name),
			Remedy: "decompress all of its files first, or put them into one archive",
		}
	}
	if err := gate.CheckName(name); err != nil {
		return nil, err
	}
	name = path.Join(path.Dir(main), name)
	f := b.find(name)
	if f == nil {
		return nil, fmt.Errorf("file %.256q of the archive: %w", name, fs.ErrNotExist)
	}
	c, err := b.content(f)
	if err != nil {
		return nil, err
	}
	return b.opened(c, name), nil
}

// Close closes the file, and removes the unpacked bytes.
func (b *box) Close() error {
	return errors.Join(b.spool.close(), b.file.Close(), b.dir.Close())
}

// opened wraps content in a file for image formats.
func (b *box) opened(c content, name string) *open { return &open{content: c, name: name, box: b} }

// open is an unpacked file, or an uncompressed member of an archive.
type open struct {
	content
	name string
	box  *box
}

// Beyond returns ErrBeyond if the end of the file was not unpacked, otherwise nil.
func (f *open) Beyond() error {
	if h, ok := f.content.(*head); ok && h.size > int64(len(h.known)) {
		return ErrBeyond
	}
	return nil
}

// Name returns the name without folders.
func (f *open) Name() string { return path.Base(f.name) }

// ID identifies the file by the ID of the archive and the name in it.
func (f *open) ID() string { return f.box.file.ID() + "!" + f.name }

// Forget does nothing, because unpacked bytes do not change.
func (*open) Forget() {}

// Device returns false, because the file has a meaningful name.
func (*open) Device() bool { return false }

// Unchanged returns an error if the compressed file has changed.
func (f *open) Unchanged() error { return f.box.file.Unchanged() }

// Close closes the compressed file and its spool.
func (f *open) Close() error { return f.box.Close() }

// spool is an unnamed temporary file with the unpacked images, one after the other. Zeros are holes in it.
type spool struct {
	f    *os.File
	at   *sys.File
	dir  *sys.Folder
	path string // of the folder
	end  int64  // offset of the next image
}

// Sizes of a spool, in bytes.
const (
	spoolUnit  = 4 * units.KiB  // shorter runs of zeros are stored
	spoolRead  = units.MiB      // bytes unpacked at once
	spoolCheck = 64 * units.MiB // bytes unpacked between two checks of free space; as much must remain free
)

// needSpool creates the spool, unless it exists.
func (b *box) needSpool(kind string) error {
	switch {
	case b.spool != nil:
		return nil
	case b.way.Spool == "":
		return &ondisk.Refusal{
			Code: "unsupported", Reason: fmt.Sprintf("it is compressed or archived (%s)", kind),
			Remedy: "add --spool DIR (scratch space for the unpacked image; removed afterwards)",
		}
	}
	dir, err := sys.OpenFolder(b.way.Spool)
	if err != nil {
		return ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w; choose another folder with --spool "+
			"DIR", b.way.Spool, err)
	}
	f, err := sys.Scratch(b.way.Spool, ".trueup.spool")
	if err != nil {
		return errors.Join(ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w", b.way.Spool, err), dir.Close())
	}
	sys.FromOS(f).Sparse()
	b.spool = &spool{f: f, at: sys.FromOS(f), dir: dir, path: b.way.Spool}
	return nil
}

// close removes the unpacked bytes. It may be called on nil.
func (s *spool) close() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.f.Close(), s.dir.Close())
}

// content returns the unpacked bytes of a member.
func (b *box) content(f *file) (content, error) {
	if f.zip == nil {
		return part{b.base, f.at}, nil
	}
	r, err := b.zip.open(f.zip)
	if err != nil {
		return nil, err
	}
	return b.unpack(zipFile, r, ondisk.I64(f.zip.CompressedSize64))
}

// unpack unpacks a reader into the spool, or its head into memory. size is the number of packed bytes.
func (b *box) unpack(kind string, r *Reader, size int64) (content, error) {
	stated := r.Stated
	if b.way.Head {
		if kind == Zstd {
			stated = -1 // it covers only the first frame
		}
		return unpackHead(r, stated)
	}
	if err := b.needSpool(kind); err != nil {
		return nil, err
	}
	s := b.spool
	if free, known, err := s.dir.Free(); err == nil && known && stated > free && b.way.Warn != nil {
		b.way.Warn(fmt.Sprintf("%s unpacks to %s (%d bytes), but only %s (%d bytes) are free in %s; trying anyway, "+
			"since zeros take no space", b.file.Name(), units.Format(stated), stated, units.Format(free), free, s.path))
	}
	if b.way.Begin != nil {
		b.way.Begin(size)
	}
	off := units.AlignUp(s.end, spoolUnit)
	n, err := b.fill(r, off)
	if err != nil {
		return nil, err
	}
	if err := s.f.Truncate(off + n); err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w", s.path, err)
	}
	s.end = off + n
	return part{s, disk.Range{Off: off, Len: n}}, b.file.Unchanged()
}

// fill unpacks a whole reader into the spool from off on, and returns the number of unpacked bytes.
func (b *box) fill(r *Reader, off int64) (done int64, err error) {
	s := b.spool
	buf, taken, checked := make([]byte, spoolRead), int64(0), int64(0)
	for {
		if err := b.ctx.Err(); err != nil {
			return 0, err
		}
		if done >= checked {
			checked = done + spoolCheck
			if err := s.room(b.file.Name(), done); err != nil {
				return 0, err
			}
		}
		n, err := io.ReadFull(r, buf)
		if writing := s.write(buf[:n], off+done); writing != nil {
			return 0, ondisk.In(ondisk.ErrOutput, "unpacking in %s: %w; %s of %s were unpacked", s.path, writing,
				units.Format(done), b.file.Name())
		}
		done += int64(n)
		if b.way.Add != nil {
			b.way.Add(r.Taken() - taken)
		}
		taken = r.Taken()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return done, nil
		case err != nil:
			return 0, err
		}
	}
}

// room returns an error if further unpacking would fill the file system.
func (s *spool) room(name string, done int64) error {
	free, known, err := s.dir.Free()
	if err != nil || !known || free >= 2*spoolCheck {
		return err
	}
	return ondisk.In(ondisk.ErrOutput, "unpacking in %s: %s (%d bytes) are free, and only the first %s of %s were "+
		"unpacked; choose a folder with more space: --spool DIR", s.path, units.Format(free), free,
		units.Format(done), name)
}

// write writes p but skips zeros.
func (s *spool) write(p []byte, off int64) error {
	for r := range ondisk.DataRuns(p, spoolUnit) {
		if _, err := s.f.WriteAt(p[r.Off:r.End()], off+r.Off); err != nil {
			return err
		}
	}
	return nil
}

// ReadAt follows the contract of io.ReaderAt.
func (s *spool) ReadAt(p []byte, off int64) (int, error) { return s.f.ReadAt(p, off) }

// Size returns the size in bytes of all that was unpacked.
func (s *spool) Size() int64 { return s.end }

// Extent returns the hole or data at off as reported by the file system.
func (s *spool) Extent(off, limit int64) (disk.Extent, error) {
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}}
	e.Len, e.Zero = s.at.Extent(off, limit)
	return e, nil
}

// part is a range of unpacked bytes.
type part struct {
	of content
	at disk.Range
}

// ReadAt follows the contract of io.ReaderAt.
func (p part) ReadAt(b []byte, off int64) (int, error) {
	return io.NewSectionReader(p.of, p.at.Off, p.at.Len).ReadAt(b, off)
}

// Size returns the size in bytes.
func (p part) Size() int64 { return p.at.Len }

// Extent returns the hole or data at off.
func (p part) Extent(off, limit int64) (disk.Extent, error) {
	e, err := p.of.Extent(p.at.Off+off, min(limit, p.at.Len-off))
	e.Off = off
	return e, err
}

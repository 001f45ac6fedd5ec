// Package image opens disk images. It lists the formats, detects the format of a file by its content, opens the other
// files of an image, and finds users and children of an image.
package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/vhdx"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Image is an opened image and its files.
type Image struct {
	*driver.Image
	Path   string // as the user wrote it
	Format string
	Chain  []Link // the parents, nearest first
	gate.Opened
	// members are the files in the archive Handles[0], or nil outside of archives.
	members  []*section
	siblings *siblingCache // shared by all disks of a package; nil without a package
	known    *Beside       // content of the folder, or nil to read the folder
	digest   func(ctx context.Context, name string, f driver.File) error

	Package InPackage // zero without a package

	Unpacked *Unpacked // source of a decompressed image, or nil

	device  int64 // sector size of the device of a raw image, bytes; 0 for a file
	counted int64 // sector size of Disk, bytes, if it differs from the image's
	shown   int64 // the image's own sector size, bytes
}

// InPackage is the package of an image: its path as the user wrote it, and its base name.
type InPackage struct{ Path, Base string }

// Link is one image of a chain.
type Link struct {
	Name      string `json:"name"`
	Format    string `json:"format"`
	Subformat string `json:"subformat,omitempty"`
	ContentID string `json:"content_id,omitempty"`
}

// Packaged reports whether the image is a disk of a package.
func (img *Image) Packaged() bool { return img.digest != nil }

// FileInfo is one file of an image.
type FileInfo struct {
	Name      string `json:"name"`
	Size      int64  `json:"size_bytes"`
	Allocated int64  `json:"allocated_bytes"` // on its file system
}

// Options are the options of Open.
type Options struct {
	// Format is the required format, checked against the content unless it is raw. If empty, the content decides.
	Format string
	// SectorSize is the sector size of a raw image in bytes. The default is the sector size of the device, or 512 for a
	// file.
	SectorSize int64
	// Place is the range of a raw file that holds its disk. A length of 0 means up to the end.
	Place disk.Range
	// Beside is the known content of the image's folder; if nil, the folder is read.
	Beside *Beside
	// Allow lists further folders for parents and extents, see gate.Allow. Search lists the folders in which a parent
	// is also found by its name alone, if its identity can be compared.
	Allow, Search []string
	Meter         *gate.Meter // counts the bytes read; may be nil
	// Digest compares a file of the image with its digests in the package; nil without a package.
	Digest func(ctx context.Context, name string, f driver.File) error
}

// AllowFolders allows parents in further folders, as the user names them, and in their subfolders.
func (o *Options) AllowFolders(folders []string) (err error) {
	o.Search, o.Allow, err = gate.Allow(folders)
	return err
}

// Open opens the image at path, read-only. The user's own path may contain links; file names in the image may not.
func Open(path string, o Options) (*Image, error) {
	if path == "" {
		return nil, ondisk.In(ondisk.ErrUsage, "the name of the image is empty")
	}
	dir, base, err := gate.Follow(path, o.Meter)
	if err != nil {
		return nil, err
	}
	img, err := OpenIn(dir, base, o)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	img.Path = path
	return img, nil
}

// fourK is the only sector size of disks other than 512, in bytes.
const fourK = 4096

// OpenIn opens base through an open folder.
func OpenIn(dir *gate.Folder, base string, o Options) (*Image, error) {
	main, err := dir.OpenNamed(base)
	if err != nil {
		return nil, err
	}
	img := &Image{
		Opened: gate.Opened{Dir: dir, Base: base, Handles: []*gate.File{main}}, known: o.Beside, digest: o.Digest,
	}
	img.device = int64(main.Sector)
	sector := o.SectorSize
	if sector == 0 && main.Sector == fourK {
		sector = fourK // disks have no other size; CDs do
	}
	c := &chain{
		img: img, above: []driver.File{main}, sector: sector, place: o.Place, allow: o.Allow, search: o.Search,
	}
	c.gate = func(name string, level int) (driver.File, error) {
		return img.opened(level)(c.file().Beside(name))
	}
	c.reach = func(name string, level int) (driver.File, error) {
		return img.opened(level)(img.Reach(c.file(), name, o.Allow))
	}
	img.Format, img.Image, err = c.open(main, o.Format)
	if err != nil {
		return nil, errors.Join(addNamedFormat(base, img.nameOwner(err)), img.CloseFiles())
	}
	img.checkExtension(base, o)
	img.noteCompanion()
	if err := img.noteRaw(main, o); err != nil {
		return nil, errors.Join(err, img.CloseFiles())
	}
	return img, nil
}

// noteRaw adds issues of an image that is read as a raw disk.
func (img *Image) noteRaw(main driver.File, o Options) error {
	if img.Format != raw.Format.Name {
		return nil
	}
	if o.Format == raw.Format.Name {
		if err := img.noteOverride(main); err != nil {
			return err
		}
	}
	return img.noteMark(main)
}

// opened returns a function that adds another open file to the image.
func (img *Image) opened(level int) func(f *gate.File, err error) (driver.File, error) {
	return func(f *gate.File, err error) (driver.File, error) {
		if err != nil {
			return nil, err
		}
		f.Level = level
		img.Handles = append(img.Handles, f)
		return f, nil
	}
}

// Files lists the files of the image, the main one first.
func (img *Image) Files() []FileInfo {
	var out []FileInfo
	for _, m := range img.members {
		out = append(out, FileInfo{m.Name(), m.Size(), m.Size()})
	}
	if img.members != nil {
		return out
	}
	for _, f := range img.Handles {
		out = append(out, FileInfo{f.Name(), f.Size(), f.Allocated()})
	}
	switch f := img.Remote; {
	case img.Unpacked != nil:
		out = append(out, FileInfo{img.Unpacked.File, img.Unpacked.Stored, img.Unpacked.Stored})
	case f != nil:
		out = append(out, FileInfo{f.Name(), f.Size(), f.Size()})
	}
	return out
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
	for _, f := range img.Handles {
		if img.members != nil {
			break
		}
		if err := img.digest(ctx, path.Join(img.Under, f.Name()), f); err != nil {
			return err
		}
	}
	return nil
}

// CountIn sets the sector size of Disk, in bytes, to the unit of its partition table.
func (img *Image) CountIn(sector int64) {
	n := img.Disk.SectorSize()
	if n == sector {
		return
	}
	img.Disk = disk.InSectors(img.Disk, sector)
	img.counted, img.shown = sector, n
}

// Showing returns an image that shows d, made of the disk of img, for copies. It has the files of img.
func (img *Image) Showing(d disk.Disk) *Image {
	out, shown := *img, *img.Image
	shown.Disk = d
	out.Image, out.counted, out.shown = &shown, d.SectorSize(), img.StatedSectors()
	return &out
}

// StatedSectors returns the sector size of the container or the device in bytes, or 0 for a raw file.
func (img *Image) StatedSectors() int64 {
	switch {
	case img.Format == raw.Format.Name:
		return img.device
	case img.counted != 0:
		return img.shown
	}
	return img.Disk.SectorSize()
}

// HoldsSectors returns an error if an image of a format cannot store a sector size of n bytes. A copy in the format of
// the source can keep the size of the source.
func (img *Image) HoldsSectors(format string, n int64) error {
	f, _ := ByName(format)
	if f.HoldsSectors(n) || (format == img.Format && img.StatedSectors() == n) {
		return nil
	}
	to := "--to raw"
	if vhdx.Format.HoldsSectors(n) {
		to = "--to vhdx, or --to raw"
	}
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("the disk has sectors of %d bytes, and the format %s cannot "+
			"record that: a guest would not find its partitions", n, format),
		Remedy: fmt.Sprintf("for a machine with sectors of 512 bytes, add --to-sector-size 512, which rewrites the "+
			"table; or write it with %s; for a raw image, set the sector size in the machine (QEMU: "+
			"logical_block_size=%d)", to, n),
	}
}

// OpenDrive opens a disk of this machine by its Windows name, as a raw disk only.
func OpenDrive(path string, o Options) (*Image, error) {
	d, err := gate.OpenDrive(path)
	if err != nil {
		return nil, err
	}
	if o.SectorSize == 0 && d.Sector() == fourK {
		o.SectorSize = fourK
	}
	img, err := openRaw(d, path, o)
	if err == nil {
		img.device = d.Sector()
	}
	return img, err
}

// openRaw opens a raw disk without a folder.
func openRaw(f gate.Remote, path string, o Options) (*Image, error) {
	img, err := OpenAlone(f, path, o, func(string) (driver.File, error) { return nil, notRaw("an image in files") })
	if err == nil && img.Format != raw.Format.Name {
		err = errors.Join(notRaw(img.Format), img.Close())
	}
	if err != nil {
		return nil, err
	}
	return img, nil
}

func notRaw(what string) error {
	return &ondisk.Refusal{
		Code: "unsupported", Reason: "the device holds " + what + ", but trueup reads Windows devices only as raw",
		Remedy: "if the device is a disk and " + what + " is only a leftover, add --format raw",
	}
}

// Unpacked describes the source of a decompressed image.
type Unpacked struct {
	File   string `json:"file"`                     // base name of the file that the user named
	Kind   string `json:"kind"`                     // type of its content: gzip, xz, zstd, bzip2, zip or tar
	Member string `json:"member,omitempty"`         // name in an archive, or empty
	Stored int64  `json:"stored_bytes"`             // size of the file
	Size   int64  `json:"unpacked_bytes,omitempty"` // size of the image's main file; 0 if unknown
	Partly bool   `json:"-"`                        // the end was not decompressed
}

// OpenAlone opens an image in a file without a folder. The image owns f. further opens other files of the image. If it
// is nil, the image must consist of one file, since a server could otherwise choose the files to read.
func OpenAlone(
	f gate.Remote, path string, o Options, further func(name string) (driver.File, error),
) (*Image, error) {
	img := &Image{Opened: gate.Opened{Remote: f}, Path: path, known: &Beside{}}
	c := &chain{img: img, above: []driver.File{f}, sector: o.SectorSize, place: o.Place}
	c.gate = func(name string, _ int) (driver.File, error) {
		if further != nil {
			return further(name)
		}
		return nil, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("it refers to the file %.256q, and trueup opens no further "+
				"files for an image on a server", name),
			Remedy: "copy all of its files to this machine, or let the server export the disk itself, as qemu-nbd does",
		}
	}
	var err error
	if img.Format, img.Image, err = c.open(f, o.Format); err != nil {
		switch id, bad := IdentifyFile(f); {
		case bad != nil:
		case id.Kind == Pack:
			err = &ondisk.Refusal{
				Code: "unsupported", Reason: "it is a package (" + id.Format + "), which trueup reads only from a file",
				Remedy: "download it first",
			}
		case id.Kind == Packed:
			err = &ondisk.Refusal{
				Code: "unsupported", Reason: "it is compressed or archived (" + id.Format + ")",
				Remedy: "download and unpack it first, or unpack it on the server with nbdkit --filter=gzip, xz or tar",
			}
		}
		if !f.Device() {
			err = addNamedFormat(f.Name(), err)
		}
		return nil, errors.Join(err, img.Close())
	}
	if !f.Device() {
		img.checkExtension(f.Name(), o)
	}
	if err := img.noteRaw(f, o); err != nil {
		return nil, errors.Join(err, img.Close())
	}
	return img, nil
}

// FileSet holds the open files of a package, read-only, in its folder or below.
type FileSet struct {
	gate.Opened
	within   map[string]*gate.Folder // folders below the folder of the first file, by path
	siblings *siblingCache           // of the images among the files
}

// siblingCache caches the file names stored in the images of a folder. The disks of a package share it, since the
// folder may be large.
type siblingCache struct{ names map[string]driver.Names }

// OpenFiles opens the first file of a set. The user's own path may contain links. meter counts the bytes read; it may
// be nil.
func OpenFiles(path string, meter *gate.Meter) (*FileSet, error) {
	dir, base, err := gate.Follow(path, meter)
	if err != nil {
		return nil, err
	}
	return NewFileSet(dir, base)
}

// NewFileSet opens the first file of a set in an open folder. The set owns the folder.
func NewFileSet(dir *gate.Folder, base string) (*FileSet, error) {
	f, err := dir.OpenAny(base, ondisk.ErrReference)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &FileSet{
		gate.Opened{Dir: dir, Base: base, Handles: []*gate.File{f}},
		map[string]*gate.Folder{},
		&siblingCache{},
	}, nil
}

// First returns the file by which the set was opened.
func (s *FileSet) First() driver.File { return s.Handles[0] }

// Has reports whether the folder has a file of this name.
func (s *FileSet) Has(name string) bool {
	_, underWay := s.Dir.Alias[name]
	return underWay || s.Dir.Exists(name)
}

// Open opens another file by its path relative to the folder. No link is followed.
func (s *FileSet) Open(name string) (driver.File, error) {
	if err := gate.CheckPath(name); err != nil {
		return nil, err
	}
	dir, err := s.folderOf(name)
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenAs(path.Base(name), name)
	if err != nil {
		return nil, err
	}
	s.Handles = append(s.Handles, f)
	return f, nil
}

// OpenImage opens an image among the files, through new handles.
func (s *FileSet) OpenImage(name string, o Options) (*Image, error) {
	from, err := s.folderOf(name)
	if err != nil {
		return nil, err
	}
	at := path.Dir(name)
	if at != "." {
		o.Beside = nil
	}
	o.Allow, o.Search = nil, nil // a package is complete
	dir, err := from.Again()
	if err != nil {
		return nil, err
	}
	img, err := OpenIn(dir, path.Base(name), o)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if at == "." {
		img.siblings = s.siblings
	} else {
		img.Under = at
	}
	return img, nil
}

// OpenInside opens an image in the first file, an archive, through new handles. find returns the ranges of other
// members for the image.
func (s *FileSet) OpenInside(
	name string, at disk.Range, find func(name string) (disk.Range, error), o Options,
) (*Image, error) {
	dir, err := s.Dir.Again()
	if err != nil {
		return nil, err
	}
	f, err := dir.OpenAny(s.Base, ondisk.ErrReference)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if s.Dir.Alias == nil { // over a network, the times of a file being written change late
		err = s.Handles[0].Unchanged()
	}
	if err == nil && f.ID() != s.Handles[0].ID() {
		err = fmt.Errorf("file %.256q %w", s.Base, ondisk.ErrChanged)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close(), dir.Close())
	}
	img, err := inArchive(dir, newSection(f, name, at), find, o)
	if err != nil {
		return nil, errors.Join(err, f.Close(), dir.Close())
	}
	return img, nil
}

// Section returns a range of the first file as a file: a member of an archive.
func (s *FileSet) Section(name string, at disk.Range) driver.File {
	return newSection(s.Handles[0], name, at)
}

// Close closes all files.
func (s *FileSet) Close() error {
	for _, d := range s.within {
		_ = d.Close() // used for names only
	}
	return s.Opened.Close()
}

// maxWithin limits the number of subfolders in an OVF package.
const maxWithin = 16

// folderOf opens the folder of a file in the set. No link is followed.
func (s *FileSet) folderOf(name string) (*gate.Folder, error) {
	at, dir := path.Dir(name), s.Dir
	if at == "." {
		return dir, nil
	}
	if d := s.within[at]; d != nil {
		return d, nil
	}
	if len(s.within) == maxWithin {
		return nil, fmt.Errorf("files of the OVF: %w of %d folders", ondisk.ErrLimit, maxWithin)
	}
	dir, err := dir.Enter(at)
	if err == nil {
		s.within[at] = dir
	}
	return dir, err
}

// section is a contiguous file inside another one. Nothing is extracted.
type section struct {
	disk.Disk
	f    *gate.File
	name string // path in the archive
	off  int64
}

func newSection(f *gate.File, name string, at disk.Range) *section {
	d := disk.New(at.Len, units.SectorSize, func(off int64) (disk.Run, error) {
		return disk.Run{Len: at.Len - off, Src: f, Off: at.Off + off}, nil
	})
	return &section{d, f, name, at.Off}
}

func (s *section) Name() string { return path.Base(s.name) }
func (s *section) ID() string   { return fmt.Sprintf("%s:%d", s.f.ID(), s.off) }

// inArchive opens an image in an archive. Other files of the image must be members in the same folder, with plain
// names.
func inArchive(dir *gate.Folder, main *section, find func(name string) (disk.Range, error), o Options) (*Image, error) {
	f := main.f
	img := &Image{
		Opened: gate.Opened{Dir: dir, Base: f.Name(), Handles: []*gate.File{f}}, members: []*section{main},
		digest: o.Digest,
	}
	c := &chain{img: img, above: []driver.File{main}, sector: o.SectorSize, place: o.Place}
	c.gate = func(name string, _ int) (driver.File, error) {
		if err := gate.CheckName(name); err != nil {
			return nil, err
		}
		name = path.Join(path.Dir(main.name), name)
		at, err := find(name)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("member %.256q of the archive: %w", name, sys.ErrNotExist)
		}
		if err != nil {
			return nil, err
		}
		s := newSection(f, name, at)
		img.members = append(img.members, s)
		return s, nil
	}
	var err error
	if img.Format, img.Image, err = c.open(main, o.Format); err != nil {
		return nil, err
	}
	img.checkExtension(main.name, o)
	return img, nil
}

// beyond returns the error for reads past the decompressed start of a file, or nil for a complete file.
func beyond(f driver.File) error {
	if h, ok := f.(interface{ Beyond() error }); ok {
		return h.Beyond()
	}
	return nil
}

// markText is the start of a device's first sector during a copy to the device, and after an interrupted copy.
const markText = "trueup: unfinished copy\n" +
	"A copy of a disk was being written to this device and did not come to its end.\n" +
	"What stood here before is gone. Run the same trueup command again.\n"

// Mark returns the first sector of a device with an unfinished copy. It has no signature of a partition table or
// volume.
func Mark(sector int64) []byte {
	b := make([]byte, sector)
	copy(b, markText)
	return b
}

// Marked reports whether a file begins with the mark of an unfinished copy.
func Marked(f driver.File) (bool, error) {
	b := make([]byte, len(markText))
	if f.Size() < int64(len(b)) {
		return false, nil
	}
	if err := ondisk.ReadFull(f, b, 0); err != nil {
		return false, err
	}
	return string(b) == markText, nil
}

// noteMark adds an issue that refuses a device with an unfinished copy.
func (img *Image) noteMark(main driver.File) error {
	marked, err := Marked(main)
	if !marked {
		return err
	}
	text := "it holds an unfinished copy: the run of trueup that wrote it was interrupted"
	remedy := "run the same command again; the previous content of the device is lost"
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: "unfinished", Effect: ondisk.Refuse, Text: text, Remedy: remedy,
		Err: &ondisk.Refusal{Code: "unfinished", Reason: text, Remedy: remedy},
	})
	return nil
}

// Package image opens disk images. It knows the list of formats, finds the one of a file by its content, opens what an
// image names beside it, and finds what uses or needs an image.
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

// Image is an opened image and the files it consists of.
type Image struct {
	*driver.Image
	Path   string // as the user wrote it
	Format string
	Chain  []Link // the images that this one completes, nearest first
	gate.Opened
	// members are the files inside of the archive in Handles[0]; nil for an image in no archive.
	members  []*section
	siblings *siblingCache // shared by all disks of a package; nil for an image in no package
	known    *Beside       // what the folder holds; nil: it is looked at
	digest   func(ctx context.Context, name string, f driver.File) error

	Package InPackage // zero for an image in no package

	Unpacked *Unpacked // where it was unpacked from; nil for an image that was not

	device  int64 // sector size of the device that holds a raw image, bytes; 0 for a file
	counted int64 // sector size of Disk where the image shows it with another one, bytes
	shown   int64 // that other one
}

// InPackage is the package of an image: its path as the user wrote it, and its name in its folder.
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
	Name      string
	Size      int64 // bytes
	Allocated int64 // bytes that it takes on its file system
}

// Options of Open.
type Options struct {
	Format string // name of the format, empty to find it by content; it is checked against the content either way
	// SectorSize in bytes of a raw image, which cannot say it. 0: that of its device, 512 in a file.
	SectorSize int64
	// Beside is what a look at the image's whole folder found; nil: the folder is looked at.
	Beside *Beside
	// Allow are the folders in which parents and extents may lie beside the image's own, see gate.Allow. Search are
	// those of them in which a parent is also looked for by its name alone, if its identity can be compared.
	Allow, Search []string
	Meter         *gate.Meter // of what is read from its files; nil: nothing is counted
	// Digest compares a file of the image with the digests that its package has of it; nil for an image in no package.
	Digest func(ctx context.Context, name string, f driver.File) error
}

// AllowFolders has parents lie in further folders, as a user names them, and in those below.
func (o *Options) AllowFolders(folders []string) (err error) {
	o.Search, o.Allow, err = gate.Allow(folders)
	return err
}

// Open opens the image at path, read-only. The user's own path may lead through links; names inside the image may not.
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

// fourK is the one size of sectors, in bytes, that disks have beside 512.
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
		sector = fourK // any other size, such as that of a CD, is not one that disks have
	}
	c := &chain{img: img, above: []driver.File{main}, sector: sector, allow: o.Allow, search: o.Search}
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
	return img, img.noteRaw(main, o)
}

// noteRaw notes what is odd about an image that is read as a raw disk.
func (img *Image) noteRaw(main driver.File, o Options) error {
	if img.Format != raw.Format.Name {
		return nil
	}
	if o.Format == raw.Format.Name {
		if err := img.noteOverride(main); err != nil {
			return err
		}
	}
	return img.noteMark()
}

// opened returns what adds a further file to those of the image.
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

// Files lists the files of the image, the named one first.
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

// CountIn gives Disk the sectors that its table counts.
func (img *Image) CountIn(sector int64) {
	n := img.Disk.SectorSize()
	if n == sector {
		return
	}
	img.Disk = disk.InSectors(img.Disk, sector)
	img.counted, img.shown = sector, n
}

// StatedSectors returns the sector size by which the image itself shows its disk: that of its container or its device,
// in bytes; 0 for a raw file, which states none.
func (img *Image) StatedSectors() int64 {
	switch {
	case img.Format == raw.Format.Name:
		return img.device
	case img.counted != 0:
		return img.shown
	}
	return img.Disk.SectorSize()
}

// HoldsSectors refuses a disk with sectors of n bytes in an image of a format that cannot state them. An image that
// states them keeps them in a copy of its own format.
func (img *Image) HoldsSectors(format string, n int64) error {
	f, _ := byName(format)
	if f.HoldsSectors(n) || (format == img.Format && img.StatedSectors() == n) {
		return nil
	}
	to := "--to raw"
	if vhdx.Format.HoldsSectors(n) {
		to = "--to vhdx, or --to raw"
	}
	return &ondisk.Refusal{
		Code: "unsupported", Reason: fmt.Sprintf("the disk has sectors of %d bytes, and no %s can say so: a "+
			"guest would not find its partitions", n, format),
		Remedy: fmt.Sprintf("write it with %s, and tell the machine of a raw image the sector size (QEMU: "+
			"logical_block_size=%d)", to, n),
	}
}

// OpenDrive opens a disk of this machine by the name that Windows has for it. It is read as a raw disk only.
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
		Code: "unsupported", Reason: "on the device is " + what + ", and trueup reads devices of Windows as raw disks",
		Remedy: "add --format raw if it is a disk, and what looks like " + what + " is the rest of something older",
	}
}

// Unpacked describes where an image was unpacked from.
type Unpacked struct {
	File   string `json:"file"`                     // that the user named, its base name
	Kind   string `json:"kind"`                     // gzip, xz, zstd, bzip2, zip or tar: what its bytes are
	Member string `json:"member,omitempty"`         // of an archive; empty: it is in none
	Stored int64  `json:"stored_bytes"`             // of the file
	Size   int64  `json:"unpacked_bytes,omitempty"` // of the image's own file; 0: not known
	Partly bool   `json:"-"`                        // its end was not unpacked
}

// OpenAlone opens an image in a file without a folder, which is the image's from then on. further opens the files that
// it names; nil: it may name none, since a server would choose what else is read.
func OpenAlone(
	f gate.Remote, path string, o Options, further func(name string) (driver.File, error),
) (*Image, error) {
	img := &Image{Opened: gate.Opened{Remote: f}, Path: path, known: &Beside{}}
	c := &chain{img: img, above: []driver.File{f}, sector: o.SectorSize}
	c.gate = func(name string, _ int) (driver.File, error) {
		if further != nil {
			return further(name)
		}
		return nil, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("it names %.256q, and trueup opens no further file for an image "+
				"that a server has", name),
			Remedy: "read it from a file, or have it served as the disk that it shows, as qemu-nbd does",
		}
	}
	var err error
	if img.Format, img.Image, err = c.open(f, o.Format); err != nil {
		switch id, bad := IdentifyFile(f); {
		case bad != nil:
		case id.Kind == Pack:
			err = &ondisk.Refusal{
				Code: "unsupported", Reason: "it is a package (" + id.Format + "), which is read from files only",
				Remedy: "download it",
			}
		case id.Kind == Packed:
			err = &ondisk.Refusal{
				Code: "unsupported", Reason: "it is packed (" + id.Format + ")",
				Remedy: "get it as a file, and unpack that first; of a server, nbdkit unpacks it with " +
					"--filter=gzip, xz or tar",
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

// FileSet is an open file with others of its folder, read-only: those of a package.
type FileSet struct {
	gate.Opened
	within   map[string]*gate.Folder // folders inside of the first file's, by their paths
	siblings *siblingCache           // of the images among the files
}

// siblingCache holds what the images of a folder name, once that was asked for: each disk of a package asks, and the
// folder may be large.
type siblingCache struct{ names map[string]driver.Names }

// OpenFiles opens a file. The user's own path may lead through links. A meter counts what is read; nil: it is not
// counted.
func OpenFiles(path string, meter *gate.Meter) (*FileSet, error) {
	dir, base, err := gate.Follow(path, meter)
	if err != nil {
		return nil, err
	}
	return NewFileSet(dir, base)
}

// NewFileSet opens a file through an open folder, which is the set's from then on.
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

// First returns the file that was named.
func (s *FileSet) First() driver.File { return s.Handles[0] }

// Has reports whether the folder has a file of this name.
func (s *FileSet) Has(name string) bool {
	_, underWay := s.Dir.Alias[name]
	return underWay || s.Dir.Exists(name)
}

// Open opens a further file, by its path from the folder on. No link is followed.
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

// OpenImage opens an image among the files, through handles of its own.
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

// OpenInside opens an image that lies in the first file, an archive, through handles of its own. It can name other
// members, of which find gives the place.
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
	if s.Dir.Alias == nil { // times of a file that is written change late on a network
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

// Section returns a stretch of the first file as a file of its own: a member of an archive.
func (s *FileSet) Section(name string, at disk.Range) driver.File {
	return newSection(s.Handles[0], name, at)
}

// Close closes all files.
func (s *FileSet) Close() error {
	for _, d := range s.within {
		_ = d.Close() // only names were looked up in it
	}
	return s.Opened.Close()
}

// maxWithin is how many folders inside of its own a package of an OVF can have files in.
const maxWithin = 16

// folderOf opens the folder that a file of the set lies in. No link is followed.
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

// section is a file that lies inside of another one, in one piece. Nothing is extracted.
type section struct {
	disk.Disk
	f    *gate.File
	name string // with its folders in the archive
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

// inArchive opens an image that lies in an archive, whose members are the only files that it can name: by their plain
// names, in its own folder.
func inArchive(dir *gate.Folder, main *section, find func(name string) (disk.Range, error), o Options) (*Image, error) {
	f := main.f
	img := &Image{
		Opened: gate.Opened{Dir: dir, Base: f.Name(), Handles: []*gate.File{f}}, members: []*section{main},
		digest: o.Digest,
	}
	c := &chain{img: img, above: []driver.File{main}, sector: o.SectorSize}
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

// beyond returns the error of reading the end of a file of which only the first bytes were unpacked, nil of others.
func beyond(f driver.File) error {
	if h, ok := f.(interface{ Beyond() error }); ok {
		return h.Beyond()
	}
	return nil
}

// markText begins the first sector of a device to which a copy is being written, or was when its run ended.
const markText = "trueup: unfinished copy\n" +
	"A copy of a disk was being written to this device and did not come to its end.\n" +
	"What stood here before is gone. Run the same trueup command again.\n"

// Mark returns the first sector of a device with an unfinished copy. It has the signature of no table and no volume.
func Mark(sector int64) []byte {
	b := make([]byte, sector)
	copy(b, markText)
	return b
}

// Marked reports whether a disk begins with the mark of an unfinished copy.
func (img *Image) Marked() (bool, error) {
	b := make([]byte, len(markText))
	if img.Disk.Size() < int64(len(b)) {
		return false, nil
	}
	if err := ondisk.ReadFull(img.Disk, b, 0); err != nil {
		return false, err
	}
	return string(b) == markText, nil
}

// noteMark keeps a device with an unfinished copy from being taken for a disk.
func (img *Image) noteMark() error {
	marked, err := img.Marked()
	if !marked {
		return err
	}
	text := "it holds an unfinished copy, which trueup was writing to it when that run ended"
	remedy := "run the command that was writing it once more; what stood on it before is gone"
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: "unfinished", Effect: ondisk.Refuse, Text: text, Remedy: remedy,
		Err: &ondisk.Refusal{Code: "unfinished", Reason: text, Remedy: remedy},
	})
	return nil
}

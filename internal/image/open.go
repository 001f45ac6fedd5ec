// Package image opens disk images. It knows the list of formats, finds the one of a file by its content, opens what an
// image names beside it, and finds what uses or needs an image.
package image

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/vhdx"
	"github.com/trueup/trueup/internal/ondisk"
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
	if o.Format == raw.Format.Name {
		err = img.noteOverride(main)
	}
	if img.Format == raw.Format.Name && err == nil {
		err = img.noteMark()
	}
	return img, err
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

// OpenRemote opens an image in a file of a server, which is the image's from then on. Nothing lies beside it, and it
// can name no other files: the server would choose what else is read.
func OpenRemote(f gate.Remote, path string, o Options) (*Image, error) {
	return openAlone(f, path, o, func(name string) (driver.File, error) {
		return nil, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("it names %.256q, and trueup opens no further file for an image "+
				"that a server has", name),
			Remedy: "read it from a file, or have it served as the disk that it shows, as qemu-nbd does",
		}
	})
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
	img, err := openAlone(f, path, o, func(string) (driver.File, error) { return nil, notRaw("an image in files") })
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

// OpenUnpacked opens an image that was unpacked into a file, which is the image's from then on. It can name the files
// that further opens.
func OpenUnpacked(
	f gate.Remote, from Unpacked, path string, o Options, further func(name string) (driver.File, error),
) (*Image, error) {
	img, err := openAlone(f, path, o, further)
	if from.Size = f.Size(); err == nil {
		img.Unpacked = &from
	}
	return img, err
}

// openAlone opens an image without a folder.
func openAlone(
	f gate.Remote, path string, o Options, further func(name string) (driver.File, error),
) (*Image, error) {
	img := &Image{Opened: gate.Opened{Remote: f}, Path: path, known: &Beside{}}
	c := &chain{img: img, above: []driver.File{f}, sector: o.SectorSize}
	c.gate = func(name string, _ int) (driver.File, error) { return further(name) }
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
	if o.Format == raw.Format.Name {
		err = img.noteOverride(f)
	}
	if img.Format == raw.Format.Name && err == nil {
		err = img.noteMark()
	}
	if err != nil {
		return nil, errors.Join(err, img.Close())
	}
	return img, nil
}

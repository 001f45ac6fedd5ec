package image

import (
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
)

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

package vmdk

import (
	"bytes"
	"errors"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// names reads the names in a VMDK; none for a file that is no VMDK. A neighbour need not be well-formed to depend on
// a file.
func names(f driver.File) (driver.Names, error) { return namesIn(f, maxText) }

// glanced is how much of an embedded text is read for a glance where the text ends before, in bytes: to the end of
// the file's first page.
const glanced = 4<<10 - units.SectorSize

// glance is names without what stands behind the end of an embedded text, which no reader takes for names.
func glance(f driver.File) (driver.Names, error) { return namesIn(f, glanced) }

// namesIn looks at so many bytes of an embedded text at first.
func namesIn(f driver.File, first int64) (driver.Names, error) {
	head := make([]byte, min(f.Size(), 2*units.SectorSize))
	if err := ondisk.ReadFull(f, head, 0); err != nil {
		return driver.Names{}, err
	}
	if !detect(head, nil) {
		return driver.Names{}, nil
	}
	if isSESparse(head) || bytes.HasPrefix(head, []byte(magicCOWD)) {
		return driver.Names{Part: true}, nil
	}
	off, size := int64(0), f.Size()
	if bytes.HasPrefix(head, []byte(magicSparse)) {
		var h sparseHeader
		switch _, err := ondisk.Decode(f, 0, &h); {
		case errors.Is(err, ondisk.ErrFormat):
			return driver.Names{Broken: true}, nil
		case err != nil:
			return driver.Names{}, err
		}
		sectors := ondisk.U64(f.Size() / units.SectorSize)
		if h.DescriptorOffset == 0 || h.DescriptorOffset > sectors {
			return driver.Names{Part: h.DescriptorOffset == 0}, nil
		}
		off = ondisk.I64(h.DescriptorOffset) * units.SectorSize
		size = ondisk.I64(min(h.DescriptorSize, sectors)) * units.SectorSize
	}
	size = min(size, f.Size()-off)
	text, err := ondisk.Bytes(f, off, min(size, first))
	if err == nil && first < min(size, maxText) && bytes.IndexByte(text, 0) < 0 {
		text, err = ondisk.Bytes(f, off, min(size, maxText))
	}
	if err != nil {
		return driver.Names{}, err
	}
	n := scanNames(string(text))
	n.Broken = size > maxText // the rest can name anything
	// qemu-img keeps room for a descriptor in every extent of a split disk, and leaves it empty.
	n.Part = off > 0 && ondisk.IsZero(text)
	return n, nil
}

func scanNames(text string) driver.Names {
	var n driver.Names
	var extents []*extent
	charset := ""
	for l := range strings.Lines(text) {
		l = strings.Trim(l, " \t\r\n\x00")
		if key, val, ok := strings.Cut(l, "="); ok {
			val = strings.Trim(strings.TrimSpace(val), `"`) // quoted or not
			switch key = strings.TrimSpace(key); {
			case strings.EqualFold(key, "encoding"):
				charset = val
				continue
			case strings.EqualFold(key, "parentFileNameHint"):
				paths, _ := driver.BackingFiles(val) // qemu-img writes them as it got them
				n.Parents = append(n.Parents, paths...)
				continue
			}
		}
		_, quoted, ok := strings.Cut(l, `"`)
		name, _, closed := strings.Cut(quoted, `"`)
		switch first, _, _ := strings.Cut(strings.ToUpper(l), " "); {
		case !ok || !closed:
		case first == "RW" || first == "RDONLY" || first == "NOACCESS":
			e, err := parseExtent(0, l)
			if err != nil {
				e = &extent{}
			}
			extents = append(extents, e)
			n.Extents, n.Claims = append(n.Extents, name), append(n.Claims, e.claim())
		}
	}
	n.Views = viewed(extents)
	return decodedNames(n, charset)
}

// decodedNames adds names in UTF-8 in front of those that a text has in another character set: a file can have either.
func decodedNames(n driver.Names, charset string) driver.Names {
	out := driver.Names{Views: n.Views}
	for _, p := range n.Parents {
		out.Parents = append(out.Parents, ondisk.StoredNames(charset, p)...)
	}
	for i, e := range n.Extents {
		for _, name := range ondisk.StoredNames(charset, e) {
			out.Extents, out.Claims = append(out.Extents, name), append(out.Claims, n.Claims[i])
		}
	}
	return out
}

// flat reports whether an extent holds the bytes of the disk as they are.
func (e *extent) flat() bool { return e.kind == "FLAT" || e.kind == "VMFS" || e.mapsDevice() }

// mapsDevice reports whether an extent is a raw device map of ESXi. Its file shows the device to what reads it there;
// elsewhere it has the bytes if it was copied so.
func (e *extent) mapsDevice() bool { return e.kind == "VMFSRDM" || e.kind == "VMFSRAW" }

// device reports whether an extent names a device in the place of a file.
func (e *extent) device() bool {
	name := strings.ToLower(strings.ReplaceAll(e.name, `\`, "/"))
	return strings.HasPrefix(name, "/dev/") || strings.HasPrefix(name, "/vmfs/devices/") ||
		strings.HasPrefix(name, "//./") || strings.HasPrefix(name, "//?/")
}

// claim returns how many bytes an extent takes of its file from byte 0 on.
func (e *extent) claim() int64 {
	if e.off != 0 || !e.flat() {
		return 0
	}
	return e.size
}

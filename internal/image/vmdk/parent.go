package vmdk

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// noParent is the parentCID of a complete disk.
const noParent = 0xffffffff

// parentRef names the disk that this one completes, nil for a complete disk. Two fields name a parent, and both must
// agree: programs differ in which they believe.
func (d *descriptor) parentRef() (*driver.ParentRef, error) {
	parent, err := d.cid("parentcid", noParent)
	if err != nil {
		return nil, err
	}
	hint, hintLine := d.get("parentfilenamehint")
	_, parentLine := d.get("parentcid")
	const remedy = "consolidate the snapshots or clone the disk to one complete image first"
	switch {
	case parent == noParent && hintLine == 0:
		return nil, nil //nolint:nilnil // a complete disk
	case parent == noParent:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d names the parent %.256q, but parentCID says that it is absent", what, hintLine, hint)}
	case hintLine == 0:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d: parentCID %08x of a snapshot child, but no parentFileNameHint names the parent", what,
			parentLine, parent)}
	}
	return &driver.ParentRef{Names: ondisk.StoredNames(d.charset, hint), Format: name, ID: contentID(parent)}, nil
}

// contentID returns how a child writes the CID of its parent.
func contentID(cid uint32) string { return fmt.Sprintf("%08x", cid) }

// openParent opens the disk that this one completes, nil when it is complete.
func (d *descriptor) openParent(s *driver.Source) (*driver.Image, error) {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return nil, err
	}
	return s.Parent(*ref)
}

// refuseParent is for disks whose extents hold every byte.
func (d *descriptor) refuseParent(kind string) error {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return err
	}
	_, no := d.get("parentfilenamehint")
	return textErr(no, ondisk.ErrFormat,
		"the parent %.256q of a disk of the createType %s, want none: flat extents hold every byte of a disk and not "+
			"what changed since a snapshot",
		ref.Names[0], kind)
}

// over returns what shows through the holes of an extent that begins at byte at of the disk.
func over(parent *driver.Image, at int64) func(off, n int64) disk.Run {
	if parent == nil {
		return nil
	}
	return func(off, n int64) disk.Run { return driver.Below(parent, at+off, n) }
}

// inherited are the lines of the disk data base that ESXi does not repeat in a child, and without which a flattened
// copy would have no adapter and no geometry.
var inherited = []string{
	"ddb.adaptertype", "ddb.geometry.cylinders", "ddb.geometry.heads", "ddb.geometry.sectors", "ddb.virtualhwversion",
	"ddb.geometry.bioscylinders", "ddb.geometry.biosheads", "ddb.geometry.biossectors", "ddb.toolsversion",
	"ddb.toolsinstalltype", "ddb.uuid",
}

// inherit takes what the descriptor of a child lacks from its parent's.
func (d *descriptor) inherit(parent *driver.Image) *descriptor {
	if parent == nil {
		return d
	}
	from, _ := sourceOf(parent.Template, driver.Geometry{})
	out := *d
	out.lines = slices.Clone(d.lines)
	for _, key := range inherited {
		if _, no := d.get(key); no > 0 {
			continue
		}
		for _, l := range from.lines {
			if l.key == key {
				out.lines = append(out.lines, l)
				break
			}
		}
	}
	return &out
}

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

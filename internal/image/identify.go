package image

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Kind is the purpose of a file.
type Kind string

// Kinds of files.
const (
	Other       Kind = ""            // no image
	Disk        Kind = "disk"        // an image, complete or together with the files that it names
	Extent      Kind = "extent"      // a part of an image, of no use without what names it
	Bare        Kind = "bare"        // no format: the bytes of a disk, of an extent, or of anything
	Pack        Kind = "package"     // an OVA or OVF
	Unsupported Kind = "unsupported" // a format that has a name and no reader
	Medium      Kind = "medium"      // an ISO: on what is only read, alignment does not matter
	Packed      Kind = "packed"      // a compressed file, which could hold an image
	Companion   Kind = "companion"   // a file beside a disk with the suffix of an image and no data, see CompanionOf
)

// Identity describes a file as far as its first bytes and what they name show. The rest is not judged.
type Identity struct {
	Kind    Kind      `json:"kind,omitempty"`
	Format  string    `json:"format,omitempty"`  // as users write it
	Remedy  string    `json:"remedy,omitempty"`  // for what is packed
	Extents FileNames `json:"extents,omitempty"` // files that hold its data, each once: of an OVF those of its disks
	// Claims are the bytes that it takes of each of Extents, from the start on, if that has no header.
	Claims  []int64   `json:"claims,omitempty"`
	Views   FileNames `json:"views,omitempty"`   // those of Extents of which it takes stretches from the inside
	Parents FileNames `json:"parents,omitempty"` // images that it completes: the last component of each name
	// Lineage is the ContentID of the image that it completes, of a format that names no file.
	Lineage string `json:"lineage,omitempty"`
	Table   bool   `json:"table,omitempty"` // without a format: it has a partition table and the start of a partition
	Read    int64  `json:"read,omitempty"`  // bytes read for all that; set by the caller that counts them
}

// maxNamed is how many files are kept that an image names: no reader takes a disk of more extents.
const maxNamed = 4096

// plainNames returns the names that files of the folder can have, each once.
func plainNames(names []string) FileNames {
	return once(names, func(n string) bool { return gate.CheckStored(n) == nil })
}

// once returns names that keep selects, each once, as many as are kept.
func once(names []string, keep func(string) bool) (out FileNames) {
	seen := map[string]bool{}
	for _, n := range names {
		if !seen[n] && keep(n) && len(out) < maxNamed {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

// claims returns the claims on extents, for each file the largest.
func claims(extents FileNames, n driver.Names) []int64 {
	if len(n.Claims) != len(n.Extents) {
		return nil
	}
	most := map[string]int64{}
	for i, name := range n.Extents {
		most[name] = max(most[name], n.Claims[i])
	}
	var out []int64
	for _, name := range extents {
		out = append(out, most[name])
	}
	return out
}

// Claimed returns how many bytes the image takes of a file without a header, from its start on.
func (id Identity) Claimed(name string) int64 {
	if i := slices.Index(id.Extents, name); i >= 0 && i < len(id.Claims) {
		return id.Claims[i]
	}
	return 0
}

// parentNames returns the last components of names, each once.
func parentNames(names []string) FileNames {
	var last []string
	for _, n := range names {
		last = append(last, lastName(n))
	}
	return once(last, func(n string) bool { return len(n) <= maxNameLength })
}

// maxNameLength is how long the name of a file can be, in bytes. Spec: NAME_MAX.
const maxNameLength = 255

// Identify returns the identity of the file at path. Links are not followed and devices not opened: only Open does
// that.
func Identify(path string, meter *gate.Meter) (id Identity, err error) {
	dir, err := gate.OpenFolder(filepath.Dir(path))
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	dir.Count(meter)
	f, err := dir.OpenAny(filepath.Base(path), ondisk.ErrUnsupported)
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return IdentifyFile(f)
}

// IdentifyFile returns what an open file is.
func IdentifyFile(f driver.File) (Identity, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return Identity{}, err
	case len(names) == 0:
		return Identity{Kind: Bare, Format: raw.Format.Name, Table: other.table}, nil
	case len(names) > 1: // opening it finds the error
		n, err := readNames(f)
		return Identity{Kind: Disk, Format: strings.Join(names, "+"), Parents: parentNames(n.Parents)}, err
	case other.kind == Packed:
		return Identity{Kind: Packed, Format: names[0], Remedy: other.remedy}, nil
	case other.kind != "":
		return Identity{Kind: other.kind, Format: names[0]}, nil
	case names[0] == packageOVA:
		return Identity{Kind: Pack, Format: "ova"}, nil
	case names[0] == packageOVF:
		return Identity{Kind: Pack, Format: "ovf"}, nil
	case found.Name == raw.Format.Name:
		return Identity{Kind: Unsupported, Format: names[0]}, nil
	}
	id := Identity{Kind: Disk, Format: found.Name}
	n, err := glance(found, f)
	if err != nil {
		return id, err
	}
	if n.Part {
		id.Kind = Extent
	}
	id.Extents, id.Parents = plainNames(n.Extents), parentNames(n.Parents)
	id.Claims, id.Views, id.Lineage = claims(id.Extents, n), plainNames(n.Views), n.Lineage
	return id, nil
}

// IsPacked reports whether a format is that of compressed files, such as gzip.
func IsPacked(format string) bool {
	return slices.ContainsFunc(packed, func(r recognised) bool { return r.name == format })
}

// glance reads what a file names, the cheapest way that its format knows.
func glance(format driver.Format, f driver.File) (driver.Names, error) {
	switch {
	case format.Glance != nil:
		return format.Glance(f)
	case format.Names != nil:
		return format.Names(f)
	}
	return driver.Names{}, nil
}

// smallest is what an image has at least, in bytes: one sector.
const smallest = units.SectorSize

// Named reports whether a file has the name of an image, whatever its content: one that is not one is damaged. size is
// in bytes.
func Named(name string, size int64) bool {
	if extended(strings.ToLower(filepath.Ext(name))) != "" {
		return true
	}
	// These say less: firmware and boot floppies have them too. A disk has whole sectors.
	return rawNamed(name) && size >= SmallestBare && size%units.SectorSize == 0
}

// SmallestBare is the smallest file without a format that is a disk for its name alone, in bytes: the largest floppy is
// smaller.
const SmallestBare = 4 * units.MiB

// IsFlatName reports whether a file has the name of an extent without a header.
func IsFlatName(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".vmdk" && rawExtent.MatchString(strings.TrimSuffix(strings.ToLower(name), ext))
}

// MayBeDisk reports whether a file of size bytes without a format can be a disk: it has whole sectors, or a table, and
// zeros fill its last sector.
func (id Identity) MayBeDisk(size int64) bool {
	return id.Kind == Bare && (id.Table || size >= smallest && size%units.SectorSize == 0)
}

// NamedEmpty reports whether an empty file has the name of an image: a disk that a copy has lost.
func NamedEmpty(name string, size int64) bool { return size == 0 && Named(name, SmallestBare) }

// recognised is a format that has a name and no reader. It must never be taken for raw: the guest's disk is not where
// raw would look for it.
type recognised struct {
	name   string                       // as users write it
	detect func(head, tail []byte) bool // nil: only its extension is known
	remedy string                       // empty: qemu-img reads it
	kind   Kind                         // empty: Unsupported
	// extension is that of files that are nothing else, with the dot; empty where there is none
	extension string
	// over is the name of a format that is read, has the same magic number, and is not meant; empty for none
	over string
	// table is set of a file without a format that has a partition table and the start of a partition
	table bool
}

// headSize and tailSize are how much of a file detection sees, in bytes. The ISO 9660 descriptor is the deepest.
const (
	headSize = 36 << 10
	tailSize = 1024
)

// isoName is what users call the image of a CD.
const isoName = "ISO 9660"

// What detection looks at within the head, in bytes: magic numbers stand in the first block, the root of an XML text
// may come behind a long comment, and the mark of a CD has a place of its own.
const (
	magicBlock = 4 << 10
	textBlock  = 8 << 10
	isoMark    = 0x8000
	isoLength  = 16
)

// ends are buffers for the ends of a file, for use again: a scan recognises thousands.
type ends struct {
	head [headSize]byte
	tail [tailSize]byte
}

var spareEnds = sync.Pool{New: func() any { return new(ends) }}

// readHead reads of a file's head what detection looks at; the rest of it is zero.
func (e *ends) readHead(f driver.File) ([]byte, error) {
	clear(e.head[:])
	head := e.head[:min(f.Size(), headSize)]
	first := head[:min(len(head), magicBlock)]
	if err := ondisk.ReadFull(f, first, 0); err != nil {
		return nil, err
	}
	if text := bytes.TrimLeft(first, "\xef\xbb\xbf \t\r\n"); len(text) > 0 && text[0] == '<' {
		if err := ondisk.ReadFull(f, head[:min(len(head), textBlock)], 0); err != nil {
			return nil, err
		}
	}
	if len(head) < isoMark+isoLength {
		return head, nil
	}
	return head, ondisk.ReadFull(f, head[isoMark:isoMark+isoLength], isoMark)
}

// has reports whether magic stands at off of b; off may be outside of b.
func has(b []byte, off int, magic string) bool {
	return off >= 0 && off <= len(b) && bytes.HasPrefix(b[off:], []byte(magic))
}

// detect finds the one format that the content has. Two matches are an error: whichever came first would be a guess,
// and a guest can write what looks like a header into its own disk. says names what wants the format: the command line,
// or a child.
func detect(f driver.File, want, says string) (driver.Format, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return found, err
	case want == raw.Format.Name && says == userSays: // an order, whatever the content looks like
		return raw.Format, nil
	case len(names) > 1:
		return found, ondisk.Field("image", "format", 0, strings.Join(names, " and "),
			"the content of one format; if the guest wrote one of the headers, remove it inside the guest")
	case want != "" && !matches(want, found.Name, names):
		return found, ondisk.Field("image", "format", 0, contentName(names), want+", as "+says+" says")
	case len(names) == 1 && found.Name == raw.Format.Name:
		remedy := other.remedy
		if remedy == "" {
			remedy = "convert it with qemu-img convert -O vmdk (or raw), and take the result"
		}
		return found, fmt.Errorf("%s: recognised, %w; %s", names[0], ondisk.ErrUnsupported, remedy)
	}
	return found, nil
}

// recognise lists the formats that the content has: the last one that is read, the names of all, and the last one that
// is not read.
func recognise(f driver.File) (found driver.Format, names []string, other recognised, err error) {
	size := f.Size()
	e, _ := spareEnds.Get().(*ends)
	defer spareEnds.Put(e)
	head, err := e.readHead(f)
	if err != nil {
		return found, nil, other, err
	}
	tail := e.tail[:min(size, tailSize)]
	if beyond(f) != nil {
		clear(tail) // formats with a header have none there
	} else if err := ondisk.ReadFull(f, tail, size-int64(len(tail))); err != nil {
		return found, nil, other, err
	}
	found = raw.Format
	for _, c := range Formats {
		if c.Detect(head, tail) {
			found, names = c, append(names, c.Name)
		}
	}
	for _, c := range others {
		if c.detect != nil && c.detect(head, tail) && (c.kind != Packed || !raw.HasTable(head)) {
			if c.over != "" && c.over == found.Name {
				found, names = raw.Format, names[:len(names)-1]
			}
			names, other = append(names, c.name), c
		}
	}
	if len(names) == 0 {
		if c := companionOf(f.Name(), head); c != nil {
			text, remedy := CompanionText(c.name, f.Name())
			return found, []string{c.name}, recognised{name: c.name, kind: Companion, remedy: text + "; " + remedy}, nil
		}
	}
	for _, c := range others {
		if c.detect == nil && len(names) == 0 && strings.EqualFold(filepath.Ext(f.Name()), c.extension) {
			names, other = append(names, c.name), c
		}
	}
	other.table = len(names) == 0 && raw.HoldsPartition(head, size)
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

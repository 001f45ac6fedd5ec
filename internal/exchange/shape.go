package exchange

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// shape describes a disk in the journal. A later command compares the remaining disk with it before it removes the
// other one.
type shape struct {
	Packed bool     `json:",omitempty"` // a disk of a package
	Format string   `json:",omitempty"`
	Sector int64    `json:",omitempty"` // bytes
	Size   int64    // bytes
	Still  bool     `json:",omitempty"` // a format that guests do not write to
	Scheme string   `json:",omitempty"` // of the partition table, if any
	ID     string   `json:",omitempty"` // signature of the disk, or GUID of its GPT
	inside          // of a disk without a table
	Parts  []part   `json:",omitempty"`
	Faults []string `json:",omitempty"` // codes of faults that the disk already had
	Lost   string   `json:",omitempty"` // data of the image that a copy lacks, such as internal snapshots

	texts map[string]string // of the faults, by code
}

// part describes a partition.
type part struct {
	Number   int
	Off, Len int64 // bytes
	Type     string
	GUID     string `json:",omitempty"` // of the partition entry
	inside
}

// maxParts bounds the partitions of a disk in a journal.
const maxParts = 128

// codeMark is the code of an image with the mark of an unfinished copy.
const codeMark = "unfinished"

// shapeOf reads the shape of an image with the checks of an inspection: image, map, table, volumes and boot chain.
func shapeOf(img *image.Image) (s shape, err error) {
	s = shape{Format: img.Format, Sector: img.Disk.SectorSize(), Size: img.Disk.Size(), Still: img.ReadOnly}
	issues := slices.Clone(img.Issues)
	if img.Check != nil {
		found, err := img.Check()
		if err != nil {
			return s, err
		}
		issues = append(issues, found...)
	}
	l, err := layout.Read(img.Disk, table.Geometry{Heads: img.Heads, Sectors: img.Sectors})
	if err != nil {
		return s, err
	}
	g := &boot.Guest{Disk: img.Disk}
	if l.Table != nil {
		s.Scheme, s.ID = string(l.Table.Scheme), diskID(l.Table)
	} else {
		whole := table.Partition{Range: disk.Range{Len: s.Size}}
		s.inside = insideOf(g, boot.Partition{Partition: whole, Volume: l.Volume})
	}
	for _, p := range l.Partitions[:min(len(l.Partitions), maxParts)] {
		s.Parts = append(s.Parts, partOf(g, p))
	}
	for _, i := range slices.Concat(issues, l.Issues) {
		if i.Effect == ondisk.Broken || i.Effect == ondisk.BadVolume || i.Code == codeMark {
			s.fault(i.Code, i.Text)
		}
	}
	if i := slices.IndexFunc(img.Issues, func(i ondisk.Issue) bool { return i.Code == driver.CodeSnapshots }); i >= 0 {
		s.Lost = img.Issues[i].Text
	}
	if _, err := align.Look(img.Disk, img.Child, nil); err != nil {
		s.fault("unreadable-map", err.Error())
	}
	return s, nil
}

// fault adds a malformed part, once for each code.
func (s *shape) fault(code, text string) {
	if slices.Contains(s.Faults, code) {
		return
	}
	if s.texts == nil {
		s.texts = map[string]string{}
	}
	s.Faults, s.texts[code] = append(s.Faults, code), text
}

func partOf(g *boot.Guest, p boot.Partition) part {
	return part{
		Number: p.Number, Off: p.Off, Len: p.Len, Type: p.TypeID(), GUID: given(p.GUID), inside: insideOf(g, p),
	}
}

// inside describes the volume in a partition, or on a disk without a table.
type inside struct {
	Volume string `json:",omitempty"` // kind, if known
	UUID   string `json:",omitempty"` // or serial number
	Root   bool   `json:",omitempty"` // the root folder could be listed, and the structures on the way to it are sound

	damage error // why it could not be listed
}

func insideOf(g *boot.Guest, p boot.Partition) (in inside) {
	if p.Volume == nil || p.Volume.Kind == volume.Unknown {
		return in
	}
	in.Volume, in.UUID = string(p.Volume.Kind), volumeID(p.Volume)
	in.Root, in.damage = rootOf(g, p)
	return in
}

// rootOf reports whether the root folder of a file system can be listed, or returns the reason. Without a reader for
// the file system it returns neither.
func rootOf(g *boot.Guest, p boot.Partition) (bool, error) {
	files, err := g.Files(p)
	if err == nil {
		_, err = files.List("")
	}
	if f, ok := files.(interface{ FirstEntry() error }); ok && err == nil { // a zeroed FAT has an empty root folder
		err = f.FirstEntry()
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ondisk.ErrNoMatch), errors.Is(err, ondisk.ErrUnsupported), errors.Is(err, ondisk.ErrLimit):
		return false, nil
	}
	return false, err
}

// diskID returns the identifier of a disk with a table, or an empty string if it has none yet: Windows assigns a
// signature to a disk whose signature is 0.
func diskID(t *table.Table) string {
	switch {
	case t.Scheme == table.GPT:
		return given(t.GUID)
	case t.Signature != 0:
		return fmt.Sprintf("0x%08x", t.Signature)
	}
	return ""
}

// volumeID returns the UUID or serial number of a volume, which normal use does not change. It returns an empty string
// for swap space, because some systems recreate its UUID at each start.
func volumeID(v *volume.Volume) string {
	if v.Kind == volume.Swap {
		return ""
	}
	return given(v.UUID)
}

// given returns an identifier, or an empty string if it is all zeros.
func given(id string) string {
	if strings.Trim(id, "0-") == "" {
		return ""
	}
	return id
}

// identified reports whether the disk has an identifier.
func (s shape) identified() bool {
	return s.ID != "" || s.UUID != "" ||
		slices.ContainsFunc(s.Parts, func(p part) bool { return p.GUID != "" || p.UUID != "" })
}

// known reports whether the disk has a partition table or a known volume.
func (s shape) known() bool { return s.Scheme != "" || s.Volume != "" }

// holds reports whether the disk has a known volume.
func (s shape) holds() bool {
	return s.Volume != "" || slices.ContainsFunc(s.Parts, func(p part) bool { return p.Volume != "" })
}

// part returns the partition of a number, or nil.
func (s shape) part(number int) *part {
	if i := slices.IndexFunc(s.Parts, func(p part) bool { return p.Number == number }); i >= 0 {
		return &s.Parts[i]
	}
	return nil
}

// differs returns the reason why a disk does not match the shape s, or an empty string. A guest may add partitions, and
// change their lengths and types: these count only with exactly. force accepts another table and other identifiers.
// Identifiers missing in the journal are not compared.
func (s shape) differs(is shape, exactly, force bool) string {
	if why := s.lost(is, exactly); why != "" || force {
		return why
	}
	switch {
	case is.Scheme != s.Scheme || s.Scheme == "" && is.Volume != s.Volume:
		return fmt.Sprintf("it holds %s, and held %s", is.content(), s.content())
	case exactly && len(is.Parts) != len(s.Parts):
		return fmt.Sprintf("it has %d partitions, and had %d", len(is.Parts), len(s.Parts))
	case s.ID != "" && is.ID != s.ID:
		return fmt.Sprintf("the identifier of the disk is %q, and was %q", is.ID, s.ID)
	case s.Volume != "" && !s.sameVolume(is.inside):
		return fmt.Sprintf("it holds another volume (%s %s), and held %s %s", is.Volume, is.UUID, s.Volume, s.UUID)
	}
	for _, was := range s.Parts {
		switch p := is.part(was.Number); {
		case p == nil:
			return fmt.Sprintf("its partition %d is missing", was.Number)
		case p.Off != was.Off:
			return fmt.Sprintf("its partition %d starts at byte %d, and started at %d", p.Number, p.Off, was.Off)
		case exactly && (p.Len != was.Len || p.Type != was.Type):
			return fmt.Sprintf("its partition %d has %d bytes and type %s, and had %d and %s", p.Number, p.Len, p.Type,
				was.Len, was.Type)
		case was.GUID != "" && p.GUID != was.GUID:
			return fmt.Sprintf("the GUID of its partition %d is %q, and was %q", p.Number, p.GUID, was.GUID)
		case was.Volume != "" && !was.sameVolume(p.inside):
			return fmt.Sprintf("its partition %d holds another volume (%s %s), and held %s %s", p.Number, p.Volume,
				p.UUID, was.Volume, was.UUID)
		}
	}
	return ""
}

// content describes the content of a disk for messages.
func (s shape) content() string {
	switch {
	case s.Scheme != "":
		return "a partition table (" + s.Scheme + ")"
	case s.Volume != "":
		return "a volume (" + s.Volume + ") and no partition table"
	}
	return "no known content"
}

// sameVolume reports whether a volume is the same as before. With the same identifier its kind may have changed, for
// example from ext3 to ext4.
func (in inside) sameVolume(is inside) bool {
	if in.UUID != "" {
		return is.UUID == in.UUID
	}
	return is.Volume == in.Volume
}

// lost returns the essential part that a disk of shape s has lost and that no guest removes in normal use, or an empty
// string. A missing partition counts only with exactly.
func (s shape) lost(is shape, exactly bool) string {
	for _, code := range is.Faults {
		if !slices.Contains(s.Faults, code) && is.Size >= s.Size {
			return is.texts[code]
		}
	}
	switch {
	case is.Packed != s.Packed:
		return "it is a package now and was none, or was one and is none"
	case is.Size < s.Size:
		return fmt.Sprintf("it has %d bytes, and had %d", is.Size, s.Size)
	case s.known() && !is.known():
		return "it no longer holds a partition table or a known volume"
	case s.holds() && !is.holds():
		return "it no longer holds a known volume"
	case s.Root && is.damage != nil:
		return fmt.Sprintf("the root folder of its volume (%s) can no longer be read: %v", is.Volume, is.damage)
	}
	for _, was := range s.Parts {
		if was.Volume == "" || was.Volume == string(volume.Swap) {
			continue
		}
		switch p := is.part(was.Number); {
		case p == nil && exactly:
			return fmt.Sprintf("its partition %d, which held a volume (%s), is missing", was.Number, was.Volume)
		case p == nil:
		case p.Volume == "":
			return fmt.Sprintf("its partition %d held a volume (%s), and no longer holds a known one", was.Number,
				was.Volume)
		case was.Root && p.damage != nil:
			return fmt.Sprintf("the root folder of its partition %d (%s) can no longer be read: %v", was.Number,
				p.Volume, p.damage)
		}
	}
	return ""
}

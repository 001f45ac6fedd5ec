package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// side is one of the two disks of an exchange in its present state.
type side struct {
	what  string // name for messages
	base  string // file name for opening it
	alias map[string]string
	disks []shape // expected disks; nil in journals of earlier versions
	files []file  // files that keep their sizes and are never written by guests: all but a copy that guests run from
	again []file  // files, one of which must exist if the disk has no identifier
	exact bool    // no guest may have written it
}

// promised checks that a disk matches its description in the journal, and returns its files. The disk must open
// completely, be well-formed and not smaller, and have its table, volumes and identifiers. All data with checksums must
// be intact. o.Force permits another table, other identifiers and written files, and nothing else. The error is a plain
// reason.
func (s side) promised(ctx context.Context, d *folder, o Options) (files []*gate.File, err error) {
	if err := s.whole(d); err != nil || s.exact && s.disks == nil {
		return nil, err // journals of earlier versions have no more data on an original
	}
	if f := d.written(s.files); f != nil && !s.exact && !o.Force {
		return nil, fmt.Errorf("%s has changed: its file %v was written after the exchange, and guests do not "+
			"write to disks of this kind", s.what, f.Name)
	}
	at, err := s.open(d.Folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	is, err := at.shapes()
	if err != nil {
		return nil, fmt.Errorf("%s %q cannot be read (%w)", s.what, s.base, err)
	}
	if err := s.as(is, o.Force); err != nil {
		return nil, err
	}
	if !o.Force && !s.found(d) {
		return nil, fmt.Errorf("%s %q is not the file that was written, and nothing on it identifies the disk", s.what,
			s.base)
	}
	if err := at.readChecked(ctx, o.Progress); err != nil {
		return nil, fmt.Errorf("%s %q is damaged (%w)", s.what, s.base, err)
	}
	return at.files(), nil
}

// as compares the disks of a side with their descriptions.
func (s side) as(is []shape, force bool) error {
	if s.disks == nil {
		return nil
	}
	if len(is) != len(s.disks) {
		return fmt.Errorf("%s %q has changed: it has %d disks, and had %d", s.what, s.base, len(is),
			len(s.disks))
	}
	for i, was := range s.disks {
		why := was.differs(is[i], s.exact, force)
		if why != "" && len(is) > 1 {
			why = fmt.Sprintf("disk %d: %s", i+1, why)
		}
		if why != "" {
			return fmt.Errorf("%s %q has changed: %s", s.what, s.base, why)
		}
	}
	return nil
}

// found reports whether the disk can be recognized by an identifier or by one of its files.
func (s side) found(d *folder) bool {
	return len(s.again) == 0 || slices.ContainsFunc(s.disks, shape.identified) ||
		slices.ContainsFunc(s.again, d.there)
}

// readJobs is the number of chunks of compressed data that are read concurrently.
const readJobs = 4

// readChecked reads all data with a checksum: the files in a manifest, and compressed data.
func (o *opened) readChecked(ctx context.Context, progress diskcopy.Progress) error {
	progress = cmp.Or(progress, diskcopy.Progress(diskcopy.Unwatched{}))
	if o.pkg != nil {
		if err := o.pkg.Check(ctx, progress); err != nil {
			return err
		}
	}
	for _, img := range o.images {
		if err := align.Decode(ctx, img.Disk, readJobs, progress); err != nil {
			return err
		}
	}
	return nil
}

// whole returns an error if a file is missing or has lost bytes.
func (s side) whole(d *folder) error {
	for _, f := range s.files {
		found := f.text()
		for _, n := range []name{f.Name, f.Other} {
			st, err := d.At.Lstat(string(n))
			if err == nil && d.is(n, f) && st.Size < f.Size {
				return fmt.Errorf("%s has changed: its file %v has %d bytes, and had %d", s.what, n, st.Size,
					f.Size)
			}
			found = found || err == nil
		}
		if !found {
			return fmt.Errorf("%s has changed: its file %v is missing", s.what, f.Name)
		}
	}
	return nil
}

// open opens the disk of a side.
func (s side) open(d *gate.Folder) (*opened, error) {
	o, err := openAt(d, s.base, s.alias, s.options())
	if err != nil {
		if o != nil {
			err = errors.Join(err, o.close())
		}
		return nil, fmt.Errorf("%s %q cannot be opened (%w)", s.what, s.base, err)
	}
	return o, nil
}

// opened is an open disk, or an open package with its disks.
type opened struct {
	pkg    *ova.Package // nil for a disk without a package
	images []*image.Image
}

// openAt opens a disk or package by its name in a folder. If disks of a package cannot be opened, it returns the others
// along with the errors.
func openAt(d *gate.Folder, base string, alias map[string]string, as image.Options) (*opened, error) {
	dir, err := d.Again()
	if err != nil {
		return nil, err
	}
	dir.Alias = alias
	p, err := ova.OpenIn(dir, base)
	if err == nil {
		return openDisks(p)
	}
	if !errors.Is(err, ondisk.ErrNoMatch) {
		return nil, err
	}
	if dir, err = d.Again(); err != nil {
		return nil, err
	}
	dir.Alias = alias
	img, err := image.OpenIn(dir, base, as)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &opened{images: []*image.Image{img}}, nil
}

// openDisks opens the disks of a package.
func openDisks(p *ova.Package) (*opened, error) {
	o := &opened{pkg: p}
	var err error
	for _, x := range p.Disks() {
		img, bad := p.Open(x, image.Options{})
		if bad == nil {
			o.images = append(o.images, img)
		}
		err = errors.Join(err, bad)
	}
	return o, err
}

// files lists the files of a disk or a package.
func (o *opened) files() []*gate.File {
	if o.pkg != nil {
		return o.pkg.Opened().Handles
	}
	return o.images[0].Handles
}

// shapes returns the shapes of the disks.
func (o *opened) shapes() (out []shape, err error) {
	for _, img := range o.images {
		s, bad := shapeOf(img)
		s.Packed = o.pkg != nil
		out, err = append(out, s), errors.Join(err, bad)
	}
	return out, err
}

func (o *opened) close() (err error) {
	for _, img := range o.images {
		err = errors.Join(err, img.Close())
	}
	if o.pkg != nil {
		err = errors.Join(err, o.pkg.Close())
	}
	return err
}

// options returns the options with which the disk of a side was opened first.
func (s side) options() (o image.Options) {
	if len(s.disks) == 1 && !s.disks[0].Packed {
		o.Format = s.disks[0].Format
		if o.Format == raw.Format.Name {
			o.SectorSize = s.disks[0].Sector
		}
	}
	return o
}

// copySide returns the copy, whether its files have their final names or not.
func (p *plan) copySide(d *folder) side {
	s := side{what: "the aligned disk", base: string(p.New[0].Name), alias: map[string]string{}, disks: p.New[0].Disks}
	if slices.ContainsFunc(p.Old, d.there) {
		s.again = p.New // not in a copied folder: nothing of the exchange is removed there
	}
	if len(s.disks) > 0 && (s.disks[0].Packed || s.disks[0].Still) {
		s.files = p.New
	}
	for _, f := range p.New {
		if !d.is(f.Name, f) && d.is(f.Other, f) {
			s.alias[string(f.Name)] = string(f.Other)
		}
	}
	return s
}

// originalSide returns the original, whether its files have their own names, their second names, or some of both.
func (p *plan) originalSide(d *folder, phase journal.Phase) side {
	s := side{what: "the original", alias: map[string]string{}, disks: p.Old[0].Disks, files: p.Old, exact: true}
	o := p.Old[0]
	kept := phase == journal.Kept || d.is(o.Other, o) || o.text() && d.holds(o.Other, o.Kept)
	s.base = string(o.Name)
	if kept {
		s.base = string(o.Other)
	}
	for i, f := range p.Old {
		at, other := f.Name, f.Other
		if kept {
			at, other = other, at
		}
		switch {
		case f.text() || d.is(at, f):
		case d.is(other, f):
			s.alias[string(at)] = string(other)
		case i == 0 && d.is(p.New[0].Other, f): // names were exchanged, on a file system without links
			s.alias[string(at)] = string(p.New[0].Other)
		}
	}
	return s
}

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

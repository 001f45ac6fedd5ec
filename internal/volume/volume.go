// Package volume names what a partition holds from its first sectors, and reads what a volume stores about its own place.
package volume

import (
	"cmp"
	"errors"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Kind names a file system or another content of a partition. Its text is that of libblkid where that has one, in
// lower case.
type Kind string

// Unknown is the kind of what no prober finds.
const Unknown Kind = "unknown"

// Traits are what the program knows of a kind besides how it is found.
type Traits struct {
	Kind  Kind
	Title string // as its makers write it; empty: as Slices or Kind
	Unit  string // its name for the smallest piece that it gives to a file; empty: block

	Windows bool // a Windows can start from it
	Letter  bool // a Windows gives it a drive letter
	DOS     bool // DOS and Windows 95 to ME read it
	// Checksummed is the offset in bytes from which on a rewritten sector fails a checksum of the file system. In front
	// of it is the room for boot loaders. 0: there are no such checksums.
	Checksummed int64

	// Data names what lies at Volume.DataStart, and Realign says how that is aligned within the volume.
	Data, Realign string

	// Slices is the name of the table that divides its space into slices; empty for anything else.
	Slices  string
	Foreign bool // that table is one of a machine that is no PC

	// What counts where several are found in one place.

	// Precedence over other kinds is that of a container that claims all of a device: making one seldom wipes what was
	// there, and no file system leaves its superblock whole. libblkid looks no further when it has found one.
	Precedence int
	// NeverStale: a broken one is not taken for a leftover. Its boot sector stores a place on the disk, or a sound one
	// is refused.
	NeverStale   bool
	ShowsContent bool // a volume of another kind shows at its own start
	InSlice      bool // the first slice of a table can hold it; both are found where that begins at the start
	Hides        Kind // is a part of it where both are found
}

// Traits returns what is known of a kind.
func (k Kind) Traits() Traits {
	t := Traits{Kind: k}
	for known := range Kinds {
		if known.Kind == k {
			t = known
			break
		}
	}
	t.Title = cmp.Or(t.Title, t.Slices, string(k))
	t.Unit = cmp.Or(t.Unit, "block")
	t.Data = cmp.Or(t.Data, "first block of the data of "+string(k))
	t.Realign = cmp.Or(t.Realign, "to align its data, make the volume again and copy them")
	return t
}

// Sliced reports whether a kind is a table inside of a partition, or one of another machine than a PC over the whole
// disk.
func (k Kind) Sliced() bool { return k.Traits().Slices != "" }

// Volume is what a partition holds. Offsets are bytes from its start.
type Volume struct {
	Kind      Kind
	Label     string
	UUID      string // or serial number, as blkid prints it
	Size      int64  // of the file system
	BlockSize int64  // cluster or block, 0 if absent
	DataStart int64  // where the data begin: cluster 2 of a FAT, pe_start of LVM; 0 where the first block is at the start
	// AtEnd tells that its superblock is found from the end of the device, as that of md 0.90 is: a device that grows loses it.
	AtEnd   bool
	Details []Detail // what else an administrator knows it by, in the order to show
	Parts   []Part   // what it divides its space into
	// OnDisk tells that the starts of Parts count from the start of the disk, and not of the container; package layout makes them alike.
	OnDisk bool
	// Boot is set for volumes with a BIOS parameter block.
	Boot   *BPB
	Issues []ondisk.Issue
	// Outside are the errors of parts that leave what is divided or have no size. They make the table of a whole disk malformed.
	Outside []error
}

// Detail is one thing that a volume says about itself: {"volume group", "vg0"}.
type Detail struct{ Name, Value string }

// Part is what a container makes of its space: a slice of a disklabel, an extent of a dynamic volume.
type Part struct {
	Name  string
	Kind  string // as the container says: "4.2BSD", "SunOS root"
	Start int64  // bytes from the start of the container; -1 when it lies elsewhere, or in several places
	Size  int64  // bytes
	Own   bool   // it holds the table itself, drivers, or the whole disk: where it starts matters to no data
}

// BPB is what a boot sector says about the disk around it.
type BPB struct {
	Kind       Kind   // of the file system that it begins
	SectorSize int64  // bytes
	Hidden     uint32 // sectors in front of the volume
	Sectors    int    // of a track
	Heads      int
	Backup     int64 // byte offset of the copy of the boot sector in the partition, 0 without one inside
}

// Offsets in a boot sector, in bytes. Spec: FAT specification 1.03; NTFS keeps the same places.
const (
	AtHidden = 0x1c
)

// Prober knows one kind of content. Probe returns ErrNoMatch for what is not its own, and a FormatError for its own when it
// is broken, beside the volume when that could be read all the same.
type Prober struct {
	Kinds []Traits // that it finds; the first is that of one too broken to be read
	// Marks are bytes of which a volume of this kind has at least one. None: Probe looks itself.
	Marks []Mark
	Probe func(d disk.Disk) (*Volume, error)
}

// Mark is a magic number within the head of a volume, at a byte offset.
type Mark struct {
	Off   int
	Bytes string
}

// Probe asks all probers. Two that match are an issue, never a silent first winner; what none knows has a name at
// most by its magic number, or is Unknown. The error is one of reading. at is the byte offset of whole on the disk: messages name places on the disk.
func Probe(whole disk.Disk, at int64) (*Volume, error) {
	d, done := withHead(whole, headSize)
	defer done()
	v, err := d.ask(at, d.mayBe)
	if err != nil || v.Kind != Unknown {
		return v, err
	}
	return byMagic(d)
}

// Glance is Probe for who wants to know what a volume is, and no more: a sound one with a mark in its first 4 KiB is believed. What else
// could show farther in or at the end is only looked for without such a mark: an array that keeps its superblock at the end (it holds what
// was found), or what an earlier use of the space left.
func Glance(whole disk.Disk, at int64) (*Volume, error) {
	v, err := Front(whole, at)
	if err != nil || (v.Kind != Unknown && !v.broken()) {
		return v, err
	}
	return Probe(whole, at)
}

// Front is what shows by a mark in the first 4 KiB of a volume.
func Front(whole disk.Disk, at int64) (*Volume, error) {
	d, done := withHead(whole, frontSize)
	defer done()
	if d.head == nil {
		return Probe(whole, at)
	}
	return d.ask(at, func(p Prober) bool { return len(p.Marks) > 0 && d.mayBe(p) })
}

// ask asks the probers that may know the volume, and settles what they say.
func (h headed) ask(at int64, may func(p Prober) bool) (*Volume, error) {
	var found []*Volume
	for _, p := range Probers {
		if !may(p) {
			continue
		}
		v, err := p.Probe(h)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch):
			continue
		case errors.Is(err, ondisk.ErrFormat):
			err = ondisk.Shift(err, at)
			if v == nil {
				v = &Volume{Kind: p.Kinds[0].Kind}
			}
			v.Issues = append(v.Issues, ondisk.Issue{
				Code: "volume", Effect: ondisk.BadVolume, OnMove: true, Text: err.Error(), Err: err,
				Remedy: "run the guest's own file-system check, or move the partition as opaque bytes with --allow-unbootable",
			})
		case err != nil:
			return nil, err
		}
		found = append(found, v)
	}
	if len(found) == 0 {
		return &Volume{Kind: Unknown}, nil
	}
	return settle(withoutRuins(withoutSlices(withoutHidden(outermost(found))))), nil
}

// field is a FormatError of a structure of a volume.
func field(what, name string, off int64, got, want any) error {
	return &ondisk.FormatError{What: what, Off: off, Field: name, Got: got, Want: want}
}

// Package volume has the contract of what finds a volume: its kinds, what is known of each, and what a prober returns.
package volume

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Kind names a file system or another content of a partition. Its text is that of libblkid where that has one, in
// lower case.
type Kind string

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

// Volume is what a partition holds. Offsets are bytes from its start.
type Volume struct {
	Kind      Kind
	Label     string
	UUID      string // or serial number, as blkid prints it
	Size      int64  // of the file system
	BlockSize int64  // cluster or block, 0 if absent
	DataStart int64  // where the data begin: cluster 2 of a FAT, pe_start of LVM; 0 where the first block is at the start
	// AtEnd tells that its superblock is found from the end of the device, as that of md 0.90 is: a device that grows
	// loses it.
	AtEnd   bool
	Details []Detail // what else an administrator knows it by, in the order to show
	Parts   []Part   // what it divides its space into
	// OnDisk tells that the starts of Parts count from the start of the disk, and not of the container; package layout
	// makes them alike.
	OnDisk bool
	// Boot is set for volumes with a BIOS parameter block.
	Boot   *BPB
	Issues []ondisk.Issue
	// Outside are the errors of parts that leave what is divided or have no size. They make the table of a whole disk
	// malformed.
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

// AtHidden is the offset of the hidden sectors in a boot sector, in bytes. Spec: FAT specification 1.03; NTFS keeps it.
const AtHidden = 0x1c

// Prober knows one kind of content. Probe returns ErrNoMatch for what is not its own, and a FormatError for its own
// when it is broken, beside the volume when that could be read all the same.
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

// Note adds an issue. What is worse than a warning counts when the volume moves.
func (v *Volume) Note(code string, effect ondisk.Effect, text, remedy string) {
	v.Issues = append(v.Issues,
		ondisk.Issue{Code: code, Effect: effect, OnMove: effect > ondisk.Warn, Text: text, Remedy: remedy})
}

// Add adds what the volume says about itself; an empty value is nothing to say.
func (v *Volume) Add(name, value string) {
	if value != "" {
		v.Details = append(v.Details, Detail{name, value})
	}
}

// Addf adds something to know the volume by.
func (v *Volume) Addf(name, format string, args ...any) {
	v.Details = append(v.Details, Detail{name, fmt.Sprintf(format, args...)})
}

// Inherit takes over what is wrong with the disk as a whole, such as a Linux that hibernates into a swap area on RAID
// or LVM, and a boot sector, which a BIOS runs whatever lies behind it: it was made for the partition when it says
// where that is.
func (v *Volume) Inherit(other *Volume) {
	for _, i := range other.Issues {
		if i.DiskWide {
			v.Issues = append(v.Issues, i)
		}
	}
	if v.Boot == nil {
		v.Boot = other.Boot
	}
}

// Package volume has the contract of a prober: kinds, their traits, and the volume that a prober returns.
package volume

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Kind names a file system or another content of a partition, in lower case. Its text is that of libblkid, if libblkid
// knows the kind.
type Kind string

// Traits are the facts of a kind that do not depend on a volume.
type Traits struct {
	Kind  Kind
	Title string // the name that its makers write; empty: Slices or Kind
	Unit  string // its name for the unit of allocation; empty: block

	Windows bool // a Windows can start from it
	Letter  bool // a Windows gives it a drive letter
	DOS     bool // DOS and Windows 95 to ME read it
	// Checksummed is the offset in bytes from which on a rewritten sector fails a checksum of the file system. In front
	// of it is the room for boot loaders. 0: there are no such checksums.
	Checksummed int64

	// Data names the first structure at Volume.DataStart. Realign is the way to align it within the volume.
	Data, Realign string

	// Slices is the name of the table that divides its space into slices; empty for anything else.
	Slices string
	// Foreign reports whether the table is one of a machine other than a PC. It is recognised only: its partitions are
	// not read.
	Foreign bool

	// The rest chooses between several volumes in one place.

	// Precedence ranks a container that claims the whole device over other kinds. Making one seldom wipes the old
	// content, and no file system leaves the superblock of a container whole. libblkid stops at the first one, too.
	Precedence int
	// NeverStale reports whether a broken one counts, and is no leftover: its boot sector stores a place on the disk,
	// or a sound one is refused.
	NeverStale   bool
	ShowsContent bool // a volume of another kind shows at its own start
	InSlice      bool // the first slice of a table can hold it; both are found where that begins at the start
}

// Volume is the content of a partition. Offsets are bytes from its start.
type Volume struct {
	Kind      Kind
	Label     string
	UUID      string // or serial number, as blkid prints it
	Size      int64  // of the file system
	BlockSize int64  // cluster or block, 0 if absent
	// SectorSize is that of the disk for which it was made, where it has no Boot; 0 where it stores none.
	SectorSize int64
	DataStart  int64 // of cluster 2 of a FAT, pe_start of LVM; 0 where the first block is at the start
	// AtEnd reports whether the superblock is found from the end of the device, as in md 0.90. A device that grows
	// loses it.
	AtEnd bool
	// Holds reports whether a volume begins at DataStart, such as the content of a mirror or of a device under a cache.
	Holds   bool
	Content *Volume  // that volume; nil: none is known
	Chunk   int64    // of a striped array in bytes: the next one lies on another device; 0: not striped
	Details []Detail // in the order to show
	Parts   []Part
	// OnDisk reports whether Parts count from the start of the disk instead of the container. Package layout converts
	// them.
	OnDisk bool
	// Boot is set for volumes with a BIOS parameter block.
	Boot   *BPB
	Issues []ondisk.Issue
	// Outside has the errors of parts that leave the container or have no size. They make the table of a whole disk
	// malformed.
	Outside []error
}

// Detail is a fact that a volume stores about itself: {"volume group", "vg0"}.
type Detail struct{ Name, Value string }

// Part is a part of the space of a container: such as a slice of a disklabel.
type Part struct {
	Name  string
	Kind  string // in the words of the container: "4.2BSD", "SunOS root"
	Start int64  // bytes from the start of the container; -1 when it lies elsewhere, or in several places
	Size  int64  // bytes

	Content *Volume // nil: none is known
}

// BPB has the fields of a boot sector that describe the disk around it.
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

// Prober knows one kind of content. Probe returns ErrNoMatch for bytes that are not of this kind. For a broken volume
// it returns a FormatError, and the volume too if that could be read.
type Prober struct {
	Kinds []Traits // the first is the kind of a volume that is too broken to be read
	// Marks are bytes of which a volume of this kind has at least one. None: Probe looks itself.
	Marks []Mark
	Probe func(d disk.Disk) (*Volume, error)
}

// Mark is a magic number in the head of a volume.
type Mark struct {
	Off   int
	Bytes string
}

// Note adds an issue. An effect worse than a warning counts when the volume moves.
func (v *Volume) Note(code string, effect ondisk.Effect, text, remedy string) {
	v.Issues = append(v.Issues,
		ondisk.Issue{Code: code, Effect: effect, OnMove: effect > ondisk.Warn, Text: text, Remedy: remedy})
}

// CodeSize is the code of the issues of a volume that is larger than its partition.
const CodeSize = "volume-size"

// End returns the byte behind the last whole block. Some makers of FAT count sectors behind it that the partition
// lacks.
func (v *Volume) End() int64 {
	if v.BlockSize <= 0 || v.DataStart < 0 || v.DataStart > v.Size {
		return v.Size
	}
	return v.Size - (v.Size-v.DataStart)%v.BlockSize
}

// Innermost returns the volume behind all containers.
func (v *Volume) Innermost() *Volume {
	for v.Content != nil {
		v = v.Content
	}
	return v
}

// Data returns the byte from which the blocks of the innermost volume are counted, and the outermost volume whose data
// begin there. In a striped array it lies in the first chunk, since all chunks begin alike.
func (v *Volume) Data() (at int64, of *Volume) {
	var chain []*Volume
	for ; v != nil; v = v.Content {
		chain = append(chain, v)
	}
	for _, x := range slices.Backward(chain) {
		if x.Chunk > 0 {
			at %= x.Chunk
		}
		if at == 0 {
			of = x
		}
		at += x.DataStart
	}
	return at, of
}

// Add adds a detail, unless its value is empty.
func (v *Volume) Add(name, value string) {
	if value != "" {
		v.Details = append(v.Details, Detail{name, value})
	}
}

// Addf adds a detail with a formatted value.
func (v *Volume) Addf(name, format string, args ...any) {
	v.Details = append(v.Details, Detail{name, fmt.Sprintf(format, args...)})
}

// Inherit takes over the issues of the whole disk from a volume inside, such as a Linux that hibernates into swap on
// RAID or LVM.
func (v *Volume) Inherit(other *Volume) {
	for _, i := range other.Issues {
		if i.DiskWide {
			v.Issues = append(v.Issues, i)
		}
	}
}

// Share is Inherit from a volume that begins where v does. It takes over the boot sector too, since a BIOS runs that
// whatever lies behind it.
func (v *Volume) Share(other *Volume) {
	v.Inherit(other)
	if v.Boot == nil {
		v.Boot = other.Boot
	}
}

// Kinds that several packages name. A kind that only its prober names has no constant here.
const (
	NTFS  Kind = "ntfs"
	FAT12 Kind = "fat12"
	FAT16 Kind = "fat16"
	FAT32 Kind = "fat32"
	ExFAT Kind = "exfat"
	Ext2  Kind = "ext2"
	Ext3  Kind = "ext3"
	Ext4  Kind = "ext4"
	JBD   Kind = "jbd" // the journal of an ext on another device

	APFS     Kind = "apfs" // of macOS since 10.13
	Btrfs    Kind = "btrfs"
	F2FS     Kind = "f2fs"
	HFS      Kind = "hfs"     // of Mac OS up to 8.0
	HFSPlus  Kind = "hfsplus" // of Mac OS since 8.1
	HPFS     Kind = "hpfs"    // of OS/2
	ISO9660  Kind = "iso9660"
	JFS      Kind = "jfs" // of OS/2 and Linux
	ReFS     Kind = "refs"
	ReiserFS Kind = "reiserfs" // version 3
	UFS1     Kind = "ufs1"
	UFS2     Kind = "ufs2"
	VMFS     Kind = "vmfs"
	XFS      Kind = "xfs"

	BCache    Kind = "bcache"
	BitLocker Kind = "bitlocker"
	LDM       Kind = "ldm" // a partition of a dynamic disk of Windows, known by its type
	LUKS      Kind = "luks"
	LVM2      Kind = "lvm2_member"
	MDRaid    Kind = "linux_raid_member"
	Swap      Kind = "swap"       // of Linux
	ZFS       Kind = "zfs_member" // a device of a pool

	Disklabel Kind = "disklabel" // the table of slices of a BSD
	VTOC      Kind = "vtoc"      // the table of slices of Solaris

	Unknown Kind = "unknown" // no prober finds it
)

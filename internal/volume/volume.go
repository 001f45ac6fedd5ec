// Package volume holds the contract of a prober (kinds, their traits, and the volume that it returns), and the probers
// of volumes whose files are not read. Package identify runs them.
package volume

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Kind is the name of a file system or other content of a partition, in lower case: libblkid's name, if it has one.
type Kind string

// Traits are the properties of a kind, common to all its volumes.
type Traits struct {
	Kind  Kind
	Title string // display name; Slices or Kind if empty
	Unit  string // name of its allocation unit; "block" if empty

	Windows bool // Windows can start from it
	Letter  bool // Windows assigns it a drive letter
	DOS     bool // DOS and Windows 95 to ME can read it
	// Checksummed is the offset in bytes where sectors with checksums begin: rewriting one fails a check of the file
	// system. The space in front of it is reserved for boot loaders. It is 0 without such checksums.
	Checksummed int64

	// Data names the first structure at Volume.DataStart. Realign describes how to align it within the volume.
	Data, Realign string

	// Slices is the name of a table that divides its space into slices. It is empty for other kinds.
	Slices string
	// Foreign marks the partition table of a machine other than a PC. It is only recognised: its partitions are not
	// read.
	Foreign bool

	// The fields below decide between several volumes in one place.

	// Precedence ranks a container that covers the whole device over other kinds. Creating a container seldom wipes the
	// old content, but no file system leaves the superblock of a container whole. libblkid stops at the first
	// container, too.
	Precedence int
	// NeverStale marks a kind whose broken volume is never a leftover: its boot sector stores a disk offset, or even a
	// sound volume is refused.
	NeverStale   bool
	ShowsContent bool // a volume of another kind can be found at its start
	InSlice      bool // the first slice of a table can hold it; if that slice is at the start, both are found
}

// Volume is the content of a partition. Offsets are bytes from its start.
type Volume struct {
	Kind      Kind
	Label     string
	UUID      string // or serial number, as printed by blkid
	Size      int64  // of the file system
	BlockSize int64  // cluster or block size, 0 if absent
	// SectorSize is the sector size of the disk for which the volume was made. It is 0 if Boot is set, or if the volume
	// does not store it.
	SectorSize int64
	DataStart  int64 // cluster 2 of a FAT, pe_start of LVM; 0 if the first block is at the start
	// AtEnd reports whether the superblock is at an offset from the end of the device, as in md 0.90. A device that
	// grows loses it.
	AtEnd bool
	// Holds reports whether another volume begins at DataStart, such as the content of a mirror or of a cached device.
	Holds   bool
	Content *Volume  // the volume at DataStart, or nil if it is unknown
	Chunk   int64    // chunk size of a striped array in bytes: the next chunk is on another device; 0 if not striped
	Details []Detail // in display order
	Parts   []Part
	// OnDisk reports whether Parts count from the start of the disk instead of the container. Package layout converts
	// them.
	OnDisk bool
	// Boot is set for volumes with a BIOS parameter block.
	Boot   *BPB
	Issues []ondisk.Issue
	// Outside holds the errors of parts that leave the container or have no size. They make the table of a whole disk
	// malformed.
	Outside []error
}

// Detail is a fact that a volume stores about itself: {"volume group", "vg0"}.
type Detail struct{ Name, Value string }

// Part is a part of the space of a container, such as a slice of a disklabel.
type Part struct {
	Name  string
	Kind  string // as the container calls it: "4.2BSD", "SunOS root"
	Start int64  // bytes from the start of the container; -1 if it is outside or in several ranges
	Size  int64  // bytes

	Content *Volume // nil if it is unknown
}

// BPB holds the fields of a boot sector that describe the disk around it.
type BPB struct {
	Kind       Kind   // of the file system with this boot sector
	SectorSize int64  // bytes
	Hidden     uint32 // sectors in front of the volume
	Sectors    int    // of a track
	Heads      int
	Backup     int64 // byte offset of the copy of the boot sector in the partition, 0 without one inside
}

// AtHidden is the offset of the hidden sectors in a boot sector, in bytes. Spec: FAT specification 1.03; same in NTFS.
const AtHidden = 0x1c

// Prober detects volumes of some kinds. Probe returns ErrNoMatch for bytes of other kinds. For a broken volume it
// returns a FormatError, and the volume too if it could be read.
type Prober struct {
	Kinds []Traits // the first is the kind of an unreadable volume
	// Marks are magic numbers: a volume of this kind has at least one. Without marks, Probe always runs.
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

// CodeSize is the code of the issues of a volume larger than its partition.
const CodeSize = "volume-size"

// End returns the end of the last whole block in bytes. Some makers of FAT count sectors behind it that the partition
// lacks.
func (v *Volume) End() int64 {
	if v.BlockSize <= 0 || v.DataStart < 0 || v.DataStart > v.Size {
		return v.Size
	}
	return v.Size - (v.Size-v.DataStart)%v.BlockSize
}

// Innermost returns the volume inside all containers.
func (v *Volume) Innermost() *Volume {
	for v.Content != nil {
		v = v.Content
	}
	return v
}

// Data returns the byte offset from which blocks of the innermost volume count, and the outermost volume whose data
// begins there. In a striped array the offset is within the first chunk, since all chunks begin alike.
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

// Inherit copies the disk-wide issues of a volume inside v, such as a hibernated Linux in swap on RAID or LVM.
func (v *Volume) Inherit(other *Volume) {
	for _, i := range other.Issues {
		if i.DiskWide {
			v.Issues = append(v.Issues, i)
		}
	}
}

// Share is Inherit for a volume that begins where v does. It also copies the boot sector, since a BIOS runs it
// regardless of the content behind it.
func (v *Volume) Share(other *Volume) {
	v.Inherit(other)
	if v.Boot == nil {
		v.Boot = other.Boot
	}
}

// Kinds used in several packages. A kind used by its prober alone has no constant here.
const (
	NTFS  Kind = "ntfs"
	FAT12 Kind = "fat12"
	FAT16 Kind = "fat16"
	FAT32 Kind = "fat32"
	ExFAT Kind = "exfat"
	Ext2  Kind = "ext2"
	Ext3  Kind = "ext3"
	Ext4  Kind = "ext4"
	JBD   Kind = "jbd" // external journal of an ext

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
	LDM       Kind = "ldm" // partition of a Windows dynamic disk, detected by its type
	LUKS      Kind = "luks"
	LVM2      Kind = "lvm2_member"
	MDRaid    Kind = "linux_raid_member"
	Swap      Kind = "swap"       // of Linux
	ZFS       Kind = "zfs_member" // device of a pool

	Disklabel Kind = "disklabel" // table of slices of a BSD
	VTOC      Kind = "vtoc"      // table of slices of Solaris

	Unknown Kind = "unknown" // not detected by any prober
)

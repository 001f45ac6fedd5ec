package volume

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Kinds of ext, and the journal of one on another device.
const (
	Ext2 Kind = "ext2"
	Ext3 Kind = "ext3"
	Ext4 Kind = "ext4"
	JBD  Kind = "jbd"
)

var ext = Prober{
	Kinds: []Traits{{Kind: "ext"}, {Kind: Ext2}, {Kind: Ext3}, {Kind: Ext4}, {Kind: JBD, Title: "ext journal"}},
	Marks: []Mark{{atSuper + 56, "\x53\xef"}},
	Probe: probeExt,
}

// extSuper is the superblock, 1024 bytes into the volume. Spec: Linux, Documentation/filesystems/ext4/super.rst.
type extSuper struct {
	Inodes         uint32
	Blocks         uint32
	_              [4]uint32
	LogBlockSize   uint32 // 1024 << n bytes
	LogClusterSize uint32
	BlocksPerGroup uint32
	_              uint32
	InodesPerGroup uint32
	_              [12]byte
	Magic          uint16
	State          uint16
	Errors         uint16 // what the kernel does when it finds some: 1 to 3
	_              [10]byte
	Creator        uint32 // operating system: 0 to 4
	Revision       uint32
	_              [8]byte
	InodeSize      uint16
	_              uint16
	Compat         uint32
	Incompat       uint32
	ROCompat       uint32
	UUID           [16]byte
	Label          [16]byte
	_              [118]byte
	DescSize       uint16
	_              [80]byte
	BlocksHi       uint32
}

const (
	extWhat  = "ext superblock"
	atSuper  = 1024
	extMagic = 0xef53

	compatJournal = 0x4

	incompatRecover = 0x4
	incompatJournal = 0x8 // the journal of a file system on another device
	incompat64      = 0x80
	// Features of ext2 and ext3; any other makes it an ext4.
	incompatOld = 0x2 | incompatRecover | incompatJournal | 0x10
	roCompatOld = 0x1 | 0x2 | 0x4
	// Every bit that Linux 6.12 knows.
	incompatKnown = 0x1 | incompatOld | 0x40 | incompat64 | 0x100 | 0x200 | 0x400 | 0x1000 | 0x2000 | 0x4000 | 0x8000 | 0x10000 | 0x20000
)

func probeExt(d disk.Disk) (*Volume, error) {
	var s extSuper
	if d.Size() < atSuper+1024 {
		return nil, ondisk.ErrNoMatch
	}
	if _, err := ondisk.Decode(d, atSuper, &s); err != nil {
		return nil, err
	}
	if s.Magic != extMagic || !s.plausible() {
		return nil, ondisk.ErrNoMatch
	}
	if err := s.check(d.Size()); err != nil {
		return nil, err
	}
	v := &Volume{Kind: s.kind(), Label: zeroTerminated(s.Label[:]), UUID: uuid(s.UUID), BlockSize: s.block(), Size: ondisk.I64(s.blocks()) * s.block()}
	if s.Incompat&incompatRecover != 0 {
		v.note("ext-journal", ondisk.Note, "the ext journal has not been replayed: the guest was not shut down cleanly", "")
	}
	if unknown := s.Incompat &^ incompatKnown; unknown != 0 {
		v.note("ext-features", ondisk.Note, fmt.Sprintf("unknown incompatible ext features %#x: the volume moves as opaque bytes", unknown), "")
	}
	return v, nil
}

func (s *extSuper) field(name string, off int64, got, want any) error {
	return field(extWhat, name, atSuper+off, got, want)
}

// plausible tells a superblock from other bytes that happen to have its two bytes of magic: one encrypted partition in 65536 does.
func (s *extSuper) plausible() bool { return s.Errors <= 3 && s.Creator <= 4 && s.Revision <= 1 }

// check refuses what would make arithmetic fail or the volume leave its partition. size is that of the partition in bytes.
func (s *extSuper) check(size int64) error {
	switch {
	case s.LogBlockSize > 6:
		return s.field("log block size", 0x18, s.LogBlockSize, "0 to 6 (1 to 64 KiB)")
	case s.BlocksPerGroup == 0 && !s.journal():
		return s.field("blocks per group", 0x20, 0, "1 or more")
	case s.InodesPerGroup == 0 && !s.journal():
		return s.field("inodes per group", 0x28, 0, "1 or more")
	case s.Revision > 0 && !s.journal() && (s.InodeSize < 128 || int64(s.InodeSize) > s.block() || !units.IsPowerOfTwo(int64(s.InodeSize))):
		return s.field("inode size", 0x58, s.InodeSize, fmt.Sprintf("a power of two from 128 to %d", s.block()))
	case s.Incompat&incompat64 != 0 && (s.DescSize < 32 || s.DescSize > 1024 || !units.IsPowerOfTwo(int64(s.DescSize))):
		return s.field("group descriptor size", 0xfe, s.DescSize, "a power of two from 32 to 1024")
	case s.blocks() == 0 || s.blocks() > ondisk.U64(size/s.block()):
		return s.field("block count", 0x04, s.blocks(), fmt.Sprintf("1 to %d, the size of the partition", size/s.block()))
	}
	return nil
}

// journal tells that there is a journal and no file system, so that groups and inodes are none.
func (s *extSuper) journal() bool { return s.Incompat&incompatJournal != 0 }

func (s *extSuper) block() int64 { return 1024 << s.LogBlockSize }

func (s *extSuper) blocks() uint64 {
	n := uint64(s.Blocks)
	if s.Incompat&incompat64 != 0 {
		n |= uint64(s.BlocksHi) << 32
	}
	return n
}

// kind follows the rule of libblkid: the features in use decide.
func (s *extSuper) kind() Kind {
	switch {
	case s.journal():
		return JBD
	case s.Incompat&^incompatOld != 0 || s.ROCompat&^roCompatOld != 0:
		return Ext4
	case s.Compat&compatJournal != 0:
		return Ext3
	default:
		return Ext2
	}
}

// uuid is a UUID as libblkid prints it, which takes zeros for none.
func uuid(b [16]byte) string {
	if b == [16]byte{} {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

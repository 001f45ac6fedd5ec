// Package ext identifies ext2, ext3 and ext4, and finds files in them. Spec: Linux, Documentation/filesystems/ext4.
package ext

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Kinds of inodes, their flags, and offsets of their fields. Spec: Linux, Documentation/filesystems/ext4/inodes.rst.
const (
	modeFolder  = 0x4000
	modeRegular = 0x8000
	modeLink    = 0xa000

	flagCompressed = 0x200 // compressed by e2compr; 0x4 alone is a request, which ext4 ignores
	flagEncrypted  = 0x800
	flagExtents    = 0x80000
	flagVerity     = 0x100000
	flagInline     = 0x10000000
	flagCasefold   = 0x40000000

	atMap   = 0x28
	mapSize = 60
	oldSize = 128 // the size of an inode in ext2

	rootInode = 2
)

// inode is a file, a folder or a link.
type inode struct {
	number int64
	at     int64 // byte offset in the volume
	raw    []byte
	size   int64 // of the file, in bytes
}

func (n *inode) kind() uint16     { return binary.LittleEndian.Uint16(n.raw) & 0xf000 }
func (n *inode) flags() uint32    { return binary.LittleEndian.Uint32(n.raw[0x20:]) }
func (n *inode) blockMap() []byte { return n.raw[atMap : atMap+mapSize] }

func (n *inode) name() string { return fmt.Sprintf("ext inode %d", n.number) }

// inode reads an inode by its number.
func (f *fileSystem) inode(number int64) (*inode, error) {
	if number < 1 || number > int64(f.super.Inodes) {
		return nil, ondisk.Field("ext folder entry", "inode", 0, number, fmt.Sprintf("1 to %d", f.super.Inodes))
	}
	per := int64(f.super.InodesPerGroup)
	table, err := f.inodeTable((number - 1) / per)
	if err != nil {
		return nil, err
	}
	n := &inode{number: number, at: table + (number-1)%per*f.inodeSize, raw: make([]byte, f.inodeSize)}
	if err := f.read(n.raw, n.at); err != nil {
		return nil, err
	}
	if err := f.measure(n); err != nil {
		return nil, err
	}
	return n, n.plain()
}

// measure computes the size of the file. A folder has the upper half only with large_dir: the field had another use
// before.
func (f *fileSystem) measure(n *inode) error {
	size := uint64(binary.LittleEndian.Uint32(n.raw[4:]))
	if n.kind() == modeRegular || f.super.Incompat&incompatLargeDir != 0 {
		size |= uint64(binary.LittleEndian.Uint32(n.raw[0x6c:])) << 32
	}
	if most := ondisk.U64(f.block << 32); size > most { // numbers of the blocks of a file have 32 bits
		return ondisk.Field(n.name(), "size", n.at+4, size, fmt.Sprintf("at most %d", most))
	}
	n.size = ondisk.I64(size)
	return nil
}

// plain returns an error for an encrypted, compressed or sealed inode: its blocks do not hold the bytes of the file.
func (n *inode) plain() error {
	switch flags := n.flags(); {
	case flags&flagEncrypted != 0:
		return fmt.Errorf("%s is encrypted: %w", n.name(), ondisk.ErrUnsupported)
	case flags&flagCompressed != 0:
		return fmt.Errorf("%s is compressed: %w", n.name(), ondisk.ErrUnsupported)
	case flags&flagVerity != 0:
		return fmt.Errorf("%s is sealed by fs-verity: %w", n.name(), ondisk.ErrUnsupported)
	}
	return nil
}

// read fills b from the volume through the cache. It charges the budget even for cached bytes.
func (f *fileSystem) read(b []byte, off int64) error {
	if err := f.meter.Budget.Spend(int64(len(b))); err != nil {
		return err
	}
	return f.meter.Pages.Read(b, off)
}

// inodeTable returns the byte offset of the inode table of a group.
func (f *fileSystem) inodeTable(group int64) (int64, error) {
	g, err := f.group(group)
	if err != nil {
		return 0, err
	}
	return f.tableOf(g)
}

// holds reports whether n blocks from block on can belong to files or tables: behind the superblock, and in the volume.
func (f *fileSystem) holds(block, n int64) bool {
	return block > int64(f.super.FirstDataBlock) && n <= f.blocks && block <= f.blocks-n
}

// descriptor returns the byte offset of the descriptor of a group. Spec: Linux, fs/ext4/super.c, descriptor_loc.
func (f *fileSystem) descriptor(group int64) int64 {
	per := f.block / f.descSize
	nr, super := group/per, superAt/f.block // the block of the superblock: 1 with blocks of 1 KiB
	block := super + 1 + nr
	if f.super.Incompat&incompatMetaBG != 0 && nr >= int64(f.super.FirstMetaGroup) {
		first := nr * per // the first group of the meta group
		block = int64(f.super.FirstDataBlock) + first*int64(f.super.BlocksPerGroup)
		if f.hasSuper(first) {
			block++
		}
		if nr == 0 && super == 1 && f.super.FirstDataBlock == 0 {
			block++ // bigalloc counts from 0 although the superblock is in block 1
		}
	}
	return block*f.block + group%per*f.descSize
}

// hasSuper reports whether a group begins with a copy of the superblock.
func (f *fileSystem) hasSuper(group int64) bool {
	switch s := f.super; {
	case group == 0:
		return true
	case s.Compat&compatSparse2 != 0:
		return group == int64(s.BackupGroups[0]) || group == int64(s.BackupGroups[1])
	case group == 1 || s.ROCompat&roCompatSparse == 0:
		return true
	}
	for _, base := range []int64{3, 5, 7} {
		n := group
		for n%base == 0 {
			n /= base
		}
		if n == 1 {
			return true
		}
	}
	return false
}

// file returns the bytes of an inode as a file.
func (f *fileSystem) file(n *inode, path string) (*guestfile.File, error) {
	var runs []guestfile.Run
	var err error
	inline := n.flags()&flagInline != 0
	if inline {
		runs, err = f.inlineRuns(n)
	} else {
		runs, err = f.blockRuns(n)
	}
	if err != nil {
		return nil, err
	}
	file, err := guestfile.NewFile(f.volume, path, n.size, runs)
	if err != nil {
		return nil, err
	}
	file.Fixed = f.fixed
	if inline && file.Fixed == nil {
		file.Fixed = fmt.Errorf("its bytes lie within its inode: %w", ondisk.ErrUnsupported)
	}
	return file, nil
}

// inlineRuns finds the bytes of a small file within its inode: in place of the block map, and in the attribute
// "system.data". Spec: Linux, Documentation/filesystems/ext4/inlinedata.rst.
func (f *fileSystem) inlineRuns(n *inode) ([]guestfile.Run, error) {
	runs := []guestfile.Run{{Off: 0, Len: mapSize, At: n.at + atMap}}
	if n.size <= mapSize {
		return runs, nil
	}
	off, size := inlineRest(n.raw)
	if n.size > mapSize+size {
		return nil, ondisk.Field(n.name(), "size", n.at+4, n.size,
			fmt.Sprintf("at most the %d bytes in the inode", mapSize+size))
	}
	return append(runs, guestfile.Run{Off: mapSize, Len: size, At: n.at + off}), nil
}

// inlineRest finds the value of "system.data" in an inode. Its size is 0 if the attribute is absent.
// Spec: Linux, Documentation/filesystems/ext4/attributes.rst.
func inlineRest(raw []byte) (off, size int64) {
	const head, system = 16, 7
	if len(raw) < oldSize+4 {
		return 0, 0
	}
	start := oldSize + int(binary.LittleEndian.Uint16(raw[oldSize:]))
	if start+4 > len(raw) || binary.LittleEndian.Uint32(raw[start:]) != 0xea020000 {
		return 0, 0
	}
	values := raw[start+4:] // offsets of values count from here
	for e := values; len(e) >= head && binary.LittleEndian.Uint32(e) != 0; {
		name := int(e[0])
		if head+name > len(e) {
			break
		}
		at, n := int(binary.LittleEndian.Uint16(e[2:])), int64(binary.LittleEndian.Uint32(e[8:]))
		if e[1] == system && bytes.Equal(e[head:head+name], []byte("data")) {
			if int64(at)+n > int64(len(values)) || binary.LittleEndian.Uint32(e[4:]) != 0 {
				break // the value is in another inode, or out of bounds
			}
			return int64(start + 4 + at), n
		}
		e = e[min(len(e), (head+name+3)&^3):]
	}
	return 0, 0
}

// target reads a symbolic link.
func (f *fileSystem) target(n *inode) (string, error) {
	if n.size == 0 || n.size >= f.block {
		return "", ondisk.Field(n.name(), "size of a symbolic link", n.at+4, n.size, fmt.Sprintf("1 to %d", f.block-1))
	}
	if n.size < mapSize && n.flags()&(flagInline|flagExtents) == 0 {
		return string(n.blockMap()[:n.size]), nil
	}
	file, err := f.file(n, "")
	if err != nil {
		return "", err
	}
	raw := make([]byte, n.size)
	if err := ondisk.ReadFull(file, raw, 0); err != nil {
		return "", err
	}
	return string(raw), nil
}

// super is the superblock.
type super struct {
	Inodes         uint32
	BlocksLo       uint32
	_              uint32
	FreeBlocksLo   uint32
	_              uint32
	FirstDataBlock uint32
	LogBlockSize   uint32 // 1024 << n bytes
	LogClusterSize uint32
	BlocksPerGroup uint32
	_              uint32
	InodesPerGroup uint32
	_              [12]byte
	Magic          uint16
	State          uint16
	Errors         uint16 // reaction of the kernel to errors: 1 to 3
	_              [10]byte
	Creator        uint32 // operating system: 0 to 4
	Revision       uint32
	_              uint32
	FirstInode     uint32 // first inode that is not reserved; since revision 1
	InodeSize      uint16 // since revision 1
	_              uint16
	Compat         uint32
	Incompat       uint32
	ROCompat       uint32
	UUID           [16]byte
	Label          [16]byte
	_              [70]byte
	ReservedDescs  uint16 // blocks behind the group descriptors, reserved for more descriptors
	_              [16]byte
	JournalInode   uint32
	JournalDevice  uint32 // number of the device with the journal
	LastOrphan     uint32 // first inode that the next mount deletes
	_              [18]byte
	DescSize       uint16 // with incompat64Bit
	_              uint32
	FirstMetaGroup uint32
	_              [72]byte
	BlocksHi       uint32
	_              uint32
	FreeBlocksHi   uint32
	_              [240]byte
	BackupGroups   [2]uint32 // with compatSparse2
}

// superAt is the byte offset of the superblock in the volume.
const superAt = 1024

const (
	superName = "ext superblock"
	magic     = 0xef53
)

// stateValid is the bit of State that a mount for writing without a journal clears, and a clean unmount sets. Spec:
// Linux, Documentation/filesystems/ext4/super.rst, "s_state".
const (
	stateValid = 0x1
	stateError = 0x2 // errors were found that e2fsck has not corrected
)

// Features. A system may not mount a volume with an unknown feature in Incompat, nor write to one with an unknown
// feature in ROCompat.
const (
	compatJournal = 0x4
	compatSparse2 = 0x200

	incompatCompression = 0x1 // e2compr
	incompatFiletype    = 0x2
	incompatRecover     = 0x4 // the journal must be replayed
	incompatJournal     = 0x8 // the journal of a file system on another device
	incompatMetaBG      = 0x10
	incompat64Bit       = 0x80
	incompatDirdata     = 0x1000 // Lustre
	incompatLargeDir    = 0x4000
	// incompatKnown holds every incompatible feature defined in Linux 6.12. Features without a constant here: extents,
	// mmp, flex_bg, ea_inode, csum_seed, inline_data, encrypt, casefold.
	incompatKnown = incompatCompression | incompatOld | incompat64Bit | incompatDirdata | incompatLargeDir |
		0x40 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x8000 | 0x10000 | 0x20000

	roCompatSparse   = 0x1
	roCompatDescSum  = 0x10 // gdt_csum: descriptors have flags
	roCompatBigalloc = 0x200
	roCompatMetaSum  = 0x400   // metadata_csum: descriptors have flags, too
	roCompatOrphans  = 0x10000 // orphan_present: a file lists inodes that the next mount deletes

	// Features of ext2 and ext3; any other makes it an ext4.
	incompatOld = incompatFiletype | incompatRecover | incompatJournal | incompatMetaBG
	roCompatOld = roCompatSparse | 0x2 | 0x4
)

// readSuper decodes the superblock of a volume. It returns ErrNoMatch if there is no superblock, and ErrFormat if it is
// broken.
func readSuper(d disk.Disk) (*super, error) {
	s := &super{}
	if d.Size() < superAt+1024 {
		return nil, ondisk.ErrNoMatch
	}
	if _, err := ondisk.Decode(d, superAt, s); err != nil {
		return nil, err
	}
	if s.Magic != magic || !s.plausible() {
		return nil, ondisk.ErrNoMatch
	}
	return s, s.check(d.Size())
}

// superField returns the error for a field of the superblock.
func superField(name string, off int64, got, want any) error {
	return ondisk.Field(superName, name, superAt+off, got, want)
}

// plausible reports whether the fields with few legal values have legal ones. The magic number has only two bytes: one
// encrypted partition in 65536 has it by chance.
func (s *super) plausible() bool { return s.Errors <= 3 && s.Creator <= 4 && s.Revision <= 1 }

// check refuses values that overflow or leave the partition, which has size bytes.
func (s *super) check(size int64) error {
	if s.LogBlockSize > 6 {
		return superField("log block size", 0x18, s.LogBlockSize, "0 to 6 (1 to 64 KiB)")
	}
	blocks, most := s.blocks(), ondisk.U64(size/s.blockSize())
	switch inode, desc := s.inodeBytes(), s.descBytes(); {
	case s.BlocksPerGroup == 0 && !s.journal():
		return superField("blocks per group", 0x20, 0, "1 or more")
	case s.InodesPerGroup == 0 && !s.journal():
		return superField("inodes per group", 0x28, 0, "1 or more")
	case !s.journal() && (inode < 128 || inode > s.blockSize() || !units.IsPowerOfTwo(inode)):
		return superField("inode size", 0x58, inode, fmt.Sprintf("a power of two from 128 to %d", s.blockSize()))
	case desc < 32 || desc > 1024 || !units.IsPowerOfTwo(desc):
		return superField("group descriptor size", 0xfe, desc, "a power of two from 32 to 1024")
	case blocks == 0 || blocks > most:
		return superField("block count", 0x04, blocks, fmt.Sprintf("1 to %d, the size of the partition", most))
	}
	return nil
}

// journal reports whether the volume is an external journal: it has no groups and no inodes.
func (s *super) journal() bool { return s.Incompat&incompatJournal != 0 }

// modern reports whether the volume uses a feature that ext2 and ext3 do not have.
func (s *super) modern() bool { return s.Incompat&^incompatOld != 0 || s.ROCompat&^roCompatOld != 0 }

// blockSize returns the size of a block in bytes.
func (s *super) blockSize() int64 { return 1024 << s.LogBlockSize }

// blockCount returns the number of blocks of the volume.
func (s *super) blockCount() int64 { return ondisk.I64(s.blocks()) }

func (s *super) blocks() uint64 {
	n := uint64(s.BlocksLo)
	if s.Incompat&incompat64Bit != 0 {
		n |= uint64(s.BlocksHi) << 32
	}
	return n
}

// inodeBytes returns the size of an inode.
func (s *super) inodeBytes() int64 {
	if s.Revision == 0 {
		return 128
	}
	return int64(s.InodeSize)
}

// descBytes returns the size of a group descriptor.
func (s *super) descBytes() int64 {
	if s.Incompat&incompat64Bit == 0 {
		return 32
	}
	return int64(s.DescSize)
}

// Flags of a group. Spec: Linux, Documentation/filesystems/ext4/group_descr.rst.
const (
	groupNoInodes = 0x1 // the inode table is not initialised: no inode is in use
	groupNoBlocks = 0x2 // the block bitmap is not initialised: only metadata blocks are in use
)

// group is the descriptor of a group.
type group struct {
	number      int64
	at          int64 // byte offset in the volume
	blockBitmap uint64
	inodeBitmap uint64
	inodeTable  uint64
	free        int64 // free blocks, or clusters with bigalloc
	flags       uint16
	unused      int64 // inodes at the end of the table that were never used
}

// group reads the descriptor of a group.
func (f *fileSystem) group(number int64) (*group, error) {
	g := &group{number: number, at: f.descriptor(number)}
	if g.at > f.volume.Size()-f.descSize {
		return nil, ondisk.Field("ext group descriptor", "place", g.at, g.at,
			fmt.Sprintf("less than %d", f.volume.Size()))
	}
	raw := make([]byte, f.descSize)
	if err := f.read(raw, g.at); err != nil {
		return nil, err
	}
	block := func(low int) uint64 {
		n := uint64(binary.LittleEndian.Uint32(raw[low:]))
		if f.descSize >= 64 {
			n |= uint64(binary.LittleEndian.Uint32(raw[0x20+low:])) << 32
		}
		return n
	}
	g.blockBitmap, g.inodeBitmap, g.inodeTable = block(0), block(4), block(8)
	g.free = int64(binary.LittleEndian.Uint16(raw[0x0c:]))
	if f.descSize >= 64 {
		g.free |= int64(binary.LittleEndian.Uint16(raw[0x2c:])) << 16
	}
	if f.super.ROCompat&(roCompatDescSum|roCompatMetaSum) == 0 {
		return g, nil
	}
	g.flags = binary.LittleEndian.Uint16(raw[0x12:])
	g.unused = int64(binary.LittleEndian.Uint16(raw[0x1c:]))
	if f.descSize >= 64 {
		g.unused |= int64(binary.LittleEndian.Uint16(raw[0x32:])) << 16
	}
	if g.flags&groupNoInodes != 0 {
		g.unused = int64(f.super.InodesPerGroup)
	}
	return g, nil
}

// tableBlocks returns the size of the inode table of a group, in blocks.
func (f *fileSystem) tableBlocks() int64 {
	return (int64(f.super.InodesPerGroup)*f.inodeSize + f.block - 1) / f.block
}

// tableOf returns the byte offset of the inode table of a group.
func (f *fileSystem) tableOf(g *group) (int64, error) {
	blocks := f.tableBlocks()
	if g.inodeTable > ondisk.U64(f.blocks) || !f.holds(ondisk.I64(g.inodeTable), blocks) {
		return 0, ondisk.Field("ext group descriptor", "inode table", g.at+8, g.inodeTable,
			fmt.Sprintf("%d blocks within %d", blocks, f.blocks))
	}
	return ondisk.I64(g.inodeTable) * f.block, nil
}

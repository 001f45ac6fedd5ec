package ext

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// Kinds of inodes, flags of them, and places of their fields. Spec: Linux, Documentation/filesystems/ext4/inodes.rst.
const (
	modeFolder  = 0x4000
	modeRegular = 0x8000
	modeLink    = 0xa000

	flagCompressed = 0x200 // by e2compr; 0x4 alone is a wish that ext4 does not fulfil
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
	at     int64 // byte of the volume
	raw    []byte
	size   int64 // of the file, in bytes
}

func (n *inode) kind() uint16     { return binary.LittleEndian.Uint16(n.raw) & 0xf000 }
func (n *inode) flags() uint32    { return binary.LittleEndian.Uint32(n.raw[0x20:]) }
func (n *inode) blockMap() []byte { return n.raw[atMap : atMap+mapSize] }

func (n *inode) what() string { return fmt.Sprintf("ext inode %d", n.number) }

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

// measure computes the size of the file. Folders have the upper half only with large_dir: before, it was another field.
func (f *fileSystem) measure(n *inode) error {
	size := uint64(binary.LittleEndian.Uint32(n.raw[4:]))
	if n.kind() == modeRegular || f.super.Incompat&incompatLargeDir != 0 {
		size |= uint64(binary.LittleEndian.Uint32(n.raw[0x6c:])) << 32
	}
	if most := ondisk.U64(f.block << 32); size > most { // numbers of the blocks of a file have 32 bits
		return ondisk.Field(n.what(), "size", n.at+4, size, fmt.Sprintf("at most %d", most))
	}
	n.size = ondisk.I64(size)
	return nil
}

// plain refuses an inode whose blocks are not the bytes of the file.
func (n *inode) plain() error {
	switch flags := n.flags(); {
	case flags&flagEncrypted != 0:
		return fmt.Errorf("%s is encrypted: %w", n.what(), ondisk.ErrUnsupported)
	case flags&flagCompressed != 0:
		return fmt.Errorf("%s is compressed: %w", n.what(), ondisk.ErrUnsupported)
	case flags&flagVerity != 0:
		return fmt.Errorf("%s is sealed by fs-verity: %w", n.what(), ondisk.ErrUnsupported)
	}
	return nil
}

// read fills b from the volume through the cache. It costs the budget even where the cache has it.
func (f *fileSystem) read(b []byte, off int64) error {
	if err := f.meter.Budget.Spend(int64(len(b))); err != nil {
		return err
	}
	return f.meter.Pages.Read(b, off)
}

// inodeTable returns the first byte of the inodes of a group.
func (f *fileSystem) inodeTable(group int64) (int64, error) {
	g, err := f.group(group)
	if err != nil {
		return 0, err
	}
	return f.tableOf(g)
}

// holds reports whether n blocks from one on can belong to files or tables: behind the superblock, and in the volume.
func (f *fileSystem) holds(block, n int64) bool {
	return block > int64(f.super.FirstDataBlock) && n <= f.blocks && block <= f.blocks-n
}

// descriptor returns the place of the descriptor of a group, in bytes of the volume. Spec: Linux, fs/ext4/super.c,
// descriptor_loc.
func (f *fileSystem) descriptor(group int64) int64 {
	per := f.block / f.descSize
	nr, super := group/per, superAt/f.block // the superblock's own block: 1 with blocks of 1 KiB
	block := super + 1 + nr
	if f.super.Incompat&incompatMetaBG != 0 && nr >= int64(f.super.FirstMetaGroup) {
		first := nr * per // the first group of those whose descriptors share a block
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

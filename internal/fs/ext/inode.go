package ext

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/guestfile"
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

// file finds where the bytes of an inode lie.
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
		return nil, ondisk.Field(n.what(), "size", n.at+4, n.size,
			fmt.Sprintf("at most the %d bytes in the inode", mapSize+size))
	}
	return append(runs, guestfile.Run{Off: mapSize, Len: size, At: n.at + off}), nil
}

// inlineRest finds the value of "system.data" in an inode; its size is 0 if absent.
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
	values := raw[start+4:] // the places of values count from here
	for e := values; len(e) >= head && binary.LittleEndian.Uint32(e) != 0; {
		name := int(e[0])
		if head+name > len(e) {
			break
		}
		at, n := int(binary.LittleEndian.Uint16(e[2:])), int64(binary.LittleEndian.Uint32(e[8:]))
		if e[1] == system && bytes.Equal(e[head:head+name], []byte("data")) {
			if int64(at)+n > int64(len(values)) || binary.LittleEndian.Uint32(e[4:]) != 0 {
				break // in another inode, or nowhere
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
		return "", ondisk.Field(n.what(), "size of a symbolic link", n.at+4, n.size, fmt.Sprintf("1 to %d", f.block-1))
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

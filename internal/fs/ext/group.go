package ext

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// Flags of a group. Spec: Linux, Documentation/filesystems/ext4/group_descr.rst.
const (
	groupNoInodes = 0x1 // its inodes are not initialised: none is in use
	groupNoBlocks = 0x2 // its bitmap of blocks is not: only what describes the file system is in use
)

// group is the descriptor of a group.
type group struct {
	number      int64
	at          int64 // byte of the volume
	blockBitmap uint64
	inodeBitmap uint64
	inodeTable  uint64
	free        int64 // blocks, or clusters of them
	flags       uint16
	unused      int64 // inodes at the end of the table that were never in use
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

// tableBlocks returns the size of the inodes of a group, in blocks.
func (f *fileSystem) tableBlocks() int64 {
	return (int64(f.super.InodesPerGroup)*f.inodeSize + f.block - 1) / f.block
}

// tableOf returns the first byte of the inodes of a group.
func (f *fileSystem) tableOf(g *group) (int64, error) {
	blocks := f.tableBlocks()
	if g.inodeTable > ondisk.U64(f.blocks) || !f.holds(ondisk.I64(g.inodeTable), blocks) {
		return 0, ondisk.Field("ext group descriptor", "inode table", g.at+8, g.inodeTable,
			fmt.Sprintf("%d blocks within %d", blocks, f.blocks))
	}
	return ondisk.I64(g.inodeTable) * f.block, nil
}

package ext

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// free finds the free space in the bitmaps of all groups.
func (f *fileSystem) free() (*guestfile.Free, error) {
	var out guestfile.FreeRuns
	for number := range f.groups {
		g, err := f.group(number)
		if err != nil {
			return nil, err
		}
		if err := f.freeOf(g, &out); err != nil {
			return nil, err
		}
	}
	return &out.Free, nil
}

// blocksOf returns the blocks of a group.
func (f *fileSystem) blocksOf(number int64) disk.Range {
	first := int64(f.super.FirstDataBlock) + number*int64(f.super.BlocksPerGroup)
	return disk.Range{Off: first, Len: min(int64(f.super.BlocksPerGroup), f.blocks-first)}
}

// unit returns the blocks that a bit of a bitmap is for.
func (f *fileSystem) unit() (int64, error) {
	switch s := f.super; {
	case s.ROCompat&roCompatBigalloc == 0:
		return 1, nil
	case s.LogClusterSize < s.LogBlockSize || s.LogClusterSize > 20:
		return 0, superField("log cluster size", 0x1c, s.LogClusterSize, fmt.Sprintf("%d to 20", s.LogBlockSize))
	default:
		return 1 << (s.LogClusterSize - s.LogBlockSize), nil
	}
}

// freeOf adds the free blocks of a group. A bit of its bitmap is a block, or a cluster of them.
func (f *fileSystem) freeOf(g *group, out *guestfile.FreeRuns) error {
	unit, err := f.unit()
	if err != nil {
		return err
	}
	blocks := f.blocksOf(g.number)
	bits := (blocks.Len + unit - 1) / unit
	if bits > 8*f.block {
		return superField("blocks per group", 0x20, f.super.BlocksPerGroup, fmt.Sprintf("at most %d", 8*f.block*unit))
	}
	if g.flags&groupNoBlocks != 0 {
		return f.freeOfNew(g, blocks, unit, out)
	}
	at, err := f.bitmap("block bitmap", g.at, g.blockBitmap)
	if err != nil {
		return err
	}
	raw := make([]byte, f.block)
	if err := f.read(raw, at*f.block); err != nil {
		return err
	}
	out.Bitmap(raw, bits, blocks.Off*f.block, unit*f.block)
	return nil
}

// bitmap returns the block of a bitmap, as the field of a group descriptor has it.
func (f *fileSystem) bitmap(field string, at int64, block uint64) (int64, error) {
	if block > ondisk.U64(f.blocks) || !f.holds(ondisk.I64(block), 1) {
		return 0, ondisk.Field("ext group descriptor", field, at, block, fmt.Sprintf("less than %d", f.blocks))
	}
	return ondisk.I64(block), nil
}

// freeOfNew adds the free blocks of a group without a bitmap: all but the superblock, the descriptors, and its own
// bitmaps and inodes where they lie within it. Spec: e2fsprogs, lib/ext2fs/rw_bitmaps.c, mark_uninit_bg_group_blocks.
func (f *fileSystem) freeOfNew(g *group, blocks disk.Range, unit int64, out *guestfile.FreeRuns) error {
	taken := []disk.Range{{Off: blocks.Off, Len: f.headBlocks(g.number)}}
	for _, r := range []struct {
		at uint64
		n  int64
	}{{g.blockBitmap, 1}, {g.inodeBitmap, 1}, {g.inodeTable, f.tableBlocks()}} {
		if r.at < ondisk.U64(f.blocks) {
			taken = append(taken, disk.Range{Off: ondisk.I64(r.at), Len: r.n})
		}
	}
	for i, r := range taken { // a cluster is in use as a whole
		taken[i].Off = units.AlignDown(r.Off, unit)
		taken[i].Len = units.AlignUp(r.End(), unit) - taken[i].Off
	}
	for _, r := range disk.Gaps(blocks, disk.Merge(taken)) {
		out.Add(disk.Range{Off: r.Off * f.block, Len: r.Len * f.block})
	}
	return nil
}

// headBlocks returns the blocks at the start of a group that have a copy of the superblock and of descriptors. Spec:
// e2fsprogs, lib/ext2fs/closefs.c, ext2fs_super_and_bgd_loc2.
func (f *fileSystem) headBlocks(number int64) int64 {
	n, per := int64(0), f.block/f.descSize
	if f.hasSuper(number) {
		n = 1
	}
	if f.super.Incompat&incompatMetaBG != 0 && number/per >= int64(f.super.FirstMetaGroup) {
		if in := number % per; in <= 1 || in == per-1 {
			n++
		}
		return n
	}
	if n > 0 && f.super.Incompat&incompatMetaBG != 0 {
		return n + int64(f.super.FirstMetaGroup)
	} else if n > 0 {
		n += (f.groups+per-1)/per + int64(f.super.ReservedDescs)
	}
	return n
}

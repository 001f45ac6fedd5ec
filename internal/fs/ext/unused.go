package ext

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Unused hands the free blocks of a volume to free, and then all that is in use to used, whose error ends the walk: the
// tables of the groups, and what the inodes map. The error is that of a volume whose bitmaps cannot be trusted. e2fsck
// checks the same: Spec: e2fsprogs, e2fsck/pass5.c, check_block_bitmaps and check_block_end.
func Unused(b *guestfile.Budget, volume disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error {
	f, err := openAsIs(b, volume)
	if err != nil {
		return err
	}
	if err := f.settled(); err != nil {
		return err
	}
	u := unused{fs: f, used: used}
	if err := u.groups(free); err != nil {
		return err
	}
	free.End()
	for number := range f.groups {
		if err := u.tables(number); err != nil {
			return err
		}
	}
	return nil
}

// settled refuses a volume of which the next mount, or e2fsck, may change the bitmaps.
func (f *fileSystem) settled() error {
	s := f.super
	switch {
	case f.fixed != nil: // a journal to replay, or unknown features
		return f.fixed
	case s.State&stateError != 0 || s.State&stateValid == 0:
		return superField("state", 0x3a, s.State, fmt.Sprintf("%d: unmounted, and without errors", stateValid))
	case s.LastOrphan != 0:
		return superField("last orphan", 0xe8, s.LastOrphan, "0: no file is to be deleted by the next mount")
	case s.ROCompat&roCompatOrphans != 0:
		return superField("features", 0x64, fmt.Sprintf("%#x", s.ROCompat), "no files that the next mount deletes")
	case f.groups > maxGroups:
		return fmt.Errorf("%s: %w of %d groups", what, ondisk.ErrLimit, maxGroups)
	}
	return nil
}

// unused finds what is free, and what is in use.
type unused struct {
	fs   *fileSystem
	used func(disk.Range) error
}

// groups adds the free blocks of all groups, and compares their number with those that the group and the superblock
// count.
func (u *unused) groups(free *guestfile.FreeRuns) error {
	unit, err := u.fs.unit()
	if err != nil {
		return err
	}
	for number := range u.fs.groups {
		g, err := u.fs.group(number)
		if err != nil {
			return err
		}
		before := free.Bytes
		if err := u.fs.freeOf(g, free); err != nil {
			return err
		}
		if got := (free.Bytes - before) / (unit * u.fs.block); got != g.free {
			return ondisk.Field("ext group descriptor", "free blocks", g.at+0x0c, g.free,
				fmt.Sprintf("%d, as many as its bitmap has", got))
		}
		if err := u.fs.padded(g, unit); err != nil {
			return err
		}
	}
	s := u.fs.super
	count := uint64(s.FreeBlocksLo)
	if s.Incompat&incompat64Bit != 0 {
		count |= uint64(s.FreeBlocksHi) << 32
	}
	if got := ondisk.U64(free.Bytes / u.fs.block); got != count {
		return superField("free blocks", 0x0c, count, fmt.Sprintf("%d, as many as the groups have", got))
	}
	return nil
}

// padded requires that the bits behind the blocks of a group are set.
func (f *fileSystem) padded(g *group, unit int64) error {
	if g.flags&groupNoBlocks != 0 {
		return nil
	}
	raw := make([]byte, f.block)
	if err := f.read(raw, ondisk.I64(g.blockBitmap)*f.block); err != nil {
		return err
	}
	var behind guestfile.FreeRuns
	bits := (f.blocksOf(g.number).Len + unit - 1) / unit
	for ; bits%8 != 0; bits++ {
		if raw[bits/8]>>(bits%8)&1 == 0 {
			behind.Bytes++
		}
	}
	behind.Bitmap(raw[bits/8:], 8*f.block-bits, 0, 1)
	if behind.Bytes > 0 {
		return ondisk.Field("ext block bitmap", "bits behind the group", ondisk.I64(g.blockBitmap)*f.block,
			fmt.Sprintf("%d of them clear", behind.Bytes), "all set")
	}
	return nil
}

// tables visits the tables of a group, and what its inodes map.
func (u *unused) tables(number int64) error {
	f := u.fs
	g, err := f.group(number)
	if err != nil {
		return err
	}
	table, err := f.tableOf(g)
	if err != nil {
		return err
	}
	blocks, err := f.bitmap("block bitmap", g.at, g.blockBitmap)
	if err != nil {
		return err
	}
	inodes, err := f.bitmap("inode bitmap", g.at+4, g.inodeBitmap)
	if err != nil {
		return err
	}
	for _, r := range []disk.Range{
		{Off: f.blocksOf(number).Off, Len: f.headBlocks(number)},
		{Off: blocks, Len: 1},
		{Off: inodes, Len: 1},
		{Off: table / f.block, Len: f.tableBlocks()},
	} {
		if err := u.blocks(r); err != nil {
			return err
		}
	}
	n := max(0, int64(f.super.InodesPerGroup)-g.unused)
	raw := make([]byte, stretch*f.inodeSize)
	for from := int64(0); from < n; from += stretch {
		part := raw[:min(stretch, n-from)*f.inodeSize]
		if err := f.read(part, table+from*f.inodeSize); err != nil {
			return err
		}
		for i := range int64(len(part)) / f.inodeSize {
			at := i * f.inodeSize
			n := &inode{
				number: number*int64(f.super.InodesPerGroup) + from + i + 1, at: table + from*f.inodeSize + at,
				raw: part[at : at+f.inodeSize],
			}
			if err := u.inode(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// blocks visits blocks.
func (u *unused) blocks(r disk.Range) error {
	return u.used(disk.Range{Off: r.Off * u.fs.block, Len: r.Len * u.fs.block})
}

// inode visits the blocks of an inode that is in use: those of its data, those that map them, and that of its extended
// attributes.
func (u *unused) inode(n *inode) error {
	if binary.LittleEndian.Uint16(n.raw[0x1a:]) == 0 { // no links
		return nil
	}
	attrs := int64(binary.LittleEndian.Uint32(n.raw[0x68:]))
	if u.fs.super.Incompat&incompat64Bit != 0 {
		attrs |= int64(binary.LittleEndian.Uint16(n.raw[0x76:])) << 32
	}
	if attrs != 0 {
		if !u.fs.holds(attrs, 1) {
			return ondisk.Field(fmt.Sprintf("ext inode %d", n.number), "block of extended attributes", n.at+0x68, attrs,
				fmt.Sprintf("less than %d", u.fs.blocks))
		}
		if err := u.blocks(disk.Range{Off: attrs, Len: 1}); err != nil {
			return err
		}
	}
	switch fast := int(binary.LittleEndian.Uint32(n.raw[4:])) < mapSize && n.flags()&flagExtents == 0; {
	case n.flags()&flagInline != 0:
		return nil
	case n.kind() != modeRegular && n.kind() != modeFolder && (n.kind() != modeLink || fast):
		return nil
	}
	var failed error
	m := &blockMap{fs: u.fs, inode: n, until: 1 << 32, seen: map[int64]bool{}, all: func(r guestfile.Run) {
		if failed == nil {
			failed = u.used(disk.Range{Off: r.At, Len: r.Len})
		}
	}}
	if err := m.walk(); err != nil || failed != nil {
		return cmp.Or(failed, err)
	}
	for _, at := range slices.Sorted(maps.Keys(m.seen)) {
		if err := u.blocks(disk.Range{Off: at, Len: 1}); err != nil {
			return err
		}
	}
	return nil
}

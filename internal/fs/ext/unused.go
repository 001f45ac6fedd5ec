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
	"github.com/trueup/trueup/internal/units"
)

// Unused passes the free blocks of a volume to free, and then every range in use to used: the tables of the groups and
// the blocks of the inodes. An error of used ends the walk. Unused returns an error if the bitmaps cannot be trusted,
// after the checks of e2fsck. Spec: e2fsprogs, e2fsck/pass5.c, check_block_bitmaps and check_block_end.
func Unused(b *guestfile.Budget, volume disk.Disk, free *guestfile.FreeRuns, used func(disk.Range) error) error {
	f, err := openAsIs(b, volume)
	if err != nil {
		return err
	}
	if err := f.requireClean(); err != nil {
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

// requireClean refuses a volume if the next mount, or e2fsck, may change the bitmaps.
func (f *fileSystem) requireClean() error {
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
		return fmt.Errorf("%s: %w of %d groups", superName, ondisk.ErrLimit, maxGroups)
	}
	return nil
}

// unused walks the free and used blocks of a volume.
type unused struct {
	fs   *fileSystem
	used func(disk.Range) error
}

// groups adds the free blocks of all groups, and compares their number with the counters of groups and superblock.
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

// padded requires that the bitmap bits past the end of a group are set.
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

// tables visits the tables of a group, and the blocks of its inodes.
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
	for from := int64(0); from < n; from += stretch {
		if err := f.inodes(number, disk.Range{Off: from, Len: min(stretch, n-from)}, u.inode); err != nil {
			return err
		}
	}
	return nil
}

// blocks visits a range of blocks.
func (u *unused) blocks(r disk.Range) error {
	return u.used(disk.Range{Off: r.Off * u.fs.block, Len: r.Len * u.fs.block})
}

// inode visits the blocks of an inode in use: its data blocks, its extent or indirect blocks, and its xattr block.
func (u *unused) inode(n *inode) error {
	if binary.LittleEndian.Uint16(n.raw[0x1a:]) == 0 { // no links
		return nil
	}
	if err := u.xattrs(n); err != nil {
		return err
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

// xattrs visits the block of the extended attributes of an inode.
func (u *unused) xattrs(n *inode) error {
	at := int64(binary.LittleEndian.Uint32(n.raw[0x68:]))
	if u.fs.super.Incompat&incompat64Bit != 0 {
		at |= int64(binary.LittleEndian.Uint16(n.raw[0x76:])) << 32
	}
	switch {
	case at == 0:
		return nil
	case !u.fs.holds(at, 1):
		return ondisk.Field(fmt.Sprintf("ext inode %d", n.number), "block of extended attributes", n.at+0x68, at,
			fmt.Sprintf("less than %d", u.fs.blocks))
	}
	return u.blocks(disk.Range{Off: at, Len: 1})
}

// freeInto adds the free space in the bitmaps of all groups.
func (f *fileSystem) freeInto(out *guestfile.FreeRuns) error {
	for number := range f.groups {
		g, err := f.group(number)
		if err != nil {
			return err
		}
		if err := f.freeOf(g, out); err != nil {
			return err
		}
	}
	return nil
}

// blocksOf returns the blocks of a group.
func (f *fileSystem) blocksOf(number int64) disk.Range {
	first := int64(f.super.FirstDataBlock) + number*int64(f.super.BlocksPerGroup)
	return disk.Range{Off: first, Len: min(int64(f.super.BlocksPerGroup), f.blocks-first)}
}

// unit returns the number of blocks per bit of a block bitmap.
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

// freeOf adds the free blocks of a group. A bit of its bitmap is a block, or a cluster with bigalloc.
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

// bitmap checks the block number of a bitmap in a group descriptor, and returns it.
func (f *fileSystem) bitmap(field string, at int64, block uint64) (int64, error) {
	if block > ondisk.U64(f.blocks) || !f.holds(ondisk.I64(block), 1) {
		return 0, ondisk.Field("ext group descriptor", field, at, block, fmt.Sprintf("less than %d", f.blocks))
	}
	return ondisk.I64(block), nil
}

// freeOfNew adds the free blocks of a group whose bitmap is not initialised. Its superblock and descriptors are in use,
// and its bitmaps and inode table if they lie in the group. Spec: e2fsprogs, lib/ext2fs/rw_bitmaps.c,
// mark_uninit_bg_group_blocks.
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
	for i, r := range taken { // clusters are allocated whole
		taken[i].Off = units.AlignDown(r.Off, unit)
		taken[i].Len = units.AlignUp(r.End(), unit) - taken[i].Off
	}
	for _, r := range disk.Gaps(blocks, disk.Merge(taken)) {
		out.Add(disk.Range{Off: r.Off * f.block, Len: r.Len * f.block})
	}
	return nil
}

// headBlocks returns the number of blocks at the start of a group for copies of the superblock and the descriptors.
// Spec: e2fsprogs, lib/ext2fs/closefs.c, ext2fs_super_and_bgd_loc2.
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

const (
	flagAttrValue = 0x200000 // the inode holds the value of an extended attribute

	firstInodeOld = 11 // first inode that is not reserved, in revision 0

	maxGroups = 1 << 20 // groups whose inodes are counted: 128 TiB in groups of the usual size
	stretch   = 256     // inodes per read, which a sample includes or skips together
)

// census counts the files of a volume.
type census struct {
	*guestfile.Census
	fs *fileSystem
}

// Fragments counts the files of a volume, after a replay of its journal.
func Fragments(c *guestfile.Census, volume disk.Disk) error {
	opened, err := Open(c.Budget, volume)
	if err != nil {
		return err
	}
	if r, ok := opened.(*Replayed); ok {
		opened = r.FS
	}
	w := &census{Census: c, fs: opened.(*fileSystem)} //nolint:forcetypeassert // Open returns no others
	if w.fs.groups > maxGroups {
		return fmt.Errorf("ext superblock: %w of %d groups", ondisk.ErrLimit, maxGroups)
	}
	if err := c.CountFree(w.fs.freeInto); err != nil {
		return err
	}
	return w.inodes()
}

// inodes counts the files of all groups.
func (w *census) inodes() error {
	var of int64
	used := make([]uint32, w.fs.groups) // inodes of each group that may be in use
	for number := range w.fs.groups {
		g, err := w.fs.group(number)
		if err != nil {
			return err
		}
		used[number] = ondisk.U32(max(0, int64(w.fs.super.InodesPerGroup)-g.unused))
		of += int64(used[number])
	}
	stride, turn := w.Stride(of), int64(0)
	for number, n := range used {
		for from := int64(0); from < int64(n); from += stretch {
			if turn++; (turn-1)%stride != 0 {
				continue
			}
			r := disk.Range{Off: from, Len: min(stretch, int64(n)-from)}
			if err := w.stretch(int64(number), r); err != nil && !w.Skip(err) {
				return w.End(err)
			}
		}
	}
	return nil
}

// stretch counts the files in a range of the inodes of a group.
func (w *census) stretch(number int64, r disk.Range) error {
	return w.fs.inodes(number, r, func(ino *inode) error {
		w.Looked++
		if !w.counts(ino) {
			return nil
		}
		if err := w.count(ino); err != nil && !w.Skip(err) {
			return err
		}
		return nil
	})
}

// inodes visits a range of the inodes of a group, after a single read.
func (f *fileSystem) inodes(group int64, r disk.Range, visit func(*inode) error) error {
	table, err := f.inodeTable(group)
	if err != nil {
		return err
	}
	at := table + r.Off*f.inodeSize
	raw := make([]byte, r.Len*f.inodeSize)
	if err := f.read(raw, at); err != nil {
		return err
	}
	first := group*int64(f.super.InodesPerGroup) + r.Off + 1
	for i := range r.Len {
		off := i * f.inodeSize
		if err := visit(&inode{number: first + i, at: at + off, raw: raw[off : off+f.inodeSize]}); err != nil {
			return err
		}
	}
	return nil
}

// counts reports whether an inode is a file or folder of the guest in use.
func (w *census) counts(n *inode) bool {
	kind, links := n.kind(), binary.LittleEndian.Uint16(n.raw[0x1a:])
	first := int64(firstInodeOld)
	if w.fs.super.Revision > 0 {
		first = int64(w.fs.super.FirstInode)
	}
	return (kind == modeRegular || kind == modeFolder) && links > 0 && n.flags()&flagAttrValue == 0 &&
		(n.number == rootInode || n.number >= first)
}

// count counts one file or folder.
func (w *census) count(n *inode) error {
	t := w.Begin()
	if n.flags()&flagInline == 0 {
		m := &blockMap{fs: w.fs, inode: n, until: 1 << 32, seen: map[int64]bool{}, all: t.Add}
		if err := m.walk(); err != nil {
			return err
		}
	}
	t.End(n.kind() == modeFolder)
	return nil
}

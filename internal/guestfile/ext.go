package guestfile

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// extSuper is the superblock, 1024 bytes into the volume. Spec: Linux, Documentation/filesystems/ext4/super.rst.
type extSuper struct {
	Inodes         uint32
	Blocks         uint32
	_              [12]byte
	FirstDataBlock uint32
	LogBlockSize   uint32 // 1024 << n bytes
	LogClusterSize uint32
	BlocksPerGroup uint32
	_              uint32
	InodesPerGroup uint32
	_              [12]byte
	Magic          uint16
	_              [18]byte
	Revision       uint32
	_              [8]byte
	InodeSize      uint16
	_              uint16
	Compat         uint32
	Incompat       uint32
	ROCompat       uint32
	_              [150]byte
	DescSize       uint16
	_              uint32
	FirstMetaGroup uint32
	_              [72]byte
	BlocksHi       uint32
	_              [248]byte
	BackupGroups   [2]uint32 // of sparse_super2
}

const (
	extWhat  = "ext superblock"
	extAt    = 1024
	extMagic = 0xef53

	extCompatSparse2 = 0x200

	extFiletype = 0x2
	extRecover  = 0x4
	extMetaBG   = 0x10
	ext64Bit    = 0x80
	extLargeDir = 0x4000
	// What does not hinder a reader, or is looked at where it matters: filetype, recovery, meta_bg, extents, 64bit, mmp, flex_bg,
	// ea_inode, csum_seed, large_dir, inline_data, encrypt, casefold. Not in it: compression (e2compr), dirdata (Lustre).
	extIncompat = extFiletype | extRecover | extMetaBG | 0x40 | ext64Bit | 0x100 | 0x200 | 0x400 | 0x2000 | extLargeDir | 0x8000 | 0x10000 | 0x20000

	extSparse = 0x1
	// What does not hinder a change of the bytes of a file: sparse_super, large_file, btree_dir, huge_file, gdt_csum, dir_nlink,
	// extra_isize, quota, bigalloc, metadata_csum, project, verity (a flag of each file), orphan_present. Not in it: snapshots,
	// shared_blocks, replica, readonly.
	extROCompat = extSparse | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x8000 | 0x10000
)

// extFS reads an ext2, ext3 or ext4.
type extFS struct {
	volume disk.Disk
	meter  *metered

	super     extSuper
	block     int64 // bytes
	blocks    int64
	groups    int64
	descSize  int64 // bytes
	inodeSize int64 // bytes
	fixed     error // why no file of this volume can be rewritten in place
}

// Ext reads the ext2, ext3 or ext4 of a partition.
func (b *Budget) Ext(volume disk.Disk) (FS, error) {
	if volume.Size() < extAt+1024 {
		return nil, ondisk.ErrNoMatch
	}
	f := &extFS{volume: volume, meter: &metered{volume, b}}
	s := &f.super
	if _, err := ondisk.Decode(volume, extAt, s); err != nil {
		return nil, err
	}
	if s.Magic != extMagic {
		return nil, ondisk.ErrNoMatch
	}
	if unknown := s.Incompat &^ extIncompat; unknown != 0 {
		return nil, fmt.Errorf("%s at %#x: incompatible features %#x: %w", extWhat, extAt+0x60, unknown, ondisk.ErrUnsupported)
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	f.restrict()
	return f, nil
}

func extField(name string, off int64, got, want any) error {
	return &ondisk.FormatError{What: extWhat, Off: extAt + off, Field: name, Got: got, Want: want}
}

// check holds the superblock to its specification and computes the sizes.
func (f *extFS) check() error {
	s := &f.super
	if s.LogBlockSize > 6 {
		return extField("log block size", 0x18, s.LogBlockSize, "0 to 6 (1 to 64 KiB)")
	}
	f.block, f.inodeSize, f.descSize = 1024<<s.LogBlockSize, 128, 32
	if s.Revision > 0 {
		f.inodeSize = int64(s.InodeSize)
	}
	blocks := uint64(s.Blocks)
	if s.Incompat&ext64Bit != 0 {
		blocks |= uint64(s.BlocksHi) << 32
		f.descSize = int64(s.DescSize)
	}
	switch {
	case f.inodeSize < 128 || f.inodeSize > f.block || !units.IsPowerOfTwo(f.inodeSize):
		return extField("inode size", 0x58, f.inodeSize, fmt.Sprintf("a power of two from 128 to %d", f.block))
	case f.descSize < 32 || f.descSize > 1024 || !units.IsPowerOfTwo(f.descSize):
		return extField("group descriptor size", 0xfe, f.descSize, "a power of two from 32 to 1024")
	case blocks == 0 || blocks > ondisk.U64(f.volume.Size()/f.block):
		return extField("block count", 0x04, blocks, fmt.Sprintf("1 to %d, the size of the partition", f.volume.Size()/f.block))
	}
	f.blocks = ondisk.I64(blocks)
	return f.checkGroups()
}

func (f *extFS) checkGroups() error {
	s := &f.super
	switch {
	case s.BlocksPerGroup == 0:
		return extField("blocks per group", 0x20, 0, "1 or more")
	case s.InodesPerGroup == 0 || int64(s.InodesPerGroup) > f.block*8:
		return extField("inodes per group", 0x28, s.InodesPerGroup, fmt.Sprintf("1 to %d", f.block*8))
	case s.FirstDataBlock > 1 || int64(s.FirstDataBlock) >= f.blocks:
		return extField("first data block", 0x14, s.FirstDataBlock, "0 or 1")
	}
	per := int64(s.BlocksPerGroup)
	f.groups = (f.blocks - int64(s.FirstDataBlock) + per - 1) / per
	// Linux holds it to that too: it ties the size of the groups to their number.
	if want := f.groups * int64(s.InodesPerGroup); int64(s.Inodes) != want {
		return extField("inode count", 0x00, s.Inodes, want)
	}
	return nil
}

// restrict finds what forbids to rewrite files in place.
func (f *extFS) restrict() {
	switch unknown := f.super.ROCompat &^ extROCompat; {
	case f.super.Incompat&extRecover != 0:
		f.fixed = fmt.Errorf("the journal of the ext file system must be replayed first: %w", ondisk.ErrUnsupported)
	case unknown != 0:
		f.fixed = fmt.Errorf("the ext file system has features %#x, with which it may only be read: %w", unknown, ondisk.ErrUnsupported)
	}
}

// Open finds a regular file, and follows symbolic links.
func (f *extFS) Open(path string) (*File, error) {
	stored, ino, err := f.find(path)
	if err != nil {
		return nil, fmt.Errorf("path %.256q: %w", path, err)
	}
	if ino.kind() != extRegular {
		return nil, fmt.Errorf("path %.256q: is not a regular file: %w", path, fs.ErrNotExist)
	}
	file, err := f.file(ino, stored)
	if err != nil {
		return nil, fmt.Errorf("path %.256q: %w", path, err)
	}
	return file, nil
}

// List gives the names of a folder. A symbolic link is no folder, whatever it means.
func (f *extFS) List(path string) ([]Entry, error) {
	_, ino, err := f.find(path)
	if err == nil && ino.kind() != extFolder {
		err = fmt.Errorf("is not a folder: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("path %.256q: %w", path, err)
	}
	var out []Entry
	err = f.each(ino, func(e extDirent) error {
		if len(out) == maxEntries {
			return fmt.Errorf("%w of %d names", ondisk.ErrLimit, maxEntries)
		}
		dir, err := f.isFolder(e)
		out = append(out, Entry{Name: string(e.name), Dir: dir})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("folder %.256q: %w", path, err)
	}
	return out, nil
}

// errFound ends the walk over a folder.
var errFound = errors.New("found")

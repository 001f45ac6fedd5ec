package ext

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

const (
	// Features that do not hinder a reader, or that it checks where they matter.
	incompatRead = incompatKnown &^ (incompatCompression | incompatJournal | incompatDirdata)
	// Features that do not hinder a change of the bytes of a file: sparse_super, large_file, btree_dir, huge_file,
	// gdt_csum, dir_nlink, extra_isize, quota, bigalloc, metadata_csum, project, verity (a flag of each file),
	// orphan_present. Not in it: snapshots, shared_blocks, replica, readonly.
	roCompatRewrite = roCompatSparse | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x8000 |
		0x10000
)

// fileSystem reads an ext2, ext3 or ext4.
type fileSystem struct {
	volume disk.Disk
	meter  guestfile.Metered

	super     *super
	block     int64 // bytes
	blocks    int64
	groups    int64
	descSize  int64 // bytes
	inodeSize int64 // bytes
	fixed     error // why no file of this volume can be rewritten in place
}

// Open opens the ext2, ext3 or ext4 of a partition. One with a journal to replay is a *Replayed.
func Open(b *guestfile.Budget, volume disk.Disk) (guestfile.FS, error) {
	f, err := openAsIs(b, volume)
	switch {
	case err != nil:
		return nil, err
	case f.super.Incompat&incompatRecover == 0:
		return f, nil
	}
	r, err := f.replayed(b)
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit) {
		f.fixed = err
		return &Replayed{FS: f, Before: f, Unread: err}, nil // a loader knows no journal
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// openAsIs opens a volume without regard to its journal.
func openAsIs(b *guestfile.Budget, volume disk.Disk) (*fileSystem, error) {
	s, err := readSuper(volume)
	if err != nil {
		return nil, err
	}
	if unknown := s.Incompat &^ incompatRead; unknown != 0 {
		return nil, fmt.Errorf("ext superblock at %#x: incompatible features %#x: %w",
			superAt+0x60, unknown, ondisk.ErrUnsupported)
	}
	f := &fileSystem{
		volume: volume, meter: b.Of(volume), super: s,
		block: s.blockSize(), blocks: s.blockCount(), inodeSize: s.inodeBytes(), descSize: s.descBytes(),
	}
	if err := f.checkGroups(); err != nil {
		return nil, err
	}
	f.restrict()
	return f, nil
}

// checkGroups verifies the groups as Linux does.
func (f *fileSystem) checkGroups() error {
	s := f.super
	switch {
	case int64(s.InodesPerGroup) > f.block*8:
		return superField("inodes per group", 0x28, s.InodesPerGroup, fmt.Sprintf("1 to %d", f.block*8))
	case s.FirstDataBlock > 1 || int64(s.FirstDataBlock) >= f.blocks:
		return superField("first data block", 0x14, s.FirstDataBlock, "0 or 1")
	}
	per := int64(s.BlocksPerGroup)
	f.groups = (f.blocks - int64(s.FirstDataBlock) + per - 1) / per
	// Linux checks this too, since it ties the size of the groups to their number.
	if want := f.groups * int64(s.InodesPerGroup); int64(s.Inodes) != want {
		return superField("inode count", 0x00, s.Inodes, want)
	}
	return nil
}

// restrict finds the reasons not to rewrite files in place.
func (f *fileSystem) restrict() {
	switch unknown := f.super.ROCompat &^ roCompatRewrite; {
	case f.super.Incompat&incompatRecover != 0:
		f.fixed = fmt.Errorf("the journal of the ext file system must be replayed first: %w", ondisk.ErrUnsupported)
	case unknown != 0:
		f.fixed = fmt.Errorf("the ext file system has features %#x, with which it may only be read: %w", unknown,
			ondisk.ErrUnsupported)
	}
}

// Open finds a regular file, and follows symbolic links.
func (f *fileSystem) Open(path string) (*guestfile.File, error) {
	stored, ino, err := f.find(path)
	if err != nil {
		return nil, fmt.Errorf("path %.256q: %w", path, err)
	}
	if ino.kind() != modeRegular {
		return nil, fmt.Errorf("path %.256q: is not a regular file: %w", path, fs.ErrNotExist)
	}
	file, err := f.file(ino, stored)
	if err != nil {
		return nil, fmt.Errorf("path %.256q: %w", path, err)
	}
	return file, nil
}

// List returns the names of a folder. A symbolic link is not a folder, whatever its target.
func (f *fileSystem) List(path string) ([]guestfile.Entry, error) {
	_, ino, err := f.find(path)
	if err == nil && ino.kind() != modeFolder {
		err = fmt.Errorf("is not a folder: %w", fs.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("path %.256q: %w", path, err)
	}
	var out []guestfile.Entry
	err = f.each(ino, func(e dirent) error {
		if len(out) == guestfile.MaxEntries {
			return fmt.Errorf("%w of %d names", ondisk.ErrLimit, guestfile.MaxEntries)
		}
		dir, err := f.isFolder(e)
		out = append(out, guestfile.Entry{Name: string(e.name), Dir: dir})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("folder %.256q: %w", path, err)
	}
	return out, nil
}

// errFound ends the walk over a folder.
var errFound = errors.New("found")

// Prober finds ext2, ext3 and ext4, and the journal of one on another device.
var Prober = volume.Prober{
	Kinds: []volume.Traits{
		{Kind: "ext"},
		{Kind: volume.Ext2},
		{Kind: volume.Ext3},
		{Kind: volume.Ext4},
		{Kind: volume.JBD, Title: "ext journal"},
	},
	Marks: []volume.Mark{{Off: superAt + 56, Bytes: "\x53\xef"}},
	Probe: probe,
}

func probe(d disk.Disk) (*volume.Volume, error) {
	s, err := readSuper(d)
	if err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: kind(s), Label: volume.Text(s.Label[:]), UUID: volume.UUID(s.UUID),
		BlockSize: s.blockSize(), Size: s.blockCount() * s.blockSize(),
	}
	if s.Incompat&incompatRecover != 0 {
		v.Note("ext-journal", ondisk.Note, "the ext journal has not been replayed: the guest was not shut down cleanly",
			"")
	}
	if v.Kind != volume.JBD && s.Compat&compatJournal == 0 && s.State&stateValid == 0 {
		v.Note("ext-dirty", ondisk.Note, "the ext file system was not unmounted cleanly", "")
	}
	if unknown := s.Incompat &^ incompatKnown; unknown != 0 {
		v.Note("ext-features", ondisk.Note,
			fmt.Sprintf("unknown incompatible ext features %#x: the volume moves as opaque bytes", unknown), "")
	}
	return v, nil
}

// kind follows the rule of libblkid: the features in use decide.
func kind(s *super) volume.Kind {
	switch {
	case s.journal():
		return volume.JBD
	case s.modern():
		return volume.Ext4
	case s.Compat&compatJournal != 0:
		return volume.Ext3
	default:
		return volume.Ext2
	}
}

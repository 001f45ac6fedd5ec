package ext

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

const (
	// Features that do not hinder a reader, or that it checks for each inode.
	incompatRead = incompatKnown &^ (incompatCompression | incompatJournal | incompatDirdata)
	// Features that do not hinder a change of the bytes of a file: sparse_super, large_file, btree_dir, huge_file,
	// gdt_csum, dir_nlink, extra_isize, quota, bigalloc, metadata_csum, project, verity (a flag of each file),
	// orphan_present. Excluded: snapshots, shared_blocks, replica, readonly.
	roCompatRewrite = roCompatSparse | 0x2 | 0x4 | 0x8 | 0x10 | 0x20 | 0x40 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x8000 |
		0x10000
)

// fileSystem reads an ext2, ext3 or ext4 file system.
type fileSystem struct {
	volume disk.Disk
	meter  guestfile.Metered

	super     *super
	block     int64 // bytes
	blocks    int64
	groups    int64
	descSize  int64 // bytes
	inodeSize int64 // bytes
	fixed     error // reason why no file of this volume can be rewritten in place
}

// Open opens the ext2, ext3 or ext4 file system of a partition. With a journal to replay, it returns a *Replayed.
func Open(b *guestfile.Budget, volume disk.Disk) (guestfile.FS, error) {
	f, err := openAsIs(b, volume)
	switch {
	case err != nil:
		return nil, err
	case f.super.Incompat&incompatRecover == 0:
		return f, nil
	}
	r, err := f.replayed(b)
	if ondisk.Understood(err) {
		f.fixed = err
		return &Replayed{FS: f, Before: f, Unread: err}, nil // a boot loader ignores the journal
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
		volume: volume, meter: b.Meter(volume), super: s,
		block: s.blockSize(), blocks: s.blockCount(), inodeSize: s.inodeBytes(), descSize: s.descBytes(),
	}
	if err := f.checkGroups(); err != nil {
		return nil, err
	}
	f.restrict()
	return f, nil
}

// checkGroups checks the groups as Linux does.
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

// restrict sets fixed, the reason not to rewrite files in place.
func (f *fileSystem) restrict() {
	switch unknown := f.super.ROCompat &^ roCompatRewrite; {
	case f.super.Incompat&incompatRecover != 0:
		f.fixed = fmt.Errorf("the journal of the ext file system must be replayed first: %w", ondisk.ErrUnsupported)
	case unknown != 0:
		f.fixed = fmt.Errorf("the ext file system has the read-only features %#x: %w", unknown,
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

// List returns the names of a folder. A symbolic link is listed as a file, even if its target is a folder.
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

// Prober detects ext2, ext3 and ext4, and external journals.
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
			fmt.Sprintf("the ext has unknown incompatible features %#x: it moves as opaque bytes", unknown), "")
	}
	return v, nil
}

// kind returns the kind of the volume by the rule of libblkid: the features in use decide.
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

// dirent is an entry of a folder. Spec: Linux, Documentation/filesystems/ext4/directory.rst.
type dirent struct {
	inode int64
	name  []byte // aliases the block buffer: do not keep it
	kind  byte   // 0 if unknown
}

const (
	direntHead = 8
	dirChunk   = 64 << 10 // bytes per read: the largest block
	kindFolder = 2
)

// each calls visit for the entries of a folder, except "." and "..". It reads all blocks in order, since the blocks of
// the hash tree look like free space.
func (f *fileSystem) each(n *inode, visit func(dirent) error) error {
	if n.flags()&flagInline != 0 {
		return f.inlineNames(n, visit)
	}
	file, err := f.file(n, "")
	if err != nil {
		return err
	}
	buf := make([]byte, min(dirChunk, n.size/f.block*f.block))
	for off := int64(0); off < n.size-n.size%f.block; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), n.size-off)]
		if err := f.meter.Budget.Spend(int64(len(buf))); err != nil {
			return err
		}
		if err := ondisk.ReadFull(file, buf, off); err != nil {
			return err
		}
		for b := int64(0); b+f.block <= int64(len(buf)); b += f.block {
			if err := f.names(n, buf[b:b+f.block], off+b, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// inlineNames reads a folder stored in its inode: four bytes of the parent, and entries in two parts.
func (f *fileSystem) inlineNames(n *inode, visit func(dirent) error) error {
	if err := f.names(n, n.blockMap()[4:], 4, visit); err != nil {
		return err
	}
	off, size := inlineRest(n.raw)
	return f.names(n, n.raw[off:off+size], mapSize, visit)
}

// names reads one block of a folder, at byte off of the folder.
func (f *fileSystem) names(n *inode, block []byte, off int64, visit func(dirent) error) error {
	for at := 0; at < len(block); {
		e := block[at:]
		if len(e) < direntHead {
			return badDirent(n, off+int64(at), "room for an entry", len(e), direntHead)
		}
		length, name := f.recordLen(e), int(e[6])
		kind := e[7]
		if f.super.Incompat&incompatFiletype == 0 {
			name, kind = name|int(kind)<<8, 0
		}
		switch {
		case length < direntHead+4 || length%4 != 0 || length > len(e):
			return badDirent(n, off+int64(at), "rec_len", length, fmt.Sprintf("a multiple of 4 from 12 to %d", len(e)))
		case direntHead+name > length:
			return badDirent(n, off+int64(at), "name_len", name, fmt.Sprintf("at most %d", length-direntHead))
		}
		at += length
		d := dirent{inode: int64(binary.LittleEndian.Uint32(e)), name: e[direntHead : direntHead+name], kind: kind}
		if d.inode == 0 || name == 0 || string(d.name) == "." || string(d.name) == ".." {
			continue
		}
		if err := visit(d); err != nil {
			return err
		}
	}
	return nil
}

// recordLen returns the length of an entry. The field cannot hold 64 KiB, so large blocks encode the length.
func (f *fileSystem) recordLen(e []byte) int {
	n := int(binary.LittleEndian.Uint16(e[4:]))
	switch {
	case f.block < 1<<16:
		return n
	case n == 0 || n == 65535:
		return 1 << 16
	}
	return n&^3 | n&3<<16
}

func badDirent(n *inode, off int64, field string, got, want any) error {
	return ondisk.Field(fmt.Sprintf("folder in ext inode %d", n.number), field, off, got, want)
}

// isFolder reports whether an entry is a folder. It reads the inode if the entry does not store the kind.
func (f *fileSystem) isFolder(e dirent) (bool, error) {
	if e.kind != 0 {
		return e.kind == kindFolder, nil
	}
	n, err := f.inode(e.inode)
	if err != nil && !errors.Is(err, ondisk.ErrUnsupported) {
		return false, err
	}
	return n != nil && n.kind() == modeFolder, nil
}

// lookup returns the inode number of a name in a folder, or 0 if the name is absent.
func (f *fileSystem) lookup(dir *inode, name string) (number int64, err error) {
	err = f.each(dir, func(e dirent) error {
		if string(e.name) == name {
			number = e.inode
			return errFound
		}
		return nil
	})
	switch {
	case errors.Is(err, errFound):
		return number, nil
	case err == nil && dir.flags()&flagCasefold != 0:
		return 0, fmt.Errorf("name %.256q in a folder that compares without case: %w", name, ondisk.ErrUnsupported)
	}
	return 0, err
}

// pathWalk is a walk along a path.
type pathWalk struct {
	fs    *fileSystem
	root  *inode
	names []string // from the root
	nodes []*inode // inodes of names
	rest  []string
	links int
}

// here returns the current inode of the walk.
func (w *pathWalk) here() *inode {
	if len(w.nodes) == 0 {
		return w.root
	}
	return w.nodes[len(w.nodes)-1]
}

// find follows a path and its symbolic links from the root. stored is the path without links.
func (f *fileSystem) find(path string) (stored string, n *inode, err error) {
	root, err := f.inode(rootInode)
	if err != nil {
		return "", nil, err
	}
	w := &pathWalk{fs: f, root: root, rest: guestfile.Elements(path)}
	for len(w.rest) > 0 {
		if w.here().kind() != modeFolder {
			return "", nil, fs.ErrNotExist
		}
		name := w.rest[0]
		w.rest = w.rest[1:]
		if err := w.step(name); err != nil {
			return "", nil, err
		}
	}
	return strings.Join(w.names, "/"), w.here(), nil
}

func (w *pathWalk) step(name string) error {
	switch k := len(w.names) - 1; {
	case name == "" || name == ".":
		return nil
	case name == "..":
		if k >= 0 {
			w.names, w.nodes = w.names[:k], w.nodes[:k]
		}
		return nil
	case len(w.names) == guestfile.MaxDepth:
		return fmt.Errorf("%w of %d folders", ondisk.ErrLimit, guestfile.MaxDepth)
	}
	number, err := w.fs.lookup(w.here(), name)
	if err != nil {
		return err
	}
	if number == 0 {
		return fs.ErrNotExist
	}
	n, err := w.fs.inode(number)
	if err != nil {
		return err
	}
	if n.kind() == modeLink {
		return w.follow(n)
	}
	w.names, w.nodes = append(w.names, name), append(w.nodes, n)
	return nil
}

// follow puts the target of a symbolic link in front of the rest of the path.
func (w *pathWalk) follow(n *inode) error {
	if w.links++; w.links > maxLinks {
		return fmt.Errorf("%w of %d symbolic links", ondisk.ErrLimit, maxLinks)
	}
	target, err := w.fs.target(n)
	if err != nil {
		return err
	}
	if strings.HasPrefix(target, "/") {
		w.names, w.nodes = nil, nil
	}
	w.rest = append(guestfile.Elements(target), w.rest...)
	return nil
}

// maxLinks bounds the symbolic links on one path.
const maxLinks = 8

package ext

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	flagAttrValue = 0x200000 // the inode holds the value of an extended attribute

	firstInodeOld = 11 // that is not reserved, in revision 0

	maxGroups = 1 << 20 // groups whose inodes are counted: 128 TiB in groups of the usual size
	stretch   = 256     // inodes that are read at once, and that a sample takes or leaves together
)

// census counts the files of a volume.
type census struct {
	*guestfile.Census
	fs *fileSystem
}

// Fragments counts the files of a volume, as the replay of its journal leaves them.
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
	used := make([]uint32, w.fs.groups) // inodes of each that may be in use
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

// stretch counts the files of a range of the inodes of a group.
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

// inodes visits a range of the inodes of a group. All are read at once.
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

// counts reports whether an inode is a file or a folder of the guest that is in use.
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

package ext

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	flagAttrValue = 0x200000 // the inode holds the value of an extended attribute

	firstInodeOld = 11 // that is not reserved, in revision 0

	maxGroups  = 1 << 20 // groups whose inodes are counted: 128 TiB in groups of the usual size
	maxFolders = 1 << 17 // folders in which names are looked for
	stretch    = 256     // inodes that are read at once, and that a sample takes or leaves together
)

// census counts the files of a volume.
type census struct {
	*guestfile.Census
	fs      *fileSystem
	folders []int64        // inodes
	wanted  map[int64]name // of the worst files, and of the folders above them
}

// name is a name of an inode, and the folder that has it.
type name struct {
	folder int64
	text   string
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
	if err := w.inodes(); err != nil {
		return err
	}
	return w.names()
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
			if err := w.stretch(int64(number), from, min(stretch, int64(n)-from)); err != nil && !w.Skip(err) {
				return w.End(err)
			}
		}
	}
	return nil
}

// stretch counts the files of n inodes of a group.
func (w *census) stretch(number, from, n int64) error {
	g, err := w.fs.group(number)
	if err != nil {
		return err
	}
	table, err := w.fs.tableOf(g)
	if err != nil {
		return err
	}
	return w.fs.inodes(number, table, disk.Range{Off: from, Len: n}, func(ino *inode) error {
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

// inodes visits a range of the inodes of a group, whose table lies at a byte of the volume. All are read at once.
func (f *fileSystem) inodes(group, table int64, r disk.Range, visit func(*inode) error) error {
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
	folder := n.kind() == modeFolder
	if folder && len(w.folders) < maxFolders {
		w.folders = append(w.folders, n.number)
	}
	t := w.Begin(n.number)
	if n.flags()&flagInline == 0 {
		m := &blockMap{fs: w.fs, inode: n, until: 1 << 32, seen: map[int64]bool{}, all: t.Add}
		if err := m.walk(); err != nil {
			return err
		}
	}
	t.End(folder)
	return nil
}

// names finds the paths of the worst files: in all folders the names of these files, and then those of the folders
// above them.
func (w *census) names() error {
	if len(w.Worst) == 0 {
		return nil
	}
	w.wanted = map[int64]name{}
	for _, f := range w.Worst {
		w.wanted[f.ID] = name{}
	}
	for _, number := range w.folders {
		if err := w.search(number); err != nil && !w.Broken(err) {
			return err
		}
	}
	return w.Paths(w.path)
}

// search looks in a folder for the names of inodes that are wanted and have none yet.
func (w *census) search(folder int64) error {
	n, err := w.fs.inode(folder)
	if err != nil {
		return err
	}
	return w.fs.each(n, func(e dirent) error {
		if known, ok := w.wanted[e.inode]; ok && known.text == "" {
			w.wanted[e.inode] = name{folder, string(e.name)}
		}
		return nil
	})
}

// path climbs from a file to the root; "" if a folder on the way is not found.
func (w *census) path(number int64) (string, error) {
	var names []string
	for number != rootInode {
		own := w.wanted[number]
		if own.text == "" || len(names) == guestfile.MaxDepth {
			return "", nil
		}
		names = append([]string{own.text}, names...)
		number = own.folder
		if err := w.above(number); err != nil {
			return "", err
		}
	}
	return strings.Join(names, "/"), nil
}

// above finds the name of a folder in the one above it.
func (w *census) above(folder int64) error {
	if own, ok := w.wanted[folder]; folder == rootInode || ok && own.text != "" {
		return nil
	}
	n, err := w.fs.inode(folder)
	if err != nil {
		return err
	}
	parent, err := w.fs.parent(n)
	if err != nil {
		return err
	}
	w.wanted[folder] = name{}
	return w.search(parent)
}

// parent returns the inode of the folder above one: ".." is its second name, or the first number of one in its inode.
func (f *fileSystem) parent(n *inode) (int64, error) {
	if n.flags()&flagInline != 0 {
		return int64(binary.LittleEndian.Uint32(n.blockMap())), nil
	}
	file, err := f.file(n, "")
	if err != nil {
		return 0, err
	}
	const second = 12 // "." takes so many bytes
	raw := make([]byte, direntHead+2)
	if n.size < second+int64(len(raw)) {
		return 0, badDirent(n, 0, "size", n.size, "room for two names")
	}
	if err := ondisk.ReadFull(file, raw, second); err != nil {
		return 0, err
	}
	if raw[6] != 2 || string(raw[direntHead:]) != ".." {
		return 0, badDirent(n, second, "second name", raw[direntHead:], "..")
	}
	return int64(binary.LittleEndian.Uint32(raw)), nil
}

package ext

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// dirent is a name in a folder. Spec: Linux, Documentation/filesystems/ext4/directory.rst.
type dirent struct {
	inode int64
	name  []byte // of the block that is being read: not to be kept
	kind  byte   // 0: not known
}

const (
	direntHead = 8
	dirChunk   = 64 << 10 // read at once: the largest block
	kindFolder = 2
)

// each calls visit for the names of a folder, without "." and "..". The blocks of the hash tree look like free space,
// so that all blocks are read in order.
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

// inlineNames reads a folder that lies in its inode: four bytes of the parent, and names in two parts.
func (f *fileSystem) inlineNames(n *inode, visit func(dirent) error) error {
	if err := f.names(n, n.blockMap()[4:], 4, visit); err != nil {
		return err
	}
	off, size := inlineRest(n.raw)
	return f.names(n, n.raw[off:off+size], mapSize, visit)
}

// names reads one block of a folder, which starts at byte off of it.
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

// recordLen returns the length of an entry. Its field cannot hold 64 KiB.
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

// isFolder reads the inode if the name does not have the kind.
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

// lookup finds a name in a folder; 0 if absent.
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
	nodes []*inode // of the names
	rest  []string
	links int
}

// here returns the inode that the walk has reached.
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

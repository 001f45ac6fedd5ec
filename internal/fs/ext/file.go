package ext

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// file finds where the bytes of an inode lie.
func (f *fileSystem) file(n *inode, path string) (*guestfile.File, error) {
	var runs []guestfile.Run
	var err error
	inline := n.flags()&flagInline != 0
	if inline {
		runs, err = f.inlineRuns(n)
	} else {
		runs, err = f.blockRuns(n)
	}
	if err != nil {
		return nil, err
	}
	file, err := guestfile.NewFile(f.volume, path, n.size, runs)
	if err != nil {
		return nil, err
	}
	file.Fixed = f.fixed
	if inline && file.Fixed == nil {
		file.Fixed = fmt.Errorf("its bytes lie within its inode: %w", ondisk.ErrUnsupported)
	}
	return file, nil
}

// inlineRuns finds the bytes of a small file within its inode: in place of the block map, and in the attribute
// "system.data". Spec: Linux, Documentation/filesystems/ext4/inlinedata.rst.
func (f *fileSystem) inlineRuns(n *inode) ([]guestfile.Run, error) {
	runs := []guestfile.Run{{Off: 0, Len: mapSize, At: n.at + atMap}}
	if n.size <= mapSize {
		return runs, nil
	}
	off, size := inlineRest(n.raw)
	if n.size > mapSize+size {
		return nil, ondisk.Field(n.what(), "size", n.at+4, n.size,
			fmt.Sprintf("at most the %d bytes in the inode", mapSize+size))
	}
	return append(runs, guestfile.Run{Off: mapSize, Len: size, At: n.at + off}), nil
}

// inlineRest finds the value of "system.data" in an inode; its size is 0 if absent.
// Spec: Linux, Documentation/filesystems/ext4/attributes.rst.
func inlineRest(raw []byte) (off, size int64) {
	const head, system = 16, 7
	if len(raw) < oldSize+4 {
		return 0, 0
	}
	start := oldSize + int(binary.LittleEndian.Uint16(raw[oldSize:]))
	if start+4 > len(raw) || binary.LittleEndian.Uint32(raw[start:]) != 0xea020000 {
		return 0, 0
	}
	values := raw[start+4:] // the places of values count from here
	for e := values; len(e) >= head && binary.LittleEndian.Uint32(e) != 0; {
		name := int(e[0])
		if head+name > len(e) {
			break
		}
		at, n := int(binary.LittleEndian.Uint16(e[2:])), int64(binary.LittleEndian.Uint32(e[8:]))
		if e[1] == system && bytes.Equal(e[head:head+name], []byte("data")) {
			if int64(at)+n > int64(len(values)) || binary.LittleEndian.Uint32(e[4:]) != 0 {
				break // in another inode, or nowhere
			}
			return int64(start + 4 + at), n
		}
		e = e[min(len(e), (head+name+3)&^3):]
	}
	return 0, 0
}

// target reads a symbolic link.
func (f *fileSystem) target(n *inode) (string, error) {
	if n.size == 0 || n.size >= f.block {
		return "", ondisk.Field(n.what(), "size of a symbolic link", n.at+4, n.size, fmt.Sprintf("1 to %d", f.block-1))
	}
	if n.size < mapSize && n.flags()&(flagInline|flagExtents) == 0 {
		return string(n.blockMap()[:n.size]), nil
	}
	file, err := f.file(n, "")
	if err != nil {
		return "", err
	}
	raw := make([]byte, n.size)
	if err := ondisk.ReadFull(file, raw, 0); err != nil {
		return "", err
	}
	return string(raw), nil
}

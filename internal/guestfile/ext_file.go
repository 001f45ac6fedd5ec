package guestfile

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// file finds where the bytes of an inode lie.
func (f *extFS) file(n *extInode, path string) (*File, error) {
	var runs []Run
	var err error
	inline := n.flags()&extFlagInline != 0
	if inline {
		runs, err = f.inlineRuns(n)
	} else {
		runs, err = f.blockRuns(n)
	}
	if err != nil {
		return nil, err
	}
	file, err := newFile(f.volume, path, n.size, runs)
	if err != nil {
		return nil, err
	}
	file.fixed = f.fixed
	if inline && file.fixed == nil {
		file.fixed = fmt.Errorf("its bytes lie within its inode: %w", ondisk.ErrUnsupported)
	}
	return file, nil
}

// inlineRuns finds the bytes of a small file within its inode: in place of the block map, and in the attribute "system.data".
// Spec: Linux, Documentation/filesystems/ext4/inlinedata.rst.
func (f *extFS) inlineRuns(n *extInode) ([]Run, error) {
	runs := []Run{{Off: 0, Len: extMapSize, At: n.at + extAtMap}}
	if n.size <= extMapSize {
		return runs, nil
	}
	off, size := extInlineRest(n.raw)
	if n.size > extMapSize+size {
		return nil, &ondisk.FormatError{What: n.what(), Off: n.at + 4, Field: "size", Got: n.size, Want: fmt.Sprintf("at most the %d bytes in the inode", extMapSize+size)}
	}
	return append(runs, Run{Off: extMapSize, Len: size, At: n.at + off}), nil
}

// extInlineRest finds the value of "system.data" in an inode; its size is 0 if absent.
// Spec: Linux, Documentation/filesystems/ext4/attributes.rst.
func extInlineRest(raw []byte) (off, size int64) {
	const head, system = 16, 7
	if len(raw) < extOldSize+4 {
		return 0, 0
	}
	start := extOldSize + int(binary.LittleEndian.Uint16(raw[extOldSize:]))
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
func (f *extFS) target(n *extInode) (string, error) {
	if n.size == 0 || n.size >= f.block {
		return "", &ondisk.FormatError{What: n.what(), Off: n.at + 4, Field: "size of a symbolic link", Got: n.size, Want: fmt.Sprintf("1 to %d", f.block-1)}
	}
	if n.size < extMapSize && n.flags()&(extFlagInline|extFlagExtents) == 0 {
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

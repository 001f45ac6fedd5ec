package filesystem

import (
	"crypto/md5"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// HFSPlus finds the file system of Mac OS since 8.1.
var HFSPlus = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.HFSPlus, Title: "HFS+"}},
	Marks: []volume.Mark{{Off: hfsAt, Bytes: "H+"}, {Off: hfsAt, Bytes: "HX"}, {Off: hfsAt, Bytes: "BD"}},
	Probe: probeHFSPlus,
}

// hfsPlusHeader is the volume header, 1024 bytes into the volume, big-endian. Spec: Apple, Technical Note TN1150,
// "Volume Header".
type hfsPlusHeader struct {
	Signature  [2]byte // "H+", or "HX" with names that keep their case apart
	Version    uint16
	Attributes uint32
	_          [32]byte
	BlockSize  uint32
	Blocks     uint32
	FreeBlocks uint32
	_          [52]byte
	FinderID   [8]byte
	_          [160]byte // forks of the allocation file and the extents file
	Catalog    hfsFork
}

// hfsFork is HFSPlusForkData.
type hfsFork struct {
	_       [16]byte // sizes
	Extents [8]struct{ Start, Blocks uint32 }
}

const (
	hfsPlusWhat     = "hfs+ volume header"
	hfsAt           = 1024
	hfsJournaled    = 1 << 13
	hfsUnmounted    = 1 << 8
	hfsInconsistent = 1 << 11
)

func probeHFSPlus(d disk.Disk) (*volume.Volume, error) {
	off, err := hfsWrapped(d)
	if err != nil {
		return nil, err
	}
	var h hfsPlusHeader
	if _, err := volume.Superblock(d, off+hfsAt, binary.BigEndian, &h); err != nil {
		return nil, err
	}
	if !h.mine() {
		return nil, ondisk.ErrNoMatch // two letters are too few
	}
	if err := h.check(off+hfsAt, d.Size()-off); err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.HFSPlus, UUID: hfsUUID(h.FinderID), BlockSize: int64(h.BlockSize),
		Size: off + int64(h.Blocks)*int64(h.BlockSize), DataStart: off,
	}
	h.describe(v)
	if v.Label, err = h.label(d, off); err != nil {
		return nil, err
	}
	return v, nil
}

func (h *hfsPlusHeader) mine() bool {
	s := string(h.Signature[:])
	return (s == "H+" && h.Version == 4) || (s == "HX" && h.Version == 5)
}

func (h *hfsPlusHeader) describe(v *volume.Volume) {
	if h.Version == 5 {
		v.Addf("variant", "HFSX")
	}
	if v.DataStart > 0 {
		v.Addf("wrapper", "HFS")
	}
	if h.Attributes&hfsJournaled != 0 {
		v.Addf("journal", "yes")
	}
	if h.Attributes&hfsUnmounted == 0 || h.Attributes&hfsInconsistent != 0 {
		v.Note("hfsplus-dirty", ondisk.Note, "HFS+ was not unmounted cleanly", "")
	}
}

// check verifies the header at a place. size is the size of the partition from the volume on, in bytes.
func (h *hfsPlusHeader) check(at, size int64) error {
	block := int64(h.BlockSize)
	if !volume.PowerBetween(block, 512, 1<<31) {
		return ondisk.Field(hfsPlusWhat, "block size", at+0x28, block, "a power of two from 512")
	}
	if err := volume.BlocksWithin(hfsPlusWhat, "total blocks", at+0x2c, uint64(h.Blocks), block, size); err != nil {
		return err
	}
	if h.FreeBlocks >= h.Blocks {
		return ondisk.Field(hfsPlusWhat, "free blocks", at+0x30, h.FreeBlocks, fmt.Sprintf("less than %d", h.Blocks))
	}
	return nil
}

// hfsNode is a node descriptor, and hfsTree the record of the header node behind it. Spec: TN1150, "B-Trees".
type hfsNode struct {
	_       [8]byte
	Kind    int8
	_       uint8
	Records uint16
	_       uint16
}

type hfsTree struct {
	hfsNode
	_         [10]byte
	FirstLeaf uint32
	_         uint32
	NodeSize  uint16
}

// hfsKey is the beginning of a key of the catalog: the folder that something is in, and its name, UTF-16.
type hfsKey struct {
	hfsNode
	_      uint16
	Parent uint32
	Length uint16
	Name   [512]byte
}

// label returns the name of the root folder, which is the first in the catalog: its parent has number 1. It is empty if
// the catalog cannot be read.
func (h *hfsPlusHeader) label(d disk.Disk, off int64) (string, error) {
	const leaf, parentOfRoot = -1, 1
	var t hfsTree
	if err := h.node(d, off, 0, 1, &t); err != nil {
		return "", ignoreNoMatch(err)
	}
	if !volume.PowerBetween(int64(t.NodeSize), 512, 32<<10) {
		return "", nil
	}
	var k hfsKey
	if err := h.node(d, off, int64(t.FirstLeaf), int64(t.NodeSize), &k); err != nil {
		return "", ignoreNoMatch(err)
	}
	if k.Kind != leaf || k.Records == 0 || k.Parent != parentOfRoot || k.Length > 255 {
		return "", nil
	}
	return ondisk.UTF16Z(k.Name[:2*k.Length], binary.BigEndian), nil
}

// node decodes the start of node n of the catalog.
func (h *hfsPlusHeader) node(d disk.Disk, off, n, size int64, v any) error {
	at, block := n*size, int64(h.BlockSize)
	for _, e := range h.Catalog.Extents {
		length := int64(e.Blocks) * block
		if at < length {
			_, err := volume.Superblock(d, off+int64(e.Start)*block+at, binary.BigEndian, v)
			return err
		}
		at -= length
	}
	return ondisk.ErrNoMatch
}

// hfsUUID derives a UUID from a 64-bit number as libblkid does: an MD5 in the name space of Apple, marked as version 3.
// It protects nothing.
func hfsUUID(id [8]byte) string {
	if id == [8]byte{} {
		return ""
	}
	space := []byte{0xb3, 0xe2, 0x0f, 0x39, 0xf2, 0x92, 0x11, 0xd6, 0x97, 0xa4, 0x00, 0x30, 0x65, 0x43, 0xec, 0xac}
	u := md5.Sum(append(space, id[:]...))
	u[6] = u[6]&0x0f | 0x30
	u[8] = u[8]&0x3f | 0x80
	return volume.UUID(u)
}

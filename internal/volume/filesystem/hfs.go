package filesystem

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// HFS finds the file system of Mac OS up to 8.0.
var HFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.HFS, Title: "HFS"}},
	Marks: []volume.Mark{{Off: hfsAt, Bytes: "BD"}},
	Probe: probeHFS,
}

// hfsBlock is the master directory block, 1024 bytes into the volume, big-endian. Spec: Apple, Inside Macintosh: Files,
// "Master Directory Blocks"; TN1150, "HFS Wrapper", for the embedded volume.
type hfsBlock struct {
	Signature   [2]byte // "BD"
	_           [12]byte
	BitmapBlock uint16 // always 3
	_           uint16
	Blocks      uint16
	BlockSize   uint32
	_           uint32
	FirstBlock  uint16 // in units of 512 bytes
	_           [6]byte
	LabelLength uint8
	Label       [27]byte
	_           [52]byte
	FinderID    [8]byte
	Embedded    [2]byte // "H+": this is a wrapper
	EmbedStart  uint16
	EmbedBlocks uint16
}

const (
	hfsWhat     = "hfs master directory block"
	hfsSector   = 512
	hfsTailSize = 2 * hfsSector // behind the blocks: a copy of the master directory block, and a reserved sector
)

func probeHFS(d disk.Disk) (*volume.Volume, error) {
	b, err := readHFS(d)
	if b != nil && b.wraps() {
		return nil, ondisk.ErrNoMatch // the volume inside counts
	}
	if err != nil {
		return nil, err
	}
	length := min(int(b.LabelLength), len(b.Label))
	v := &volume.Volume{
		Kind: volume.HFS, Label: volume.Label(b.Label[:length]), UUID: hfsUUID(b.FinderID),
		BlockSize: int64(b.BlockSize), DataStart: int64(b.FirstBlock) * hfsSector, Size: b.end() + hfsTailSize,
	}
	return v, nil
}

// readHFS reads a master directory block, and returns a broken one together with its error. Two letters are weak
// evidence, so that the constant in the middle must be there.
func readHFS(d disk.Disk) (*hfsBlock, error) {
	var b hfsBlock
	if _, err := volume.Superblock(d, hfsAt, binary.BigEndian, &b); err != nil {
		return nil, err
	}
	if string(b.Signature[:]) != "BD" || b.BitmapBlock != 3 {
		return nil, ondisk.ErrNoMatch
	}
	return &b, b.check(d.Size())
}

func (b *hfsBlock) wraps() bool {
	return string(b.Embedded[:]) == "H+" || string(b.Embedded[:]) == "HX"
}

func (b *hfsBlock) end() int64 {
	return int64(b.FirstBlock)*hfsSector + int64(b.Blocks)*int64(b.BlockSize)
}

// check bounds the areas. size is the size of the partition in bytes.
func (b *hfsBlock) check(size int64) error {
	block := int64(b.BlockSize)
	switch {
	case block == 0 || block%hfsSector != 0:
		return ondisk.Field(hfsWhat, "block size", hfsAt+0x14, block, "a multiple of 512")
	case b.FirstBlock <= b.BitmapBlock:
		return ondisk.Field(hfsWhat, "first block", hfsAt+0x1c, b.FirstBlock, "4 or more sectors")
	case b.Blocks == 0 || b.end() > size:
		return ondisk.Field(hfsWhat, "blocks", hfsAt+0x12, b.Blocks,
			fmt.Sprintf("1 to %d, the size of the partition", max(0, size-int64(b.FirstBlock)*hfsSector)/block))
	case b.wraps() && int(b.EmbedStart)+int(b.EmbedBlocks) > int(b.Blocks):
		return ondisk.Field(hfsWhat, "embedded volume", hfsAt+0x7e, fmt.Sprint(b.EmbedStart, b.EmbedBlocks),
			fmt.Sprintf("an end within %d blocks", b.Blocks))
	}
	return nil
}

// hfsWrapped returns the start of an HFS+ in the wrapper that old systems read; 0 without a wrapper.
func hfsWrapped(d disk.Disk) (int64, error) {
	b, err := readHFS(d)
	switch {
	case b == nil && err != nil:
		return 0, ignoreNoMatch(err)
	case !b.wraps():
		return 0, nil // HFS, or a broken one, is for its own prober
	case err != nil:
		return 0, err
	}
	return int64(b.FirstBlock)*hfsSector + int64(b.EmbedStart)*int64(b.BlockSize), nil
}

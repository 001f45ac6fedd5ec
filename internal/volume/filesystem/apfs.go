package filesystem

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// APFS finds the file system of macOS since 10.13.
var APFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.APFS, Title: "APFS"}},
	Marks: []volume.Mark{{Off: 32, Bytes: apfsMagic}},
	Probe: probeAPFS,
}

// apfsSuper is the superblock of a container, in its block 0. Spec: Apple File System Reference, nx_superblock_t behind
// obj_phys_t.
type apfsSuper struct {
	Checksum  uint64
	_         [2]uint64
	Type      uint32
	_         uint32
	Magic     [4]byte
	BlockSize uint32
	Blocks    uint64
	_         [2]uint64 // features
	Incompat  uint64
	UUID      [16]byte
}

const (
	apfsWhat   = "apfs container superblock"
	apfsMagic  = "NXSB"
	apfsFusion = 0x100
)

func probeAPFS(d disk.Disk) (*volume.Volume, error) {
	var s apfsSuper
	if _, err := volume.Superblock(d, 0, binary.LittleEndian, &s); err != nil {
		return nil, err
	}
	if string(s.Magic[:]) != apfsMagic {
		return nil, ondisk.ErrNoMatch
	}
	if err := s.check(d); err != nil {
		return nil, err
	}
	v := &volume.Volume{Kind: volume.APFS, UUID: volume.UUID(s.UUID), BlockSize: int64(s.BlockSize), Size: d.Size()}
	if s.Incompat&apfsFusion == 0 {
		v.Size = ondisk.I64(s.Blocks) * int64(s.BlockSize)
	} else {
		v.Note("apfs-fusion", ondisk.Note, "this is one of two devices of an APFS Fusion container: the "+
			"guest needs both", "")
	}
	return v, nil
}

func (s *apfsSuper) check(d disk.Disk) error {
	block := int64(s.BlockSize)
	if !volume.PowerBetween(block, 4096, 64<<10) {
		return ondisk.Field(apfsWhat, "block size", 0x24, block, "a power of two from 4096 to 65536")
	}
	if block > d.Size() {
		return ondisk.ErrNoMatch
	}
	b, err := ondisk.Bytes(d, 0, block)
	if err != nil {
		return err
	}
	if want := fletcher64(b[8:]); s.Checksum != want {
		return ondisk.Field(apfsWhat, "checksum", 0, volume.Hex(s.Checksum), volume.Hex(want))
	}
	if kind := s.Type & 0xffff; kind != 1 {
		return ondisk.Field(apfsWhat, "object type", 0x18, kind, "1, a container superblock")
	}
	if s.Incompat&apfsFusion != 0 { // it counts the blocks of both devices
		return nil
	}
	return volume.BlocksWithin(apfsWhat, "block count", 0x28, s.Blocks, block, d.Size())
}

// fletcher64 returns the checksum of an object. b is the object without the checksum. Spec: Apple File System
// Reference, "Objects".
func fletcher64(b []byte) uint64 {
	const mod = 1<<32 - 1
	var low, high uint64
	for ; len(b) >= 4; b = b[4:] {
		low = (low + uint64(binary.LittleEndian.Uint32(b))) % mod
		high = (high + low) % mod
	}
	first := mod - (low+high)%mod
	return (mod-(low+first)%mod)<<32 | first
}

package ext

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/trueup/trueup/internal/ondisk"
)

// header begins a block that describes others.
type header struct {
	Magic    uint32
	Type     uint32
	Sequence uint32 // of the transaction
}

// Types of blocks.
const (
	descriptor = 1
	commit     = 2
	superV1    = 3 // without features
	superV2    = 4
	revocation = 5
)

// superblock is the first block of a journal.
type superblock struct {
	header

	BlockSize    uint32
	Blocks       uint32
	First        uint32 // block of the log, behind the superblock
	Sequence     uint32 // of the first transaction
	Start        uint32 // block of that one; 0: nothing to replay
	Errno        uint32
	Compat       uint32
	Incompat     uint32
	ROCompat     uint32
	UUID         [16]byte
	_            [16]byte
	ChecksumType uint8 // 4: CRC-32C
	_            [171]byte
	Checksum     uint32
	_            [768]byte // users of an external journal
}

// Features.
const (
	incompatRevoke = 0x1
	journal64Bit   = 0x2
	incompatCsum2  = 0x8
	incompatCsum3  = 0x10
	// Not in it: asynchronous and fast commits, and all of Compat, checksums that only some kernels verify.
	journalKnown = incompatRevoke | journal64Bit | incompatCsum2 | incompatCsum3

	atSuperSum  = 0xfc // of Checksum
	crc32cType  = 4
	whatJournal = "ext journal superblock"
)

const magicLen = 4

var (
	magicBytes = bytes.NewReader(binary.BigEndian.AppendUint32(nil, Magic))
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// crc32c continues a sum without the final inversion, as Linux does.
func crc32c(sum uint32, b []byte) uint32 { return ^crc32.Update(^sum, castagnoli, b) }

// readSuper decodes and checks the superblock of a journal.
func readJournalSuper(src ondisk.Source, v Volume) (*superblock, error) {
	s := &superblock{}
	raw, err := ondisk.Bytes(src, 0, int64(binary.Size(s)))
	if err != nil {
		return nil, err
	}
	ondisk.MustFill(raw, binary.BigEndian, s)
	field := func(name string, off int64, got, want any) error {
		return ondisk.Field(whatJournal, name, off, got, want)
	}
	if s.Type == superV1 {
		s.Compat, s.Incompat, s.ROCompat = 0, 0, 0
	}
	switch blocks := src.Size() / v.Block; {
	case s.Magic != Magic:
		return nil, field("magic", 0, fmt.Sprintf("%#x", s.Magic), fmt.Sprintf("%#x", uint32(Magic)))
	case s.Type != superV1 && s.Type != superV2:
		return nil, field("type", 4, s.Type, "3 or 4")
	case int64(s.BlockSize) != v.Block:
		return nil, field("block size", 0x0c, s.BlockSize, v.Block)
	case int64(s.Blocks) > blocks:
		return nil, field("block count", 0x10, s.Blocks, fmt.Sprintf("at most %d, the size of the journal", blocks))
	case s.First == 0 || s.First >= s.Blocks:
		return nil, field("first block", 0x14, s.First, fmt.Sprintf("1 to %d", int64(s.Blocks)-1))
	case s.Start != 0 && (s.Start < s.First || s.Start >= s.Blocks):
		return nil, field("start", 0x1c, s.Start, fmt.Sprintf("0, or %d to %d", s.First, s.Blocks-1))
	}
	if s.Compat != 0 || s.Incompat&^journalKnown != 0 || s.ROCompat != 0 {
		return nil, fmt.Errorf("ext journal: features %#x, %#x, %#x: %w", s.Compat, s.Incompat, s.ROCompat,
			ondisk.ErrUnsupported)
	}
	return s, s.checkSum(raw)
}

// checkSum verifies the checksum of the superblock.
func (s *superblock) checkSum(raw []byte) error {
	switch {
	case !s.summed():
		return nil
	case s.Incompat&incompatCsum2 != 0 && s.Incompat&incompatCsum3 != 0:
		return ondisk.Field(whatJournal, "features", 0x28, fmt.Sprintf("%#x", s.Incompat),
			"checksums of version 2 or of version 3")
	case s.ChecksumType != crc32cType:
		return ondisk.Field(whatJournal, "checksum type", 0x50, s.ChecksumType, crc32cType)
	}
	if got := sumWithout(^uint32(0), raw, atSuperSum); got != s.Checksum {
		return ondisk.Field(whatJournal, "checksum", atSuperSum, fmt.Sprintf("%#x", s.Checksum),
			fmt.Sprintf("%#x", got))
	}
	return nil
}

// sumWithout sums a block with its own checksum, 4 bytes at off, as zeros.
func sumWithout(seed uint32, raw []byte, off int) uint32 {
	const size = 4
	seed = crc32c(seed, raw[:off])
	return crc32c(crc32c(seed, make([]byte, size)), raw[off+size:])
}

// summed reports whether the blocks of the journal have checksums.
func (s *superblock) summed() bool { return s.Incompat&(incompatCsum2|incompatCsum3) != 0 }

// tagBytes returns the length of a tag, without the UUID that can follow. Version 2 of the checksums counts two bytes
// too many. Spec: Linux, fs/jbd2/journal.c, journal_tag_bytes.
func (s *superblock) tagBytes() int {
	if s.Incompat&incompatCsum3 != 0 {
		return 16
	}
	n := 8
	if s.Incompat&incompatCsum2 != 0 {
		n += 2
	}
	if s.Incompat&journal64Bit != 0 {
		n += 4
	}
	return n
}

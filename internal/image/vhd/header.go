package vhd

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	headerCookie = "cxsparse"
	headerBytes  = 1024
)

// dynamicHeader describes the blocks of a dynamic or differencing disk. Spec: VHD 1.0, "Dynamic Disk Header Format".
type dynamicHeader struct {
	Cookie            [8]byte
	DataOffset        uint64 // unused, all ones
	TableOffset       uint64 // byte offset of the block allocation table
	HeaderVersion     uint32
	MaxTableEntries   uint32
	BlockSize         uint32 // bytes of data in a block, without its bitmap
	Checksum          uint32
	ParentUniqueID    [16]byte
	ParentTimeStamp   uint32
	_                 uint32
	ParentUnicodeName [512]byte // UTF-16, big-endian
	ParentLocators    [8]locator
	_                 [256]byte
}

// locator says where the name of the parent stands in the form of one platform.
type locator struct {
	PlatformCode       [4]byte
	PlatformDataSpace  uint32 // in sectors by the specification; Hyper-V writes bytes
	PlatformDataLength uint32 // bytes
	_                  uint32
	PlatformDataOffset uint64 // in the file
}

// Byte offsets of the fields that messages name.
const (
	atTableOffset = 16
	atHeaderVer   = 24
	atMaxEntries  = 28
	atBlockSize   = 32
	atHeaderSum   = 36
)

// Block sizes that are read, in bytes. The specification wants a power of two of sectors; 2 MiB is the size that all
// writes.
const (
	minBlock     = 4 << 10
	maxBlock     = 256 << 20
	defaultBlock = 2 << 20
)

// headerFault returns an error of the header that lies at off.
func headerFault(off int64, field string, at int64, got, want any) error {
	return ondisk.Field("vhd dynamic header", field, off+at, got, want)
}

// readHeader reads the header that f leads to and checks all that does not need the table.
func readHeader(src driver.File, f *footer) (*dynamicHeader, int64, error) {
	if f.DataOffset < footerBytes || f.DataOffset > ondisk.U64(f.end) || f.end-ondisk.I64(f.DataOffset) < headerBytes {
		return nil, 0, f.fault("data offset", atDataOffset, f.DataOffset,
			fmt.Sprintf("a place of the dynamic header, %d bytes, behind the copy of the footer and in front of byte "+
				"%d", headerBytes, f.end))
	}
	off := ondisk.I64(f.DataOffset)
	b, err := ondisk.Bytes(src, off, headerBytes)
	if err != nil {
		return nil, 0, err
	}
	h := &dynamicHeader{}
	if _, err := binary.Decode(b, binary.BigEndian, h); err != nil {
		return nil, 0, fmt.Errorf("decode vhd dynamic header: %w", err) // our own bug: both have 1024 bytes
	}
	sum := checksum(b, atHeaderSum)
	switch {
	case string(h.Cookie[:]) != headerCookie:
		err = headerFault(off, "cookie", 0, string(h.Cookie[:]), fmt.Sprintf("%q", headerCookie))
	case h.Checksum != sum:
		err = headerFault(off, "checksum", atHeaderSum, fmt.Sprintf("%#x", h.Checksum), fmt.Sprintf("%#x", sum))
	case h.HeaderVersion>>16 != version1>>16:
		err = fmt.Errorf("vhd dynamic header at %#x: header version %#x: %w, known is %#x", off+atHeaderVer,
			h.HeaderVersion, ondisk.ErrUnsupported, version1)
	case h.BlockSize < minBlock || h.BlockSize > maxBlock || !units.IsPowerOfTwo(int64(h.BlockSize)):
		err = headerFault(off, "block size", atBlockSize, h.BlockSize,
			fmt.Sprintf("a power of two from %d to %d bytes", minBlock, maxBlock))
	}
	return h, off, err
}

// checkTable makes sure that the table holds all blocks of the disk and lies inside the file, apart from header and
// footers. Its size bounds that of the disk by the file's.
func (h *dynamicHeader) checkTable(f *footer, off int64) error {
	blocks := (f.size()-1)/int64(h.BlockSize) + 1
	if blocks > int64(h.MaxTableEntries) {
		return headerFault(off, "max table entries", atMaxEntries, h.MaxTableEntries,
			fmt.Sprintf("at least %d, the blocks of a disk of %d bytes", blocks, f.size()))
	}
	n := 4 * int64(h.MaxTableEntries)
	if h.TableOffset < footerBytes || h.TableOffset > ondisk.U64(f.end) || n > f.end-ondisk.I64(h.TableOffset) {
		return headerFault(off, "table offset", atTableOffset, h.TableOffset,
			fmt.Sprintf("a place for %d entries of 4 bytes behind the copy of the footer and in front of byte %d",
				h.MaxTableEntries, f.end))
	}
	if (disk.Range{Off: off, Len: headerBytes}).Overlaps(disk.Range{Off: ondisk.I64(h.TableOffset), Len: n}) {
		return headerFault(off, "table offset", atTableOffset, h.TableOffset,
			fmt.Sprintf("a place apart from the dynamic header at %#x", off))
	}
	return nil
}

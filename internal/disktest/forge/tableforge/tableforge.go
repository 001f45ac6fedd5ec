// Package tableforge forges partition tables and disklabels.
package tableforge

import (
	"encoding/binary"
	"hash/crc32"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Offsets in sector 0. Spec: IBM PC XT fixed disk; the signature is that of Windows NT.
const (
	MBRSignature = 0x1b8
	MBREntries   = 446
	MBREntry     = 16
	MBRMagic     = 510
)

// Slot is one slot of a partition table. Its CHS bytes mean "beyond CHS".
type Slot struct {
	Flag, Type     byte
	Start, Sectors uint32
}

// NewMBR returns a disk of this many sectors with a partition table.
func NewMBR(sectors int, entries ...Slot) forge.Bytes {
	f := make(forge.Bytes, sectors*512)
	f.U32(MBRSignature, 0x1b2c3d4e)
	f.U16(MBRMagic, 0xaa55)
	for i, e := range entries {
		PutSlot(f, 0, i, e)
	}
	return f
}

// PutSlot fills a slot of the table or the extended boot record in the sector at LBA lba.
func PutSlot(f forge.Bytes, lba int64, slot int, e Slot) {
	at := lba*512 + MBREntries + int64(slot)*MBREntry
	f.U8(at, e.Flag)
	f.Put(at+1, []byte{0xfe, 0xff, 0xff})
	f.U8(at+4, e.Type)
	f.Put(at+5, []byte{0xfe, 0xff, 0xff})
	f.U32(at+8, e.Start)
	f.U32(at+12, e.Sectors)
	f.U16(lba*512+MBRMagic, 0xaa55)
}

// PutEBR writes an extended boot record: a logical partition that counts from the record, and a link that counts from
// the extended partition. A link without sectors ends the chain.
func PutEBR(f forge.Bytes, lba int64, logical, link Slot) {
	PutSlot(f, lba, 0, logical)
	PutSlot(f, lba, 1, link)
}

// GPTEntry is one partition of a GPT.
type GPTEntry struct {
	First, Last uint64
	Name        string
}

// Places in a GPT header. Spec: UEFI 2.10, 5.3.2.
const (
	GPTHeaderSize   = 12
	GPTHeaderCRC    = 16
	GPTMyLBA        = 24
	GPTAltLBA       = 32
	GPTFirstUsable  = 40
	GPTLastUsable   = 48
	GPTDiskGUID     = 56
	GPTEntriesLBA   = 72
	GPTNumEntries   = 80
	GPTEntrySize    = 84
	GPTEntriesCRC   = 88
	gptEntrySize    = 128
	gptHeaderLength = 92
)

// gptBasicData is the type "Microsoft basic data", ebd0a0a2-b9e5-4433-87c0-68b6b72699c7, in its encoding on disk.
var gptBasicData = []byte{
	0xa2, 0xa0, 0xd0, 0xeb, 0xe5, 0xb9, 0x33, 0x44, 0x87, 0xc0, 0x68, 0xb6, 0xb7, 0x26, 0x99, 0xc7,
}

// NewGPT returns a disk with this many sectors of a size, a protective MBR and both copies of a table with slots
// entries.
func NewGPT(sector int64, sectors, slots int64, entries ...GPTEntry) forge.Bytes {
	f := make(forge.Bytes, sectors*sector)
	PutSlot(f, 0, 0, Slot{Type: 0xee, Start: 1, Sectors: uint32(sectors - 1)})
	array := (slots*gptEntrySize + sector - 1) / sector
	for _, c := range []struct{ header, alt, entries int64 }{
		{1, sectors - 1, 2},
		{sectors - 1, 1, sectors - 1 - array},
	} {
		for i, e := range entries {
			at := c.entries*sector + int64(i)*gptEntrySize
			f.Put(at, gptBasicData)
			f.Text(at+16, "one partition 00")
			f.U16(at+30, uint16(i))
			f.U64(at+32, e.First)
			f.U64(at+40, e.Last)
			for j, u := range utf16.Encode([]rune(e.Name)) {
				f.U16(at+56+2*int64(j), u)
			}
		}
		at := c.header * sector
		f.Text(at, "EFI PART")
		f.U32(at+8, 0x10000)
		f.U32(at+GPTHeaderSize, gptHeaderLength)
		f.U64(at+GPTMyLBA, uint64(c.header))
		f.U64(at+GPTAltLBA, uint64(c.alt))
		f.U64(at+GPTFirstUsable, uint64(2+array))
		f.U64(at+GPTLastUsable, uint64(sectors-2-array))
		f.Text(at+GPTDiskGUID, "trueup test disk")
		f.U64(at+GPTEntriesLBA, uint64(c.entries))
		f.U32(at+GPTNumEntries, uint32(slots))
		f.U32(at+GPTEntrySize, gptEntrySize)
		SealGPT(f, at, sector)
	}
	return f
}

// SealGPT updates both checksums of the header at a byte offset, as far as the fields are within the image: a wrong
// checksum would hide the effect of a changed field.
func SealGPT(f forge.Bytes, at, sector int64) {
	if at < 0 || at+gptHeaderLength > int64(len(f)) {
		return
	}
	h := f[at:]
	entries := binary.LittleEndian.Uint64(h[GPTEntriesLBA:])
	size := uint64(binary.LittleEndian.Uint32(h[GPTNumEntries:])) * uint64(binary.LittleEndian.Uint32(h[GPTEntrySize:]))
	if entries < uint64(len(f)) && size < uint64(len(f)) {
		if from := entries * uint64(sector); from+size <= uint64(len(f)) {
			f.U32(at+GPTEntriesCRC, crc32.ChecksumIEEE(f[from:from+size]))
		}
	}
	length := int64(binary.LittleEndian.Uint32(h[GPTHeaderSize:]))
	if length < gptHeaderLength || at+length > int64(len(f)) {
		length = gptHeaderLength
	}
	f.U32(at+GPTHeaderCRC, 0)
	f.U32(at+GPTHeaderCRC, crc32.ChecksumIEEE(h[:length]))
}

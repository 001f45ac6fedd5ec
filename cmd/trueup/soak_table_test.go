package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The tables of random disks are written here, since no tool writes chains in another order than that of the disk, or
// disks of 4096-byte sectors. The tools read them before trueup does.

// writeMBR writes sector 0 and the chain of extended boot records.
func (d *soakDisk) writeMBR(t testing.TB, raw string) {
	t.Helper()
	sector := make([]byte, sectorSize)
	switch d.bootCode {
	case "lba":
		copy(sector, lbaBootCode(t))
	case "chs":
		copy(sector, chsBootCode(t))
	}
	signature, err := hex.DecodeString(strings.TrimPrefix(diskSignature, "0x"))
	require.NoError(t, err)
	binary.LittleEndian.PutUint32(sector[440:], binary.BigEndian.Uint32(signature))
	for _, p := range d.parts {
		if p.kind == "logical" {
			continue
		}
		entry := sector[mbrEntryAt+(p.number-1)*mbrEntrySize:]
		d.putEntry(entry, p.typeByte(t), p.start, p.sectors, p.start)
		if p.active {
			entry[0] = 0x80
		}
		if p.kind == "extended" {
			d.writeChain(t, raw, p)
		}
	}
	binary.LittleEndian.PutUint16(sector[mbrSignatureAt:], 0xaa55)
	disktest.WriteAt(t, raw, 0, sector)
}

func (p *soakPart) typeByte(t testing.TB) byte {
	t.Helper()
	typ, err := strconv.ParseUint(p.typ, 16, 8)
	require.NoError(t, err)
	return byte(typ)
}

// writeChain writes one record for each logical partition; of none, the record is there and empty. An entry of a record
// counts from that record, a link from the start of the extended partition, and its size is that of the record and its
// partition.
func (d *soakDisk) writeChain(t testing.TB, raw string, box *soakPart) {
	t.Helper()
	place := box.start
	for i := range max(1, len(d.chain)) {
		record := make([]byte, sectorSize)
		if i < len(d.chain) {
			p := d.chain[i]
			place = p.record
			d.putEntry(record[mbrEntryAt:], p.typeByte(t), p.start, p.sectors, p.start-p.record)
		}
		if i+1 < len(d.chain) {
			next := d.chain[i+1]
			d.putEntry(record[mbrEntryAt+mbrEntrySize:], 0x05, next.record, next.end()-next.record,
				next.record-box.start)
		}
		binary.LittleEndian.PutUint16(record[mbrSignatureAt:], 0xaa55)
		disktest.WriteAt(t, raw, place*d.sector, record)
	}
}

// putEntry writes an entry: start is where it lies on the disk, and lba what the entry says about it.
func (d *soakDisk) putEntry(entry []byte, typ byte, start, sectors, lba int64) {
	copy(entry[1:], d.chs(start))
	entry[4] = typ
	copy(entry[5:], d.chs(start+sectors-1))
	binary.LittleEndian.PutUint32(entry[8:], uint32(lba))
	binary.LittleEndian.PutUint32(entry[12:], uint32(sectors))
}

// chs are the CHS bytes of a sector.
func (d *soakDisk) chs(lba int64) []byte {
	track := lba / soakTrack
	cyl := track / d.heads
	if cyl > 1023 {
		return []byte{0xfe, 0xff, 0xff}
	}
	return []byte{byte(track % d.heads), byte(lba%soakTrack+1) | byte(cyl>>8<<6), byte(cyl)}
}

// gptHead is the header of a GPT. Spec: UEFI 2.10, table 5.5.
type gptHead struct {
	Signature               [8]byte
	Revision, HeaderSize    uint32
	CRC, _                  uint32
	My, Alternate           uint64
	FirstUsable, LastUsable uint64
	Disk                    [16]byte
	Entries                 uint64
	NumEntries, EntrySize   uint32
	EntriesCRC              uint32
}

// writeGPT writes the protective MBR and both tables.
func (d *soakDisk) writeGPT(t testing.TB, raw string) {
	t.Helper()
	protective := make([]byte, sectorSize)
	copy(protective[mbrEntryAt:], []byte{0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff})
	binary.LittleEndian.PutUint32(protective[mbrEntryAt+8:], 1)
	binary.LittleEndian.PutUint32(protective[mbrEntryAt+12:], uint32(d.sectors-1))
	binary.LittleEndian.PutUint16(protective[mbrSignatureAt:], 0xaa55)
	disktest.WriteAt(t, raw, 0, protective)

	entries := make([]byte, soakEntries*gptEntry)
	for _, p := range d.parts {
		p.putGPT(t, entries[(p.number-1)*gptEntry:])
	}
	last := d.sectors - 1
	head := gptHead{
		Revision: 1 << 16, HeaderSize: 92, My: 1, Alternate: uint64(last), Entries: 2,
		FirstUsable: uint64(1 + d.tableSectors()), LastUsable: uint64(last - d.tableSectors()),
		NumEntries: soakEntries, EntrySize: gptEntry, EntriesCRC: crc32.ChecksumIEEE(entries),
	}
	copy(head.Signature[:], "EFI PART")
	copy(head.Disk[:], guidBytes(t, soakDiskGUID))
	disktest.WriteAt(t, raw, d.sector, gptHeader(t, head))
	disktest.WriteAt(t, raw, 2*d.sector, entries)
	head.My, head.Alternate, head.Entries = head.Alternate, head.My, head.LastUsable+1
	disktest.WriteAt(t, raw, last*d.sector, gptHeader(t, head))
	disktest.WriteAt(t, raw, int64(head.Entries)*d.sector, entries)
}

// soakDiskGUID is the same in all disks.
const soakDiskGUID = "1B2C3D4E-5F60-4718-8293-A4B5C6D7E8F9"

func gptHeader(t testing.TB, head gptHead) []byte {
	t.Helper()
	data := make([]byte, head.HeaderSize)
	_, err := binary.Encode(data, binary.LittleEndian, &head)
	require.NoError(t, err)
	binary.LittleEndian.PutUint32(data[16:], crc32.ChecksumIEEE(data))
	return data
}

func (p *soakPart) putGPT(t testing.TB, entry []byte) {
	t.Helper()
	copy(entry, guidBytes(t, p.typ))
	copy(entry[16:], guidBytes(t, p.guid))
	binary.LittleEndian.PutUint64(entry[32:], uint64(p.start))
	binary.LittleEndian.PutUint64(entry[40:], uint64(p.end()-1))
	binary.LittleEndian.PutUint64(entry[48:], p.attributes)
	for i, u := range utf16.Encode([]rune(p.name)) {
		binary.LittleEndian.PutUint16(entry[56+2*i:], u)
	}
}

// guidBytes is the form on disk: the first three fields are little-endian.
func guidBytes(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	require.NoError(t, err)
	return []byte{b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]}
}

// wantTable is what a tool has to read from the disk when partitions start where starts says.
func (d *soakDisk) wantTable(starts map[int]int64) map[int]soakEntry {
	entries := map[int]soakEntry{}
	for _, p := range d.parts {
		e := soakEntry{
			start: starts[p.number], sectors: p.sectors, typ: p.typ, active: p.active, guid: p.guid, name: p.name,
		}
		if d.gpt {
			e.attributes = fmt.Sprintf("%016X", p.attributes)
		}
		entries[p.number] = e
	}
	return entries
}

// starts are those of the source.
func (d *soakDisk) starts() map[int]int64 {
	starts := map[int]int64{}
	for _, p := range d.parts {
		starts[p.number] = p.start
	}
	return starts
}

package vhdx

import (
	"encoding/binary"
	"math"

	"github.com/trueup/trueup/internal/ondisk"
)

// entryHeader begins a log entry. Spec: 2.3.1.1.
type entryHeader struct {
	Signature         [4]byte // "loge"
	Checksum          uint32
	EntryLength       uint32 // bytes
	Tail              uint32 // where the sequence begins that ends with this entry, from the start of the log
	SequenceNumber    uint64
	DescriptorCount   uint32
	_                 uint32
	LogGUID           ondisk.GUID
	FlushedFileOffset uint64 // bytes that the file had at least
	LastFileOffset    uint64 // bytes that the file must have
}

// anyDescriptor is a zero descriptor (2.3.1.2) or a data descriptor (2.3.1.3).
type anyDescriptor struct {
	Signature      [4]byte // "zero" or "desc"
	TrailingBytes  [4]byte
	Leading        [8]byte // of a data sector; the length of a zero descriptor
	FileOffset     uint64
	SequenceNumber uint64
}

// plausible looks at the fields of a header that can be wrong without its checksum being wrong.
func (e *entryHeader) plausible(j *journal) bool {
	return string(e.Signature[:]) == "loge" && e.LogGUID == j.guid && e.SequenceNumber > 0 &&
		e.SequenceNumber < math.MaxUint64 &&
		e.EntryLength > 0 && e.EntryLength%sectorSize == 0 && int64(e.EntryLength) <= j.size &&
		e.Tail%sectorSize == 0 && int64(e.Tail) < j.size && e.descriptorSectors()*sectorSize <= int64(e.EntryLength)
}

// descriptorSectors returns how many sectors the header and the descriptors take.
func (e *entryHeader) descriptorSectors() int64 {
	const each = sectorSize / descriptor
	return (int64(e.DescriptorCount) + headerPlaces + each - 1) / each
}

// eachIn calls use for the descriptors in sector i of the entry until it returns false.
func (e *entryHeader) eachIn(sector []byte, i int64, use func(d *anyDescriptor) bool) bool {
	const each = sectorSize / descriptor
	for p := range int64(each) {
		if place := i*each + p; place < headerPlaces || place-headerPlaces >= int64(e.DescriptorCount) {
			continue
		}
		var d anyDescriptor
		if _, err := binary.Decode(sector[p*descriptor:], binary.LittleEndian, &d); err != nil {
			panic(err) // a sector is always long enough
		}
		if !use(&d) {
			return false
		}
	}
	return true
}

func (d *anyDescriptor) isData() bool { return string(d.Signature[:]) == "desc" }

// length returns how many bytes of the file a descriptor changes.
func (d *anyDescriptor) length() uint64 {
	if d.isData() {
		return sectorSize
	}
	return binary.LittleEndian.Uint64(d.Leading[:])
}

func (d *anyDescriptor) valid(e *entryHeader) bool {
	return (d.isData() || string(d.Signature[:]) == "zero") && d.SequenceNumber == e.SequenceNumber &&
		d.FileOffset%sectorSize == 0 && d.length()%sectorSize == 0 && d.FileOffset <= maxFile &&
		d.length() <= maxFile-d.FileOffset
}

// isDataSector checks the signs of a torn write. Spec: 2.3.1.4.
func isDataSector(b []byte, number uint64) bool {
	return string(b[:4]) == "data" && binary.LittleEndian.Uint32(b[4:]) == uint32(number>>32) &&
		binary.LittleEndian.Uint32(b[sectorSize-4:]) == uint32(number&math.MaxUint32)
}

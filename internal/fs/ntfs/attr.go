package ntfs

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// Types of attributes. Spec: Linux-NTFS documentation, "Attributes: overview".
const (
	attrList       = 0x20
	attrFileName   = 0x30
	attrVolumeName = 0x60
	attrVolumeInfo = 0x70
	attrData       = 0x80
	attrIndexRoot  = 0x90
	attrIndexAlloc = 0xa0
	attrReparse    = 0xc0
	attrEnd        = 0xffffffff
)

// Flags of attributes. Sparse ones (0x8000) have holes and are read as they are.
const (
	attrCompressed = 0x00ff // a method, of which there is one
	attrEncrypted  = 0x4000
)

// attrHead begins all attributes. Spec: Linux-NTFS documentation, "Attribute Header".
type attrHead struct {
	Type        uint32
	Length      uint32 // with the value, or the runs
	NonResident uint8
	NameLength  uint8 // characters
	NameOffset  uint16
	Flags       uint16
	ID          uint16
}

// residentHead follows in an attribute with its value in the record.
type residentHead struct {
	Size   uint32
	Offset uint16
	_      uint16
}

// nonResidentHead follows in an attribute with its value in clusters, or with the runs of a part of them. The sizes
// count in the first part.
type nonResidentHead struct {
	LowestVCN   int64 // clusters of the value that the runs are of
	HighestVCN  int64
	RunOffset   uint16
	_           [6]byte // compression unit
	Allocated   int64   // bytes
	Size        int64
	Initialised int64 // bytes behind it read as zeros, whatever their clusters hold
}

const (
	attrHeadSize     = 0x10
	attrResidentSize = 0x18
	attrRunsSize     = 0x40
)

// attr is an attribute of a record.
type attr struct {
	attrHead
	residentHead
	nonResidentHead
	at   int64 // in the record
	name string
	runs []byte // encoded
}

// split decodes the attributes of a record. Each has a positive length, so that the walk ends.
func (r *record) split() error {
	used := r.raw[:r.BytesInUse]
	for at := int64(r.AttrOffset); ; {
		if at+4 > int64(len(used)) {
			return r.broken(at, "attributes", "no end", "one within the bytes in use")
		}
		if binary.LittleEndian.Uint32(used[at:]) == attrEnd {
			return nil
		}
		a := attr{at: at}
		if err := r.attr(&a, used[at:]); err != nil {
			return err
		}
		r.attrs = append(r.attrs, a)
		at += int64(a.Length)
	}
}

// attr decodes the attribute at the start of b.
func (r *record) attr(a *attr, b []byte) error {
	if len(b) < attrResidentSize {
		return r.broken(a.at, "attribute", len(b), "24 bytes at least")
	}
	if err := ondisk.Fill(b[:attrHeadSize], binary.LittleEndian, &a.attrHead); err != nil {
		return err
	}
	if int64(a.Length) < attrResidentSize || int64(a.Length) > int64(len(b)) || a.Length%8 != 0 {
		return r.broken(a.at+4, "attribute length", a.Length, fmt.Sprintf("a multiple of 8 from 24 to %d", len(b)))
	}
	b = b[:a.Length]
	if a.NameLength > 0 {
		end := int(a.NameOffset) + 2*int(a.NameLength)
		if end > len(b) {
			return r.broken(a.at+0x0a, "end of the attribute's name", end, fmt.Sprintf("one within %d bytes", len(b)))
		}
		a.name = string(b[a.NameOffset:end])
	}
	switch a.NonResident {
	case 0:
		return r.resident(a, b)
	case 1:
		return r.nonResident(a, b)
	}
	return r.broken(a.at+8, "non-resident flag", a.NonResident, "0 or 1")
}

func (r *record) resident(a *attr, b []byte) error {
	if err := ondisk.Fill(b[attrHeadSize:attrResidentSize], binary.LittleEndian, &a.residentHead); err != nil {
		return err
	}
	if int64(a.Offset)+int64(a.residentHead.Size) > int64(len(b)) || a.Offset < attrResidentSize {
		return r.broken(a.at+0x10, "value", fmt.Sprintf("%d bytes at %d", a.residentHead.Size, a.Offset),
			fmt.Sprintf("one within %d bytes", len(b)))
	}
	return nil
}

func (r *record) nonResident(a *attr, b []byte) error {
	if len(b) < attrRunsSize {
		return r.broken(a.at+4, "attribute length", len(b), "64 at least, with runs")
	}
	if err := ondisk.Fill(b[attrHeadSize:attrRunsSize], binary.LittleEndian, &a.nonResidentHead); err != nil {
		return err
	}
	// The highest cluster of no clusters is -1, or 0 in old volumes.
	if a.LowestVCN < 0 || a.HighestVCN < a.LowestVCN-1 {
		return r.broken(a.at+0x10, "clusters", fmt.Sprintf("%d to %d", a.LowestVCN, a.HighestVCN),
			"the first before the last")
	}
	if a.RunOffset < attrRunsSize || int(a.RunOffset) > len(b) {
		return r.broken(a.at+0x20, "offset of runs", a.RunOffset, fmt.Sprintf("64 to %d", len(b)))
	}
	if a.LowestVCN == 0 && (a.Initialised < 0 || a.Initialised > a.nonResidentHead.Size ||
		a.nonResidentHead.Size > a.Allocated) {
		return r.broken(a.at+0x28, "sizes",
			fmt.Sprintf("%d allocated, %d, %d initialised", a.Allocated, a.nonResidentHead.Size, a.Initialised),
			"each within the one before")
	}
	a.runs = b[a.RunOffset:]
	return nil
}

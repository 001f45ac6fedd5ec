package ntfs

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// ref is the reference of an MFT record. Spec: Linux-NTFS documentation, "File Reference".
type ref struct {
	number   int64
	sequence uint16 // 0 matches any
}

func newRef(raw uint64) ref {
	const bits = 48
	return ref{number: ondisk.I64(raw & (1<<bits - 1)), sequence: uint16(raw >> bits)}
}

// recordHead begins an MFT record. Since version 3.1 the number of the record follows it. Spec: Linux-NTFS
// documentation, "File Record".
type recordHead struct {
	Magic          [4]byte // "FILE"
	FixupOffset    uint16
	FixupCount     uint16
	_              uint64 // sequence number in $LogFile
	Sequence       uint16
	_              uint16 // hard links
	AttrOffset     uint16
	Flags          uint16
	BytesInUse     uint32
	BytesAllocated uint32
	Base           uint64 // reference of the base record, in an extension
	_              uint16
}

const (
	recordInUse  = 1
	recordFolder = 2
	recordView   = 8 // an index, but not of names, such as $Extend/$Quota

	recordHeadSize = 0x2a // up to version 3.0 the fix-ups follow directly
)

// record is an MFT record with its fix-ups undone.
type record struct {
	recordHead
	number int64
	raw    []byte
	places []disk.Range // ranges of the record in the volume, in order
	attrs  []attr
}

func (r *record) dir() bool { return r.Flags&recordFolder != 0 }

// broken returns the error for a field at an offset of the record.
func (r *record) broken(off int64, field string, got, want any) error {
	return ondisk.Field(fmt.Sprintf("ntfs record %d", r.number), field, r.places[0].Off+off, got, want)
}

// load reads a record in use. The sequence number of the reference must match.
func (n *fileSystem) load(ref ref) (*record, error) {
	if ref.number >= n.mft.Size()/n.record {
		return nil, ondisk.Field("ntfs $MFT", "record", 0, ref.number,
			fmt.Sprintf("a record of the %d that are known", n.mft.Size()/n.record))
	}
	places, err := n.mft.Where(ref.number*n.record, n.record)
	if err != nil {
		return nil, ondisk.Field("ntfs $MFT", "record", 0, ref.number, "one that a run of the MFT holds")
	}
	if err := n.spend(n.record); err != nil {
		return nil, err
	}
	r := &record{number: ref.number, places: places}
	for _, p := range places {
		part, err := ondisk.Bytes(n.volume, p.Off, p.Len)
		if err != nil {
			return nil, err
		}
		r.raw = append(r.raw, part...)
	}
	if err := r.check(ref); err != nil {
		return nil, err
	}
	return r, r.split()
}

func (r *record) check(ref ref) error {
	ondisk.Fill(r.raw[:recordHeadSize], binary.LittleEndian, &r.recordHead)
	size := int64(len(r.raw))
	switch {
	case string(r.Magic[:]) != "FILE":
		return r.broken(0, "signature", r.Magic[:], "FILE")
	case r.Flags&recordInUse == 0:
		return r.broken(0x16, "flags", r.Flags, "a record in use")
	case ref.sequence != 0 && ref.sequence != r.Sequence:
		return r.broken(0x10, "sequence number", r.Sequence, fmt.Sprintf("%d as in the reference", ref.sequence))
	case int64(r.BytesAllocated) != size:
		return r.broken(0x1c, "allocated size", r.BytesAllocated, size)
	case int64(r.BytesInUse) > size:
		return r.broken(0x18, "size in use", r.BytesInUse, fmt.Sprintf("at most %d", size))
	case uint32(r.AttrOffset) >= r.BytesInUse || r.AttrOffset%8 != 0 ||
		int(r.AttrOffset) < int(r.FixupOffset)+2*int(r.FixupCount):
		return r.broken(0x14, "offset of attributes", r.AttrOffset,
			fmt.Sprintf("a multiple of 8, behind the fix-ups, below %d", r.BytesInUse))
	}
	if !UndoFixups(r.raw, recordHeadSize) {
		return r.broken(4, "fix-ups", fmt.Sprintf("%d at %#x", r.FixupCount, r.FixupOffset),
			"one for each 512 bytes, and their number at the end of each")
	}
	return nil
}

// where returns the runs of n bytes of the record at off, with fix-ups undone. The last two bytes of each stride map to
// the update sequence array, where a write keeps the record valid.
func (r *record) where(off, n int64) []guestfile.Run {
	var out []guestfile.Run
	for done := int64(0); done < n; {
		at := off + done
		from, part := at, stride-2-at%stride
		if part <= 0 { // displaced
			from = int64(r.FixupOffset) + 2*(at/stride+1) + at%stride - (stride - 2)
			part = stride - at%stride
		}
		place, rest := r.place(from)
		part = min(part, rest, n-done)
		out = append(out, guestfile.Run{Off: done, Len: part, At: place})
		done += part
	}
	return out
}

// place returns the volume offset of a stored byte of the record, and the number of bytes from there to the end of the
// range.
func (r *record) place(off int64) (at, rest int64) {
	for _, p := range r.places {
		if off < p.Len {
			return p.Off + off, p.Len - off
		}
		off -= p.Len
	}
	panic(fmt.Sprintf("guestfile: byte %d behind the end of a record", off))
}

// logMFTRecord is an MFT record of the volume, or the first bytes of an MFT record in a log record. It is empty if the
// record is not valid. Spec: Linux-NTFS documentation, "File Record".
type logMFTRecord []byte

const (
	recordLSN        = 0x08
	recordAttributes = 0x14
	recordBase       = 0x20

	attributeHead       = 0x18 // bytes, including the fields of a resident attribute
	logNonResident      = 0x40
	standardInformation = 0x10
)

// lsn returns the LSN of the record's last change.
func (m logMFTRecord) lsn() uint64 {
	if len(m) < recordHeadSize {
		return 0
	}
	return binary.LittleEndian.Uint64(m[recordLSN:])
}

// base returns the base record of an extension.
func (m logMFTRecord) base() (int64, bool) {
	if len(m) < recordHeadSize {
		return 0, false
	}
	ref := binary.LittleEndian.Uint64(m[recordBase:])
	return ondisk.I64(ref & fileNumber), ref != 0
}

// attribute returns the attribute at an offset. It returns nil if the offset is inside an attribute or past the last.
func (m logMFTRecord) attribute(off int) []byte {
	for at, a := range attributes(m) {
		if at == off {
			return a
		}
	}
	return nil
}

// keepsLayout reports whether a write preserves the layout of the record and the places of its values.
func (m logMFTRecord) keepsLayout(w *Write) bool {
	a := m.attribute(w.recordOffset)
	if len(a) == 0 {
		return false
	}
	resident := a[8] == 0
	switch {
	case w.Op == residentValue && resident:
		size, from := int64(binary.LittleEndian.Uint32(a[0x10:])), int64(binary.LittleEndian.Uint16(a[0x14:]))
		end := int64(w.attrOffset + w.Length)
		// Redo and undo data of different lengths move the end of the value.
		whole := end == from+size || w.Length == w.otherLength && end < from+size
		return binary.LittleEndian.Uint32(a) == standardInformation && int64(w.attrOffset) >= from && whole
	case w.Op == attributeSizes && !resident && len(a) >= logNonResident:
		return m.sameSizes(a, w.data)
	}
	return false
}

// sameSizes reports whether the sizes written equal the sizes of an attribute: allocated, valid and data size. Spec:
// Linux fs/ntfs3/fslog.c, struct NEW_ATTRIBUTE_SIZES.
func (m logMFTRecord) sameSizes(a, sizes []byte) bool {
	return len(sizes) == 24 && bytes.Equal(sizes[:8], a[0x28:0x30]) && bytes.Equal(sizes[8:16], a[0x38:0x40]) &&
		bytes.Equal(sizes[16:24], a[0x30:0x38])
}

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

// Flags of attributes. Sparse attributes (0x8000) have holes and need no special case.
const (
	attrCompressed = 0x00ff // mask of the compression method, of which only one exists
	attrEncrypted  = 0x4000
)

// attrHead begins all attributes. Spec: Linux-NTFS documentation, "Attribute Header".
type attrHead struct {
	Type        uint32
	Length      uint32 // including the value or the runs
	NonResident uint8
	NameLength  uint8 // characters
	NameOffset  uint16
	Flags       uint16
	ID          uint16
}

// residentHead follows attrHead if the value is in the record.
type residentHead struct {
	Size   uint32
	Offset uint16
	_      uint16
}

// nonResidentHead follows attrHead if the value, or this part of it, is in clusters. The sizes are valid in the first
// part only.
type nonResidentHead struct {
	LowestVCN   int64 // of the first cluster that the runs map
	HighestVCN  int64
	RunOffset   uint16
	_           [6]byte // compression unit
	Allocated   int64   // bytes
	Size        int64
	Initialised int64 // bytes past it read as zeros, even if their clusters hold data
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
	at   int64 // offset in the record
	name string
	runs []byte // encoded
}

// split decodes the attributes of a record. Each has a positive length, so the loop ends.
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
	ondisk.Fill(b[:attrHeadSize], binary.LittleEndian, &a.attrHead)
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
	ondisk.Fill(b[attrHeadSize:attrResidentSize], binary.LittleEndian, &a.residentHead)
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
	ondisk.Fill(b[attrHeadSize:attrRunsSize], binary.LittleEndian, &a.nonResidentHead)
	// Without clusters, the highest VCN is -1, or 0 in old volumes.
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

package ntfs

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// ref names a record of the MFT. Spec: Linux-NTFS documentation, "File Reference".
type ref struct {
	number   int64
	sequence uint16 // 0: any
}

func newRef(raw uint64) ref {
	const bits = 48
	return ref{number: ondisk.I64(raw & (1<<bits - 1)), sequence: uint16(raw >> bits)}
}

// recordHead begins a record of the MFT. Since version 3.1 the number of the record follows it. Spec: Linux-NTFS
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
	recordView   = 8 // an index of something else than names, such as $Extend/$Quota

	recordHeadSize = 0x2a // up to version 3.0 the fix-ups stand right behind it
)

// record is a record of the MFT with its fix-ups undone.
type record struct {
	recordHead
	number int64
	raw    []byte
	places []disk.Range // of the record in the volume, in order
	attrs  []attr
}

func (r *record) dir() bool { return r.Flags&recordFolder != 0 }

// broken returns the error of a field of the record.
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
	if err := ondisk.Fill(r.raw[:recordHeadSize], binary.LittleEndian, &r.recordHead); err != nil {
		return err
	}
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

// where returns the runs of n bytes from off of the record, as they read without fix-ups. The last two of each 512
// bytes are those in the update sequence array, where a write keeps the record valid.
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

// place returns the place of a stored byte of the record in the volume, and the number of bytes that follow it there.
func (r *record) place(off int64) (at, rest int64) {
	for _, p := range r.places {
		if off < p.Len {
			return p.Off + off, p.Len - off
		}
		off -= p.Len
	}
	panic(fmt.Sprintf("guestfile: byte %d behind the end of a record", off))
}

// logMFTRecord is a record of the MFT, empty where none is known. Spec: Linux-NTFS documentation, "File Record".
type logMFTRecord []byte

const (
	recordLSN        = 0x08
	recordAttributes = 0x14
	recordBase       = 0x20
	logRecordHead    = 0x2a

	attributeHead       = 0x18 // bytes, with what a resident one has
	logNonResident      = 0x40
	standardInformation = 0x10
)

// lsn returns the LSN of the record's last change.
func (m logMFTRecord) lsn() uint64 {
	if len(m) < logRecordHead {
		return 0
	}
	return binary.LittleEndian.Uint64(m[recordLSN:])
}

// base returns the base record of an extension.
func (m logMFTRecord) base() (int64, bool) {
	if len(m) < logRecordHead {
		return 0, false
	}
	ref := binary.LittleEndian.Uint64(m[recordBase:])
	return ondisk.I64(ref & fileNumber), ref != 0
}

// attribute returns the attribute at an offset, empty where none begins.
func (m logMFTRecord) attribute(off int) []byte {
	if len(m) < logRecordHead {
		return nil
	}
	at := int(binary.LittleEndian.Uint16(m[recordAttributes:]))
	for at >= logRecordHead && at+attributeHead <= len(m) {
		n := int64(binary.LittleEndian.Uint32(m[at+4:]))
		if n < attributeHead || n > int64(len(m)-at) {
			return nil
		}
		if at == off {
			return m[at : at+int(n)]
		}
		at += int(n)
	}
	return nil
}

// keeps reports whether a write leaves the record's layout, and the places of its values, as they are.
func (m logMFTRecord) keeps(w *Write) bool {
	a := m.attribute(w.recordOffset)
	if len(a) == 0 {
		return false
	}
	resident := a[8] == 0
	switch {
	case w.Op == residentValue && resident:
		size, from := int64(binary.LittleEndian.Uint32(a[0x10:])), int64(binary.LittleEndian.Uint16(a[0x14:]))
		end := int64(w.attrOffset + w.Length)
		// Lengths that differ give the value a new end.
		whole := end == from+size || w.Length == w.otherLength && end < from+size
		return binary.LittleEndian.Uint32(a) == standardInformation && int64(w.attrOffset) >= from && whole
	case w.Op == attributeSizes && !resident && len(a) >= logNonResident:
		return m.sameSizes(a, w.data)
	}
	return false
}

// sameSizes reports whether sizes that are written are those of an attribute: allocated, valid, and of the data.
// Spec: Linux fs/ntfs3/fslog.c, struct NEW_ATTRIBUTE_SIZES.
func (m logMFTRecord) sameSizes(a, sizes []byte) bool {
	return len(sizes) == 24 && bytes.Equal(sizes[:8], a[0x28:0x30]) && bytes.Equal(sizes[8:16], a[0x38:0x40]) &&
		bytes.Equal(sizes[16:24], a[0x30:0x38])
}

package ntfs

import (
	"bytes"
	"encoding/binary"

	"github.com/trueup/trueup/internal/ondisk"
)

// mftRecord is a record of the MFT, empty where none is known. Spec: Linux-NTFS documentation, "File Record".
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

package hiveforge

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Layout of logs of registry hives. Spec: "Windows registry file format specification", "Transaction log files".
const (
	hiveLogEntries = 512 // place of the first entry of a new log
	hiveLogPage    = 512 // unit of an old log
)

// Dirty returns a copy of a hive that was not closed: primary is its first sequence number, one more than the second.
func Dirty(f forge.Bytes, primary uint32) forge.Bytes {
	f = slices.Clone(f)
	f.U32(Sequence1, primary)
	f.U32(Sequence2, primary-1)
	Seal(f)
	return f
}

// Log builds a log of Windows 8.1 and later for a hive f. It has one entry for each of steps, numbered from first. A
// step is the hive after its entry.
func Log(f forge.Bytes, first uint32, steps ...forge.Bytes) forge.Bytes {
	log := append(forge.Bytes(nil), f[:hiveLogEntries]...)
	hiveLogBase(log, 6, first)
	for i, to := range steps {
		log = append(log, hiveLogEntry(f, first+uint32(i), to)...)
		f = to
	}
	return log
}

func hiveLogBase(f forge.Bytes, kind, number uint32) {
	f.U32(FileType, kind)
	f.U32(Sequence1, number)
	f.U32(Sequence2, number)
	Seal(f)
}

// hiveLogEntry has the pages in which two states of a hive differ.
func hiveLogEntry(f forge.Bytes, number uint32, to forge.Bytes) forge.Bytes {
	var refs []uint32
	var pages forge.Bytes
	for at := Bins; at < len(to); at += Bins {
		page := to[at : at+Bins]
		if at < len(f) && bytes.Equal(page, f[at:at+Bins]) {
			continue
		}
		if n := len(refs); n > 0 && refs[n-2]+refs[n-1] == uint32(at-Bins) {
			refs[n-1] += Bins
		} else {
			refs = append(refs, uint32(at-Bins), Bins)
		}
		pages = append(pages, page...)
	}
	e := make(forge.Bytes, 40)
	for _, r := range refs {
		e = binary.LittleEndian.AppendUint32(e, r)
	}
	e = append(e, pages...)
	for len(e)%512 != 0 {
		e = append(e, 0)
	}
	e.Text(0, "HvLE")
	e.U32(4, uint32(len(e)))
	e.U32(12, number)
	e.U32(16, uint32(len(to)-Bins))
	e.U32(20, uint32(len(refs)/2))
	SealEntry(e)
	return e
}

// SealEntry sets both hashes of an entry of a log.
func SealEntry(f forge.Bytes) {
	f.U64(24, marvin32(f[40:]))
	f.U64(32, marvin32(f[:32]))
}

// marvin32 is the hash of entries, of data whose length is a multiple of 4.
func marvin32(b []byte) uint64 {
	lo, hi := uint32(0x7a4e55c5), uint32(0x82ef4d88)
	padded := append(append([]byte(nil), b...), 0x80, 0, 0, 0, 0, 0, 0, 0)
	for i := 0; i < len(padded); i += 4 {
		lo += binary.LittleEndian.Uint32(padded[i:])
		hi ^= lo
		lo = bits.RotateLeft32(lo, 20) + hi
		hi = bits.RotateLeft32(hi, 9) ^ lo
		lo = bits.RotateLeft32(lo, 27) + hi
		hi = bits.RotateLeft32(hi, 19)
	}
	return uint64(hi)<<32 | uint64(lo)
}

// OldLog builds a log of Windows until 8 for a hive f: the sectors in which it differs from the state that Windows
// was about to write. kind is 1, or 2 for NT 4 and 2000.
func OldLog(f forge.Bytes, kind uint32, to forge.Bytes) forge.Bytes {
	log := append(forge.Bytes(nil), to[:hiveLogPage]...)
	hiveLogBase(log, kind, 1)
	dirty := make([]byte, (len(to)-Bins)/Bins)
	var pages []byte
	for i := range 8 * len(dirty) {
		at := Bins + i*hiveLogPage
		page := to[at : at+hiveLogPage]
		if at >= len(f) || !bytes.Equal(page, f[at:at+hiveLogPage]) {
			dirty[i/8] |= 1 << (i % 8)
			pages = append(pages, page...)
		}
	}
	log = append(append(log, "DIRT"...), dirty...)
	for len(log)%hiveLogPage != 0 {
		log = append(log, 0)
	}
	return append(log, pages...)
}

package disktest

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// Layout of logs of registry hives. Spec: "Windows registry file format specification", "Transaction log files".
const (
	HiveLogEntries = 512 // place of the first entry of a new log
	hiveLogPage    = 512 // unit of an old log
)

// HiveDirty gives a copy of a hive that was not closed: primary is its first sequence number, one more than the second.
func (f Forged) HiveDirty(primary uint32) Forged {
	f = slices.Clone(f)
	f.U32(HiveSequence1, primary)
	f.U32(HiveSequence2, primary-1)
	f.SealHive()
	return f
}

// HiveLog builds a log of Windows 8.1 and later for a hive f: an entry for each of steps, the hive as it is after that
// entry. Their numbers count from first.
func (f Forged) HiveLog(first uint32, steps ...Forged) Forged {
	log := append(Forged(nil), f[:HiveLogEntries]...)
	log.hiveLogBase(6, first)
	for i, to := range steps {
		log = append(log, f.hiveLogEntry(first+uint32(i), to)...)
		f = to
	}
	return log
}

func (f Forged) hiveLogBase(kind, number uint32) {
	f.U32(HiveFileType, kind)
	f.U32(HiveSequence1, number)
	f.U32(HiveSequence2, number)
	f.SealHive()
}

// hiveLogEntry has the pages in which two states of a hive differ.
func (f Forged) hiveLogEntry(number uint32, to Forged) Forged {
	var refs []uint32
	var pages Forged
	for at := HiveBins; at < len(to); at += HiveBins {
		page := to[at : at+HiveBins]
		if at < len(f) && bytes.Equal(page, f[at:at+HiveBins]) {
			continue
		}
		if n := len(refs); n > 0 && refs[n-2]+refs[n-1] == uint32(at-HiveBins) {
			refs[n-1] += HiveBins
		} else {
			refs = append(refs, uint32(at-HiveBins), HiveBins)
		}
		pages = append(pages, page...)
	}
	e := make(Forged, 40)
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
	e.U32(16, uint32(len(to)-HiveBins))
	e.U32(20, uint32(len(refs)/2))
	e.SealHiveEntry()
	return e
}

// SealHiveEntry sets both hashes of an entry of a log.
func (f Forged) SealHiveEntry() {
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

// HiveOldLog builds a log of Windows until 8 for a hive f: the sectors in which it differs from the state that Windows
// was about to write. kind is 1, or 2 for NT 4 and 2000.
func (f Forged) HiveOldLog(kind uint32, to Forged) Forged {
	log := append(Forged(nil), to[:hiveLogPage]...)
	log.hiveLogBase(kind, 1)
	dirty := make([]byte, (len(to)-HiveBins)/HiveBins)
	var pages []byte
	for i := range 8 * len(dirty) {
		at := HiveBins + i*hiveLogPage
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

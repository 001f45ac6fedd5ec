package hive

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Offsets and types in a log. Spec: "Format of transaction log files".
const (
	logSector     = 512 // bytes of a base block; entries and pages start at a multiple
	typeOldLog    = 1   // until Windows 8: one set of changed pages
	typeOldLog2   = 2   // the same, from NT 4 and 2000
	typeNewLog    = 6   // since Windows 8.1: a sequence of entries
	maxLogEntries = 1 << 16
	maxLogPages   = 1 << 17 // of 512 bytes, replaced in a hive by its logs
)

// logFile is a log with a valid base block.
type logFile struct {
	ondisk.Source
	base    baseBlock
	number  int        // index in Recovery.files
	entries []logEntry // contiguous, in sequence order
}

// logEntry is a set of pages that Windows applies whole or not at all.
type logEntry struct {
	disk.Range        // in the log; empty in an old one, which has no hashes
	binsSize   uint32 // of the hive after the entry
	pages      []logPage
}

// logPage is a range of the hive stored in a log.
type logPage struct {
	hive disk.Range // bytes after the base block, in multiples of 512
	off  int64      // in the log
}

func (l *logFile) old() bool { return l.base.FileType != typeNewLog }

// openLog reads a log. It returns nil if Windows ignores the log: it is empty, torn or of another kind.
func (b *Budget) openLog(src ondisk.Source, number int) (*logFile, error) {
	base, ok, err := readLogBase(src)
	if !ok || err != nil || base.Sequence1 != base.Sequence2 {
		return nil, err
	}
	l := &logFile{Source: src, base: base, number: number}
	if l.old() {
		ok, err = l.readOld(b)
	} else {
		err = l.readNew(b)
	}
	if !ok || err != nil {
		return nil, err
	}
	return l, nil
}

// readLogBase reads the base block of a log. ok is false for any other block, as in an empty .LOG next to a .LOG1.
func readLogBase(src ondisk.Source) (base baseBlock, ok bool, err error) {
	if src.Size() < logSector {
		return base, false, nil
	}
	raw, err := ondisk.Decode(src, 0, &base)
	if err != nil || string(base.Signature[:]) != "regf" || base.Checksum != checksum(raw) {
		return base, false, err
	}
	return base, slices.Contains([]uint32{typeOldLog, typeOldLog2, typeNewLog}, base.FileType), nil
}

// dirtyVector follows the base block of an old log. A bit for each 512 bytes of the hive bins comes next, and the pages
// with a set bit begin at the next sector. Spec: "Old format".
const dirtyVector = "DIRT"

// readOld reads the pages of an old log as its single entry. ok is false if the log is torn, so that Windows ignores
// it.
func (l *logFile) readOld(b *Budget) (ok bool, err error) {
	if l.base.Clustering != 1 {
		return false, ondisk.In(ondisk.ErrUnsupported, "its log has sectors of %d bytes",
			int64(l.base.Clustering)*logSector)
	}
	bins := int64(l.base.BinsSize)
	end := int64(logSector+len(dirtyVector)) + bins/binUnit
	if bins == 0 || bins%binUnit != 0 || end > l.Size() {
		return false, nil
	}
	if bins > maxFile {
		return false, fmt.Errorf("registry log of a hive of %d bytes: %w of %d bytes", bins, ondisk.ErrLimit, maxFile)
	}
	raw, err := ondisk.Bytes(l, logSector, end-logSector)
	if err != nil || string(raw[:len(dirtyVector)]) != dirtyVector {
		return false, err
	}
	e := logEntry{binsSize: l.base.BinsSize}
	off := (end + logSector - 1) / logSector * logSector
	for i := range bins / logSector {
		if raw[len(dirtyVector)+int(i/8)]>>(i%8)&1 == 0 {
			continue
		}
		if err := b.spend(0); err != nil {
			return false, err
		}
		if len(e.pages) == maxLogPages {
			return false, fmt.Errorf("registry log: %w of %d pages", ondisk.ErrLimit, maxLogPages)
		}
		e.pages = append(e.pages, logPage{disk.Range{Off: i * logSector, Len: logSector}, off})
		off += logSector
	}
	l.entries = []logEntry{e}
	return off <= l.Size(), nil
}

// entryHeader begins an entry of a new log; Count references and their pages follow. Spec: "New format", "Log entry".
type entryHeader struct {
	Signature [4]byte // "HvLE"
	Size      uint32  // bytes, a multiple of 512
	Flags     uint32
	Sequence  uint32
	BinsSize  uint32 // of the hive after the entry
	Count     uint32 // of page references
	Hash1     uint64 // of the data after both hashes
	Hash2     uint64 // of the header before this field
}

// pageReference is the target of a page: bytes after the base block, and length.
type pageReference struct{ Offset, Size uint32 }

const (
	entryHeaderSize = 40
	entryHash1      = 24 // offsets of the hashes
	entryHash2      = 32
	referenceSize   = 8
)

// readNew reads the entries of a new log up to the first torn or outdated entry, where Windows stops too.
func (l *logFile) readNew(b *Budget) error {
	at := int64(logSector)
	for sequence := l.base.Sequence1; at+entryHeaderSize <= l.Size(); sequence++ {
		if len(l.entries) == maxLogEntries {
			return fmt.Errorf("registry log: %w of %d entries", ondisk.ErrLimit, maxLogEntries)
		}
		size, err := l.readEntry(b, at, sequence)
		if size == 0 || err != nil {
			return err
		}
		at += size
	}
	return nil
}

// readEntry reads an entry, and returns its size in bytes, or 0 if it is torn or outdated.
func (l *logFile) readEntry(b *Budget, at int64, sequence uint32) (size int64, err error) {
	var head entryHeader
	if _, err := ondisk.Decode(l, at, &head); err != nil {
		return 0, err
	}
	size = int64(head.Size)
	switch {
	case string(head.Signature[:]) != "HvLE" || head.Sequence != sequence,
		size%logSector != 0 || size > l.Size()-at,
		head.BinsSize == 0 || head.BinsSize%binUnit != 0,
		head.Count == 0 || int64(head.Count) > (size-entryHeaderSize)/referenceSize:
		return 0, nil
	}
	if err := b.spend(size); err != nil {
		return 0, err
	}
	raw, err := ondisk.Bytes(l, at, size)
	if err != nil {
		return 0, err
	}
	if hash1, hash2 := hashes(raw); hash1 != head.Hash1 || hash2 != head.Hash2 {
		return 0, nil
	}
	return size, l.add(at, &head, raw)
}

// hashes computes both hashes of an entry. The second covers the computed first one.
func hashes(entry []byte) (hash1, hash2 uint64) {
	m := marvinSeed
	m.write(entry[entryHeaderSize:])
	hash1 = m.sum()
	m = marvinSeed
	m.write(entry[:entryHash1])
	m.write(binary.LittleEndian.AppendUint64(nil, hash1))
	return hash1, m.sum()
}

// Reseal updates the hashes of a log entry.
func Reseal(entry []byte) {
	hash1, hash2 := hashes(entry)
	binary.LittleEndian.PutUint64(entry[entryHash1:], hash1)
	binary.LittleEndian.PutUint64(entry[entryHash2:], hash2)
}

// add reads the page references of an entry with valid hashes, which Windows would apply.
func (l *logFile) add(at int64, head *entryHeader, raw []byte) error {
	e := logEntry{Range: disk.Range{Off: at, Len: int64(len(raw))}, binsSize: head.BinsSize}
	if head.BinsSize > maxFile {
		return fmt.Errorf("registry log of a hive of %d bytes: %w of %d bytes", head.BinsSize, ondisk.ErrLimit, maxFile)
	}
	pages := entryHeaderSize + int64(head.Count)*referenceSize
	for i := range int64(head.Count) {
		var ref pageReference
		ondisk.Fill(raw[entryHeaderSize+i*referenceSize:], binary.LittleEndian, &ref)
		p := logPage{disk.Range{Off: int64(ref.Offset), Len: int64(ref.Size)}, at + pages}
		pages += p.hive.Len
		whole := p.hive.Off%binUnit == 0 && p.hive.Len%binUnit == 0 && p.hive.Len > 0
		if !whole || p.hive.End() > int64(head.BinsSize) || pages > e.Len {
			return ondisk.Field(fmt.Sprintf("entry %d of a registry log", head.Sequence), fmt.Sprintf("page %d", i),
				at+entryHeaderSize+i*referenceSize, fmt.Sprintf("%d bytes at %#x", ref.Size, ref.Offset),
				fmt.Sprintf("whole pages within %d bytes of hive bins and the entry", head.BinsSize))
		}
		e.pages = append(e.pages, p)
	}
	l.entries = append(l.entries, e)
	return nil
}

// newer reports whether a log holds newer changes than its closed hive.
//
// Windows ignores newer entries next to a closed hive (spec: "Dirty state of a hive"), and never leaves any. If there
// are some, hive and log come from different moments, and neither is known to be right: then it is better to change
// nothing. An entry with the hive's own number was applied. Hashes of entries are not checked: a torn entry was meant
// to be newer too.
func newer(log ondisk.Source, number uint32) (bool, error) {
	base, ok, err := readLogBase(log)
	switch {
	case !ok || err != nil:
		return false, err
	case base.FileType == typeNewLog:
		return newerEntry(log, number)
	default:
		return base.Sequence1 == base.Sequence2 && after(base.Sequence1, number), nil
	}
}

// newerEntry walks the entries of a new log: their numbers may fall, since old entries remain after newer ones.
func newerEntry(log ondisk.Source, number uint32) (bool, error) {
	at := int64(logSector)
	for range maxLogEntries {
		if at+entryHeaderSize > log.Size() {
			return false, nil
		}
		var e entryHeader
		if _, err := ondisk.Decode(log, at, &e); err != nil {
			return false, err
		}
		switch {
		case string(e.Signature[:]) != "HvLE":
			return false, nil
		case after(e.Sequence, number):
			return true, nil
		}
		at += max(logSector, (int64(e.Size)+logSector-1)/logSector*logSector)
	}
	return false, fmt.Errorf("registry log: %w of %d entries", ondisk.ErrLimit, maxLogEntries)
}

// marvin is the state of a Marvin32 hash. Spec: "Windows registry file format specification", "New format".
type marvin struct{ lo, hi uint32 }

// marvinSeed is Windows' seed for hashing logs, 82EF4D887A4E55C5.
var marvinSeed = marvin{lo: 0x7a4e55c5, hi: 0x82ef4d88}

func (m *marvin) round(v uint32) {
	m.lo += v
	m.hi ^= m.lo
	m.lo = bits.RotateLeft32(m.lo, 20) + m.hi
	m.hi = bits.RotateLeft32(m.hi, 9) ^ m.lo
	m.lo = bits.RotateLeft32(m.lo, 27) + m.hi
	m.hi = bits.RotateLeft32(m.hi, 19)
}

// write adds bytes. Their number must be a multiple of 4.
func (m *marvin) write(b []byte) {
	for ; len(b) > 0; b = b[4:] {
		m.round(binary.LittleEndian.Uint32(b))
	}
}

// sum finishes the hash. The padding is valid for lengths that are a multiple of 4.
func (m marvin) sum() uint64 {
	m.round(0x80)
	m.round(0)
	return uint64(m.hi)<<32 | uint64(m.lo)
}

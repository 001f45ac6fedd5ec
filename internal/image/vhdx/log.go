package vhdx

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Limits for replaying a log. Hyper-V writes logs of 1 MiB.
const (
	maxLog       = 64 << 20 // bytes
	maxChanges   = 1 << 16  // descriptors
	maxScan      = 8        // reads of each byte of the log, since stale entries can overlap others
	maxFile      = 1 << 62  // bytes: limit of offsets in descriptors
	descriptor   = 32       // bytes
	headerPlaces = 2        // size of an entry's header, in descriptors
)

// journal is the log of a file, a ring of entries.
type journal struct {
	src     ondisk.Source
	off     int64
	size    int64
	guid    ondisk.GUID
	budget  int64          // bytes left to read
	entries []*entryHeader // valid entries, by sector of the log
	looked  []bool
	dead    []bool // sectors where no sequence begins that contains its own tail
}

// sequence is a run of consecutive entries.
type sequence struct {
	first int64 // log offset of the first entry
	last  int64 // log offset of the last entry
	end   int64 // end of the last entry, which can equal first
	head  *entryHeader
}

// replay sets the view of the file, in which the changes of the log are applied. The file itself stays unchanged.
func (x *image) replay() error {
	x.view = disk.New(x.file.Size(), sectorSize, disk.Whole(x.file, x.file.Size()))
	if x.head.LogGUID == (ondisk.GUID{}) {
		return nil
	}
	if x.head.LogLength > maxLog {
		return fmt.Errorf("vhdx log of %d bytes: %w of %d bytes; open it once in Hyper-V, which replays it",
			x.head.LogLength, ondisk.ErrLimit, maxLog)
	}
	n := int64(x.head.LogLength)
	j := &journal{
		src: x.file, off: ondisk.I64(x.head.LogOffset), size: n, guid: x.head.LogGUID, budget: maxScan * n,
		entries: make([]*entryHeader, n/sectorSize), looked: make([]bool, n/sectorSize),
		dead: make([]bool, n/sectorSize),
	}
	active, err := j.active()
	if err != nil {
		return err
	}
	changes, err := j.changes(active)
	if err != nil {
		return err
	}
	size := max(x.file.Size(), ondisk.I64(active.head.LastFileOffset))
	for _, c := range changes {
		size = max(size, c.End())
	}
	// The file is extended by zeros. A later change hides an earlier one.
	kept := disk.Pieces(size, []disk.Piece{{Range: disk.Range{Len: x.file.Size()}, Src: x.file}}, nil)
	x.view = disk.New(size, sectorSize, disk.Pieces(size, flatten(changes), kept))
	x.noteReplay(len(changes))
	return nil
}

// noteReplay adds the issue that the file alone is not the current state of the disk.
func (x *image) noteReplay(changes int) {
	i := ondisk.Issue{
		Code: "vhdx-log-empty",
		Text: "the image was not closed cleanly; all changes in its log are already in the file",
	}
	if changes > 0 {
		i = ondisk.Issue{
			Code: "vhdx-log-replayed", Effect: ondisk.Warn,
			Text: fmt.Sprintf("the image was not closed cleanly: the log with %d changes was replayed in memory, "+
				"the file is untouched", changes),
			Remedy: "make sure that no program has the image open",
		}
	}
	x.issues = append(x.issues, i)
}

func (j *journal) field(at int64, name string, got, want any) error {
	return ondisk.Field("vhdx log", name, j.off+at, got, want)
}

// active finds the newest complete sequence. Spec: 2.3.3.
func (j *journal) active() (sequence, error) {
	var best sequence
	for tail := int64(0); ; {
		s, ok, err := j.sequence(tail)
		if err != nil {
			return best, err
		}
		next := (tail + sectorSize) % j.size
		if ok {
			next = s.end
			if best.head == nil || s.head.SequenceNumber > best.head.SequenceNumber {
				best = s
			}
		}
		if next <= tail { // the ring is complete
			break
		}
		tail = next
	}
	switch {
	case best.head == nil:
		return best, j.field(0, "entries", "none that are complete",
			"a sequence to replay, according to the header; the changes are lost")
	case best.head.FlushedFileOffset > ondisk.U64(j.fileSize()):
		return best, j.field(best.last, "flushed file offset", best.head.FlushedFileOffset,
			fmt.Sprintf("at most the %d bytes of the file, which was cut", j.fileSize()))
	case best.head.LastFileOffset > maxFile:
		return best, j.field(best.last, "last file offset", best.head.LastFileOffset, "the size of a file")
	}
	return best, nil
}

func (j *journal) fileSize() int64 { return j.src.Size() }

// sequence follows the entries from a log offset on. ok reports whether the tail of the last entry is one of them; the
// sequence then begins at that tail.
func (j *journal) sequence(from int64) (s sequence, ok bool, err error) {
	if j.dead[from/sectorSize] {
		return s, false, nil
	}
	places := map[int64]bool{}
	at := from
	for range len(j.entries) { // at most once around the ring
		e, err := j.entry(at)
		if err != nil {
			return s, false, err
		}
		if e == nil || (s.head != nil && e.SequenceNumber != s.head.SequenceNumber+1) {
			break
		}
		s.head, s.last = e, at
		places[at] = true
		at = (at + int64(e.EntryLength)) % j.size
	}
	if s.head == nil || !places[int64(s.head.Tail)] {
		for at := range places { // a sequence that begins later ends with the same head
			j.dead[at/sectorSize] = true
		}
		return s, false, nil
	}
	s.first, s.end = int64(s.head.Tail), at
	return s, true, nil
}

// entry returns the entry at a log offset, or nil if it is invalid.
func (j *journal) entry(at int64) (*entryHeader, error) {
	i := at / sectorSize
	if j.looked[i] {
		return j.entries[i], nil
	}
	j.looked[i] = true
	var e entryHeader
	if _, err := ondisk.Decode(j.src, j.off+at, &e); err != nil {
		return nil, err
	}
	if !e.plausible(j) {
		return nil, nil
	}
	whole, err := j.whole(&e, at)
	if err != nil || !whole {
		return nil, err
	}
	j.entries[i] = &e
	return &e, nil
}

// whole reads an entry completely and validates it. Each descriptor and data sector must contain its sequence number,
// and the checksum must match.
func (j *journal) whole(e *entryHeader, at int64) (bool, error) {
	sum, data, fits := uint32(0), int64(0), true
	sector := make([]byte, sectorSize)
	n := int64(e.EntryLength) / sectorSize
	for i := int64(0); i < n && fits; i++ {
		if j.budget -= sectorSize; j.budget < 0 {
			return false, fmt.Errorf("vhdx log at %#x: %w: its entries overlap too often", j.off, ondisk.ErrLimit)
		}
		if err := ondisk.ReadFull(j.src, sector, j.off+(at+i*sectorSize)%j.size); err != nil {
			return false, err
		}
		switch {
		case i < e.descriptorSectors():
			fits = e.eachIn(sector, i, func(d *anyDescriptor) bool {
				if d.isData() {
					data++
				}
				return d.valid(e)
			})
		case i < e.descriptorSectors()+data:
			fits = isDataSector(sector, e.SequenceNumber)
		}
		if i == 0 {
			clear(sector[atChecksum : atChecksum+4])
		}
		sum = crc32.Update(sum, castagnoli, sector)
	}
	return fits && sum == e.Checksum && e.descriptorSectors()+data <= n, nil
}

// changes lists the changes of a sequence, oldest first.
func (j *journal) changes(s sequence) ([]change, error) {
	var out []change
	for at := s.first; ; {
		e := j.entries[at/sectorSize]
		if e == nil || int64(len(out))+int64(e.DescriptorCount) > maxChanges {
			return nil, fmt.Errorf("vhdx log at %#x: %w of %d changes; open the image once in Hyper-V, which replays "+
				"it", j.off, ondisk.ErrLimit, maxChanges)
		}
		var err error
		if out, err = j.changesOf(out, e, at); err != nil {
			return nil, err
		}
		if at == s.last {
			return out, nil
		}
		at = (at + int64(e.EntryLength)) % j.size
	}
}

// changesOf appends the changes of the entry at a log offset.
func (j *journal) changesOf(out []change, e *entryHeader, at int64) ([]change, error) {
	sector := make([]byte, sectorSize)
	data := at + e.descriptorSectors()*sectorSize
	for i := range e.descriptorSectors() {
		if err := ondisk.ReadFull(j.src, sector, j.off+(at+i*sectorSize)%j.size); err != nil {
			return nil, err
		}
		e.eachIn(sector, i, func(d *anyDescriptor) bool {
			c := change{Range: disk.Range{Off: ondisk.I64(d.FileOffset), Len: ondisk.I64(d.length())}}
			if d.isData() {
				c.sector = &logSector{j.src, j.off + data%j.size, d.Leading, d.TrailingBytes}
				data += sectorSize
			}
			if c.Len > 0 {
				out = append(out, c)
			}
			return true
		})
	}
	return out, nil
}

// entryHeader is the header of a log entry. Spec: 2.3.1.1.
type entryHeader struct {
	Signature         [4]byte // "loge"
	Checksum          uint32
	EntryLength       uint32 // bytes
	Tail              uint32 // log offset of the start of the sequence that ends with this entry
	SequenceNumber    uint64
	DescriptorCount   uint32
	_                 uint32
	LogGUID           ondisk.GUID
	FlushedFileOffset uint64 // minimum file size, bytes, when the entry was written
	LastFileOffset    uint64 // minimum file size, bytes, after replay
}

// anyDescriptor is a zero descriptor (2.3.1.2) or a data descriptor (2.3.1.3).
type anyDescriptor struct {
	Signature      [4]byte // "zero" or "desc"
	TrailingBytes  [4]byte
	Leading        [8]byte // of a data sector; the length of a zero descriptor
	FileOffset     uint64
	SequenceNumber uint64
}

// plausible validates the fields of a header, which can be wrong in spite of a valid checksum.
func (e *entryHeader) plausible(j *journal) bool {
	return string(e.Signature[:]) == "loge" && e.LogGUID == j.guid && e.SequenceNumber > 0 &&
		e.SequenceNumber < math.MaxUint64 &&
		e.EntryLength > 0 && e.EntryLength%sectorSize == 0 && int64(e.EntryLength) <= j.size &&
		e.Tail%sectorSize == 0 && int64(e.Tail) < j.size && e.descriptorSectors()*sectorSize <= int64(e.EntryLength)
}

// descriptorSectors returns the number of sectors with header and descriptors.
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
		ondisk.Fill(sector[p*descriptor:], binary.LittleEndian, &d)
		if !use(&d) {
			return false
		}
	}
	return true
}

func (d *anyDescriptor) isData() bool { return string(d.Signature[:]) == "desc" }

// length returns the number of bytes that a descriptor changes.
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

// isDataSector reports whether b is the data sector of a log entry with this number, and not torn. Spec: 2.3.1.4.
func isDataSector(b []byte, number uint64) bool {
	return string(b[:4]) == "data" && binary.LittleEndian.Uint32(b[4:]) == uint32(number>>32) &&
		binary.LittleEndian.Uint32(b[sectorSize-4:]) == uint32(number&math.MaxUint32)
}

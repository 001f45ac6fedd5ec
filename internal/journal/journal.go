// Package journal keeps on disk what a run does to files that it may not leave half done: an exchange of names or a
// move in place. It knows nothing of what it keeps, and no names.
//
// A journal is one file. All numbers are little-endian.
//
//	0       head, one sector: magic, version, kind, ID, place and length of the plan and of the area, checksums
//	4 KiB   slot of records with even numbers
//	36 KiB  slot of records with odd numbers
//	68 KiB  the plan: what the run is to do; never changes
//	…       the area, at a multiple of 4 KiB: bytes that the owner saves before it overwrites them
//
// The head is written last, when all else is durable, and fits into one sector. A file without a head is of a run that
// had not begun. A record replaces the one before the last, so that a torn one leaves its predecessor. It vouches for
// the bytes that were saved in the area since its predecessor: where these are torn, it is. An owner must therefore not
// save over bytes for which the last record vouches.
package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

const (
	version  = 1
	headSize = 512 // one sector, which a power cut leaves whole
	slotOff  = 4 * units.KiB
	slotSize = 32 * units.KiB
	planOff  = slotOff + 2*slotSize
	unit     = 4 * units.KiB // what the area is aligned to

	slotHead  = 20 // number, length, count of saved ranges, checksum of a record
	savedSize = 20 // offset, length, checksum of a saved range
	maxSaved  = 64

	// MaxRecord bounds a record, bytes.
	MaxRecord = slotSize - slotHead - maxSaved*savedSize
	// MaxPlan bounds a plan, bytes.
	MaxPlan = 64 * units.MiB
	// MaxArea bounds the area, bytes.
	MaxArea = 64 * units.GiB
)

var (
	magic      = [8]byte{'T', 'R', 'U', 'E', 'U', 'P', 'J', '\n'}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

var (
	// ErrNotBegun is the error of a file without a head: its run was ended before it changed anything.
	ErrNotBegun = fmt.Errorf("the journal was not complete when the run ended, so that nothing was begun: %w",
		ondisk.ErrFormat)
	// ErrBlank is ErrNotBegun for a file that is empty or begins with a sector of zeros. A kill or a power cut can
	// leave that, and other files are like it.
	ErrBlank = fmt.Errorf("it is empty, or its first %d bytes are zero: %w", headSize, ErrNotBegun)
)

// unbegun is what the first sector holds until all else of the journal is durable.
const unbegun = "trueup: the journal of a run that has not begun\n"

// ID tells the records of one journal from those of another whose blocks it got.
type ID [16]byte

// File is what a journal is kept in.
type File interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// head is the first sector, without its checksum at the end.
type head struct {
	Magic   [8]byte
	Version uint32
	_       uint32
	Kind    [16]byte // the rest is zero
	ID      ID
	Plan    int64 // bytes
	PlanSum [sha256.Size]byte
	Area    int64 // its offset
	AreaLen int64 // bytes
}

// sumOff is where the checksum of the head is.
const sumOff = headSize - 4

// Journal is an open journal.
type Journal struct {
	file   File
	kind   string
	id     ID
	plan   []byte
	record []byte
	number uint64 // of the record, from 1; 0 before the first
	area   int64
	length int64   // of the area, bytes
	saved  []saved // since the last record
	stood  []saved // for which the last record vouches; of another run
	opened bool    // the last record is of another run, and may stand in a cache only
}

// saved is a range of the area for which a record vouches.
type saved struct {
	Off int64 // in the area
	Len int64
	Sum uint32 // CRC-32C
}

// Create writes a journal with its plan and no record into an empty file, durably. area is how many bytes WriteAt can
// save. The caller makes the name of the file durable before it begins.
func Create(f File, kind string, id ID, plan []byte, area int64) (*Journal, error) {
	if len(kind) > 16 || int64(len(plan)) > MaxPlan || area < 0 || area > MaxArea {
		return nil, fmt.Errorf("journal of kind %q, a plan of %d and an area of %d bytes: %w", kind, len(plan), area,
			ondisk.ErrLimit)
	}
	j := &Journal{
		file: f, kind: kind, id: id, plan: bytes.Clone(plan), length: area,
		area: units.AlignUp(planOff+int64(len(plan)), unit),
	}
	h := head{
		Magic: magic, Version: version, ID: id, Plan: int64(len(plan)), PlanSum: sha256.Sum256(plan),
		Area: j.area, AreaLen: area,
	}
	copy(h.Kind[:], kind)
	sector := make([]byte, headSize)
	if _, err := binary.Encode(sector, binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(sector[sumOff:], crc32.Checksum(sector[:sumOff], castagnoli))
	blank := make([]byte, planOff)
	copy(blank, unbegun)
	for _, w := range []struct {
		b   []byte
		off int64
	}{{blank, 0}, {plan, planOff}} {
		if _, err := f.WriteAt(w.b, w.off); err != nil {
			return nil, err
		}
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(sector, 0); err != nil {
		return nil, err
	}
	return j, f.Sync()
}

// Open reads a journal with its last whole record. The error is ErrNotBegun for one that Create did not complete.
func Open(f File) (*Journal, error) {
	j, err := readPlan(f, MaxPlan)
	if err != nil {
		return nil, err
	}
	j.opened = true
	return j, j.last(j.stands)
}

// readPlan reads head and plan of a journal. A plan has at most so many bytes.
func readPlan(f File, most int64) (*Journal, error) {
	j, h, err := readHead(f)
	if err != nil {
		return nil, err
	}
	if h.Plan > most {
		return nil, ondisk.In(ondisk.ErrLimit, "plan of %d bytes in a journal, at most %d are read", h.Plan, most)
	}
	j.file = f
	if j.plan, err = upTo(f, h.Plan, planOff); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(j.plan); sum != h.PlanSum {
		return nil, damaged(planOff, "SHA-256 of the plan", sum[:], fmt.Sprintf("% x", h.PlanSum))
	}
	return j, nil
}

// Peek returns the kind of a journal and its last record, and reads no more than these. Bytes that the record vouches
// for are not looked at: where they are torn, Open returns the record before it.
func Peek(f io.ReaderAt) (kind string, record []byte, err error) {
	j, _, err := readHead(f)
	if err != nil {
		return "", nil, err
	}
	j.file = readOnly{f}
	err = j.last(unseen)
	return j.kind, j.record, err
}

// Read reads a journal that is not written, with a plan of at most so many bytes. Of the area, which can have
// gigabytes, it reads nothing, as Peek.
func Read(f io.ReaderAt, most int64) (*Journal, error) {
	j, err := readPlan(readOnly{f}, most)
	if err != nil {
		return nil, err
	}
	return j, j.last(unseen)
}

// unseen takes saved bytes for whole.
func unseen(saved) (bool, error) { return true, nil }

// readOnly is a File that is read.
type readOnly struct{ io.ReaderAt }

func (readOnly) WriteAt([]byte, int64) (int, error) { return 0, ondisk.ErrUnsupported }
func (readOnly) Sync() error                        { return ondisk.ErrUnsupported }

func readHead(f io.ReaderAt) (*Journal, *head, error) {
	sector, err := upTo(f, headSize, 0)
	if err != nil {
		return nil, nil, err
	}
	switch string(bytes.TrimRight(sector, "\x00")) {
	case "":
		return nil, nil, ErrBlank
	case unbegun:
		return nil, nil, ErrNotBegun
	}
	if len(sector) < headSize {
		return nil, nil, damaged(0, "size", len(sector), fmt.Sprint("at least ", headSize))
	}
	var h head
	if _, err := binary.Decode(sector, binary.LittleEndian, &h); err != nil {
		return nil, nil, err
	}
	kind, _, _ := bytes.Cut(h.Kind[:], []byte{0})
	return &Journal{kind: string(kind), id: h.ID, area: h.Area, length: h.AreaLen}, &h, checkHead(&h, sector)
}

func checkHead(h *head, sector []byte) error {
	sum, want := binary.LittleEndian.Uint32(sector[sumOff:]), crc32.Checksum(sector[:sumOff], castagnoli)
	switch {
	case h.Magic != magic:
		return damaged(0, "magic", h.Magic[:], fmt.Sprintf("% x", magic))
	case sum != want:
		return damaged(sumOff, "checksum", fmt.Sprintf("%#x", sum), fmt.Sprintf("%#x", want))
	case h.Version != version:
		return fmt.Errorf("journal of version %d, want %d; use the trueup that began the run: %w", h.Version, version,
			ondisk.ErrUnsupported)
	case h.Plan < 0 || h.Plan > MaxPlan:
		return damaged(48, "length of the plan", h.Plan, fmt.Sprint("up to ", MaxPlan))
	case h.Area != units.AlignUp(planOff+h.Plan, unit) || h.AreaLen < 0 || h.AreaLen > MaxArea:
		return damaged(88, "area", fmt.Sprintf("%d bytes at %#x", h.AreaLen, h.Area), "a place behind the plan")
	}
	return nil
}

func damaged(off int64, field string, got, want any) error {
	return &ondisk.FormatError{What: "journal", Off: off, Field: field, Got: got, Want: want}
}

// upTo reads n bytes, fewer where the file ends.
func upTo(f io.ReaderAt, n, off int64) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, off, n))
	if err != nil {
		return nil, fmt.Errorf("read the journal at %#x: %w", off, err)
	}
	return b, nil
}

// last finds the last whole record. Only the newer slot can be torn: a journal in which both are is damaged. stands
// reports whether saved bytes are whole.
func (j *Journal) last(stands func(saved) (bool, error)) error {
	torn := 0
	for n := range int64(2) {
		slot, err := upTo(j.file, slotSize, slotOff+n*slotSize)
		if err != nil {
			return err
		}
		var all []saved
		number, record, ok, err := j.decode(slot, func(s saved) (bool, error) {
			all = append(all, s)
			return stands(s)
		})
		switch {
		case err != nil:
			return err
		case !ok && len(bytes.Trim(slot, "\x00")) > 0:
			torn++
		case ok && number%2 != uint64(n):
			return damaged(slotOff+n*slotSize, "number of the record", number, "an even one in the first slot")
		case ok && number > j.number:
			j.number, j.record, j.stood = number, record, all
		}
	}
	if torn == 2 {
		return damaged(slotOff, "records", "none whole", "one of two")
	}
	return nil
}

// sum is the checksum of a record: of the ID, the head and the bytes.
func (j *Journal) sum(slot []byte) uint32 {
	return crc32.Update(crc32.Update(crc32.Checksum(j.id[:], castagnoli), castagnoli, slot[:slotHead-4]), castagnoli,
		slot[slotHead:])
}

// decode returns the record of a slot, and whether it is whole with the bytes that it vouches for.
func (j *Journal) decode(
	slot []byte, stands func(saved) (bool, error),
) (number uint64, record []byte, ok bool, err error) {
	if len(slot) < slotHead {
		return 0, nil, false, nil
	}
	number = binary.LittleEndian.Uint64(slot)
	n, count := int64(binary.LittleEndian.Uint32(slot[8:])), int64(binary.LittleEndian.Uint32(slot[12:]))
	end := slotHead + count*savedSize + n
	if number == 0 || count > maxSaved || end > int64(len(slot)) ||
		binary.LittleEndian.Uint32(slot[slotHead-4:]) != j.sum(slot[:end]) {
		return 0, nil, false, nil
	}
	for x := range slices.Chunk(slot[slotHead:slotHead+count*savedSize], savedSize) {
		var s saved
		if _, err := binary.Decode(x, binary.LittleEndian, &s); err != nil {
			return 0, nil, false, err
		}
		if ok, err := stands(s); !ok {
			return 0, nil, false, err
		}
	}
	return number, slot[slotHead+count*savedSize : end], true, nil
}

// stands reports whether saved bytes are those that a record vouches for.
func (j *Journal) stands(s saved) (bool, error) {
	if err := j.within(s.Len, s.Off); err != nil {
		return false, err
	}
	h := crc32.New(castagnoli)
	got, err := io.Copy(h, io.NewSectionReader(j.file, j.area+s.Off, s.Len))
	if err != nil {
		return false, fmt.Errorf("read the journal at %#x: %w", j.area+s.Off, err)
	}
	return got == s.Len && h.Sum32() == s.Sum, nil
}

// Put makes a record the last one, durably, together with the bytes that were saved before it. After an error nothing
// more may be put: which record is the last is not known until the journal is opened again.
func (j *Journal) Put(record []byte) error {
	if int64(len(record)) > MaxRecord {
		return fmt.Errorf("record of %d bytes in a journal, want up to %d: %w", len(record), MaxRecord, ondisk.ErrLimit)
	}
	if err := j.settle(); err != nil {
		return err
	}
	number := j.number + 1
	if err := j.write(number, record, j.saved); err != nil {
		return err
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.number, j.record, j.saved = number, bytes.Clone(record), nil
	return nil
}

// settle makes the record durable that the next one follows, with the bytes that it vouches for. They are written
// again: where a flush of the run before failed, the kernel can have them in its cache, take them for clean, and flush
// nothing.
func (j *Journal) settle() error {
	if !j.opened {
		return nil
	}
	for _, s := range j.stood {
		buf := make([]byte, min(s.Len, units.MiB))
		for off := s.Off; off < s.Off+s.Len; {
			b := buf[:min(int64(len(buf)), s.Off+s.Len-off)]
			if err := j.ReadAt(b, off); err != nil {
				return err
			}
			if _, err := j.file.WriteAt(b, j.area+off); err != nil {
				return err
			}
			off += int64(len(b))
		}
	}
	if j.number > 0 {
		if err := j.write(j.number, j.record, j.stood); err != nil {
			return err
		}
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.opened, j.stood = false, nil
	return nil
}

// write writes a record into its slot.
func (j *Journal) write(number uint64, record []byte, all []saved) error {
	slot := binary.LittleEndian.AppendUint64(nil, number)
	slot = binary.LittleEndian.AppendUint32(slot, uint32(len(record))) //nolint:gosec // at most MaxRecord
	slot = binary.LittleEndian.AppendUint32(slot, uint32(len(all)))    //nolint:gosec // at most maxSaved
	slot = append(slot, 0, 0, 0, 0)
	for _, s := range all {
		var err error
		if slot, err = binary.Append(slot, binary.LittleEndian, s); err != nil {
			return err
		}
	}
	slot = append(slot, record...)
	binary.LittleEndian.PutUint32(slot[slotHead-4:], j.sum(slot))
	_, err := j.file.WriteAt(slot, slotOff+int64(number%2)*slotSize)
	return err
}

// Kind returns what kind of run the journal is of.
func (j *Journal) Kind() string { return j.kind }

// Plan returns what the run is to do.
func (j *Journal) Plan() []byte { return j.plan }

// Record returns the last record; nil before the first.
func (j *Journal) Record() []byte { return j.record }

// Area returns the size of the area, bytes.
func (j *Journal) Area() int64 { return j.length }

// WriteAt saves bytes in the area. The next Put makes them durable and vouches for them. Bytes for which the last
// record vouches must not be among those that are overwritten.
func (j *Journal) WriteAt(b []byte, off int64) error {
	if err := j.within(int64(len(b)), off); err != nil {
		return err
	}
	if len(j.saved) == maxSaved {
		return fmt.Errorf("a record of a journal for more than %d saved ranges: %w", maxSaved, ondisk.ErrLimit)
	}
	if _, err := j.file.WriteAt(b, j.area+off); err != nil {
		return err
	}
	j.saved = append(j.saved, saved{off, int64(len(b)), crc32.Checksum(b, castagnoli)})
	return nil
}

// ReadAt reads saved bytes.
func (j *Journal) ReadAt(b []byte, off int64) error {
	if err := j.within(int64(len(b)), off); err != nil {
		return err
	}
	if _, err := j.file.ReadAt(b, j.area+off); err != nil {
		return fmt.Errorf("read the journal at %#x: %w", j.area+off, err)
	}
	return nil
}

func (j *Journal) within(n, off int64) error {
	if off < 0 || n < 0 || off > j.length-n {
		return damaged(j.area, "saved bytes", fmt.Sprintf("%d at %d", n, off), fmt.Sprint("within ", j.length))
	}
	return nil
}

// Phase is how far a run has come: the first byte of the last record of its journal.
type Phase byte

// Phases. A journal without a record is of a run that has begun.
const (
	Begun     Phase = 0
	Kept      Phase = 'k' // done; the journal stays for an undo
	Undoing   Phase = 'u'
	Finishing Phase = 'f'
)

// State is what a phase means for the disk, and for the commands.
type State struct {
	Text   string // what stands on disk
	Blocks bool   // the disk is in the middle of it: nothing else may read or write it
	// Why a command does not apply, and what to do instead; empty: it applies.
	Undo, Resume, Finish string
	Undoes               string // what undo does; empty: it brings the original back
	Drops                bool   // undo --force removes the journal of a disk that is not in the middle of it any more
}

// Exchange is the name of the kind that gives an aligned copy the names of its source.
const Exchange = "exchange"

// InPlace is the name of the kind that moves partitions inside of a disk.
const InPlace = "in-place"

// States has the states of each kind of work that a run can leave open on disk.
var States = map[string]map[Phase]State{
	Exchange: {
		Begun: {
			Text:   "an exchange of the disk for its aligned copy was interrupted",
			Blocks: true,
			Finish: "the exchange is not complete; resume it first",
		},
		Kept: {
			Text:   "the disk was exchanged for its aligned copy, and the original is kept beside it",
			Resume: "the exchange is complete; undo brings the original back, finish removes it",
		},
		Undoing: {
			Text:   "an undo of the exchange of the disk was interrupted",
			Blocks: true,
			Resume: "the original is about to come back; give the undo again",
			Finish: "the original is about to come back; give the undo again",
		},
		Finishing: {
			Text:   "the removal of the kept original was interrupted",
			Undo:   "files of the original are removed already; finish removes the others",
			Resume: "the exchange is complete; finish removes what is left of the original",
		},
	},
	InPlace: inPlace,
}

// inPlace lists the states of a move in place: 'm' is the move itself, 'c' follows the commit, after which there is no
// undo, and 'd' follows the first sector.
var inPlace = map[Phase]State{
	Begun:   inMove,
	'm':     inMove,
	Undoing: inMove,
	'c': {
		Text:   "a move of the partitions inside of the disk was interrupted while the tables were written",
		Blocks: true,
		Undo:   "everything is at its new place already; resume completes it",
		Finish: "the move is not complete; resume it first",
		Drops:  true,
	},
	'd': {
		Text:   "the partitions were moved inside of the disk, and the end of that was interrupted",
		Blocks: true,
		Undo:   "everything is at its new place already; resume completes it",
		Finish: "resume completes it",
		Drops:  true,
	},
}

// inMove is the state in the middle of a move in place.
var inMove = State{
	Text:   "a move of the partitions inside of the disk was interrupted",
	Blocks: true,
	Finish: "the move is not complete; resume it first",
	Undoes: "takes the move back",
	Drops:  true,
}

// States that no kind lists.
var (
	notBegun = State{
		Text:   "a run was ended before it changed anything",
		Resume: "nothing was begun; undo removes the journal",
		Finish: "nothing was begun; undo removes the journal",
		Undoes: "removes the journal",
	}
	atWork = State{
		Text: "another run of trueup is at work on it", Blocks: true,
		Undo: "wait for it", Resume: "wait for it", Finish: "wait for it",
	}
	unknown = State{
		Text: "another version of trueup has left work open on it", Blocks: true,
		Undo: "use that version", Resume: "use that version", Finish: "use that version",
	}
)

// stateOf returns the state that a kind and a record stand for.
func stateOf(kind string, record []byte) (Phase, State) {
	phase := Begun
	if len(record) > 0 {
		phase = Phase(record[0])
	}
	if s, ok := States[kind][phase]; ok {
		return phase, s
	}
	return phase, unknown
}

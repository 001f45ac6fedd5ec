// Package journal stores an operation on disk that must not be left half done: an exchange of file names or a move in
// place. The format treats plans and records as opaque bytes. Only Claiming reads the file names in a plan, and the
// first byte of a record is a Phase.
//
// A journal is one file. All numbers are little-endian.
//
//	0       head, one sector: magic, version, kind, ID, place and length of the plan and of the area, checksums
//	4 KiB   slot of records with even numbers
//	36 KiB  slot of records with odd numbers
//	68 KiB  the plan of the run; never changes
//	…       the area, at a multiple of 4 KiB: bytes that the owner saves before it overwrites them
//
// The head is written last, after everything else is durable, and fits into one sector. A file without a head belongs
// to a run that had not begun. A new record replaces the one before the last, so a torn record leaves its predecessor.
// A record holds checksums of the bytes saved in the area since its predecessor: if those bytes are torn, the record is
// invalid. The owner must therefore not overwrite saved bytes that the last record covers.
package journal

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

const (
	version  = 1
	headSize = 512 // one sector, which a power cut leaves whole
	slotOff  = 4 * units.KiB
	slotSize = 32 * units.KiB
	planOff  = slotOff + 2*slotSize
	unit     = 4 * units.KiB // alignment of the area

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
	// ErrNotBegun reports a journal without a head: its run ended before it changed anything.
	ErrNotBegun = fmt.Errorf("the run ended before its journal was complete, and changed nothing: %w",
		ondisk.ErrFormat)
	// ErrBlank is ErrNotBegun for a file that is empty or begins with a sector of zeros. A kill or a power cut can
	// leave such a file, but it need not be a journal.
	ErrBlank = fmt.Errorf("it is empty, or its first %d bytes are zero: %w", headSize, ErrNotBegun)
)

// unbegun fills the first sector until the rest of the journal is durable.
const unbegun = "trueup: the journal of a run that has not begun\n"

// ID distinguishes the records of this journal from old records in reused blocks.
type ID [16]byte

// File stores a journal.
type File interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// head is the first sector without the checksum at its end.
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

// sumOff is the offset of the head's checksum.
const sumOff = headSize - 4

// Journal is an open journal.
type Journal struct {
	file      File
	kind      string
	id        ID
	plan      []byte
	record    []byte
	number    uint64 // of the record, counted from 1; 0 before the first record
	area      int64
	length    int64   // of the area, bytes
	saved     []saved // since the last record
	lastSaved []saved // covered by the last record of an earlier run
	opened    bool    // the last record is from an earlier run and may be in a cache only
}

// saved is a range of the area with its checksum in a record.
type saved struct {
	Off int64 // relative to the area
	Len int64
	Sum uint32 // CRC-32C
}

// Create durably writes a journal with its plan and no record into an empty file. area is the capacity of the area, in
// bytes. The caller must make the file name durable before it begins its work.
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

// Open reads a journal with its last valid record. It returns ErrNotBegun if Create did not complete.
func Open(f File) (*Journal, error) {
	j, err := readPlan(f, MaxPlan)
	if err != nil {
		return nil, err
	}
	j.opened = true
	return j, j.last(j.intact)
}

// readPlan reads the head and the plan of a journal. It returns ErrLimit for a plan of more than most bytes.
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

// Peek returns the kind of a journal and its last record, and reads nothing else. It does not verify the saved bytes of
// that record: if they are torn, Open returns the record before it.
func Peek(f io.ReaderAt) (kind string, record []byte, err error) {
	j, _, err := readHead(f)
	if err != nil {
		return "", nil, err
	}
	j.file = readOnly{f}
	err = j.last(unseen)
	return j.kind, j.record, err
}

// Read reads a journal without writing it. It returns ErrLimit for a plan of more than most bytes. Like Peek, it does
// not read the area, which can hold gigabytes.
func Read(f io.ReaderAt, most int64) (*Journal, error) {
	j, err := readPlan(readOnly{f}, most)
	if err != nil {
		return nil, err
	}
	return j, j.last(unseen)
}

// unseen accepts saved bytes without reading them.
func unseen(saved) (bool, error) { return true, nil }

// readOnly is a File that cannot be written.
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

// upTo reads n bytes, or fewer if the file ends before that.
func upTo(f io.ReaderAt, n, off int64) ([]byte, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, off, n))
	if err != nil {
		return nil, fmt.Errorf("read the journal at %#x: %w", off, err)
	}
	return b, nil
}

// last finds the last valid record. Only the newer slot can be torn; a journal with two torn slots is damaged. intact
// reports whether a saved range is whole.
func (j *Journal) last(intact func(saved) (bool, error)) error {
	torn := 0
	for n := range int64(2) {
		slot, err := upTo(j.file, slotSize, slotOff+n*slotSize)
		if err != nil {
			return err
		}
		var all []saved
		number, record, ok, err := j.decode(slot, func(s saved) (bool, error) {
			all = append(all, s)
			return intact(s)
		})
		switch {
		case err != nil:
			return err
		case !ok && len(bytes.Trim(slot, "\x00")) > 0:
			torn++
		case ok && number%2 != uint64(n):
			return damaged(slotOff+n*slotSize, "number of the record", number, "an even one in the first slot")
		case ok && number > j.number:
			j.number, j.record, j.lastSaved = number, record, all
		}
	}
	if torn == 2 {
		return damaged(slotOff, "records", "none whole", "one of two")
	}
	return nil
}

// sum returns the checksum of a record: over the ID, the head of the slot, and the bytes behind it.
func (j *Journal) sum(slot []byte) uint32 {
	return crc32.Update(crc32.Update(crc32.Checksum(j.id[:], castagnoli), castagnoli, slot[:slotHead-4]), castagnoli,
		slot[slotHead:])
}

// decode returns the record of a slot. ok is false if the record or one of its saved ranges is torn.
func (j *Journal) decode(
	slot []byte, intact func(saved) (bool, error),
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
		if ok, err := intact(s); !ok {
			return 0, nil, false, err
		}
	}
	return number, slot[slotHead+count*savedSize : end], true, nil
}

// intact reports whether a saved range matches its checksum.
func (j *Journal) intact(s saved) (bool, error) {
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

// Put durably writes a record as the last one, together with the bytes saved before it. The caller must not call Put
// again after an error: which record is the last is unknown until the journal is opened again.
func (j *Journal) Put(record []byte) error {
	if int64(len(record)) > MaxRecord {
		return fmt.Errorf("record of %d bytes in a journal, want up to %d: %w", len(record), MaxRecord, ondisk.ErrLimit)
	}
	if err := j.rewriteLast(); err != nil {
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

// rewriteLast makes the last record of an earlier run and its saved bytes durable before the next record. It writes
// them again: after a failed flush in that run, the kernel may hold them in its cache as clean pages and flush nothing.
func (j *Journal) rewriteLast() error {
	if !j.opened {
		return nil
	}
	for _, s := range j.lastSaved {
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
		if err := j.write(j.number, j.record, j.lastSaved); err != nil {
			return err
		}
	}
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.opened, j.lastSaved = false, nil
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

// Kind returns the kind of the run that wrote the journal.
func (j *Journal) Kind() string { return j.kind }

// Plan returns the plan of the run.
func (j *Journal) Plan() []byte { return j.plan }

// Record returns the last record, or nil before the first.
func (j *Journal) Record() []byte { return j.record }

// Area returns the size of the area in bytes.
func (j *Journal) Area() int64 { return j.length }

// WriteAt saves bytes in the area. The next Put makes them durable and stores their checksum. The range must not
// overlap a range that the last record covers.
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

// ReadAt reads bytes from the area.
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

// Phase is the progress of a run: the first byte of the last record of its journal.
type Phase byte

// Phases. A journal without a record is in phase Begun.
const (
	Begun     Phase = 0
	Kept      Phase = 'k' // done; the journal stays for an undo
	Undoing   Phase = 'u'
	Finishing Phase = 'f'
)

// State describes a phase: its effect on the disk and on the commands.
type State struct {
	Text   string // state of the disk, for messages
	Blocks bool   // the disk is half changed: no other run may read or write it
	// Why a command does not apply, and the alternative. An empty string means that it applies.
	Undo, Resume, Finish string
	Undoes               string // effect of undo; by default it brings the original back
	Drops                bool   // undo --force removes the journal of a disk that is no longer half changed
}

// Exchange is the kind of a run that gives an aligned copy the names of its source.
const Exchange = "exchange"

// InPlace is the kind of a run that moves partitions within a disk.
const InPlace = "in-place"

// Handover is the kind of a run that gives a guest the aligned disk while it is copied. The command handover continues
// it.
const Handover = "handover"

// HandedOver is the kind of the journal beside the source of a handover to another folder. Its plan is that of the
// handover, and claims the source until the handover is finished or undone.
const HandedOver = "handed-over"

// Phases of a handover after Begun.
const (
	Given     Phase = 'g' // a guest may run on the disk, which still needs its source
	Alone     Phase = 'a' // the disk has all bytes
	Differing Phase = 'd' // compared, and it differs
	Unproved  Phase = 'p' // compared, but the writes of the guest are unknown; Kept is a full proof
)

// States lists the phases of each kind of run with their states, the rows of states.json. A row names its phases by
// their bytes, and 0 for Begun. In a move in place, phase m is the move itself. Phase c follows the commit, after which
// there is no undo. Phase d follows the write of the first sector.
var States = sync.OnceValue(func() map[string]map[Phase]State {
	all := map[string]map[Phase]State{Exchange: {}, InPlace: {}, Handover: {}, HandedOver: {}}
	for _, r := range ondisk.Embedded[[]struct {
		Kind, Phases string
		State
	}](statesText) {
		for _, p := range []byte(strings.ReplaceAll(r.Phases, "0", string(rune(Begun)))) {
			all[r.Kind][Phase(p)] = r.State
		}
	}
	return all
})

//go:embed states.json
var statesText []byte

// Handed is the part of the plan of a handover that other commands read.
type Handed struct {
	Files  []HandedFile // of the source and its parents
	Format string       // of the source
	Stays  string       // why finish does not remove the source; "" if it does
}

// HandedFile identifies a file of the source of a handover.
type HandedFile struct {
	Name     string // in the folder of the journal, which claims it; "" in another folder
	Path     string
	Size     int64
	Modified int64 // nanoseconds since 1970; 0 for a block device
}

// Release removes the claim of the source from its folder.
func (h *Handed) Release(plan []byte) error {
	claim, err := Hold(h.Files[0].Path, "")
	if err != nil { // there is none, or one of another run
		return nil
	}
	defer claim.Close()
	if claim.Work.Kind == HandedOver && bytes.Equal(claim.Plan(), plan) {
		err = claim.Remove()
	}
	return err
}

// Unchanged returns an error if a file of the source was written since the handover began.
func (h *Handed) Unchanged() error {
	for _, f := range h.Files {
		if st, err := sys.Stat(f.Path); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		} else if f.written(st) {
			return ondisk.In(ondisk.ErrChanged, "%s was written since the handover began", f.Path)
		}
	}
	return nil
}

// written reports whether a file was written since the handover began. A block device shows no time.
func (f *HandedFile) written(st sys.Info) bool {
	return f.Modified != 0 && (st.Size != f.Size || st.Modified != f.Modified)
}

// Is reports whether the file at its path is still the one of the source.
func (f *HandedFile) Is() bool {
	st, err := sys.Lstat(f.Path)
	return err == nil && st.Mode.IsRegular() && f.Modified != 0 && !f.written(st)
}

// Handed returns the source in the plan of a handover.
func (h *Held) Handed() (from Handed, err error) {
	if err = json.Unmarshal(h.Plan(), &from); err == nil && len(from.Files) == 0 {
		err = damaged(planOff, "files of the source", 0, "at least 1")
	}
	if err != nil {
		err = notJournal(h.name, err)
	}
	return from, err
}

// States of journals that are not in States.
var (
	notBegun = State{
		Text:   "a run was ended before it changed anything",
		Resume: "nothing was changed; undo removes the journal",
		Finish: "nothing was changed; undo removes the journal",
		Undoes: "removes the journal",
	}
	atWork = State{
		Text: "another run of trueup is working on it", Blocks: true,
		Undo: "wait for it", Resume: "wait for it", Finish: "wait for it",
	}
	unknown = State{
		Text: "another version of trueup left unfinished work on it", Blocks: true,
		Undo: "use that version", Resume: "use that version", Finish: "use that version",
	}
)

// stateOf returns the phase and state of a journal from its kind and last record.
func stateOf(kind string, record []byte) (Phase, State) {
	phase := Begun
	if len(record) > 0 {
		phase = Phase(record[0])
	}
	if s, ok := States()[kind][phase]; ok {
		return phase, s
	}
	return phase, unknown
}

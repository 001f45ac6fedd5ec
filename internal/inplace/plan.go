package inplace

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
)

// Plan holds all data of a move, enough to continue it in another process. Offsets are disk offsets.
type Plan struct {
	Version       int    `json:"version"`
	ID            string `json:"id"` // distinguishes the mark of this move
	OldSize, Size int64  // of the disk
	// OldEnd and End are the ends of the storage: after the footer, if the format has one.
	OldEnd, End int64
	Chunk       int64 // longest stretch, in bytes
	Direct      int64 // distance in bytes from which on stretches are no longer than their distance, and not saved
	Quick       int64 `json:",omitempty"` // the same for a storage with quick flushes; 0 means Direct
	Pieces      []disk.Shift
	Patches     []disk.Patch
	Saved       []Saved        // data outside of all pieces; the first sector comes first
	Sums        []diskcopy.Sum // digest of each piece, without the first sector
	Key         []byte         // of the digests
	Sector      int64          `json:",omitempty"` // sector size in bytes; 0 means 512
	Files       []Part         // location of the disk
	Device      string         `json:",omitempty"` // path of a block device
	DeviceID    string         `json:",omitempty"` // ID of the device, if the system has one
	Journal     string         `json:",omitempty"` // path of the journal, unless it is beside the disk
	Base        string         `json:",omitempty"` // name of a disk in files
	Folder      uint64         `json:",omitempty"` // inode of its folder
	Text        []byte         // new text of the descriptor; nil without a descriptor
	OldText     []byte         // old text of the descriptor

	order []disk.Shift // the pieces that move, in their order
}

// Saved holds original bytes of the disk.
type Saved struct {
	Off   int64
	Bytes []byte
}

const (
	// planVersion is the version of plans and records. Versions 1 and 2 had other digests, and version 3 had other
	// records. Version 4 is version 5 without Quick.
	planVersion = 5
	// markSize is the size of the mark, in bytes: firmware reads the first sector, so it is written last.
	markSize = 512
	// maxSaved bounds the data outside of all pieces: copies of tables.
	maxSaved = 16 * units.MiB
	maxChunk = 16 * units.MiB
	// direct is the distance at which two flushes per stretch become cheaper than writing all bytes twice. On ext4 on a
	// virtual disk with flushes of some ms, moves by 4 MiB took 0.77 of the time, by 2 MiB 0.9, by 1 MiB 1.08
	// (boundaries less 63 sectors).
	direct = 3 * units.MiB
	// quick is the same distance for storage with flushes of at most quickFlush. A move from LBA 63 to 1 MiB is longer.
	quick      = 960 * units.KiB
	quickFlush = time.Millisecond
)

// errDiffers marks a disk that differs from the written data.
var errDiffers = errors.New("the disk differs from what was written")

// NewPlan returns the plan of a move. It reads the whole disk, so unreadable data ends the move before it begins.
// sector is the sector size, oldEnd the end of the storage before the move, and tail the footer of the image after it.
func NewPlan(
	ctx context.Context, from *plan.Plan, s Storage, sector, oldEnd int64, tail []byte, o Options,
) (*Plan, error) {
	p := &Plan{
		Version: planVersion, OldSize: from.OldSize, Size: from.Size, OldEnd: oldEnd,
		End: from.Size + oldEnd - from.OldSize, Sector: sector, Chunk: maxChunk, Direct: direct, Quick: quick,
		Pieces: from.Pieces, Key: diskcopy.NewKey(),
	}
	for _, x := range from.Patches {
		p.Patches = append(p.Patches, cutPatch(x)...)
	}
	if len(tail) > 0 {
		p.Patches = append(p.Patches, disk.Patch{Off: p.Size, New: tail, Reason: "footer of the image"})
	}
	var err error
	if p.order, err = ordered(p.Pieces); err != nil {
		return nil, err
	}
	return p, p.look(ctx, s, o)
}

// look reads the disk to save data and to compute the digests.
func (p *Plan) look(ctx context.Context, s Storage, o Options) (err error) {
	if p.Saved, err = p.save(s); err != nil {
		return err
	}
	o.begin(diskcopy.PhaseDigest, p.Pieces)
	p.Sums, err = p.sums(ctx, p.bytes(s, p.OldSize), sources(p.Pieces), o)
	return cmp.Or(err, p.check())
}

// cutPatch divides a patch at the end of the first sector.
func cutPatch(x disk.Patch) []disk.Patch {
	n := markSize - x.Off
	if n <= 0 || n >= int64(len(x.New)) {
		return []disk.Patch{x}
	}
	return []disk.Patch{
		{Off: x.Off, Old: x.Old[:n], New: x.New[:n], Reason: x.Reason},
		{Off: markSize, Old: x.Old[n:], New: x.New[n:], Reason: x.Reason},
	}
}

// save returns the first sector and the data outside of all pieces.
func (p *Plan) save(s Storage) ([]Saved, error) {
	first := make([]byte, markSize)
	if err := ondisk.ReadFull(s, first, 0); err != nil {
		return nil, err
	}
	out, left := []Saved{{0, first}}, maxSaved
	for _, r := range without(p.OldEnd, sources(p.Pieces)) {
		for e, err := range disk.Extents(s, r) {
			if err != nil {
				return nil, err
			}
			if e.Zero {
				continue
			}
			if out, left, err = saveData(s, e.Range, out, left); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// saveData adds the sectors of a range that are not zero.
func saveData(s Storage, r disk.Range, out []Saved, left int64) ([]Saved, int64, error) {
	const step = units.MiB
	buf := make([]byte, min(step, r.Len))
	for off := r.Off; off < r.End(); off += step {
		b := buf[:min(step, r.End()-off)]
		if err := ondisk.ReadFull(s, b, off); err != nil {
			return nil, 0, err
		}
		for data := range ondisk.DataRuns(b, markSize) {
			if left -= data.Len; left < 0 {
				return nil, 0, fmt.Errorf("data between partitions that a move would lose: %w of %d bytes",
					ondisk.ErrLimit, maxSaved)
			}
			x := b[data.Off:data.End()]
			if k := len(out) - 1; k > 0 && out[k].Off+int64(len(out[k].Bytes)) == off+data.Off {
				out[k].Bytes = append(out[k].Bytes, x...)
				continue
			}
			out = append(out, Saved{off + data.Off, slices.Clone(x)})
		}
	}
	return out, left, nil
}

// bytes returns the storage as a disk of the given size, with zeros in place of the first sector.
func (p *Plan) bytes(s Storage, size int64) disk.Disk {
	return disk.New(size, p.sector(), func(off int64) (disk.Run, error) {
		if off < markSize {
			return disk.Run{Len: markSize - off}, nil
		}
		return disk.Run{Len: size - off, Src: s, Off: off}, nil
	})
}

func (p *Plan) sector() int64 { return cmp.Or(p.Sector, units.SectorSize) }

// sums computes the digests of ranges of a disk.
func (p *Plan) sums(ctx context.Context, d disk.Disk, ranges []disk.Range, o Options) ([]diskcopy.Sum, error) {
	out := make([]diskcopy.Sum, 0, len(ranges))
	for _, r := range ranges {
		of := diskcopy.Options{Jobs: o.Jobs, Progress: o.Progress.Add}
		sum, err := diskcopy.Stored(ctx, disk.Section(d, r), p.Key, of)
		if err != nil {
			return nil, err
		}
		out = append(out, sum)
	}
	return out, nil
}

// compare reads the pieces at the given ranges of a disk, and compares their digests with the plan.
func (p *Plan) compare(ctx context.Context, d disk.Disk, where []disk.Range, o Options) error {
	got, err := p.sums(ctx, d, where, o)
	if err != nil {
		return err
	}
	for i, x := range p.Pieces {
		if got[i] != p.Sums[i] {
			return fmt.Errorf("%w: digest of %d bytes at byte %d, before the move at %d: %x, want %x", errDiffers,
				x.Len, where[i].Off, x.From, got[i], p.Sums[i])
		}
	}
	return nil
}

// first returns the first sector, either original or patched.
func (p *Plan) first(patched bool) []byte {
	b := slices.Clone(p.Saved[0].Bytes)
	for _, x := range p.Patches {
		if patched && x.Off < markSize {
			copy(b[x.Off:], x.New)
		}
	}
	return b
}

// result returns the disk with its final first sector.
func (p *Plan) result(s Storage) disk.Disk {
	d := disk.New(p.Size, p.sector(), disk.Whole(s, p.Size))
	return disk.Overlay(d, []disk.Patch{{New: p.first(true)}})
}

// unpatched returns the moved disk without its patches, whether they are written or not.
func (p *Plan) unpatched(s Storage) disk.Disk {
	var back []disk.Patch
	for _, x := range p.Patches {
		if x.Off >= markSize && x.Off < p.Size {
			back = append(back, disk.Patch{Off: x.Off, New: x.Old})
		}
	}
	return disk.Overlay(p.bytes(s, p.Size), back)
}

// old reconstructs the original disk from the moved one. Pieces can share bytes of the original: the good copy of a GPT
// also replaces the damaged one.
func (p *Plan) old(s Storage) disk.Disk {
	var back []disk.Shift
	end := int64(0)
	for _, x := range slices.SortedFunc(slices.Values(p.Pieces), func(a, b disk.Shift) int {
		return cmp.Compare(a.From, b.From)
	}) {
		if skip := max(0, end-x.From); skip < x.Len {
			back = append(back, disk.Shift{From: x.To + skip, To: x.From + skip, Len: x.Len - skip})
			end = x.From + x.Len
		}
	}
	var saved []disk.Patch
	for _, x := range p.Saved { // a footer can be saved together with the bytes before it
		if n := min(int64(len(x.Bytes)), p.OldSize-x.Off); n > 0 {
			saved = append(saved, disk.Patch{Off: x.Off, New: x.Bytes[:n]})
		}
	}
	return disk.Overlay(disk.Compose(p.unpatched(s), p.OldSize, back), saved)
}

// mark returns the first sector during a move. Firmware cannot boot from it, and no system finds partitions.
func (p *Plan) mark() []byte {
	b := make([]byte, markSize)
	text := fmt.Sprintf("%s\nIt is worth nothing without its journal, a file with .trueup behind its name.\n"+
		"Run: trueup resume, or trueup undo\nmove %s\n", MarkText, p.ID)
	if p.Journal != "" {
		text = fmt.Sprintf("%s\nIt is worth nothing without its journal.\nRun: trueup resume, or trueup undo, with "+
			"--journal\nmove %s\n", MarkText, p.ID)
	}
	if shown().MatchString(p.Journal) {
		text += journalLine + p.Journal + "\n"
	}
	copy(b, text)
	return b
}

// MarkText is the start of the first sector of a disk in the middle of a move.
const MarkText = "trueup: this disk is in the middle of a move."

// journalLine begins the line with the journal path in a mark.
const journalLine = "journal "

// shown matches journal paths for a mark: they are short enough, and a shell treats none of their bytes as special.
var shown = ondisk.LazyPattern(`^/[-A-Za-z0-9/._+,:@%= ]{1,255}$`)

// JournalIn returns the path of the journal in the first sector of a disk. marked is false unless the disk is in the
// middle of a move.
func JournalIn(first []byte) (path string, marked bool) {
	if !bytes.HasPrefix(first, []byte(MarkText)) {
		return "", false
	}
	for line := range bytes.Lines(bytes.TrimRight(first, "\x00")) {
		x, ok := bytes.CutPrefix(bytes.TrimSuffix(line, []byte("\n")), []byte(journalLine))
		if ok && shown().MatchString(string(x)) {
			return string(x), true
		}
	}
	return "", true
}

// marks reports whether the disk has the mark of this move. It returns an error for the mark of another move.
func (p *Plan) marks(s Storage) (bool, error) {
	b := make([]byte, markSize)
	if err := ondisk.ReadFull(s, b, 0); err != nil {
		return false, err
	}
	mine := string(b) == string(p.mark())
	if !mine && strings.HasPrefix(string(b), MarkText) {
		return false, fmt.Errorf("the first sector of the disk is the mark of another move; put the journal of "+
			"that move beside the disk: %w", ondisk.ErrChanged)
	}
	return mine, nil
}

// notOld returns an error for a disk with the original first sector, although its journal is past the commit: the disk
// was restored from a backup.
func (p *Plan) notOld(s Storage) error {
	b := make([]byte, markSize)
	if err := ondisk.ReadFull(s, b, 0); err != nil {
		return err
	}
	if string(b) == string(p.first(false)) && string(b) != string(p.first(true)) {
		return fmt.Errorf("the first sector of the disk is the old one, although the journal lists all data as "+
			"moved: %w", ondisk.ErrChanged)
	}
	return nil
}

// unit returns the number of bytes that one bit of a record covers.
func (p *Plan) unit() int64 { return max(units.SectorSize, p.Chunk/512) }

// bitmap returns the size of the bitmap for a stretch, in bytes.
func (p *Plan) bitmap(n int64) int64 { return (n/p.unit() + 8) / 8 }

// area returns the size of the journal area: two stretches if any stretch may have to be saved, otherwise 0.
func (p *Plan) area() int64 {
	runs, _ := p.runs(false)
	if slices.ContainsFunc(runs, func(r run) bool { return r.redo }) {
		return 2 * p.Chunk
	}
	return 0
}

// encode encodes the plan for a journal.
func (p *Plan) encode() ([]byte, error) { return json.Marshal(p) }

// decodePlan decodes the plan of a journal.
func decodePlan(b []byte) (*Plan, error) {
	p := &Plan{}
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("plan of the journal: %w: %w", err, ondisk.ErrFormat)
	}
	if p.Version != 4 && p.Version != planVersion {
		return nil, fmt.Errorf("plan of the journal: version %d, want %d; use the trueup that began the move: %w",
			p.Version, planVersion, ondisk.ErrUnsupported)
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	var err error
	p.order, err = ordered(p.Pieces)
	return p, err
}

// check returns an error if a plan is inconsistent, or would read or write outside of the disk.
func (p *Plan) check() error {
	const most = 1 << 62
	bad := func(format string, args ...any) error {
		return fmt.Errorf("plan of the move: %w: %w", fmt.Errorf(format, args...), ondisk.ErrFormat)
	}
	tail := p.OldEnd - p.OldSize
	switch {
	case p.OldSize < markSize || p.Size < p.OldSize || p.Size > most || tail < 0 || tail > markSize ||
		p.End-p.Size != tail:
		return bad("sizes %d, %d, %d and %d", p.OldSize, p.OldEnd, p.Size, p.End)
	case p.Chunk < markSize || p.Chunk > maxChunk || p.Chunk%markSize != 0 || p.Direct < markSize ||
		p.Quick != 0 && p.Quick < markSize:
		return bad("stretches of %d bytes, direct from byte %d or %d", p.Chunk, p.Direct, p.Quick)
	case len(p.Saved) == 0 || p.Saved[0].Off != 0 || len(p.Saved[0].Bytes) != markSize:
		return bad("the first sector is not saved")
	case p.Device != "" && (p.OldEnd != p.OldSize || p.Size != p.OldSize || len(p.Files) > 0 || p.Text != nil):
		return bad("a device of %d bytes for a disk of %d to %d bytes", p.OldEnd, p.OldSize, p.Size)
	case len(p.Sums) != len(p.Pieces):
		return bad("%d digests of %d pieces", len(p.Sums), len(p.Pieces))
	}
	end := int64(0)
	for _, x := range p.Pieces {
		if x.Len <= 0 || x.From > p.OldSize-x.Len || x.To < end || x.To > p.Size-x.Len ||
			x.From != x.To && min(x.From, x.To) < markSize {
			return bad("piece %+v", x)
		}
		end = x.To + x.Len
	}
	for _, x := range p.Patches {
		if len(x.Old) != len(x.New) && x.Off < p.Size {
			return bad("patch of %d bytes at %d for %d", len(x.New), x.Off, len(x.Old))
		}
	}
	return errors.Join(inOrder("patch", p.Patches, func(x disk.Patch) disk.Range { return x.Range() }, p.End),
		inOrder("saved range", p.Saved,
			func(x Saved) disk.Range { return disk.Range{Off: x.Off, Len: int64(len(x.Bytes))} }, p.OldEnd))
}

// inOrder returns an error for ranges that are unsorted, overlap, leave the disk, or cross the end of the first sector.
func inOrder[T any](what string, list []T, at func(T) disk.Range, size int64) error {
	end := int64(0)
	for _, x := range list {
		r := at(x)
		if r.Len <= 0 || r.Off < end || r.Off > size-r.Len || r.Off < markSize && r.End() > markSize {
			return fmt.Errorf("plan of the move: %s of %d bytes at %d: %w", what, r.Len, r.Off, ondisk.ErrFormat)
		}
		end = r.End()
	}
	return nil
}

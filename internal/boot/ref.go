package boot

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/ext"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// Ref is a stored absolute position. Both its place and its target can move. Offsets are bytes.
type Ref struct {
	Kind      string
	Partition int    // number of the partition that stores it, 0 before all partitions, where nothing moves
	File      string // path of the guest's file, empty in a boot sector or the sectors of a loader
	Off       int64  // in that file, else in the partition, or in the disk if Partition is 0
	// At lists the reference's ranges on the disk, in order: several for a field in fragments of a file. They may span
	// a checksummed region.
	At     []disk.Range
	Raw    []byte // the stored bytes
	Points int64  // decoded byte offset on the disk
	Target int    // number of the partition that Points moves with; 0 leaves the reference as found
	// Disk is the signature of another disk that Points refers to; 0 means this disk.
	Disk uint32
	// FromRecord marks Points that count from the boot record of Target, a logical partition.
	FromRecord bool
	Stays      string // why the reference stays as found, if Target is 0 or Encode is nil
	// Encode returns the bytes for another offset, of the same length as raw. It is nil if the reference cannot be
	// rewritten.
	Encode func(raw []byte, to int64) ([]byte, error)
	// Loss is the consequence for the guest, as a clause, if the target moves and Encode fails. It is empty if the
	// guest does not boot then.
	Loss, Remedy string
	// Spare marks a reference that the boot does not need.
	Spare bool
	// Seals lists the checksummed regions that a rewrite must update. References can share one.
	Seals []*Seal
}

// Narrow reduces a reference to some of its bytes, given by ascending index. The others belong to another reference.
func (r *Ref) Narrow(bytes []int) {
	whole, encode := r.Raw, r.Encode
	var all []disk.Range
	for _, at := range r.At {
		for off := at.Off; off < at.End(); off++ {
			all = append(all, disk.Range{Off: off, Len: 1})
		}
	}
	pick := func(b []byte) []byte {
		out := make([]byte, len(bytes))
		for i, from := range bytes {
			out[i] = b[from]
		}
		return out
	}
	r.Raw, r.At = pick(whole), nil
	for _, i := range bytes {
		if k := len(r.At) - 1; k >= 0 && r.At[k].End() == all[i].Off {
			r.At[k].Len++
			continue
		}
		r.At = append(r.At, all[i])
	}
	if encode != nil {
		r.Encode = func(_ []byte, to int64) ([]byte, error) {
			b, err := encode(whole, to)
			if err != nil {
				return nil, err
			}
			return pick(b), nil
		}
	}
}

// Seal is a region of a file that a checksum in it covers.
type Seal struct {
	Name string       // for people
	At   []disk.Range // ranges on the disk, in order
	Raw  []byte       // the stored bytes
	Make func([]byte) // updates the checksum in place
}

// Patches returns the checksum patches of the region after the other patches, in a partition that moves by shift bytes.
// It returns none if the others leave the region unchanged.
func (s *Seal) Patches(shift int64, others []disk.Patch) (patches []disk.Patch) {
	now, done := slices.Clone(s.Raw), int64(0)
	for _, at := range s.At {
		to := disk.Range{Off: at.Off + shift, Len: at.Len}
		for _, x := range others {
			if o := (disk.Range{Off: x.Off, Len: int64(len(x.New))}); o.Overlaps(to) {
				from := max(o.Off, to.Off)
				copy(now[done+from-to.Off:done+to.Len], x.New[from-o.Off:])
			}
		}
		done += at.Len
	}
	if bytes.Equal(now, s.Raw) {
		return nil
	}
	was := slices.Clone(now)
	s.Make(now)
	return rewritten(s.At, shift, was, now, false, "checksum of "+s.Name)
}

// rewritten returns the patches for the bytes in ranges, which move by shift bytes. They cover whole ranges, or only
// the bytes that differ.
func rewritten(ranges []disk.Range, shift int64, was, now []byte, whole bool, reason string) (patches []disk.Patch) {
	done := int64(0)
	for _, at := range ranges {
		a, b := was[done:done+at.Len], now[done:done+at.Len]
		done += at.Len
		changed := []disk.Range{{Len: at.Len}}
		if !whole {
			changed = differences(a, b)
		}
		for _, d := range changed {
			patches = append(patches, disk.Patch{
				Off: at.Off + shift + d.Off, Old: a[d.Off:d.End()], New: b[d.Off:d.End()], Reason: reason,
			})
		}
	}
	return patches
}

// Place is Windows' name for the start of a partition: the signature of an MBR disk, and a byte offset.
type Place struct {
	Disk uint32
	Off  int64
}

// Names returns the place that a reference to another disk points to.
func (r Ref) Names() Place { return Place{r.Disk, r.Points} }

// Limits for joining the changed bytes of a reference to one patch.
const (
	wholeField = 16 // a reference up to this length is a field, and patched whole
	joinWithin = 16 // a gap of equal bytes up to this length is not worth another line
)

// Follows reports whether the reference is rewritten when its target moves.
func (r Ref) Follows() bool { return r.Target != 0 && r.Encode != nil }

// Place returns where the reference is stored, for people.
func (r Ref) Place() string {
	switch {
	case r.File != "":
		return fmt.Sprintf("%s at byte %d", r.File, r.Off)
	case r.Partition == 0:
		return fmt.Sprintf("byte %d of the disk", r.Off)
	}
	return fmt.Sprintf("byte %d", r.Off)
}

// Name names the reference, for people.
func (r Ref) Name() string {
	switch {
	case r.File != "":
		return fmt.Sprintf("%s in %.256q of partition %d", r.Kind, r.File, r.Partition)
	case r.Partition == 0:
		return r.Kind
	}
	return fmt.Sprintf("%s of partition %d", r.Kind, r.Partition)
}

// Holder names the file that stores a reference of a Windows, for people.
func (r Ref) Holder() string {
	return fmt.Sprintf(`\%s of partition %d`, strings.ReplaceAll(r.File, "/", `\`), r.Partition)
}

// Patches returns the patches that point the reference to byte offset to, in a partition that moves by shift bytes. For
// a long reference, a region with a checksum, it lists only the bytes that differ.
func (r Ref) Patches(shift, to int64) ([]disk.Patch, error) {
	b, err := r.Encode(r.Raw, to)
	if err != nil {
		return nil, err
	}
	if len(b) != len(r.Raw) {
		panic(fmt.Sprintf("boot: %s has %d bytes, and would have %d", r.Kind, len(r.Raw), len(b)))
	}
	reason := fmt.Sprintf("%s: %d -> %d", r.Name(), r.Points, to)
	return rewritten(r.At, shift, r.Raw, b, len(b) <= wholeField, reason), nil
}

// differences returns the ranges in which two slices of equal length differ.
func differences(a, b []byte) []disk.Range {
	var out []disk.Range
	for i := range a {
		if a[i] == b[i] {
			continue
		}
		off := int64(i)
		if k := len(out) - 1; k >= 0 && off-out[k].End() <= joinWithin {
			out[k].Len = off + 1 - out[k].Off
			continue
		}
		out = append(out, disk.Range{Off: off, Len: 1})
	}
	return out
}

// place is one range of a reference.
type place struct {
	disk.Range
	ref int
}

// distinct drops references found twice, through two names of one file, and reports overlaps. Two structures that claim
// the same bytes cannot both be valid, and rewriting one would destroy the other.
func distinct(refs []Ref) (kept []Ref, clash *ondisk.Issue) {
	var places []place
	for i, r := range refs {
		for _, at := range r.At {
			places = append(places, place{at, i})
		}
	}
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.Off, b.Off) })
	twice, same := map[int]bool{}, map[[2]int]bool{} // same: pairs already compared; each can have many places
	last := 0                                        // the place with the highest end; a long one can hold many others
	for i := 1; i < len(places); i++ {
		a, b := places[last], places[i]
		if b.End() > a.End() {
			last = i
		}
		switch {
		case b.Off >= a.End() || a.ref == b.ref || same[[2]int{a.ref, b.ref}]:
		case slices.Equal(refs[a.ref].At, refs[b.ref].At) && refs[a.ref].Kind == refs[b.ref].Kind:
			twice[max(a.ref, b.ref)], same[[2]int{a.ref, b.ref}] = true, true
		default:
			clash = overlap(&refs[a.ref], &refs[b.ref], b.Off)
		}
	}
	for i, r := range refs {
		if !twice[i] {
			kept = append(kept, r)
		}
	}
	return kept, clash
}

// overlap keeps two references that claim byte at as they are, and returns the issue.
func overlap(a, b *Ref, at int64) *ondisk.Issue {
	for _, r := range []*Ref{a, b} {
		r.Encode, r.Stays = nil, "it overlaps another reference"
	}
	return &ondisk.Issue{
		Code: "references-overlap", Effect: ondisk.Unbootable, OnMove: true,
		Text:   fmt.Sprintf("%s and %s overlap at byte %d", a.Name(), b.Name(), at),
		Remedy: "check the file systems in the guest (chkdsk, fsck), or leave the partitions where they are",
	}
}

// EncodeBytes encodes a byte offset in 64 bits.
func EncodeBytes(_ []byte, to int64) ([]byte, error) {
	return binary.LittleEndian.AppendUint64(nil, ondisk.U64(to)), nil
}

// EncodeSectors encodes a byte offset as a 32-bit count of sectors.
func EncodeSectors(sector int64) func([]byte, int64) ([]byte, error) {
	return func(_ []byte, to int64) ([]byte, error) {
		n := to / sector
		if to%sector != 0 || n > math.MaxUint32 {
			return nil, fmt.Errorf("offset %#x: %w in 32 bits of sectors of %d bytes", to, ondisk.ErrLimit, sector)
		}
		return binary.LittleEndian.AppendUint32(nil, ondisk.U32(n)), nil
	}
}

// replays reports whether the next mount of a file system replays its journal.
func replays(v *volume.Volume) bool {
	return slices.ContainsFunc(v.Issues, func(i ondisk.Issue) bool { return i.Code == "ext-journal" })
}

// checkJournals checks every reference to rewrite against the ext journals. A replay writes whole blocks, and can
// restore the old position.
func (r *Result) checkJournals(g *Guest) error {
	type place struct{ in, target int }
	reported, harmless := map[place]bool{}, map[int]bool{} // by partition number
	for i := range r.Refs {
		ref := &r.Refs[i]
		p, at := g.Numbered(ref.Partition), place{ref.Partition, ref.Target}
		if p.Number == 0 || !ref.Follows() || ref.Spare || reported[at] || !replays(p.Volume) {
			continue
		}
		why, err := g.overwritten(p, ref)
		switch {
		case err != nil:
			return fmt.Errorf("partition %d: %w", p.Number, err)
		case why == "":
			harmless[p.Number] = true
			continue
		}
		home := Partition{}
		if ref.File == "" && ref.Off < AreaLen {
			home = p
		}
		const back = "%s: a pending replay of the journal of partition %d can restore its old bytes: %s"
		text := fmt.Sprintf(back, ref.Name(), p.Number, why)
		r.Breaks(g, home, journalCode, ref.Target, text, "shut the guest down cleanly first")
		reported[at] = true
	}
	for _, p := range g.Partitions {
		if harmless[p.Number] {
			const note = "the %s of partition %d was in use when it was copied: no block in its journal has a " +
				"changed position"
			r.onMove(ondisk.Note, journalCode, p.Number, fmt.Sprintf(note, p.Volume.Kind, p.Number), "")
		}
	}
	return nil
}

// journalCode is the code of issues about ext journals and moves.
const journalCode = "ext-open"

// overwritten returns why a replay can change the bytes of a reference, and an empty string if it cannot.
func (g *Guest) overwritten(p Partition, ref *Ref) (why string, err error) {
	files, err := g.Files(p)
	if ondisk.Understood(err) || errors.Is(err, ondisk.ErrNoMatch) {
		return err.Error(), nil
	}
	open, ok := files.(*ext.Replayed)
	if !ok {
		return "it cannot be read", err
	}
	if open.Log == nil {
		return ondisk.Shift(open.Unread, p.Off).Error(), nil
	}
	var in []disk.Range
	for _, at := range ref.At {
		in = append(in, disk.Range{Off: at.Off - p.Off, Len: at.Len})
	}
	if w := open.Log.Conflict(in); w != nil {
		return w.String(), nil
	}
	return "", nil
}

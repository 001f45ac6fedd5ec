package align

import (
	"cmp"
	"fmt"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Judgement holds the verdict on one partition for one boundary. Exit code, advice, rank, plan and reports all use it,
// and none of them judges a start itself.
type Judgement struct {
	// Unjudged is the reason why the place of the partition affects no I/O; "" means that it is judged.
	Unjudged string
	// Data is the byte of the disk at which the blocks of the volume begin. Without a known volume it is the start of
	// the partition.
	Data int64
	// ByStart is the verdict on the start, even if the partition is not judged.
	ByStart Verdict
	// Verdict is the better verdict on the start and on Data. "" means not judged.
	Verdict Verdict
	// Plain is the verdict in a copy without moves, which begins with the disk. It differs from Verdict if the file of
	// the disk shifts the partition.
	Plain Verdict
	// Worsens reports whether a start on the boundary would misalign the data.
	Worsens bool
	// Stays is the reason why a copy keeps a partition off the boundary, unless --partition names it. It is "" for a
	// partition that moves or starts on the boundary.
	Stays string
}

// Judge judges the place of a partition.
func Judge(p boot.Partition, boundary Boundary) Judgement {
	j := Judgement{Unjudged: unjudged(p), ByStart: boundary.Verdict(start(p)), Data: p.Off}
	if j.Unjudged != "" {
		if j.ByStart.Off() && HoldsVolume(p) {
			j.Stays = j.Unjudged
		}
		return j
	}
	at, _ := data(p)
	j.Data = at - p.Shift
	j.Verdict, j.Plain = VerdictOf(start(p), at, boundary), VerdictOf(p.Off, j.Data, boundary)
	if now, then, worse := worsened(p, boundary); worse && j.ByStart.Off() {
		j.Worsens = true
		j.Stays = fmt.Sprintf("its data are on a multiple of %s now (byte %d), and would only be on a multiple of %s "+
			"if it started on a multiple of %s", now.Text(), j.Data, then.Text(), boundary.Text())
	}
	return j
}

// wholes returns the partitions of a disk, or without a table the volume over the whole disk.
func wholes(l *layout.Layout) []boot.Partition {
	if l.Table != nil || l.Volume == nil {
		return l.Partitions
	}
	p := boot.Partition{Volume: l.Volume, InFile: l.Shift, Shift: l.Shift}
	p.Len = l.Size
	return []boot.Partition{p}
}

// InFile returns the partitions to judge. A volume over the whole disk is aligned, unless its file shifts it, and so is
// a table whose slices never move.
func InFile(l *layout.Layout) []boot.Partition {
	if l.Shift == 0 {
		return l.Partitions
	}
	return placed(l)
}

// CodeUnshifted is the code of the finding of a disk that a copy aligns without moves.
const CodeUnshifted = "unshifted"

// Unshifted returns the findings of a disk with partitions that only its file shifts off the boundary. l has the starts
// that the storage sees.
func Unshifted(l *layout.Layout, boundary Boundary) (out []Finding) {
	for _, p := range InFile(l) {
		if j := Judge(p, boundary); len(out) == 0 && j.Verdict.Off() && !j.Plain.Off() {
			f := placeFinding(0, CodeUnshifted, Info)
			f.Text = "only its file shifts it off the boundary: a copy begins with the disk, and is aligned without " +
				"a move"
			out = append(out, f)
		}
	}
	return out
}

// start returns the byte at which the storage sees the start of a partition.
func start(p boot.Partition) int64 { return p.Off + p.Shift }

// VerdictOf returns the better of two verdicts: on the start of a partition, and on the first block of its data. A
// start off the boundary is no fault if the data are on blocks; a move to the boundary would misalign them. Data off a
// boundary in a partition on it were formatted so: no move repairs that, and it is a finding only.
func VerdictOf(start, data int64, boundary Boundary) Verdict {
	v, inside := boundary.Verdict(start), boundary.Verdict(data)
	if inside.Worse(v) == v {
		return inside
	}
	return v
}

// unjudged returns the reason why the place of a partition affects no I/O.
func unjudged(p boot.Partition) string {
	switch {
	case p.Kind == table.Extended:
		return "it is an extended partition, a container of logical ones"
	case p.Is(table.LDMDatabase):
		return "it holds the database of the dynamic disk, which is rarely read or written"
	case p.Fixed != "":
		return p.Fixed
	case p.Is(table.Reserved) && (p.Volume == nil || p.Volume.Kind == volume.Unknown):
		return fmt.Sprintf("its type is %s, and a running guest does not read or write it", p.TypeName())
	}
	return ""
}

// Judged reports whether the start of a partition affects I/O. An extended partition is only a container, and the
// database of a dynamic disk is rarely used.
func Judged(p boot.Partition) bool { return unjudged(p) == "" }

// HoldsVolume reports whether a partition can hold a volume. An extended partition is a container of others, and the
// database of a dynamic disk is no volume.
func HoldsVolume(p boot.Partition) bool {
	return p.Kind != table.Extended && !p.Is(table.LDMDatabase)
}

// origin is the first block of a volume in a partition. It includes containers around the volume: for a FAT on a
// mirror, it is the first cluster of the FAT.
type origin struct {
	inside int64          // bytes from the start of the partition
	v      *volume.Volume // innermost; the unit of all I/O
	of     *volume.Volume // owner of the data at the origin, see volume.Volume.Data
}

// originOf returns the origin of a volume that begins start bytes after the start of a partition of size bytes.
func originOf(v *volume.Volume, start, size int64) origin {
	at, of := v.Data()
	if start+at > size {
		at, of = 0, v
	}
	return origin{start + at, v.Innermost(), of}
}

// origins returns the origins in a partition: one for each slice, or its own. There is at least one.
func origins(p boot.Partition) (out []origin) {
	v := p.Volume
	if v == nil {
		v = &volume.Volume{Kind: volume.Unknown}
	}
	if identify.Sliced(v.Kind) {
		for _, x := range v.Parts {
			if x.Start < 0 || x.Start+x.Size > p.Len {
				continue
			}
			o := origin{x.Start, v, v}
			if x.Content != nil {
				o = originOf(x.Content, x.Start, p.Len)
			}
			out = append(out, o)
		}
	}
	if len(out) == 0 {
		out = append(out, originOf(v, 0, p.Len))
	}
	return out
}

// data returns the byte at which the storage sees the first block of a partition, and the origin there. In a sliced
// partition it is the slice with the worst alignment. The distance of the origin from the start of the partition never
// changes.
func data(p boot.Partition) (at int64, o origin) {
	all := origins(p)
	o = all[0]
	for _, x := range all[1:] {
		if units.Alignment(start(p)+x.inside) < units.Alignment(start(p)+o.inside) {
			o = x
		}
	}
	return start(p) + o.inside, o
}

// worsened reports whether a start on the boundary would misalign the data of a partition. The data are on multiples of
// now today, and of then after the move. A first byte on a multiple of a larger power of two never increases the number
// of touched blocks of at most the boundary, for any I/O size, see series. One worse slice is enough.
func worsened(p boot.Partition, boundary Boundary) (now, then Boundary, worse bool) {
	for _, o := range origins(p) {
		is, would := boundary.below(start(p)+o.inside), boundary.below(o.inside)
		if is.Above(would) {
			return is, would, true
		}
	}
	return now, then, false
}

// Anchor returns the byte of a partition that a plan puts on a boundary, and that boundary. A partition that moves for
// its own alignment starts on the target. One that makes room for another keeps the alignment of its data, even with a
// smaller target: it moves by a multiple of that alignment, up to Kept.
func (g Goal) Anchor(p boot.Partition) (anchor int64, boundary Boundary) {
	if Judged(p) && !g.Moves(p) {
		boundary = g.Want
		for _, o := range origins(p) {
			if is := Kept.below(p.Off + o.inside); is.Above(boundary) {
				boundary = is
			}
		}
		if _, _, worse := worsened(p, g.Want); worse || boundary.Above(g.Want) {
			return boundary.Up(p.Off) - p.Off, boundary
		}
	}
	return 0, g.Want
}

// findings returns the findings of a partition: a start off the boundary, and data aligned otherwise than the start.
func (j Judgement) findings(p boot.Partition, boundary Boundary, sector int64) (out []Finding) {
	switch {
	case j.Unjudged != "" && j.ByStart.Off() && HoldsVolume(p) && p.Fixed == "":
		f := placeFinding(p.Number, "not-judged", Info)
		f.Text = fmt.Sprintf("%s: %s, so it is not judged and stays", where(p, boundary, sector), j.Unjudged)
		return []Finding{f}
	case j.Unjudged != "":
		return nil
	case j.Verdict.Off():
		out = append(out, j.startFinding(p, boundary, sector))
	case j.ByStart.Off():
		return []Finding{j.inOrder(p, boundary, sector)}
	case j.Plain.Off():
		out = append(out, byOffset(p, boundary, sector))
	}
	return append(out, nested(p.Volume, start(p), p.Number, boundary)...)
}

func placeFinding(partition int, code string, severity Severity) Finding {
	return Finding{
		Code: code, Severity: severity, Subject: subject(partition), Partition: partition, Effect: ondisk.Note,
	}
}

// CodeByOffset is the code of the finding of a partition that is aligned in its file only.
const CodeByOffset = "aligned-by-offset"

// byOffset returns the finding of a partition that is off the boundary on the disk, but on it in the file.
func byOffset(p boot.Partition, boundary Boundary, sector int64) Finding {
	f := placeFinding(p.Number, CodeByOffset, Info)
	f.Text = fmt.Sprintf("%s at LBA %d (byte %d) of the disk and at byte %d of the file, a multiple of %s: that "+
		"counts, because a hypervisor runs the file as it is", starts(p), p.Off/sector, p.Off, p.InFile,
		boundary.Text())
	f.Remedy = "none needed; align moves a partition, because its copy begins with the disk"
	return f
}

// starts returns the verb of a partition, or of a slice of the disk.
func starts(p boot.Partition) string {
	if p.Number == 0 && p.Off > 0 {
		return "has a slice"
	}
	return "starts"
}

// where describes the start of a partition off the boundary.
func where(p boot.Partition, boundary Boundary, sector int64) string {
	at, seen := start(p), ""
	if p.Shift != 0 {
		seen = fmt.Sprintf(", at byte %d of the file", p.InFile)
	}
	if boundary.Verdict(at) == BelowBoundary {
		return fmt.Sprintf("%s at byte %d%s, %s past a multiple of %s", starts(p), p.Off, seen,
			units.Format(boundary.Past(at)), boundary.Text())
	}
	return fmt.Sprintf("%s at LBA %d (byte %d)%s, %d bytes past a 4 KiB boundary", starts(p), p.Off/sector, p.Off,
		seen, at%Block)
}

// inOrder returns the finding of aligned data in a partition whose start is off the boundary.
func (j Judgement) inOrder(p boot.Partition, boundary Boundary, sector int64) Finding {
	f := placeFinding(p.Number, "nested-aligned", Info)
	_, o := data(p)
	kind := identify.Traits(o.of.Kind)
	place := fmt.Sprintf("byte %d", j.Data)
	if p.Shift != 0 {
		place = fmt.Sprintf("byte %d of the file", p.InFile+o.inside)
	}
	f.Text = fmt.Sprintf("%s, but the %s is at %s, a multiple of %s: that counts, and moving the partition to the "+
		"boundary would misalign the data", where(p, boundary, sector), dataName(p.Volume, o.of, kind), place,
		boundary.Text())
	if p.Number == 0 {
		f.Remedy = "none needed"
		return f
	}
	f.Remedy = fmt.Sprintf("none needed: align does not move the partition; --partition %d moves it anyway, and "+
		"then: %s", p.Number, kind.Realign)
	return f
}

// dataName names the byte at which the data of v begin. of is the volume that holds them, and kind has its traits.
func dataName(v, of *volume.Volume, kind volume.Traits) string {
	if !identify.Sliced(v.Kind) {
		return kind.Data
	}
	slice := "worst slice of the " + identify.Traits(v.Kind).Title
	if of == v || of.DataStart == 0 {
		return slice
	}
	return kind.Data + " in the " + slice
}

// startFinding describes the start of a partition and its cost.
func (j Judgement) startFinding(p boot.Partition, boundary Boundary, sector int64) Finding {
	f := placeFinding(p.Number, "misaligned", Warning)
	f.Where = where(p, boundary, sector)
	if j.Verdict == BelowBoundary {
		f.Code, f.Free = "below-boundary", true
		f.Cost = fmt.Sprintf("I/O of %s touches two units of a storage with units of that size, instead of one",
			boundary.Text())
	} else {
		f.Cost, f.Free = cost(p)
	}
	if j.Worsens {
		f.Cost, f.Free = j.Stays, true
		f.Remedy = fmt.Sprintf("align does not move the partition; --partition %d moves it anyway", p.Number)
	}
	if !j.Plain.Off() {
		f.Remedy = "copy the disk with trueup convert: only its file is shifted, and a copy begins with the disk"
	}
	f.Text = f.Where + ": " + f.Cost
	// share memory: a large table has thousands of findings
	f.Where, f.Cost = f.Text[:len(f.Where)], f.Text[len(f.Text)-len(f.Cost):]
	return f
}

// cost returns the text about the cost of a start off 4 KiB. free is true if the start costs nothing.
func cost(p boot.Partition) (text string, free bool) {
	if text := ImpactOf(p, Generic()).Text(); text != "" {
		return text, false
	}
	return "no I/O would touch fewer 4 KiB blocks of the storage after a move", true
}

// Left returns the note on a partition that a plan keeps off the boundary. It returns a warning on a named partition
// whose move gains nothing or misaligns its data. ok is false if there is neither.
func (g Goal) Left(p boot.Partition, moves bool) (i ondisk.Issue, ok bool) {
	j := Judge(p, g.Must)
	i = ondisk.Issue{Partition: p.Number}
	switch {
	case !HoldsVolume(p) || !j.ByStart.Off() || p.Fixed != "": // has a note of its own
		return i, false
	case g.Leaves(p.Number):
		i.Code = "left-alone"
		i.Text = fmt.Sprintf("it stays at byte %d, off the boundary (--data-only): %s", p.Off, g.Leave[p.Number])
	case j.Worsens && moves && g.Names(p.Number):
		i.Code, i.Effect = "data-worse", ondisk.Warn
		i.Text = j.Stays + ": --partition moves it, and I/O touches more blocks of the storage afterwards"
		i.Remedy = fmt.Sprintf("leave out --partition %d to keep it in place", p.Number)
	case j.Unjudged != "" && moves && g.Names(p.Number):
		i.Code, i.Effect = "no-gain", ondisk.Warn
		i.Text = j.Unjudged + ": --partition moves it, and nothing is gained"
		i.Remedy = fmt.Sprintf("leave out --partition %d to keep it in place", p.Number)
	case j.Stays != "" && !moves && g.Selects(p.Number):
		i.Code = "stays"
		i.Text = fmt.Sprintf("it stays at byte %d, off the boundary: %s", p.Off, j.Stays)
	default:
		return i, false
	}
	return i, true
}

// nested returns the finding of data off a boundary that no move of the partition can align, such as FAT clusters and
// LVM extents. Number 0 is the disk as one volume. Clusters smaller than the boundary need only lie within one storage
// block (4 KiB) each.
func nested(v *volume.Volume, off int64, number int, boundary Boundary) []Finding {
	if v == nil {
		return nil
	}
	start, of := v.Data() // of nested containers, the data of an inner one
	unit := boundary
	switch size := of.BlockSize; {
	case start == 0 || size > 0 && size < Block:
		return nil // no gain possible
	case size > 0 && boundary.Above(Boundary{size}):
		unit = SmallestBoundary
	}
	data := off + start
	var where string
	switch outer := unit.On(off); {
	case unit.On(data) || !outer && unit.On(start):
		return nil
	case !outer:
		where = "starts off a boundary, and so do its data:"
	case number == 0:
		where = "is a volume as a whole:"
	default:
		where = fmt.Sprintf("starts on a multiple of %s, but", unit.Text())
	}
	f := placeFinding(number, "nested-misaligned", Info)
	past := fmt.Sprintf("%s past a multiple of %s", units.Format(unit.Past(data)), unit.Text())
	if data%Block != 0 {
		f.Severity = Warning
		past = fmt.Sprintf("%d bytes past a 4 KiB boundary", data%Block)
	}
	kind := identify.Traits(of.Kind)
	f.Text = fmt.Sprintf("%s the %s is at byte %d, %s: it was made so", where, kind.Data, data, past)
	if number != 0 {
		f.Text += ", and no move of the partition aligns both"
	}
	f.Remedy = kind.Realign
	return []Finding{f}
}

// Placing is the place of a partition in a file: now, and if the disk begins at an offset.
type Placing struct {
	Partition int     `json:"partition"` // 0 is the volume over the whole disk, or a slice of it
	Start     int64   `json:"start_bytes"`
	Size      int64   `json:"size_bytes"`
	From      int64   `json:"from_bytes"`
	To        int64   `json:"to_bytes"`
	Was       Verdict `json:"from_verdict"`
	Is        Verdict `json:"to_verdict"`
}

// OffsetFor returns the offset in a file that puts most data of a disk on blocks of 4 KiB, and of such offsets the one
// with most data on multiples of 64 KiB. It is the smallest one, a multiple of the sector size below 64 KiB.
func OffsetFor(l *layout.Layout, sector int64) (best int64) {
	most := [2]int64{-1, -1}
	for off := int64(0); off < DefaultBoundary.bytes; off += sector {
		on := [2]int64{onBlocks(l, off, SmallestBoundary), onBlocks(l, off, DefaultBoundary)}
		if cmp.Or(cmp.Compare(on[0], most[0]), cmp.Compare(on[1], most[1])) > 0 {
			best, most = off, on
		}
	}
	return best
}

// placed returns the partitions to place: those of a table, the slices of a table over the whole disk, or its volume.
func placed(l *layout.Layout) (out []boot.Partition) {
	for _, x := range l.FixedParts() {
		p := boot.Partition{Volume: x.Content, InFile: x.Start + l.Shift, Shift: l.Shift}
		p.Off, p.Len = x.Start, x.Size
		out = append(out, p)
	}
	if len(out) == 0 {
		return wholes(l)
	}
	return out
}

// onBlocks returns the size of the judged partitions whose data begin on a boundary of the file. The slices of a
// partition count alike.
func onBlocks(l *layout.Layout, offset int64, boundary Boundary) (n int64) {
	for _, p := range placed(l) {
		if !Judged(p) {
			continue
		}
		all := origins(p)
		for _, o := range all {
			if boundary.On(offset + p.Off + o.inside) {
				n += p.Len / int64(len(all))
			}
		}
	}
	return n
}

// Placings returns the places of the judged partitions, with the disk at an offset. l has the present starts in files.
func Placings(l *layout.Layout, offset int64) []Placing {
	out := []Placing{}
	if ContentOf(l) != "" {
		return out
	}
	for _, p := range placed(l) {
		if !Judged(p) {
			continue
		}
		is := p
		is.Shift = offset
		out = append(out, Placing{
			Partition: p.Number, Start: p.Off, Size: p.Len, From: start(p), To: start(is),
			Was: Judge(p, DefaultBoundary).Verdict, Is: Judge(is, DefaultBoundary).Verdict,
		})
	}
	return out
}

package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// build computes pieces and patches for partitions at starts, on a disk of at least size bytes. One rule places
// everything between them, so the starts determine the result.
func (p *Plan) build(l *layout.Layout, starts map[int]int64, size int64, mend bool) error {
	p.starts, p.SectorSize = starts, l.LBASize()
	p.Moves, p.Pieces, p.Patches = nil, nil, nil
	p.Places = table.Places{Parts: map[int]disk.Range{}, Records: map[int64]int64{}}
	slots := slotsOf(l)
	for i, s := range slots {
		off := int64(0)
		if i > 0 {
			off = starts[s.part.Number]
			p.move(s.part, off)
		}
		end, delta := off+s.part.Len, off-s.part.Off
		if i+1 == len(slots) {
			var at []int64
			at, size = tail(l, s.after, end, delta, size)
			if !fitsTable(s.after, at, limitOf(l)) {
				return fmt.Errorf("the data after partition %d end beyond the maximum of the table: %w",
					s.part.Number, ErrNoPlan)
			}
			p.between(s.after, at)
			break
		}
		next := slots[i+1].part.Number
		at, last, ok := fitAll(s.after, end, delta, starts[next])
		if !ok {
			return fmt.Errorf("partition %d starts at byte %d, and the data before it end at byte %d: %w", next,
				starts[next], last, ErrNoPlan)
		}
		p.between(s.after, at)
	}
	p.Places.Mend = mend
	p.Size, p.Places.Size = size, size
	p.finish(l)
	return nil
}

// fitsTable reports whether the table can address the places of boot records and the ends of extended partitions. After
// the last partition, no other limit applies.
func fitsTable(segs []segment, at []int64, limit int64) bool {
	for i, s := range segs {
		if (s.kind == record || s.kind == boxEnd) && at[i]+s.Len > limit {
			return false
		}
	}
	return true
}

// tail arranges the segments after the last partition. If necessary, the disk grows to a whole MiB.
func tail(l *layout.Layout, segs []segment, end, delta, size int64) (at []int64, grown int64) {
	at, last, ok := fitAll(segs, end, delta, l.Usable(size))
	if ok {
		return at, size
	}
	grown = units.AlignUp(size+max(last, end)-l.Usable(size), units.MiB)
	at, _, _ = fitAll(segs, end, delta, l.Usable(grown))
	return at, grown
}

// fitAll is fit, but ignores the highest places of records if there is no other way. beyondCHS reports that.
func fitAll(segs []segment, end, delta, limit int64) (at []int64, last int64, ok bool) {
	if at, last, ok = fit(segs, end, delta, limit); !ok {
		at, last, ok = fit(unbound(segs), end, delta, limit)
	}
	return at, last, ok
}

// beyondCHS adds an issue for a boot record that moves out of DOS's reach. It refuses the plan unless the user accepts
// that.
func (p *Plan) beyondCHS(l *layout.Layout) {
	for _, x := range l.Items() {
		if to := p.Places.Records[x.Off]; x.Kind == layout.RecordItem && x.Most > 0 && to > x.Most {
			p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
				Code: "dos-chain", Effect: ondisk.Unbootable, Partition: x.Number, Err: ondisk.ErrLimit,
				Text: fmt.Sprintf("the boot record of a logical drive moves from LBA %d to LBA %d, past cylinder %d, "+
					"the last one in CHS: DOS and Windows 95 to ME would lose that drive and all later ones",
					x.Off/units.SectorSize, to/units.SectorSize, x.Most/x.Step),
				Remedy: "make space before the last logical drive in the guest first, or try a smaller --boundary",
			}))
			return
		}
	}
}

// move moves a partition to byte off.
func (p *Plan) move(part layout.Item, off int64) {
	p.keep(part.Off, off, part.Len)
	if off != part.Off {
		p.Moves = append(p.Moves, Move{part.Number, part.Off, off, part.Len})
		p.Places.Parts[part.Number] = disk.Range{Off: off, Len: part.Len}
	}
}

// between puts the segments between two partitions at their places.
func (p *Plan) between(segs []segment, at []int64) {
	for i, s := range segs {
		p.keep(s.Off, at[i], s.Len)
		switch s.kind {
		case record:
			p.Places.Records[s.Off] = at[i]
		case boxEnd:
			p.Places.Parts[s.box] = disk.Range{Off: -1, Len: at[i]} // boxes sets Off to the first record
		case front, data:
		}
	}
}

// boxes computes the places of extended partitions, from their first record to their end.
func (p *Plan) boxes(l *layout.Layout) {
	for _, part := range l.Partitions {
		if part.Kind == table.Extended {
			off := p.Places.Records[part.Off]
			p.Places.Parts[part.Number] = disk.Range{Off: off, Len: p.Places.Parts[part.Number].Len - off}
		}
	}
}

// finish adds the rest of the disk and all patches.
func (p *Plan) finish(l *layout.Layout) {
	if l.Table == nil {
		return
	}
	p.boxes(l)
	p.keepRest(l)
	p.patch(l)
}

// patch updates the table and all references to the new places.
func (p *Plan) patch(l *layout.Layout) {
	p.Mends = p.Places.Mend && l.Damaged()
	p.Patches, p.checksums = l.Table.Relocate(p.Places, l.Geometry), nil
	p.rewrite(l, func(Reference) bool { return true })
	p.sortPatches()
}

func (p *Plan) sortPatches() {
	slices.SortFunc(p.Patches, func(a, b disk.Patch) int { return cmp.Compare(a.Off, b.Off) })
}

// keepRest keeps the range after the space for partitions, at its distance from the end.
func (p *Plan) keepRest(l *layout.Layout) {
	x := l.Table.Tail(p.Size)
	p.keep(x.From, x.To, x.Len)
}

// keep adds n bytes of the source to the pieces, and joins them with the previous piece if it has the same shift.
func (p *Plan) keep(from, to, n int64) {
	if n <= 0 {
		return
	}
	if k := len(p.Pieces) - 1; k >= 0 && p.Pieces[k].From+p.Pieces[k].Len == from &&
		p.Pieces[k].To+p.Pieces[k].Len == to {
		p.Pieces[k].Len += n
		return
	}
	p.Pieces = append(p.Pieces, disk.Shift{From: from, To: to, Len: n})
}

// rewrite patches the chosen references to their new targets. A reference without a target on this disk stays, and the
// layout has an issue for it.
func (p *Plan) rewrite(l *layout.Layout, chosen func(Reference) bool) {
	for _, r := range p.References(l) {
		if r.To == r.Points || !chosen(r) {
			continue
		}
		patches, err := r.Patches(r.Shift, r.To)
		if err != nil {
			p.refuse("limit", ondisk.ErrLimit, r.Target, fmt.Sprintf("%s cannot hold the new position: %v",
				r.Kind, err),
				"try a smaller --boundary")
			continue
		}
		p.Patches = append(p.Patches, patches...)
	}
	p.reseal(l)
}

// reseal corrects the checksums over patched bytes of a file.
func (p *Plan) reseal(l *layout.Layout) {
	p.Patches = slices.DeleteFunc(p.Patches, func(x disk.Patch) bool { return p.checksums[x.Off] })
	p.checksums = map[int64]bool{}
	done := map[*boot.Seal]bool{}
	for _, r := range l.Boot.Refs {
		for _, s := range r.Seals {
			if done[s] {
				continue // thousands of references can share one seal of many MiB
			}
			done[s] = true
			patches := s.Patches(p.shift(l, r.Partition), p.Patches)
			for _, x := range patches {
				p.checksums[x.Off] = true
			}
			p.Patches = append(p.Patches, patches...)
		}
	}
}

// References returns all known stored positions with their changes, in the order of the layout.
func (p *Plan) References(l *layout.Layout) []Reference {
	out := make([]Reference, 0, len(l.Boot.Refs))
	for _, r := range l.Boot.Refs {
		to := p.now(l, r)
		if _, known := p.elsewhere(r); known && r.Disk != 0 {
			r.Stays = ""
		}
		if r.Loss != "" && to != r.Points {
			if _, err := r.Encode(r.Raw, to); err != nil {
				to, r.Encode, r.Stays = r.Points, nil, fmt.Sprintf("byte %d cannot be written there: %v", to, err)
			}
		}
		out = append(out, Reference{Ref: r, To: to, Shift: p.shift(l, r.Partition)})
	}
	return out
}

// losses warns of references that stay because they cannot hold the new place of their target.
func (p *Plan) losses(l *layout.Layout) {
	for i, r := range p.References(l) {
		if !l.Boot.Refs[i].Follows() || r.Follows() {
			continue
		}
		p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
			Code: "reference-stays", Effect: ondisk.Warn, Partition: r.Target,
			Text: fmt.Sprintf("%s is not changed, so %s: %s", r.Name(), r.Loss, r.Stays), Remedy: r.Remedy,
		}))
	}
}

// now returns the target of a reference in the result.
func (p *Plan) now(l *layout.Layout, r boot.Ref) int64 {
	if r.Disk != 0 {
		to, _ := p.elsewhere(r)
		return to
	}
	if !r.Follows() {
		return r.Points
	}
	part, _ := l.Partition(r.Target)
	to := r.Points + p.shift(l, r.Target)
	if now, ok := p.Places.Records[part.Record()]; ok && r.FromRecord {
		to -= now - part.Record()
	}
	return to
}

// shift returns the distance a partition moves, in bytes, or 0.
func (p *Plan) shift(l *layout.Layout, number int) int64 {
	now, moves := p.Places.Parts[number]
	if !moves {
		return 0
	}
	was, _ := l.Partition(number)
	return now.Off - was.Off
}

// fixedTable refuses to align slices in a table that is never rewritten.
func (p *Plan) fixedTable(l *layout.Layout) {
	const remedy = "copy the files to an aligned disk in the guest; trueup convert copies the disk unchanged"
	if l.Unlisted() {
		p.refuse("fixed-table", ondisk.ErrUnsupported, 0, fmt.Sprintf("the partitions of the %s are not read, and "+
			"trueup cannot move them", l.FixedTable()), remedy)
	}
	if off := align.FixedOff(l, p.Goal.Must); off > 0 {
		p.refuse("fixed-table", ondisk.ErrUnsupported, 0,
			fmt.Sprintf("slices of the %[2]s start off a multiple of %[3]s (%[1]d of them), and trueup cannot move "+
				"slices",
				off, l.FixedTable(), p.Goal.Must),
			remedy+offsetRemedy)
	}
}

// displaced adds the issues of boot structures that must not move but do.
func (p *Plan) displaced(l *layout.Layout) {
	for _, f := range l.Boot.Fixed {
		if !p.keeps(f.Range) {
			p.note(f.Issue)
		}
	}
}

// displacedData warns of moved data outside partitions that may be the boot loader of a board.
func (p *Plan) displacedData(l *layout.Layout) {
	var first disk.Shift
	n := 0
	for _, g := range l.Gaps {
		known := func(f boot.Fixed) bool { return f.Overlaps(g.Data) } // has its own finding
		if !g.Data.Overlaps(l.Boot.ByPlace) || slices.ContainsFunc(l.Boot.Fixed, known) {
			continue
		}
		i := slices.IndexFunc(p.Pieces, func(x disk.Shift) bool {
			return x.From != x.To && x.Source().Overlaps(g.Data)
		})
		if i < 0 {
			continue
		}
		if n++; n == 1 {
			first = disk.Shift{From: g.Data.Off, To: g.Data.Off + p.Pieces[i].To - p.Pieces[i].From, Len: g.Data.Len}
		}
	}
	if n == 0 {
		return
	}
	more := ""
	if n > 1 {
		more = fmt.Sprintf(", and data in %s move likewise", units.Counted(n-1, "other gap"))
	}
	p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
		Code: "fixed-place", Effect: ondisk.Warn, OnMove: true,
		Text: fmt.Sprintf("bytes %d to %d are in no partition, on a disk without PC boot code, and move to byte "+
			"%d%s: a board whose boot ROM or loader reads them at a fixed position does not boot from the copy",
			first.From, first.Source().End()-1, first.To, more),
		Remedy: "do not move the partition before them (select others with --partition), or install the loader again " +
			"at its position in the copy",
	}))
}

// keeps reports whether a range has the same bytes at the same place in the result. Ranges without a piece are zero in
// both.
func (p *Plan) keeps(r disk.Range) bool {
	patched := func(x disk.Patch) bool { return x.Range().Overlaps(r) }
	moved := func(x disk.Shift) bool {
		return x.From != x.To && (x.Source().Overlaps(r) || x.Dest().Overlaps(r))
	}
	return !slices.ContainsFunc(p.Patches, patched) && !slices.ContainsFunc(p.Pieces, moved)
}

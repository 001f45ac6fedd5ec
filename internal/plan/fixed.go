package plan

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// fixedTable refuses to align slices of a table that is never rewritten.
func (p *Plan) fixedTable(l *layout.Layout) {
	const remedy = "copy the files to an aligned disk in the guest; convert copies the disk as it is"
	if l.Unlisted() {
		p.refuse("fixed-table", ondisk.ErrUnsupported, 0, fmt.Sprintf("the partitions of the %s are not read, and "+
			"trueup moves no partition of such a table", l.FixedTable()), remedy)
	}
	if off := align.FixedOff(l, p.Goal.Must); off > 0 {
		p.refuse("fixed-table", ondisk.ErrUnsupported, 0,
			fmt.Sprintf("slices of the %[2]s start off a multiple of %[3]s (%[1]d of them), and trueup moves no "+
				"partition of such a table",
				off, l.FixedTable(), p.Goal.Must),
			remedy)
	}
}

// displaced adds the issues of what must stay in its place and does not.
func (p *Plan) displaced(l *layout.Layout) {
	for _, f := range l.Boot.Fixed {
		if !p.keeps(f.Range) {
			p.Notes = append(p.Notes, align.FromIssue(f.Issue))
		}
	}
}

// displacedData warns of data of no partition that may be a loader of a board and get another place.
func (p *Plan) displacedData(l *layout.Layout) {
	var first disk.Shift
	n := 0
	for _, g := range l.Gaps {
		known := func(f boot.Fixed) bool { return f.Overlaps(g.Data) } // which has its own finding
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
		Text: fmt.Sprintf("bytes %d to %d lie in no partition, on a disk without boot code for a PC, and go to byte "+
			"%d%s: if a boot ROM or loader reads such data by their place, a board does not boot from the copy",
			first.From, first.Source().End()-1, first.To, more),
		Remedy: "leave the partition in front of them where it is (--partition selects others), or install the " +
			"loader again at its place in the copy",
	}))
}

// keeps reports whether the result has the bytes of a range where the source has them. What no piece holds is zero in
// both.
func (p *Plan) keeps(r disk.Range) bool {
	patched := func(x disk.Patch) bool { return x.Range().Overlaps(r) }
	moved := func(x disk.Shift) bool {
		return x.From != x.To && (x.Source().Overlaps(r) || x.Dest().Overlaps(r))
	}
	return !slices.ContainsFunc(p.Patches, patched) && !slices.ContainsFunc(p.Pieces, moved)
}

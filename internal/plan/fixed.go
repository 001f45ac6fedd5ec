package plan

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// fixedTable refuses to align slices of a table that is never rewritten.
func (p *Plan) fixedTable(l *layout.Layout) {
	if off := align.FixedOff(l, p.Goal.Must); off > 0 {
		p.refuse("fixed-table", ondisk.ErrUnsupported, 0,
			fmt.Sprintf("slices of the %[2]s start off a multiple of %[3]s (%[1]d of them), and trueup moves no "+
				"partition of such a table",
				off, l.FixedTable(), units.Short(p.Goal.Must)),
			"copy the files to an aligned disk in the guest; convert copies the disk as it is")
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

// keeps reports whether the result has the bytes of a range where the source has them. What no piece holds is zero in
// both.
func (p *Plan) keeps(r disk.Range) bool {
	patched := func(x disk.Patch) bool { return x.Range().Overlaps(r) }
	moved := func(x disk.Shift) bool {
		return x.From != x.To && (x.Source().Overlaps(r) || x.Dest().Overlaps(r))
	}
	return !slices.ContainsFunc(p.Patches, patched) && !slices.ContainsFunc(p.Pieces, moved)
}

package plan

import (
	"fmt"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// fixedTable refuses to align slices of a table that is never rewritten.
func (p *Plan) fixedTable(l *layout.Layout) {
	off := 0
	for _, part := range l.FixedParts() {
		if align.Of(part.Start, p.Goal.Must) != align.Aligned {
			off++
		}
	}
	if off > 0 {
		p.refuse("fixed-table", ondisk.ErrUnsupported, 0,
			fmt.Sprintf("slices of the %[2]s start off a multiple of %[3]s (%[1]d of them), and trueup moves no "+
				"partition of such a table",
				off, l.FixedTable(), units.Short(p.Goal.Must)),
			"copy the files to an aligned disk in the guest; convert copies the disk as it is")
	}
}

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// keepPlaces adds to a goal that partitions stay that something finds by their place: firmware or a loader, or the
// private headers of a dynamic disk, which name the place of its database.
func keepPlaces(l *layout.Layout, goal align.Goal) align.Goal {
	leave := map[int]string{}
	if l.Dynamic != nil {
		// No partition has the number 0, which a database behind all of them has.
		leave[l.Dynamic.Metadata] = "it holds the database of the dynamic disk"
	}
	for _, p := range l.Partitions {
		if p.Fixed != "" {
			leave[p.Number] = p.Fixed
		}
	}
	if len(leave) > 0 {
		maps.Copy(leave, goal.Leave)
		goal.Leave = leave
	}
	return goal
}

// anchored returns the slots of a disk. Of a dynamic disk as many extents as possible are put on the boundary. One that
// cannot be moved is to stay if all its extents are there.
func anchored(l *layout.Layout, goal align.Goal) []slot {
	slots := slotsOf(l)
	for i, s := range slots {
		moves := func(n int) bool {
			p, ok := l.Partition(n)
			return ok && goal.Moves(l, p)
		}
		slots[i].moves = slices.ContainsFunc(s.part.Numbers(), moves)
		slots[i].boundary = goal.Want
		if s.part.Members != nil {
			slots[i].anchor = l.Dynamic.Anchor(goal.Must)
		} else if p, ok := l.Partition(s.part.Number); ok {
			slots[i].anchor, slots[i].boundary = goal.Anchor(l, p)
		}
	}
	return slots
}

// noRoom refuses a dynamic disk whose volumes have no place on the boundary in front of the database. Without the wish
// to move them, that is for later.
func (p *Plan) noRoom(l *layout.Layout) {
	if !p.Goal.Dynamic {
		for _, i := range l.Issues {
			if i.Code == layout.CodeDynamic {
				p.Notes = append(p.Notes, align.FromIssue(i))
			}
		}
		return
	}
	p.refuse("ldm-room", ondisk.ErrUnsupported, 0, fmt.Sprintf("the volumes of the dynamic disk end at LBA %d, and "+
		"have no place on the boundary of %s in front of the database at LBA %d, which stays",
		l.Dynamic.Span.End()/l.LBASize(), units.Short(p.Goal.Want), l.Dynamic.Database.Off/l.LBASize()),
		"try a smaller --boundary (4K is enough for most storage), or convert it to a basic disk in the guest")
}

// behindDatabase refuses a dynamic disk with an MBR that grows: readers look for its private header in the last sector.
// Source: DiskAccessLibrary, LogicalDiskManager/PrivateHeader.cs.
func (p *Plan) behindDatabase(l *layout.Layout) {
	if p.Size <= p.OldSize || l.Table == nil || l.Table.Scheme == table.GPT ||
		!slices.ContainsFunc(l.Partitions, func(x boot.Partition) bool { return x.InDynamic() }) {
		return
	}
	p.refuse("ldm-grows", ondisk.ErrUnsupported, 0, fmt.Sprintf("the disk would grow from %d to %d bytes, and the "+
		"database of the dynamic disk lies at its end", p.OldSize, p.Size),
		"keep the size of the disk: leave out align=SIZE in --to, or name a device of that size")
}

// maxNames bounds what one note lists.
const maxNames = 8

// offInside names the extents of a dynamic disk that stay off the boundary.
func (p *Plan) offInside(l *layout.Layout) {
	if l.Dynamic == nil || !p.Goal.Dynamic {
		return
	}
	off := l.Dynamic.Off(p.shift(l, l.Dynamic.Members[0]), p.Goal.Must)
	var names []string
	for _, e := range off[:min(len(off), maxNames)] {
		names = append(names, fmt.Sprintf("%.64q", e.Name))
	}
	if len(off) > 0 {
		p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
			Code: "ldm-off", Effect: ondisk.Note, Text: fmt.Sprintf("extents of the dynamic disk that stay off the "+
				"boundary of %s, for all move by one distance: %d of %d: %s", units.Short(p.Goal.Must), len(off),
				len(l.Dynamic.Extents), strings.Join(names, ", ")),
		}))
	}
}

// Package plan decides where partitions go and which bytes change, as a value that a dry run prints and a copy follows. It is
// pure: the same layout and goal give the same plan.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// Move is one partition that gets a new place. Bytes.
type Move struct {
	Partition     int
	From, To, Len int64
}

// Delta is how far the partition moves, in bytes.
func (m Move) Delta() int64 { return m.To - m.From }

// Plan is what happens to a disk. Offsets of Patches are those of the result.
type Plan struct {
	OldSize, Size int64
	Goal          align.Goal
	Moves         []Move
	Pieces        []disk.Piece // all bytes of the result that come from the source, in order
	Patches       []disk.Patch
	Notes         []align.Finding // what a user should know; refusals among them
	// Converts tells that nothing is to be aligned: what is misaligned stays so.
	Converts bool
}

// Copy is the plan in which nothing moves.
func Copy(size int64) *Plan {
	return &Plan{OldSize: size, Size: size, Pieces: []disk.Piece{{Len: size}}, Converts: true}
}

// Grow makes the disk size bytes long; what it gains is zero. A GPT has its backup at the end of the disk, so that one is
// refused: the copy of it would be in the middle.
func (p *Plan) Grow(l *layout.Layout, size int64) {
	if size <= p.Size {
		return
	}
	if l.Table != nil && l.Table.Scheme == table.GPT {
		p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
			Code: "gpt-grows", Effect: ondisk.Refuse, Text: fmt.Sprintf(
				"the disk of %d bytes would grow to %d, and the backup of its GPT must stand at the end", p.Size, size),
			Remedy: "leave the size as it is, or grow the disk with a tool that moves the backup (sgdisk -e)",
		}))
		return
	}
	p.Size = size
}

// New plans the way to a goal. l needs its gaps (layout.ReadGaps). The error is that of a malformed structure that the
// plan would have to understand.
func New(l *layout.Layout, goal align.Goal) (*Plan, error) {
	if err := checkSelection(l, goal); err != nil {
		return nil, err
	}
	p := &Plan{OldSize: l.Size, Goal: goal}
	starts := placer{l: l, goal: goal, plan: p}
	if err := p.build(l, starts.choose); err != nil {
		return nil, err
	}
	p.chsNote(l)
	return p, p.malformed()
}

// At is the plan that gives each partition the start in starts (by number, bytes), for a disk of size bytes: how a later
// proof repeats what a copy did.
func At(l *layout.Layout, starts map[int]int64) (*Plan, error) {
	p := &Plan{OldSize: l.Size}
	err := p.build(l, func(part layout.Partition, least int64) (int64, error) {
		to, ok := starts[part.Number]
		if !ok || to < least || to < part.Off || (to != part.Off && !movable(part)) {
			return 0, fmt.Errorf("partition %d starts at byte %d, and at byte %d in SOURCE: %w", part.Number, to, part.Off, ErrNoPlan)
		}
		return to, nil
	})
	return p, err
}

// ErrNoPlan is returned for a result that no plan leads to.
var ErrNoPlan = errors.New("align moves no partition so (are SOURCE and DEST swapped?)")

// checkSelection refuses numbers of --partition that the disk does not have.
func checkSelection(l *layout.Layout, goal align.Goal) error {
	for _, n := range goal.Only {
		if _, ok := l.Partition(n); !ok {
			return ondisk.In(ErrSelection, "the disk has no partition %d", n)
		}
	}
	return nil
}

// ErrSelection marks a partition number that does not exist.
var ErrSelection = errors.New("--partition")

// build lays the pieces out in disk order. choose gives the start of a partition, which may not be below least.
func (p *Plan) build(l *layout.Layout, choose func(part layout.Partition, least int64) (int64, error)) error {
	parts := l.InDiskOrder()
	to, moved := map[int]int64{}, map[int]bool{}
	least := int64(0)
	if len(parts) == 0 {
		p.keep(0, 0, l.Size)
	} else {
		p.keep(0, 0, min(parts[0].Off, l.Size)) // sector 0 and the gap behind it, where boot loaders live
	}
	for i, part := range parts {
		off, err := choose(part, least)
		if err != nil {
			return err
		}
		inside := min(part.Len, l.Size-min(part.Off, l.Size))
		p.keep(part.Off, off, inside)
		if off != part.Off {
			p.Moves = append(p.Moves, Move{part.Number, part.Off, off, part.Len})
			to[part.Number], moved[part.Number] = off, true
		}
		least = p.keepGap(l.Gaps[i], off+inside, off-part.Off)
	}
	p.Size = l.Size
	if least > l.Size {
		p.Size = units.AlignUp(least, units.MiB)
	}
	if l.Table != nil {
		p.Patches = l.Table.Relocate(to, l.Geometry)
	}
	p.rewrite(l, to)
	slices.SortFunc(p.Patches, func(a, b disk.Patch) int { return cmp.Compare(a.Off, b.Off) })
	p.Notes = append(p.Notes, align.Relevant(l.Issues, moved)...)
	return nil
}

// keep takes n bytes over, joined with the piece before when that moves as far.
func (p *Plan) keep(from, to, n int64) {
	if n <= 0 {
		return
	}
	if k := len(p.Pieces) - 1; k >= 0 && p.Pieces[k].From+p.Pieces[k].Len == from && p.Pieces[k].To+p.Pieces[k].Len == to {
		p.Pieces[k].Len += n
		return
	}
	p.Pieces = append(p.Pieces, disk.Piece{From: from, To: to, Len: n})
}

// keepGap takes over what lies behind a partition that now ends at end, delta further than before, and gives the first byte
// that the next partition may have. Data in a gap stays where it is as long as the partition leaves it room; otherwise it
// moves with the partition, whose own it may be.
func (p *Plan) keepGap(g layout.Gap, end, delta int64) int64 {
	data := disk.Range{Off: g.Off + g.Zero, Len: g.Len - g.Zero}
	switch {
	case data.Len == 0:
		return end
	case end <= data.Off:
		p.keep(data.Off, data.Off, data.Len)
		return data.End()
	}
	p.keep(data.Off, data.Off+delta, data.Len)
	return data.End() + delta
}

// rewrite patches every reference that pointed to the old start of a partition that moves. One that pointed elsewhere is
// left, and the layout has an issue about it.
func (p *Plan) rewrite(l *layout.Layout, to map[int]int64) {
	for _, r := range l.Boot.Refs {
		part, _ := l.Partition(r.Partition)
		off, moves := to[r.Partition]
		if !moves || r.Points != part.Off || r.Encode == nil {
			continue
		}
		b, err := r.Encode(r.Raw, off)
		if err != nil {
			p.refuse("limit", ondisk.ErrLimit, r.Partition, fmt.Sprintf("%s cannot hold the new place: %v", r.Kind, err), "")
			continue
		}
		p.Patches = append(p.Patches, disk.Patch{
			Off: r.At.Off + off - part.Off, Old: r.Raw, New: b,
			Reason: fmt.Sprintf("%s of partition %d: %d -> %d", r.Kind, r.Partition, part.Off, off),
		})
	}
}

// refuse notes what keeps a partition from moving. class is that of the error that a copy ends with.
func (p *Plan) refuse(code string, class error, partition int, text, remedy string) {
	p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
		Code: code, Effect: ondisk.Refuse, Partition: partition, Text: text, Remedy: remedy, Err: class,
	}))
}

// chsNote warns when the boot code depends on a geometry that the goal makes matter.
func (p *Plan) chsNote(l *layout.Layout) {
	if len(p.Moves) == 0 || !l.Boot.Code.ReadsCHS || p.Goal.Want <= align.DefaultBoundary {
		return
	}
	p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{Code: "chs-geometry", Effect: ondisk.Warn, Text: fmt.Sprintf(
		"the boot code (%s) reads cylinders, heads and sectors, and at %s they depend on the BIOS having %d heads, as the disk says",
		l.Boot.Code.Name, units.Short(p.Goal.Want), l.Geometry.Heads), Remedy: "--boundary 64K holds for every geometry"}))
}

// malformed is the error of the structures that stand in the way.
func (p *Plan) malformed() error {
	for _, n := range p.Notes {
		if n.Effect == ondisk.Broken {
			return n.Err
		}
	}
	return nil
}

// Refusals are the notes that keep a copy from being made. What may be broken in the guest only, the user can accept.
func (p *Plan) Refusals(allowUnbootable bool) []align.Finding {
	var out []align.Finding
	for _, n := range p.Notes {
		accepted := allowUnbootable && n.Effect <= ondisk.BadVolume
		if n.Effect >= ondisk.Unbootable && !accepted {
			out = append(out, n)
		}
	}
	return out
}

// View is the result, as a disk: the very bytes that a copy will have.
func (p *Plan) View(src disk.Disk) disk.Disk {
	return disk.Overlay(disk.Compose(src, p.Size, p.Pieces), p.Patches)
}

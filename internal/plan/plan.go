// Package plan decides the new places of partitions and the bytes to change. The plan is a value: a dry run prints it
// and a copy follows it. The package is pure: the same layout and goal give the same plan.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// Move is the move of one partition, with offsets and length in bytes.
type Move struct {
	Partition     int
	From, To, Len int64
}

// Reference is a stored position and its change.
type Reference struct {
	boot.Ref

	To    int64 // the target in the result; equal to Points if it stays
	Shift int64 // of the place that stores it, bytes
}

// Delta returns the distance of the move, in bytes.
func (m Move) Delta() int64 { return m.To - m.From }

// Plan describes the changes to a disk. Offsets of Patches are offsets in the result.
type Plan struct {
	OldSize, Size int64
	Goal          align.Goal
	Moves         []Move
	Pieces        []disk.Shift // all ranges copied from the source, in the order of the result
	Patches       []disk.Patch
	Places        table.Places    // new places of partitions and boot records
	Notes         []align.Finding // notes for the user, including refusals
	// Converts reports whether the plan keeps misaligned partitions in place.
	Converts bool
	// SectorSize is the size of an LBA in the table, in bytes.
	SectorSize int64
	// Sectors is the size of an LBA in the table of the result, in bytes; 0 keeps SectorSize.
	Sectors int64
	// Unused is the free space of volumes that becomes zeros in the result, or nil.
	Unused *freespace.Found
	// Renames reports whether references to other disks change.
	Renames bool
	// Mends reports whether the plan repairs a damaged table.
	Mends bool

	starts    map[int]int64
	machine   *layout.Machine // nil if the other disks are unknown
	checksums map[int64]bool  // offsets of the patches that correct a checksum
}

// Copy returns a plan without moves.
func Copy(size int64) *Plan {
	return &Plan{
		OldSize: size, Size: size, Pieces: []disk.Shift{{Len: size}}, Places: table.Places{Size: size},
		Converts: true, SectorSize: units.SectorSize,
	}
}

// Grow extends the disk to size bytes. The new space is zero, and the backup GPT moves to the end.
func (p *Plan) Grow(l *layout.Layout, size int64) {
	if size <= p.Size {
		return
	}
	grown := p.Size > p.OldSize
	p.resize(l, size, p.Places.Mend)
	if !grown {
		p.atEnd(l)
	}
}

// Idle reports whether the disk needs no copy: nothing to move, to repair, to count in other sectors, or to update for
// other disks, and no partition that its file shifts off the boundary.
func (p *Plan) Idle() bool {
	return len(p.Moves) == 0 && !p.Mends && !p.Renames && p.Sectors == 0 &&
		!slices.ContainsFunc(p.Notes, func(f align.Finding) bool { return f.Code == align.CodeUnshifted })
}

// Mend rewrites damaged copies of a GPT, with the old values as read, and its protective MBR. The plan has no moves and
// has not grown. Copies that cannot be written are refused.
func (p *Plan) Mend(l *layout.Layout) {
	p.resize(l, p.Size, true)
	p.unmended(l)
}

// resize recomputes the plan for a disk of size bytes.
func (p *Plan) resize(l *layout.Layout, size int64, mend bool) {
	switch {
	case l.Table == nil || l.Table.Scheme != table.GPT:
		p.Size, p.Places.Size = size, size
	case p.Converts:
		p.Size = size
		p.Places = table.Places{Size: size, Mend: mend}
		p.Pieces = nil
		p.keep(0, 0, l.Usable(l.Size))
		p.keepRest(l)
		p.patch(l)
	default:
		if broken := p.build(l, p.starts, size, mend); broken != nil {
			panic(broken) // a plan that fits a disk fits a larger one
		}
	}
}

// unmended refuses to keep a damaged table if the user wants it repaired. A move refuses it too.
func (p *Plan) unmended(l *layout.Layout) {
	if l.Table == nil || (!l.Table.Blocked() && !l.Table.Damaged()) {
		return
	}
	for _, i := range l.Issues {
		if strings.HasPrefix(i.Code, "gpt-") && i.Effect == ondisk.Refuse {
			p.Notes = append(p.Notes, align.FromIssue(i))
		}
	}
}

// codeDamaged is the code of the refusal of a damaged table.
const codeDamaged = "gpt-damaged"

// refuseTorn refuses to rewrite a damaged table without permission to repair it. The layout refuses a table beyond
// repair.
func (p *Plan) refuseTorn(l *layout.Layout) {
	if l.Table == nil || p.Places.Mend || !l.Table.Torn() || l.Table.Blocked() {
		return
	}
	what := "both copies of the GPT must be valid"
	for _, i := range l.Issues {
		if slices.Contains(table.Torn, i.Code) {
			what = i.Text
			break
		}
	}
	p.refuse(codeDamaged, ondisk.ErrUnsupported, 0,
		"the partition table is damaged and would be rewritten: "+what,
		"add --repair-table to rewrite both copies and the protective MBR")
}

// New plans a disk for a goal. l needs its gaps (layout.ReadGaps). New returns an error if a structure that the plan
// depends on is malformed.
func New(l *layout.Layout, goal align.Goal) (*Plan, error) {
	if err := checkSelection(l, goal); err != nil {
		return nil, err
	}
	p := Copy(l.Size)
	p.Goal, p.Converts = goal, false
	broken := slices.DeleteFunc(slices.Clone(l.Issues), func(i ondisk.Issue) bool { return i.Effect != ondisk.Broken })
	p.Notes = align.Relevant(broken, nil)
	if err := p.malformed(); err != nil {
		return nil, err
	}
	c := newPlacer(l, goal)
	stuck, ok := c.place(p)
	switch {
	case !ok && stuck > 0:
		p.inTheWay(l, c.slots[stuck].part.Number)
	case !ok:
		p.refuse("limit", ondisk.ErrLimit, 0,
			fmt.Sprintf("no room on the boundary of %s within the %d sectors that the partition table can address",
				goal.Want, c.limit/l.LBASize()),
			"try a smaller --boundary, or move the disk to GPT in the guest first")
	}
	p.beyondCHS(l)
	p.leftAlone(l)
	p.fixedTable(l)
	p.Notes = append(p.Notes, align.Relevant(concerning(l), p.moved())...)
	p.chsNote(l)
	p.outOfReach(l)
	p.losses(l)
	p.strays(l)
	p.displacedData(l)
	p.atEnd(l)
	if p.Places.Mend && len(p.Moves) == 0 {
		p.unmended(l)
	}
	p.sizeElsewhere()
	return p, p.malformed()
}

// concerning returns the issues of a disk. For a volume over the whole disk, damage matters even if nothing moves.
func concerning(l *layout.Layout) []ondisk.Issue {
	if l.Table != nil {
		return l.Issues
	}
	out := slices.Clone(l.Issues)
	for n := range out {
		out[n].OnMove = out[n].OnMove && out[n].Effect != ondisk.BadVolume
	}
	return out
}

// limitOf returns the end of the space that the table of a disk can address.
func limitOf(l *layout.Layout) int64 {
	if l.Table == nil {
		return l.Size
	}
	return l.Table.Limit()
}

// moved returns the numbers of the partitions that move.
func (p *Plan) moved() map[int]bool {
	out := map[int]bool{}
	for _, m := range p.Moves {
		out[m.Partition] = true
	}
	return out
}

// At returns the plan with the given partition starts (by number, bytes), so that a later proof can repeat a copy. mend
// reports whether the copy repaired a damaged table.
func At(l *layout.Layout, starts map[int]int64, mend bool) (*Plan, error) {
	p := Copy(l.Size)
	p.Converts = false
	for _, part := range l.InDiskOrder() {
		if _, ok := starts[part.Number]; !ok {
			return nil, fmt.Errorf("partition %d is missing: %w", part.Number, ErrNoPlan)
		}
	}
	if err := p.build(l, starts, l.Size, mend); err != nil {
		return nil, err
	}
	p.Notes = align.Relevant(l.Issues, p.moved())
	return p, nil
}

// ErrNoPlan marks a result that no plan can produce.
var ErrNoPlan = errors.New("align makes no such move (are SOURCE and DEST swapped?)")

// checkSelection returns an error for numbers in --partition of partitions that are missing, or never move for their
// own alignment.
func checkSelection(l *layout.Layout, goal align.Goal) error {
	for _, n := range goal.Only {
		switch p, ok := l.Partition(n); {
		case !ok:
			return ondisk.In(ErrSelection, "the disk has no partition %d; list the partitions with trueup inspect", n)
		case p.Kind == table.Extended:
			return ondisk.In(ErrSelection,
				"partition %d is an extended partition, which moves with its logical partitions; name those", n)
		case p.Fixed != "":
			return ondisk.In(ErrSelection, "partition %d cannot be moved: %s; name others", n, p.Fixed)
		}
	}
	return nil
}

// ErrSelection marks an invalid partition number.
var ErrSelection = errors.New("--partition")

// atEnd refuses to grow a disk with structures at its end, or without room for a GPT copy that must be written. It also
// adds the issues of displaced boot structures.
func (p *Plan) atEnd(l *layout.Layout) {
	p.displaced(l)
	if len(p.Moves) > 0 || p.Size > p.OldSize {
		p.refuseTorn(l)
	}
	if p.Size <= p.OldSize {
		return
	}
	if l.Table != nil && l.Table.Rest() {
		p.refuse("disk-end", ondisk.ErrUnsupported, 0, fmt.Sprintf(
			"the disk would grow from %d to %d bytes, and its last %d bytes, after the last whole sector of %d "+
				"bytes, are not zero and would be lost", p.OldSize, p.Size, p.OldSize%l.LBASize(), l.LBASize()),
			"keep the disk size, or zero these bytes if nothing needs them")
	}
	// The layout refuses a move.
	if l.Table != nil && l.Table.Blocked() && len(p.Moves) == 0 {
		p.refuse(codeDamaged, ondisk.ErrUnsupported, 0, fmt.Sprintf(
			"the disk would grow from %d to %d bytes, and a damaged copy of the GPT has no place",
			p.OldSize, p.Size),
			"repair the table with gdisk first, or keep the disk size")
	}
	// Readers look for the private header in the last sector. A move is refused elsewhere. Source: DiskAccessLibrary,
	// LogicalDiskManager/PrivateHeader.cs.
	if len(p.Moves) == 0 && l.Dynamic() && l.Table.Scheme != table.GPT {
		p.refuse("ldm-grows", ondisk.ErrUnsupported, 0, fmt.Sprintf("the disk would grow from %d to %d bytes, and "+
			"the database of the dynamic disk is at its end", p.OldSize, p.Size),
			"keep the disk size: leave out align=SIZE in --to, or name a device of that size")
	}
	whole := cmp.Or(l.Volume, l.Outer)
	if whole != nil && whole.AtEnd {
		p.refuse("device-end", ondisk.ErrUnsupported, 0, fmt.Sprintf(
			"the disk would grow from %d to %d bytes, and the superblock of the %s on the whole disk is located from "+
				"its end", p.OldSize, p.Size, whole.Kind),
			"keep the disk size (a smaller --boundary, or a device of that size), or, if the signature is out of "+
				"date, wipe it in the guest (mdadm --zero-superblock, zpool labelclear)")
	}
}

// sizeElsewhere notes that the size of a growing disk is also stored outside the image.
func (p *Plan) sizeElsewhere() {
	if p.Size <= p.OldSize {
		return
	}
	p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
		Code: "size-elsewhere", Effect: ondisk.Note,
		Text: fmt.Sprintf("the disk grows from %d to %d bytes, and its size outside of the image is outdated (an OVF "+
			"beside it, the XML of a storage volume, a quota)", p.OldSize, p.Size),
		Remedy: "correct that before using the copy; in a package, the OVF is rewritten",
	}))
}

// refuse adds a refusal. class is the class of the error of the copy.
func (p *Plan) refuse(code string, class error, partition int, text, remedy string) {
	p.note(ondisk.Issue{
		Code: code, Effect: ondisk.Refuse, Partition: partition, Text: text, Remedy: remedy, Err: class,
	})
}

// note adds an issue to the notes. Grow repeats issues of the smaller disk, which are added once.
func (p *Plan) note(i ondisk.Issue) {
	same := func(f align.Finding) bool { return f.Partition == i.Partition && f.Text == i.Text }
	if !slices.ContainsFunc(p.Notes, same) {
		p.Notes = append(p.Notes, align.FromIssue(i))
	}
}

// inTheWay adds the refusal of a move that would displace a partition that must stay.
func (p *Plan) inTheWay(l *layout.Layout, number int) {
	if x, _ := l.Partition(number); x.Fixed != "" {
		p.refuse("fixed-place", ondisk.ErrUnsupported, number, fmt.Sprintf("the data before it have no room on the "+
			"boundary of %s, and it cannot move: %s", p.Goal.Want, x.Fixed),
			"try a smaller --boundary, or select the partitions after it with --partition")
		return
	}
	p.refuse("boot-partition", ondisk.ErrUnsupported, number, fmt.Sprintf(
		"the data before it have no room on the boundary of %s, and --data-only keeps it in place: %s",
		p.Goal.Want, p.Goal.Leave[number]),
		"try a smaller --boundary; or leave out --data-only to align the whole disk, with the boot corrected or "+
			"refused")
}

// leftAlone notes partitions that stay off the boundary or move only by request.
func (p *Plan) leftAlone(l *layout.Layout) {
	moved := p.moved()
	for _, x := range l.Partitions {
		if i, ok := p.Goal.Left(x, moved[x.Number]); ok {
			p.Notes = append(p.Notes, align.FromIssue(i))
		}
	}
}

// chsNote warns if the boot code depends on a geometry and the goal makes it matter.
func (p *Plan) chsNote(l *layout.Layout) {
	if len(p.Moves) == 0 || !l.ReadsCHS() || !p.Goal.Want.Above(align.DefaultBoundary) {
		return
	}
	p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
		Code: "chs-geometry", Effect: ondisk.Warn, Text: fmt.Sprintf(
			"the boot code (%s) uses CHS addresses, and at %s they depend on the BIOS having the %d heads stated on "+
				"the disk",
			l.Boot.Code.Name, p.Goal.Want, l.Geometry.Heads),
		Remedy: "--boundary 64K holds for every geometry",
	}))
}

// outOfReach warns of a DOS file system that ends beyond the CHS limit only after the move.
func (p *Plan) outOfReach(l *layout.Layout) {
	end := l.EndOfCHS()
	for _, m := range p.Moves {
		part, _ := l.Partition(m.Partition)
		over := m.To + m.Len - end
		if over <= 0 || part.End() > end || !layout.ReadByCHS(part) {
			continue
		}
		const smaller = "make the partition smaller in the guest first"
		remedy := smaller
		for b := range p.Goal.Want.Smaller() {
			if b.Up(m.From)+m.Len <= end {
				remedy = fmt.Sprintf("%s, or try --boundary %s, which stays below it", smaller, b)
				break
			}
		}
		p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
			Code: "chs-end", Effect: ondisk.Warn, Partition: m.Partition, Text: fmt.Sprintf(
				"it ends at LBA %d, and its last %s are past cylinder %d, the last one in CHS: DOS and Windows 95 to "+
					"ME cannot access them with type %02xh", (m.To+m.Len)/units.SectorSize-1,
				units.Counted(over/units.SectorSize, "sector"), layout.LastCylinder, part.Type), Remedy: remedy,
		}))
	}
}

// strays warns of references in the guest to places without a partition, if a partition starts there in the result. The
// guest would mistake it for the old one, such as the drive of an old letter.
func (p *Plan) strays(l *layout.Layout) {
	to := map[int64]int{}
	for _, m := range p.Moves {
		to[m.To] = m.Partition
	}
	for _, r := range l.Boot.Refs {
		if number, hit := to[r.Points]; hit && r.Target == 0 && r.Disk == 0 && r.File != "" {
			p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
				Code: "stray-reference", Effect: ondisk.Warn, Partition: number,
				Text: fmt.Sprintf("%s points to byte %d, where no partition starts now but partition %d would after "+
					"the move", r.Name(), r.Points, number),
				Remedy: "remove the stale entry in the guest first, or choose another --boundary",
			}))
		}
	}
}

// malformed returns the error of a malformed structure that prevents a plan.
func (p *Plan) malformed() error {
	for _, n := range p.Notes {
		if n.Effect == ondisk.Broken {
			return n.Err
		}
	}
	return nil
}

// Refusals returns the notes that prevent a copy. The user can accept only risks to the guest.
func (p *Plan) Refusals(allowUnbootable bool) []align.Finding {
	var out []align.Finding
	for _, n := range p.Notes {
		accepted := allowUnbootable && n.Effect <= ondisk.BadVolume
		if n.Effect >= ondisk.Unbootable && !accepted {
			if slices.Contains(inPlace, n.Code) {
				n.Remedy += offsetRemedy
			}
			out = append(out, n)
		}
	}
	return out
}

const offsetRemedy = "; to keep the disk as it is, and shift its file instead: trueup offset SOURCE DEST"

// inPlace lists the codes of guests that never move: a shifted file aligns them.
var inPlace = []string{
	"array-of-disks", "bitlocker", "boot-code", "disk-manager", "encrypted-system", "firmware-raid",
	"hibernated", "hibernated-linux", "ldm",
}

// View returns the result as a disk, with exactly the bytes of a copy whose table counts sectors of SectorSize.
func (p *Plan) View(src disk.Disk) disk.Disk {
	return disk.Overlay(disk.Compose(p.Unused.View(src), p.Size, p.Pieces), p.Patches)
}

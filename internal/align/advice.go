// This file answers the first question of an administrator: is a copy worth the trouble? It is pure.

package align

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// Action is the action recommended for a disk.
type Action string

// Actions.
const (
	Nothing       Action = "none"     // every start is on the boundary
	Align         Action = "align"    // an aligned copy helps, and can be made
	Optional      Action = "optional" // a start is off the boundary, but the storage gains nothing
	OtherBoundary Action = "boundary" // every start is on the boundary, but off the larger blocks of the storage
	Refused       Action = "refused"  // a start is off the boundary, and a copy would be refused
	Repair        Action = "repair"   // the disk is malformed
)

// Gain is the saving in storage I/O when the partitions are aligned.
type Gain string

// Gains, least first.
const (
	Loss   Gain = "loss" // a move would misalign data inside a partition
	NoGain Gain = "none"
	Some   Gain = "some"
	High   Gain = "high" // HighGain or more: random I/O of a volume block, or a stream
)

// HighGain is a quarter more: a smaller gain is invisible in a graph.
const HighGain = 1.25

var gains = []Gain{Loss, NoGain, Some, High}

// Above reports whether a gain is larger than another one; "" is below all gains.
func (g Gain) Above(other Gain) bool { return slices.Index(gains, g) > slices.Index(gains, other) }

// References counts the stored positions of the partitions off the boundary.
type References struct {
	Rewritten int `json:"rewritten"` // rewritten in a copy
	Left      int `json:"left"`      // they do not match their partition now, or cannot be written
}

// Advice is the recommendation for one disk.
type Advice struct {
	Action     Action     `json:"action"`
	Gain       Gain       `json:"gain"`
	Role       Role       `json:"role"`
	References References `json:"references"`
	Unmended   []string   `json:"unmended"`                // codes of findings that a move causes and does not repair
	Boundary   Boundary   `json:"boundary_bytes,omitzero"` // a boundary for the larger blocks of the storage
	Text       string     `json:"text"`

	rest string // Text without its first sentence
}

// Case holds the inputs of an advice besides the layout.
type Case struct {
	Boundary Boundary // the criterion
	Storage  Storage
	Refusals []Finding // of an aligned copy
	Broken   bool      // the image or the disk is malformed
}

// For computes the advice from the same values as verdict, refusals and exit code.
func For(l *layout.Layout, c Case) Advice {
	a := Advice{Gain: NoGain, Role: roleOf(l)}
	goal := Goal{Must: c.Boundary, Want: c.Boundary}
	moves := map[int]bool{}
	var judged, off, moving []boot.Partition
	for _, p := range InFile(l) {
		j := Judge(p, c.Boundary)
		if j.Unjudged != "" {
			continue
		}
		judged = append(judged, p)
		if j.Verdict.Off() {
			off = append(off, p)
		}
		moves[p.Number] = goal.Moves(p)
		if j.Verdict.Off() && (moves[p.Number] || !j.Plain.Off()) {
			moving = append(moving, p) // or copied from a shifted file
		}
	}
	a.References, a.Unmended = referencesOf(l, moves), unmended(l, moves)
	overall := Overall(l, c.Boundary)
	parts := moving
	switch {
	case !overall.Off():
		parts = judged
	case len(moving) == 0:
		parts = off // they stay, because a move would misalign their data
	}
	worst := a.weigh(parts, c.Storage)
	if len(off) > 0 && len(moving) == 0 && l.FixedTable() == "" {
		a.Gain = Loss // regardless of the block size of the storage
	}
	if larger := BoundaryOf(c.Storage.Block); larger.Above(c.Boundary) && a.Gain != NoGain && a.Gain != Loss {
		a.Boundary = larger
	}
	a.Action = a.action(overall, c)
	lead, rest := a.text(l, overall, c, worst)
	a.Text, a.rest = strings.Join(append([]string{lead}, rest...), " "), strings.Join(rest, " ")
	return a
}

// Measured replaces the model of the storage by a benchmark: the measured gain and its description. It does not change
// the action of a refused disk, nor anything on a disk without a start to move.
func (a *Advice) Measured(gain Gain, text string) {
	if a.Action != Align && a.Action != Optional && a.Action != Refused {
		return
	}
	lead := map[Gain]string{
		Loss: "Rather not: ", NoGain: "No: ", Some: "It helps a little: ", High: "Yes: ",
	}[gain] + text + "."
	if a.Gain = gain; a.Action == Refused {
		a.Text = strings.TrimSuffix(text, ".") + "; a copy would be refused now."
		return
	}
	a.Action = Optional
	if gain == Some || gain == High {
		a.Action = Align
	}
	a.Text = lead + " " + cmp.Or(a.rest, roleTexts[a.Role])
}

// Gainful reports whether to propose a copy: it makes nothing worse.
func (a *Advice) Gainful() bool { return a.Gain != Loss }

func (a *Advice) action(overall Verdict, c Case) Action {
	useful := a.Gain == Some || a.Gain == High
	switch {
	case c.Broken:
		return Repair
	case !overall.Off() && a.Boundary != (Boundary{}):
		return OtherBoundary
	case !overall.Off():
		return Nothing
	case len(c.Refusals) > 0:
		return Refused
	case useful:
		return Align
	}
	return Optional
}

// weigh sets the gain of the partition that gains most, and describes it.
func (a *Advice) weigh(parts []boot.Partition, s Storage) string {
	text, first := "", true
	seen := map[[3]int64]bool{} // a GPT can have thousands of partitions, but few distinct placements
	for _, p := range parts {
		i := ImpactOf(p, s)
		way := [3]int64{i.Data % s.Block, i.inside % s.Block, i.Block}
		if seen[way] {
			continue
		}
		seen[way] = true
		if g := gainOf(i); first || g.Above(a.Gain) {
			a.Gain, text, first = g, more(i), false
		}
	}
	return text
}

func gainOf(i Impact) Gain {
	g := NoGain
	loads, usual := i.Loads()
	for _, l := range loads {
		if usual && l.More() >= HighGain {
			return High
		}
		g = Some
	}
	for _, t := range i.Table() {
		for _, c := range []Change{t.Random, t.Sequential, t.RandomWrite, t.SequentialWrite} {
			if g == NoGain && c.More() < 1 {
				g = Loss
			}
		}
	}
	return g
}

// more describes the storage I/O beyond the minimum, or returns "" if there is none.
func more(i Impact) string {
	var out []string
	loads, _ := i.Loads()
	for n, l := range loads {
		percent := fmt.Sprintf("%.0f %%", 100*(l.More()-1))
		if percent == "0 %" {
			percent = "less than 1 %"
		}
		if n == 0 {
			cost := "cost"
			if strings.HasSuffix(l.What, "I/O") {
				cost = "costs"
			}
			percent = fmt.Sprintf("%s %s more blocks of the storage than needed", cost, percent)
		}
		name := l.Name
		if n > 0 && strings.TrimPrefix(name, l.What) == strings.TrimPrefix(loads[n-1].Name, loads[n-1].What) {
			name = l.What // of the same size
		}
		out = append(out, name+" "+percent)
	}
	return strings.Join(out, ", ")
}

// referencesOf counts the stored positions of the partitions that a copy moves.
func referencesOf(l *layout.Layout, moves map[int]bool) References {
	var out References
	for _, r := range l.Boot.Refs {
		switch {
		case moves[r.Target] && r.Follows():
			out.Rewritten++
		case moves[r.Target] || r.Target == 0 && r.File == "" && moves[r.Partition]:
			out.Left++
		}
	}
	return out
}

// unmended returns the codes of issues that a move causes but that are no reason to refuse it.
func unmended(l *layout.Layout, moves map[int]bool) []string {
	out := []string{}
	for _, i := range l.Issues {
		if i.OnMove && i.Effect == ondisk.Warn && Matters(i, moves) && !slices.Contains(out, i.Code) {
			out = append(out, i.Code)
		}
	}
	return out
}

// text returns the advice: the first sentence and the following ones.
func (a *Advice) text(l *layout.Layout, overall Verdict, c Case, gain string) (lead string, rest []string) {
	switch a.Action {
	case Nothing:
		return a.nothingText(l, c.Boundary), nil
	case Repair:
		return "Not yet: repair the malformed structures first.", nil
	case OtherBoundary:
		return fmt.Sprintf("Perhaps: every start is on a multiple of %s, but %s; trueup plan --boundary %s shows the "+
			"moves.",
			c.Boundary.Text(), gain, a.Boundary), nil
	case Refused:
		lead = a.refusedText(gain, c.Storage)
		if l.FixedTable() != "" {
			lead = "Not with trueup: it moves no partition of such a table."
		}
	case Optional:
		lead = a.optionalText(overall, c)
	case Align:
		lead = map[Gain]string{High: "Yes: ", Some: "It helps a little: "}[a.Gain] + gain + "."
	}
	rest = append(rest, roleTexts[a.Role])
	if n := a.References; a.Action != Refused && n.Rewritten+n.Left > 0 {
		rest = append(rest, n.text())
	}
	if a.Action != Refused && len(a.Unmended) > 0 {
		rest = append(rest, fmt.Sprintf("A move does not fix these findings: %s.",
			strings.Join(a.Unmended, ", ")))
	}
	if a.Boundary != (Boundary{}) {
		rest = append(rest, fmt.Sprintf("For this storage, give --boundary %s.", a.Boundary))
	}
	return lead, rest
}

func (a *Advice) nothingText(l *layout.Layout, boundary Boundary) string {
	switch {
	case ContentOf(l) == UnknownContent:
		return "Unknown: the content of the disk is not known."
	case !slices.ContainsFunc(l.Partitions, Judged):
		return "No: there is no partition to move."
	}
	what := "partition"
	for _, p := range l.Partitions {
		j := Judge(p, boundary)
		if j.Unjudged != "" && j.Stays != "" {
			what = "partition that is judged"
		}
		if j.Plain.Off() {
			return fmt.Sprintf("No: aligned by offset: the file puts every partition on a multiple of %s.",
				boundary.Text())
		}
		if j.Unjudged == "" && j.ByStart.Off() {
			return "No: the data in the volume are aligned now; moving the partition would misalign them."
		}
	}
	return fmt.Sprintf("No: every %s starts on a multiple of %s.", what, boundary.Text())
}

func (a *Advice) refusedText(gain string, s Storage) string {
	if a.Gain == NoGain || a.Gain == Loss {
		return fmt.Sprintf("It would not help this storage (%s), and a copy would be refused now.", s.About)
	}
	return "It would help (" + gain + "), but a copy would be refused now."
}

func (a *Advice) optionalText(overall Verdict, c Case) string {
	switch {
	case a.Gain == Loss && c.Storage.Offset != 0:
		return fmt.Sprintf("Rather not: the blocks of this storage start at byte %d of the disk, and I/O would touch "+
			"more of them after a move. Align the layer below the disk first.", c.Storage.Offset)
	case a.Gain == Loss:
		return "Rather not: I/O touches fewer blocks of the storage now than after a move, because of the layout " +
			"inside the volume."
	case c.Storage.Block == units.SectorSize:
		return fmt.Sprintf("Not for this storage (%s): alignment does not matter to it.", c.Storage.About)
	case c.Storage == Generic() && overall == BelowBoundary:
		return "That depends on the storage: one with 4 KiB blocks gains nothing, one with larger blocks may; " +
			"--storage says which it is."
	}
	return fmt.Sprintf("Not for this storage (%s): no I/O would touch fewer of its blocks after a move.",
		c.Storage.About)
}

var roleTexts = map[Role]string{
	BootDisk: "This is a boot disk.", DataDisk: "This is a data disk.",
	UnknownRole: "Whether the disk is booted from is not known.",
}

func (n References) text() string {
	switch {
	case n.Left == 0 && n.Rewritten == 1:
		return "One stored position changes with the move; it can be rewritten."
	case n.Left == 0:
		return fmt.Sprintf("%d stored positions change with the move; all can be rewritten.", n.Rewritten)
	case n.Rewritten > 0:
		return fmt.Sprintf("Of %d stored positions %d can be rewritten; the others are left as found.",
			n.Rewritten+n.Left, n.Rewritten)
	case n.Left == 1:
		return "One stored position is left as found."
	}
	return fmt.Sprintf("%d stored positions are left as found.", n.Left)
}

// Role is the use of a disk: boot or data.
type Role string

// Roles.
const (
	BootDisk    Role = "boot"
	DataDisk    Role = "data"
	UnknownRole Role = "unknown"
)

// roleOf returns the role of a disk: whether BIOS or UEFI firmware can boot from it.
func roleOf(l *layout.Layout) Role {
	code := l.Boot.Code
	if code.AnyFlag { // partitioners write the other codes to data disks too
		return BootDisk
	}
	for _, p := range l.Partitions {
		if (p.Active || p.LegacyBoot) && code != boot.Empty || p.Is(table.BIOSBoot) || boot.IsESP(p) {
			return BootDisk
		}
	}
	// A system without boot code in sector 0 is booted from another disk, or lost its boot code.
	if code == boot.Unknown || l.Table == nil || code == boot.Empty && len(l.Boot.Chain) > 0 {
		return UnknownRole
	}
	return DataDisk
}

// Package align judges partition starts and computes their cost on a storage. It is pure. Text, JSON and exit code all
// use it.
package align

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Block is the smallest unit of alignment, in bytes: the block of NetApp WAFL, of Advanced Format disks and of most
// flash.
const Block = 4 * units.KiB

// Goal selects the partitions that a plan moves, and the boundary of their new starts.
type Goal struct {
	Must Boundary // partitions off this boundary move
	Want Boundary // boundary of their new start; a multiple of Must
	Only []int    // numbers of the partitions that may move for alignment; empty means all
	// Leave maps the numbers of the partitions that may not move at all to the reason.
	Leave map[int]string
	// Mend allows rewriting damaged copies of a GPT.
	Mend bool
}

// Names reports whether --partition names a partition.
func (g Goal) Names(number int) bool { return slices.Contains(g.Only, number) }

// Selects reports whether a partition may move for its own alignment.
func (g Goal) Selects(number int) bool {
	return !g.Leaves(number) && (len(g.Only) == 0 || g.Names(number))
}

// Moves reports whether the goal moves a partition for its own alignment: it is off the boundary, and its data gain
// from the move or --partition names it. The place in SOURCE does not count, since DEST begins with the disk.
func (g Goal) Moves(p boot.Partition) bool {
	p.Shift = 0
	switch j := Judge(p, g.Must); {
	case !g.Selects(p.Number) || p.Fixed != "" || p.Number == 0:
		return false
	case g.Names(p.Number):
		return j.ByStart.Off()
	default:
		return j.Verdict.Off() && !j.Worsens
	}
}

// Leaves reports whether a partition must not move.
func (g Goal) Leaves(number int) bool { return g.Leave[number] != "" }

// DataOnly returns a goal that keeps all partitions that the boot of a disk needs, or may need.
func (g Goal) DataOnly(l *layout.Layout) Goal {
	g.Leave = map[int]string{}
	for _, p := range l.Partitions {
		if why := l.Boot.Needs(p); why != "" {
			g.Leave[p.Number] = why
		}
	}
	return g
}

// GoalFor returns the goal for --boundary. Boot code of Windows 2000 to 2003 reads the start in cylinders, heads and
// sectors. LBA 128 is cylinder 0, head 2, sector 3 in every geometry with 63 sectors; LBA 2048 differs between
// geometries.
func GoalFor(l *layout.Layout, boundary Boundary) Goal {
	switch {
	case boundary != Boundary{}:
		return Goal{Must: boundary, Want: boundary}
	case l.ReadsCHS():
		return Goal{Must: DefaultBoundary, Want: DefaultBoundary}
	}
	return Goal{Must: DefaultBoundary, Want: Kept}
}

// Verdict is the quality of a start.
type Verdict string

// Verdicts, best first.
const (
	NothingToJudge Verdict = "nothing_to_judge" // no start: see Content
	Aligned        Verdict = "aligned"
	BelowBoundary  Verdict = "below_boundary" // a multiple of 4 KiB, but not of the boundary
	Misaligned     Verdict = "misaligned"     // off a 4 KiB boundary
)

// ExitCode returns the exit code of virt-alignment-scan for a verdict.
func (v Verdict) ExitCode() int {
	return map[Verdict]int{NothingToJudge: 0, Aligned: 0, BelowBoundary: 2, Misaligned: 3}[v]
}

// Severity of a finding.
type Severity string

// Severities.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Finding is one fact to report to the user.
type Finding struct {
	Code      string        `json:"code"`
	Severity  Severity      `json:"severity"`
	Subject   string        `json:"subject"` // "partition 1", "disk"
	Text      string        `json:"text"`
	Remedy    string        `json:"remedy,omitempty"`
	Effect    ondisk.Effect `json:"-"`
	Err       error         `json:"-"`
	Where     string        `json:"-"` // of a start: the first half of Text
	Cost      string        `json:"-"` // of a start: its cost
	Free      bool          `json:"-"` // of a start: no cost on a storage with 4 KiB blocks
	Partition int           `json:"-"`
}

// Check returns the findings of a disk: misaligned starts, and every relevant issue. goal decides which partitions
// would move.
func Check(l *layout.Layout, goal Goal) []Finding {
	var out []Finding
	moves, inOrder := map[int]bool{}, map[int]bool{}
	for _, p := range InFile(l) {
		j := Judge(p, goal.Must)
		moves[p.Number] = goal.Moves(p) && (p.Shift == 0 || j.Verdict.Off())
		inOrder[p.Number] = j.Verdict == Aligned && j.ByStart.Off()
		out = append(out, j.findings(p, goal.Must, l.LBASize())...)
	}
	if l.Shift == 0 {
		out = append(out, nested(l.Volume, 0, 0, goal.Must)...)
	}
	for _, i := range l.Issues {
		if i.Code == layout.CodeSlices && (inOrder[i.Partition] || i.Partition == 0 && l.Shift != 0) {
			continue // the slices have findings of their own
		}
		if i.Effect == ondisk.Broken || i.Effect == ondisk.BadVolume || Matters(i, moves) {
			out = add(out, FromIssue(i))
		}
	}
	return out
}

// add appends a finding. If the last one has the same code, partition and text, add keeps only the finding with the
// greater effect.
func add(fs []Finding, f Finding) []Finding {
	if n := len(fs) - 1; n >= 0 && fs[n].Code == f.Code && fs[n].Partition == f.Partition && fs[n].Text == f.Text {
		if f.Effect > fs[n].Effect {
			fs[n] = f
		}
		return fs
	}
	return append(fs, f)
}

// Matters reports whether an issue concerns a copy that moves the partitions in moves.
func Matters(i ondisk.Issue, moves map[int]bool) bool {
	switch {
	case !i.OnMove:
		return true
	case i.Partition != 0:
		return moves[i.Partition]
	}
	for _, m := range moves {
		if m {
			return true
		}
	}
	return false
}

// Relevant returns findings for the issues that concern a copy that moves the partitions in moves.
func Relevant(issues []ondisk.Issue, moves map[int]bool) []Finding {
	var out []Finding
	for _, i := range issues {
		if Matters(i, moves) {
			out = append(out, FromIssue(i))
		}
	}
	return out
}

// FromIssue makes a finding of an issue.
func FromIssue(i ondisk.Issue) Finding {
	sev := Info
	switch {
	case i.Effect >= ondisk.Unbootable:
		sev = Error
	case i.Effect == ondisk.Warn:
		sev = Warning
	}
	return Finding{
		Code: i.Code, Severity: sev, Subject: subject(i.Partition), Text: i.Text, Remedy: i.Remedy,
		Effect: i.Effect, Err: i.Err, Partition: i.Partition,
	}
}

func subject(partition int) string {
	if partition == 0 {
		return "disk"
	}
	return fmt.Sprintf("partition %d", partition)
}

// Content is the reason why a disk has no verdict.
type Content string

// Contents.
const (
	Blank          Content = "blank"           // zeros where tables and superblocks lie
	NoPartitions   Content = "no_partitions"   // a partition table without partitions, and zeros elsewhere
	NoDisks        Content = "no_disks"        // a package without a disk
	UnknownContent Content = "unknown_content" // data that no partition table or known volume explains
)

// Contents lists all contents, the least specific last.
var Contents = []Content{NoPartitions, NoDisks, Blank, UnknownContent}

// ContentOf returns the reason why a disk has no verdict, or "" if it has one. A volume over the whole disk is judged:
// it starts at byte 0, or is a table whose slices are judged.
func ContentOf(l *layout.Layout) Content {
	c := contentOf(l)
	if c != "" && l.Hidden {
		return UnknownContent
	}
	return c
}

func contentOf(l *layout.Layout) Content {
	switch {
	case slices.ContainsFunc(l.Partitions, Judged):
		return ""
	case l.Table != nil && (l.Unnamed || slices.ContainsFunc(l.Issues,
		func(i ondisk.Issue) bool { return i.Code == table.CodeUnnamed })):
		return UnknownContent
	case l.Table != nil:
		return NoPartitions
	case l.Unlisted():
		return UnknownContent
	case l.FixedTable() != "" && len(l.FixedParts()) == 0:
		return NoPartitions
	case l.Volume != nil && l.Volume.Kind != volume.Unknown:
		return ""
	case l.Blank:
		return Blank
	}
	return UnknownContent
}

// Overall returns the worst verdict of a disk.
func Overall(l *layout.Layout, boundary Boundary) Verdict {
	if ContentOf(l) != "" {
		return NothingToJudge
	}
	worst := Aligned
	for _, p := range InFile(l) {
		worst = worst.Worse(Judge(p, boundary).Verdict)
	}
	for _, p := range l.FixedParts() {
		worst = worst.Worse(boundary.Verdict(p.Start + l.Shift))
	}
	return worst
}

// FixedOff counts the slices that start off a boundary of the disk in a table that is never rewritten.
func FixedOff(l *layout.Layout, boundary Boundary) (n int) {
	for _, p := range l.FixedParts() {
		if boundary.Verdict(p.Start).Off() {
			n++
		}
	}
	return n
}

// verdicts lists all verdicts in the order of Worse.
var verdicts = []Verdict{"", NothingToJudge, Aligned, BelowBoundary, Misaligned}

// Worse returns the worse of two verdicts. A judged start ranks above NothingToJudge, and both rank above "".
func (v Verdict) Worse(other Verdict) Verdict {
	if cmp.Compare(slices.Index(verdicts, other), slices.Index(verdicts, v)) > 0 {
		return other
	}
	return v
}

// Off reports whether a start is off the boundary.
func (v Verdict) Off() bool { return v == BelowBoundary || v == Misaligned }

// Vaguer returns the less specific of two contents.
func (c Content) Vaguer(other Content) Content {
	if slices.Index(Contents, other) > slices.Index(Contents, c) {
		return other
	}
	return c
}

// Package align judges: it has the verdict on each start, and its cost on a storage. It is pure. Text, JSON and exit
// code all use it.
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

// Block is the unit of storage below which nothing is aligned, in bytes: the block of NetApp WAFL, of Advanced Format
// disks and of most flash.
const Block = 4 * units.KiB

// Goal describes the disk that a plan shall make.
type Goal struct {
	Must Boundary // partitions off this boundary move
	Want Boundary // where they move to; a multiple of Must
	Only []int    // numbers of the partitions that may move on their own account; empty: all
	// Leave has the partitions that may not move at all, by number, with the reason.
	Leave map[int]string
	// Mend lets damaged copies of a GPT be written anew.
	Mend bool
}

// Names reports whether the user has named a partition with --partition.
func (g Goal) Names(number int) bool { return slices.Contains(g.Only, number) }

// Selects reports whether a partition may be moved on its own account.
func (g Goal) Selects(number int) bool {
	return !g.Leaves(number) && (len(g.Only) == 0 || g.Names(number))
}

// Moves reports whether the goal moves a partition on its own account: it is off the boundary, and its data gain by
// that or the user has named it.
func (g Goal) Moves(p boot.Partition) bool {
	switch j := Judge(p, g.Must); {
	case !g.Selects(p.Number) || p.Fixed != "":
		return false
	case g.Names(p.Number):
		return j.ByStart.Off()
	default:
		return j.Verdict.Off() && !j.Worsens
	}
}

// Leaves reports whether a partition must stay where it is.
func (g Goal) Leaves(number int) bool { return g.Leave[number] != "" }

// DataOnly makes the goal leave all partitions alone that the boot of a disk needs, or may need.
func (g Goal) DataOnly(l *layout.Layout) Goal {
	g.Leave = map[int]string{}
	for _, p := range l.Partitions {
		if why := l.Boot.Needs(p); why != "" {
			g.Leave[p.Number] = why
		}
	}
	return g
}

// GoalFor makes a goal of --boundary. Boot code of Windows 2000 to 2003 reads the start in cylinders,
// heads and sectors, and LBA 128 is cylinder 0, head 2, sector 3 in every geometry with 63 sectors, which LBA 2048 is
// not.
func GoalFor(l *layout.Layout, boundary Boundary) Goal {
	switch {
	case boundary != Boundary{}:
		return Goal{Must: boundary, Want: boundary}
	case l.ReadsCHS():
		return Goal{Must: DefaultBoundary, Want: DefaultBoundary}
	}
	return Goal{Must: DefaultBoundary, Want: Kept}
}

// Verdict is how good a start is.
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

// Finding is one fact that a user should know.
type Finding struct {
	Code      string        `json:"code"`
	Severity  Severity      `json:"severity"`
	Subject   string        `json:"subject"` // "partition 1", "disk"
	Text      string        `json:"text"`
	Remedy    string        `json:"remedy,omitempty"`
	Effect    ondisk.Effect `json:"-"`
	Err       error         `json:"-"`
	Where     string        `json:"-"` // of a start: the first half of Text
	Cost      string        `json:"-"` // of a start: what it does
	Free      bool          `json:"-"` // of a start: a storage with blocks of 4 KiB does not mind
	Partition int           `json:"-"`
}

// Check lists the findings of a disk: what is misaligned, and every issue that matters. goal decides what would move.
func Check(l *layout.Layout, goal Goal) []Finding {
	var out []Finding
	moves, inOrder := map[int]bool{}, map[int]bool{}
	for _, p := range l.Partitions {
		j := Judge(p, goal.Must)
		moves[p.Number], inOrder[p.Number] = goal.Moves(p), j.Verdict == Aligned && j.ByStart.Off()
		out = append(out, j.findings(p, goal.Must, l.LBASize())...)
	}
	out = append(out, nested(l.Volume, 0, 0, goal.Must)...)
	for _, i := range l.Issues {
		if i.Code == layout.CodeSlices && inOrder[i.Partition] {
			continue
		}
		if i.Effect == ondisk.Broken || i.Effect == ondisk.BadVolume || Matters(i, moves) {
			out = add(out, FromIssue(i))
		}
	}
	return out
}

// add appends a finding. It merges one that repeats the text before, such as a warning that refuses a move.
func add(fs []Finding, f Finding) []Finding {
	if n := len(fs) - 1; n >= 0 && fs[n].Code == f.Code && fs[n].Partition == f.Partition && fs[n].Text == f.Text {
		if f.Effect > fs[n].Effect {
			fs[n] = f
		}
		return fs
	}
	return append(fs, f)
}

// Matters reports whether an issue concerns a copy in which the partitions in moves are moved.
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

// Relevant makes findings of the issues that matter when the partitions in moves are moved.
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

// Content is why there is nothing to judge on a disk.
type Content string

// Contents.
const (
	Blank          Content = "blank"           // zeros where tables and superblocks lie
	NoPartitions   Content = "no_partitions"   // a partition table without a partition in it, and zeros beside it
	NoDisks        Content = "no_disks"        // a package without a disk
	UnknownContent Content = "unknown_content" // data that no partition table or known volume explains
)

// Contents are all of them, the least telling last.
var Contents = []Content{NoPartitions, NoDisks, Blank, UnknownContent}

// ContentOf returns why there is nothing to judge on a disk, "" where there is something. A volume over the whole disk
// is judged: it starts at byte 0, or is a table whose slices are judged.
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
	for _, p := range l.Partitions {
		worst = worst.Worse(Judge(p, boundary).Verdict)
	}
	for _, p := range l.FixedParts() {
		worst = worst.Worse(boundary.Of(p.Start))
	}
	return worst
}

// FixedOff counts the slices off a boundary of a table that is never rewritten.
func FixedOff(l *layout.Layout, boundary Boundary) (n int) {
	for _, p := range l.FixedParts() {
		if boundary.Of(p.Start).Off() {
			n++
		}
	}
	return n
}

// verdicts are in the order of Worse.
var verdicts = []Verdict{"", NothingToJudge, Aligned, BelowBoundary, Misaligned}

// Worse returns the worse of two verdicts. One that judges something counts before one that does not, and both before
// "".
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

// Package align judges: it has the verdict on each start, and its cost on a storage. It is pure. Text, JSON and exit
// code all use it.
package align

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

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

// DefaultBoundary is the criterion of inspect and of what needs a move: it divides the stripes and chunks of all
// storage that virt-alignment-scan's manual lists.
const DefaultBoundary = 64 * units.KiB

// Range of boundaries that can be asked for, in bytes.
const (
	MinBoundary = 4 * units.KiB
	MaxBoundary = units.GiB
)

// CheckBoundary reports whether n can be a boundary.
func CheckBoundary(n int64) error {
	if n < MinBoundary || n > MaxBoundary || !units.IsPowerOfTwo(n) {
		return fmt.Errorf("boundary of %d bytes, want a power of two from %s to %s", n, units.Short(MinBoundary),
			units.Short(MaxBoundary))
	}
	return nil
}

// autoBoundary is the text of the boundary 0, which is chosen by the boot code.
const autoBoundary = "auto"

// Boundary is a boundary as an argument of a command line, in bytes. 0 stands for auto.
type Boundary int64

func (b *Boundary) String() string {
	if *b == 0 {
		return autoBoundary
	}
	return units.Short(int64(*b))
}

// Type is the word that help texts show for the argument.
func (b *Boundary) Type() string { return "SIZE" }

// Set parses the argument.
func (b *Boundary) Set(arg string) error {
	n, err := parseBoundary(arg)
	*b = Boundary(n)
	return err
}

// Target returns where a copy moves partitions that an inspection finds: the default criterion asks for the default
// target.
func (b Boundary) Target() int64 {
	if int64(b) == DefaultBoundary {
		return 0
	}
	return int64(b)
}

// Criterion returns the boundary that inspections judge by.
func (b Boundary) Criterion() int64 {
	if b == 0 {
		return DefaultBoundary
	}
	return int64(b)
}

// parseBoundary parses a boundary. A number of bytes that was meant in KiB has that for its remedy.
func parseBoundary(s string) (int64, error) {
	if s == autoBoundary {
		return 0, nil
	}
	n, err := units.Parse(s)
	if err == nil {
		err = CheckBoundary(n)
	}
	if err == nil || s != strconv.FormatInt(n, 10) || n >= MinBoundary {
		return n, err
	}
	for _, near := range []int64{n, n - 1, n + 1} {
		if kib := near * units.KiB; CheckBoundary(kib) == nil {
			return n, fmt.Errorf("%s is %d bytes; did you mean %s?", s, n, units.Short(kib))
		}
	}
	return n, err
}

// Goal describes the disk that a plan shall make.
type Goal struct {
	Must int64 // partitions off this boundary move; bytes
	Want int64 // where they move to; bytes, a multiple of Must
	Only []int // numbers of the partitions that may move on their own account; empty: all
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

// GoalFor makes a goal of --boundary; 0 means auto. Boot code of Windows 2000 to 2003 reads the start in cylinders,
// heads and sectors, and LBA 128 is cylinder 0, head 2, sector 3 in every geometry with 63 sectors, which LBA 2048 is
// not.
func GoalFor(l *layout.Layout, boundary int64) Goal {
	switch {
	case boundary != 0:
		return Goal{Must: boundary, Want: boundary}
	case l.ReadsCHS():
		return Goal{Must: DefaultBoundary, Want: DefaultBoundary}
	}
	return Goal{Must: DefaultBoundary, Want: units.MiB}
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

// Of judges the byte offset of a start.
func Of(off, boundary int64) Verdict {
	switch {
	case off%min(Block, boundary) != 0:
		return Misaligned
	case off%boundary != 0:
		return BelowBoundary
	}
	return Aligned
}

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
func Overall(l *layout.Layout, boundary int64) Verdict {
	if ContentOf(l) != "" {
		return NothingToJudge
	}
	worst := Aligned
	for _, p := range l.Partitions {
		worst = worst.Worse(Judge(p, boundary).Verdict)
	}
	for _, p := range l.FixedParts() {
		worst = worst.Worse(Of(p.Start, boundary))
	}
	return worst
}

// FixedOff counts the slices off a boundary of a table that is never rewritten.
func FixedOff(l *layout.Layout, boundary int64) (n int) {
	for _, p := range l.FixedParts() {
		if Of(p.Start, boundary).Off() {
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

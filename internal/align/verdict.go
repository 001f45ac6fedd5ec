package align

import (
	"cmp"
	"slices"

	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

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

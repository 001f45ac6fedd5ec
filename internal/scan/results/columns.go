package results

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// column is one of the table, left of the path.
type column struct {
	head  string
	right bool
	keep  int // those with the lowest go first where the terminal is narrow
	cell  func(i *Image) string
	width int
}

const verdictColumn = "verdict"

// columns returns all columns of the table. Rank and verdict stay longest.
func columns(s *Summary) []column {
	out := []column{
		{head: "#", right: true, keep: 11, cell: rankCell},
		{head: verdictColumn, keep: 10, cell: func(i *Image) string { return i.look(s.Boundary).word }},
		{head: "off", right: true, keep: 9, cell: offCell},
		{head: "start LBA", right: true, keep: 3, cell: startCell},
		{head: "format", keep: 2, cell: formatCell},
		{head: "disk", right: true, keep: 4, cell: func(i *Image) string { return sizeCell(i.Size) }},
		{head: "to copy", right: true, keep: 6, cell: func(i *Image) string { return sizeCell(i.copies()) }},
		{head: "role", keep: 5, cell: roleCell},
		{head: "guest", keep: 7, cell: guestCell},
		{head: "fix", keep: 8, cell: fixCell},
	}
	if s.Changes != nil {
		out = append(out, column{
			head: "change", keep: 1,
			cell: func(i *Image) string { return cmp.Or(string(i.Change), "-") },
		})
	}
	return out
}

const (
	between  = "  " // two columns
	leastFor = 16   // cells that a path wants at least; below that, its folder is useless
)

// fit chooses the columns that leave room for the paths, and returns that room; 0 is no limit. Without rows there are
// no columns.
func (v *view) fit(all []column, width int) (chosen []column, path int) {
	longest, some := cells("path"), false
	for n := range all {
		all[n].width = cells(all[n].head)
	}
	for kind, widths := range v.widths {
		if !v.shows(kind) {
			continue
		}
		some = true
		longest = max(longest, widths[len(all)])
		for n := range all {
			all[n].width = max(all[n].width, widths[n])
		}
	}
	if !some {
		return nil, 0
	}
	if width == 0 {
		return all, 0
	}
	want := min(longest, max(leastFor, width/3))
	for {
		left := width
		for _, c := range all {
			left -= c.width + len(between)
		}
		if left >= want || len(all) == 0 {
			return all, left
		}
		least := slices.MinFunc(all, func(a, b column) int { return cmp.Compare(a.keep, b.keep) })
		all = slices.DeleteFunc(all, func(c column) bool { return c.keep == least.keep })
	}
}

// look is how a result is shown: as a word or two, as a class of the page, and in a colour.
type look struct {
	word, class string
	color       text.Color
}

// stateLooks are those of the states without a verdict.
var stateLooks = map[State]look{
	Failed:   {"error", "failed", text.FgRed},
	Orphan:   {"orphan", "orphan", text.FgCyan},
	Packed:   {"packed", "unknown", text.FgYellow},
	Original: {"original", "original", text.Faint},
	Gone:     {"removed", "removed", text.Faint},
}

// contentLooks are those of what there is nothing to judge in.
var contentLooks = map[align.Content]look{
	align.Blank: {"blank", "nothing", text.Reset}, align.NoPartitions: {"no partitions", "nothing", text.Reset},
	align.NoDisks: {"no disks", "nothing", text.Reset}, align.UnknownContent: {"unknown", "unknown", text.FgYellow},
}

// lookOf returns that of a verdict by a boundary.
func lookOf(v align.Verdict, boundary int64) look {
	switch v {
	case align.Misaligned:
		return look{"off 4K", "misaligned", text.FgRed}
	case align.BelowBoundary:
		return look{"off " + units.Short(boundary), "below", text.FgYellow}
	case align.Aligned:
		return look{"aligned", "aligned", text.FgGreen}
	case align.NothingToJudge:
	}
	return look{"-", "unjudged", text.Reset}
}

func (i *Image) look(boundary int64) look {
	l, ok := stateLooks[i.State]
	if !ok && i.Verdict == align.NothingToJudge {
		l, ok = contentLooks[i.Content]
	}
	if !ok {
		l = lookOf(i.Verdict, boundary)
	}
	return l
}

// color returns that of the word in a row.
func (i *Image) color() text.Color {
	switch {
	case i.Accepted != nil:
		return text.Faint
	case i.unknown():
		return text.FgYellow
	}
	return i.look(0).color
}

func rankCell(i *Image) string {
	if i.Priority == nil || i.Priority.Rank == 0 {
		return "-"
	}
	return strconv.Itoa(i.Priority.Rank)
}

// judged returns the partitions of all disks that have a verdict.
func (i *Image) judged() (out []report.Partition) {
	for _, d := range i.Disks {
		for _, p := range d.Partitions {
			if p.Verdict != "" {
				out = append(out, p)
			}
		}
	}
	return out
}

func offCell(i *Image) string {
	off, all := 0, i.judged()
	if len(all) == 0 || i.State == Original {
		return "-"
	}
	for _, p := range all {
		if p.Verdict.Off() {
			off++
		}
	}
	return fmt.Sprintf("%d/%d", off, len(all))
}

// startCell returns the start of the partition with the least alignment.
func startCell(i *Image) string {
	all := i.judged()
	if len(all) == 0 {
		return "-"
	}
	worst := slices.MinFunc(all, func(a, b report.Partition) int { return cmp.Compare(a.Alignment, b.Alignment) })
	return strconv.FormatInt(worst.StartLBA, 10)
}

func formatCell(i *Image) string {
	if i.Format == "" {
		return "-"
	}
	if i.view() {
		return report.FormatName(i.Format) + " view"
	}
	return report.FormatName(i.Format)
}

// view reports whether the storage sees other offsets than the guest: the files are those of another disk.
func (i *Image) view() bool {
	finds := func(f align.Finding) bool { return f.Code == "view" }
	return slices.ContainsFunc(i.Disks, func(d Disk) bool { return slices.ContainsFunc(d.Findings, finds) })
}

func sizeCell(n int64) string {
	if n <= 0 {
		return "-"
	}
	return units.Format(n)
}

func roleCell(i *Image) string {
	if i.Priority == nil {
		return "-"
	}
	switch i.role() {
	case align.BootDisk:
		return "boot"
	case align.DataDisk:
		return "data"
	default:
		return "?"
	}
}

func guestCell(i *Image) string {
	if i.Priority == nil {
		return "-"
	}
	return cmp.Or(string(i.guest()), "-")
}

func fixCell(i *Image) string {
	switch {
	case i.Priority == nil:
		return "-"
	case i.Priority.Class == classStays:
		return "stays"
	case i.Copied != "":
		return "copied"
	case len(i.Refusals()) > 0:
		return "refused"
	case i.unplanned():
		return "no plan"
	}
	return "yes"
}

// A terminal has cells: most characters take one, those of Chinese two, those that join the one before none.

const ellipsis = "…"

// cells returns how many of them a text takes, without escape sequences.
func cells(s string) int { return text.StringWidthWithoutEscSequences(s) }

// tail returns the longest end of s that fits into n cells.
func tail(s string, n int) string {
	for over := cells(s) - n; over > 0 && s != ""; {
		r, size := utf8.DecodeRuneInString(s)
		over -= text.RuneWidth(r)
		s = s[size:]
	}
	return s
}

// shorten makes a path fit into n cells; 0 is no limit. It drops the middle: the name of the file stays as long as it
// fits, and of a name that does not, beginning and end.
func shorten(path string, n int) string {
	if n <= 0 || cells(path) <= n {
		return path
	}
	slash := strings.LastIndexByte(path, '/')
	name, mark := path[slash+1:], ellipsis+"/"
	if room := n - cells(mark) - cells(name); slash > 0 && room >= 0 {
		return text.Trim(path[:slash], room) + mark + name
	}
	room := max(n-cells(ellipsis), 0)
	end := tail(name, room-room/2)
	return text.Trim(name, room-cells(end)) + ellipsis + end
}

// pad fills s with blanks up to n cells, in front or behind.
func pad(s string, n int, right bool) string {
	blanks := strings.Repeat(" ", max(n-cells(s), 0))
	if right {
		return blanks + s
	}
	return s + blanks
}

// thousands prints a number with a comma between groups of three digits.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plus adds two numbers that are not negative. The sum of huge sparse files stays at the largest number.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// counted prints a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(int64(n)) + " " + many
}

func images(n int) string { return counted(n, "image", "images") }

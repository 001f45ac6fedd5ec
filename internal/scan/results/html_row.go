package results

import (
	"cmp"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Kinds of rows, as classes of the style sheet, worst first.
var (
	kindOrder = []string{
		"failed", "misaligned", "below", "unknown", "aligned", "nothing", "orphan", "original", "removed",
	}
	// kindWords are the words of kinds that are not written as their class is.
	kindWords = map[string]string{"below": "below boundary", "nothing": "nothing to judge", "unjudged": "not judged"}
)

func kindOf(i *Image) string { return i.look(0).class }

func wordOf(kind string) string { return cmp.Or(kindWords[kind], kind) }

// tagOrder are words that a row can have beside its verdict; they are classes too.
var tagOrder = []string{
	"refused", "copied", "guest-shut-down", "guest-running", "guest-hibernated", "guest-unknown", "accepted", "new",
	"changed",
}

func tagsOf(i *Image) (out []string) {
	if i.Priority != nil && (len(i.Refusals()) > 0 || i.unplanned()) {
		out = append(out, "refused")
	}
	if i.Copied != "" {
		out = append(out, "copied")
	}
	if tag := guestTags[i.guest()]; i.Priority != nil && tag != "" {
		out = append(out, tag)
	}
	if i.Accepted != nil {
		out = append(out, "accepted")
	}
	if i.Change == New || i.Change == Changed {
		out = append(out, string(i.Change))
	}
	return out
}

// newTags returns the tags of a row with their words.
func newTags(i *Image) (out []choice) {
	for _, t := range tagsOf(i) {
		out = append(out, choice{Key: t, Word: cmp.Or(tagWords[t], t)})
	}
	return out
}

// size is a number of bytes: it prints rounded, and has the exact number for the tooltip.
type size int64

func (s size) String() string { return units.Format(int64(s)) }

// Exact prints the number itself.
func (s size) Exact() string { return strconv.FormatInt(int64(s), 10) + " bytes" }

// htmlFunctions are those of the page. It escapes the texts of rows by safe; other functions return safe texts, but for
// note, command and partLabels.
var htmlFunctions = template.FuncMap{
	"safe": safe, "short": units.Short, "size": func(n int64) size { return size(n) }, "more": more,
	"kind": kindOf, "word": wordOf, "tags": newTags, "note": noteOf, "facts": rowFacts, "command": (*Image).command,
	"findings":   newFindings,
	"disks":      newHTMLDisks,
	"moreDisks":  func(all []Disk) int { return max(len(all)-maxDisks, 0) },
	"partKind":   func(p report.Partition, boundary int64) string { return lookOf(p.Verdict, boundary).class },
	"partLabels": partLabels,
}

// Limits of one row. trueup inspect shows the rest.
const (
	maxDisks    = 64 // of a package
	maxFindings = 16 // of a disk
	maxFiles    = 16
)

// noteOf returns the line below the path: why there is no verdict, or why it does not count.
func noteOf(i *Image) string {
	switch {
	case i.Accepted != nil:
		return report.Capital(i.Accepted.text())
	case i.Copied != "":
		return i.copiedText()
	case i.originalText() != "":
		return i.originalText()
	case i.unknown():
		return i.unknownText()
	case i.Verdict == align.NothingToJudge:
		return contentLooks[i.Content].word
	case i.Error != nil:
		return i.Error.Code + ": " + i.Error.Message
	}
	return ""
}

// more prints the share of extra work in percent.
func more(percent float64) string {
	switch {
	case math.IsNaN(percent) || percent <= 0:
		return ""
	case percent < 1:
		return "<1 %"
	}
	return strconv.FormatFloat(math.Min(percent, 1e6), 'f', 0, 64) + " %"
}

// rowFacts returns the facts that the row itself lacks.
func rowFacts(i *Image) (out []fact) {
	if n := len(i.Files); n > 1 || n == 1 && !strings.HasSuffix(i.Path, i.Files[0].Name) {
		var names []string
		for _, f := range i.Files[:min(n, maxFiles)] {
			names = append(names, fmt.Sprintf("%s (%s)", safe(f.Name), units.Format(f.Size)))
		}
		if n > maxFiles {
			names = append(names, fmt.Sprintf("and %d more", n-maxFiles))
		}
		out = append(out, fact{"Files", strings.Join(names, ", ")})
	}
	if n := len(i.Parents); n > 0 {
		text := safe(strings.Join(i.Parents[:min(n, maxFiles)], ", "))
		if n > maxFiles {
			text += fmt.Sprintf(", and %d more", n-maxFiles)
		}
		out = append(out, fact{"Completes", text})
	}
	return out
}

// htmlFinding is something that a reader should know of an image or a disk.
type htmlFinding struct{ Severity, Subject, Text, Remedy string }

// htmlFindings are the first of several findings, and how many more there are.
type htmlFindings struct {
	All  []htmlFinding
	More int
}

func newFindings(fs []align.Finding) (out htmlFindings) {
	for _, f := range fs[:min(len(fs), maxFindings)] {
		out.All = append(out.All, htmlFinding{safe(string(f.Severity)), safe(f.Subject), safe(f.Text), safe(f.Remedy)})
	}
	out.More = max(len(fs)-maxFindings, 0)
	return out
}

// fromError makes a finding of an error.
func fromError(word string, e *report.Error) []htmlFinding {
	if e == nil {
		return nil
	}
	return []htmlFinding{{word, safe(e.Code), safe(e.Message), ""}}
}

// fixText describes the aligned copy.
func fixText(d Disk) string {
	f := d.Fix
	if f == nil || len(f.Moves) == 0 {
		return ""
	}
	var moves []string
	sector := d.Sector()
	for _, m := range f.Moves[:min(len(f.Moves), maxFindings)] {
		moves = append(moves, fmt.Sprintf("partition %d from LBA %d to %d", m.Partition, m.From/sector, m.To/sector))
	}
	if n := len(f.Moves) - maxFindings; n > 0 {
		moves = append(moves, fmt.Sprintf("and %d more", n))
	}
	text := fmt.Sprintf("An aligned copy moves %s, to multiples of %s; ", strings.Join(moves, ", "),
		units.Format(f.Boundary))
	if f.NewSize > f.OldSize {
		return text + fmt.Sprintf("its disk is %s larger.", units.Format(f.NewSize-f.OldSize))
	}
	return text + "its disk keeps the size."
}

// startOf returns the index of the finding about the start of a partition, or -1.
func startOf(fs []align.Finding, number int) int {
	subject := fmt.Sprintf("partition %d", number)
	return slices.IndexFunc(fs, func(f align.Finding) bool {
		return f.Subject == subject && (f.Code == "misaligned" || f.Code == "below-boundary")
	})
}

package results

import (
	"cmp"
	_ "embed" // body, style and script of the report
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/report/pages"
	"github.com/trueup/trueup/internal/units"
)

// htmlReport is everything above and around the rows. All texts in it are safe.
type htmlReport struct {
	Title    string // of the user; empty: its own
	Complete bool
	Lead     []string
	Tiles    []tile
	Facts    []fact
	Notes    []htmlNotes
	Kinds    []choice
	Tags     []choice
	Formats  []choice
	Total    int
	Empty    string // instead of rows, where there are no rows
	Rows     iter.Seq[*Image]
	Version  string
}

// tile is a number that a reader should see first. Share is its part of the bar in percent, where it has one.
type tile struct {
	Class, Count, Word, About string
	At, Share                 percent
	Zero                      bool
}

type fact struct{ Name, Text string }

// htmlNotes is a list that is closed at first.
type htmlNotes struct {
	Title string
	Items []fact
	More  int
}

// maxNotes bounds the places of one kind that are listed: a folder without rights can have a million.
const maxNotes = 1000

func newPage(s *Summary, images iter.Seq[*Image]) htmlReport {
	p := htmlReport{
		Title: safe(s.Title), Complete: s.Complete, Lead: htmlLead(s), Tiles: htmlTiles(s), Facts: htmlFacts(s),
		Notes: newHTMLNotes(s), Empty: htmlEmpty(s), Rows: images,
		Version: safe(s.Version),
	}
	kinds, tags, formats := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range images {
		p.Total++
		kinds[kindOf(i)]++
		for _, t := range tagsOf(i) {
			tags[t]++
		}
		if i.Format != "" {
			formats[safe(i.Format)]++
		}
	}
	p.Kinds = choices(kinds, kindOrder, kindWords)
	p.Tags = choices(tags, tagOrder, tagWords)
	p.Formats = choices(formats, nil, nil)
	return p
}

// safe escapes a text from an image, a file name or the command line.
func safe(s string) string { return report.SafeMessage(s) }

func htmlEmpty(s *Summary) string {
	if s.ChangedOnly && s.Images > 0 {
		return "Nothing is new, changed or removed."
	}
	return "No image was found."
}

// htmlLead returns the result in a few sentences.
func htmlLead(s *Summary) (out []string) {
	off, judged, unknown := s.Misaligned+s.Below, s.Misaligned+s.Below+s.Aligned, s.unknown()
	switch {
	case s.Images == 0 && s.Complete:
		out = append(out, "No image was found.")
	case judged == 0: // nothing can be said
	case off == 0:
		out = append(out, fmt.Sprintf("No image has a partition off a multiple of %s.", units.Format(s.Boundary)))
	default:
		out = append(out, fmt.Sprintf("%s a partition off a multiple of %s; %d of them off 4 KiB too.",
			count(off, "image has", "images have"), units.Format(s.Boundary), s.Misaligned))
	}
	if f := s.Fix; f.Images+f.Refused > 0 {
		text := fmt.Sprintf("%d can be realigned: %s to read and to write, and no disk grows.", f.Images,
			units.Format(f.Copies))
		if f.Grows > 0 {
			text = fmt.Sprintf("%d can be realigned: %s to read and to write, and the disks grow by %s.", f.Images,
				units.Format(f.Copies), units.Format(f.Grows))
		}
		if f.Refused > 0 {
			text += fmt.Sprintf(" %d cannot, as they are.", f.Refused)
		}
		out = append(out, text)
	}
	if s.Fix.Stays > 0 {
		out = append(out, staysText(s.Fix.Stays))
	}
	if s.Copied > 0 {
		out = append(out, copiedText(s.Copied))
	}
	if s.Accepted > 0 {
		out = append(out, count(s.Accepted, "image is", "images are")+" accepted by the ignore file.")
	}
	if s.Failed > 0 {
		out = append(out, failedText(s.Failed))
	}
	if unknown > 0 {
		out = append(out, count(unknown, "image is", "images are")+
			" unknown: not read, or nothing on the disk is known.")
	}
	return out
}

func failedText(n int) string { return units.Counted(n, "image") + " could not be judged." }

func htmlTiles(s *Summary) []tile {
	at := percent(0)
	part := func(class string, n int, word, about string) tile {
		t := tile{
			Class: class, Count: strconv.Itoa(n), Word: word, About: about, At: at,
			Share: share(int64(n), int64(s.Images)), Zero: n == 0,
		}
		at += t.Share
		return t
	}
	boundary := units.Format(s.Boundary)
	tiles := []tile{
		part("failed", s.Failed, "failed", "could not be judged"),
		part("misaligned", s.Misaligned, "misaligned", "off 4 KiB"),
		part("below", s.Below, "below boundary", "on 4 KiB, off "+boundary),
		part("unknown", s.unknown(), "unknown", "packed, or nothing is known"),
		part("aligned", s.Aligned, "aligned", "on "+boundary),
		part("nothing", s.Nothing-s.Contents[string(align.UnknownContent)], "nothing to judge",
			"blank, or no partition"),
		part("orphan", s.Orphans, "orphans", "parts of disks, alone"),
		part("original", s.Originals, "originals", "of exchanged disks, kept"),
		{Count: strconv.Itoa(s.Accepted), Word: "accepted", About: "by the ignore file", Zero: s.Accepted == 0},
		{Count: units.Format(s.Fix.Copies), Word: "to copy", About: "in " + units.Counted(s.Fix.Images, "image") +
			" to realign"},
		{Count: units.Format(s.Fix.Grows), Word: "growth", About: "of the aligned disks"},
	}
	return slices.DeleteFunc(tiles, func(t tile) bool {
		return t.Zero && slices.Contains([]string{"unknown", "nothing", "original"}, t.Class)
	})
}

func htmlFacts(s *Summary) []fact {
	out := []fact{
		{"Scanned", safe(strings.Join(s.Paths, "  "))},
		{"Finished", moment(s.Finished) + ", after " + report.Seconds(s.Took)},
		{"Images", units.Counted(s.Images, "image") + ", " + units.Counted(s.Skipped, "other file") + " passed over, " +
			units.Format(s.Read) + " read"},
		{"Boundary", units.Format(s.Boundary)},
		{"Storage", safe(s.Storage)},
		{"Isolation", safe(isolationWords(s.Isolation))},
	}
	if s.Links > 0 {
		out = append(out, fact{"Links", linksText(s.Links)})
	}
	if c := s.Changes; c != nil {
		since := "since the earlier scan"
		if c.Since != "" {
			since = "since " + moment(c.Since)
		}
		text := fmt.Sprintf("%d new, %d changed, %d the same, %d removed %s", c.New, c.Changed, c.Same, c.Removed,
			since)
		if s.ChangedOnly {
			text += "; rows and exit code are those of what is new, changed or removed alone"
		}
		out = append(out, fact{"Changes", text})
	}
	if m := s.Merged; m != nil {
		out = append(out, fact{"Sources", m.text()})
		for _, l := range m.Labels[:min(len(m.Labels), maxNotes)] {
			out = append(out, fact{safe(l.Key + "=" + l.Value), l.text()})
		}
	}
	if s.Shard != "" {
		out = append(out, fact{"Shard", safe(s.Shard) + ": " + s.othersText()})
	}
	code := fact{"Exit code", strconv.Itoa(s.ExitCode)}
	if s.FailOn != "" {
		code.Text += ", as --fail-on " + safe(s.FailOn) + " has it"
	}
	if s.Worst != "" {
		code.Text += ", for " + safe(s.Worst)
	}
	return append(out, code, fact{"Made by", "trueup " + safe(s.Version)})
}

// moment prints a time for people, or a text as it is.
func moment(s string) string {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return safe(s)
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

func newHTMLNotes(s *Summary) (out []htmlNotes) {
	if n := len(s.Unreadable); n > 0 {
		all := s.unreadable()
		notes := htmlNotes{
			Title: units.Counted(all, "place") + " could not be looked at",
			More:  max(all-maxNotes, all-n),
		}
		for _, u := range s.Unreadable[:min(n, maxNotes)] {
			notes.Items = append(notes.Items, fact{safe(u.Path), safe(u.Error.Message)})
		}
		out = append(out, notes)
	}
	if n := len(s.IgnoreNotes); n > 0 {
		notes := htmlNotes{Title: units.Counted(n, "note") + " on the ignore file", More: max(n-maxNotes, 0)}
		for _, text := range s.IgnoreNotes[:min(n, maxNotes)] {
			notes.Items = append(notes.Items, fact{"", safe(text)})
		}
		out = append(out, notes)
	}
	return out
}

//go:embed html/report.html.tmpl
var htmlPage string

//go:embed html/report.css
var htmlStyle string

//go:embed html/report.js
var htmlScript string

var htmlFormat = Format{
	Name: "html", Write: func(w io.Writer, r *Report) error { return writeHTML(w, r.Summary, r.Images) },
}

// writeHTML writes the report of a run as one file that asks no server for anything. images are in the order of Rank.
// Rows are made one at a time, and the same values give the same bytes.
func writeHTML(w io.Writer, s *Summary, images iter.Seq[*Image]) error {
	return kind.Write(w, safe(s.Version), newPage(s, images))
}

var kind = pages.New(pages.Source{
	Body: htmlPage, Style: htmlStyle, Script: htmlScript, Functions: htmlFunctions,
})

// choice is something to filter by, and how many rows have it.
type choice struct {
	Key, Word string
	Count     int
}

// choices counts what rows have, in the order of keys, or sorted where there are none. Choices without a row are left
// out.
func choices(counts map[string]int, keys []string, words map[string]string) (out []choice) {
	if keys == nil {
		for k := range counts {
			keys = append(keys, k)
		}
		slices.Sort(keys)
	}
	for _, k := range keys {
		if counts[k] > 0 {
			out = append(out, choice{k, cmp.Or(words[k], k), counts[k]})
		}
	}
	return out
}

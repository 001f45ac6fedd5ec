package trial

import (
	_ "embed" // body and style of the report
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/report/pages"
	"github.com/trueup/trueup/internal/units"
)

//go:embed html/boot.html.tmpl
var htmlPage string

//go:embed html/boot.css
var htmlStyle string

var kind = pages.New(pages.Source{Body: htmlPage, Style: htmlStyle, Pictures: true})

// Bounds of a page. The JSON has more.
const (
	maxStrip     = 24      // screens of a run
	maxStripData = 6 << 20 // bytes of their pictures
	maxRows      = 100     // of differences
	serialLines  = 40      // of the end of a serial port
)

type body struct {
	Class, Word, Source, Reason string
	Facts                       []fact
	Differences                 []row
	More                        int
	Tolerated                   []string
	Runs                        []pageRun
	Marked                      bool
}

type fact struct{ Name, Text string }

type row struct{ Where, Before, After string }

type pageRun struct {
	ID, Title, Facts, Earlier string
	Last                      *pageScreen
	Serial                    []pageLine
	Strip                     []pageScreen
}

type pageScreen struct {
	At            float64
	Alt           string
	Width, Height int
	Data          string // base64 of a PNG
	LeftOut       string // why there is no picture
	Areas         []Rect
	Lines         []pageLine
}

// pageLine is a line, marked from the column on where it differs.
type pageLine struct{ Same, Marked string }

// HTML writes the report as one file that asks no server for anything.
func (r *Boot) HTML(w io.Writer, version string) error {
	p := body{
		Class: string(r.Verdict), Word: r.Word(), Source: report.SafeMessage(r.Source),
		Reason: report.Capital(report.SafeMessage(r.Reason)), Facts: r.pageFacts(),
	}
	for _, t := range r.Tolerated {
		p.Tolerated = append(p.Tolerated, report.SafeMessage(t))
	}
	for _, d := range r.Differences[:min(len(r.Differences), maxRows)] {
		p.Differences = append(p.Differences, row{d.Place(), nothing(d, d.Before), nothing(d, d.After)})
		p.Marked = p.Marked || d.Line > 0 || d.Rect != nil
	}
	p.More = max(len(r.Differences)-maxRows, 0)
	for n, run := range r.Runs() {
		p.Runs = append(p.Runs, r.pageRun(n, run))
	}
	return kind.Write(w, report.Safe(version), p)
}

// nothing returns a text of a run, or words for an empty one.
func nothing(d DifferenceReport, s string) string {
	if d.Rect != nil {
		return "(marked below)"
	}
	return orNothing(s)
}

func (r *Boot) pageFacts() []fact {
	m := r.Machine
	out := []fact{{"Source", report.SafeMessage(r.Source)}, {
		"Machine", fmt.Sprintf("%s, disk on %s, %s of memory, %d\u00a0s at most for a run",
			strings.ToUpper(report.Safe(m.Firmware)), report.Safe(m.Bus), units.Format(m.Memory), m.Seconds),
	}}
	if r.After == nil {
		return append(out, fact{"Moved", "nothing has to move"})
	}
	return append(out, fact{"Moved", units.Counted(r.Moved, "partition") + " in the aligned view"})
}

func (r *Boot) pageRun(n int, run *Run) pageRun {
	out := pageRun{
		ID: []string{"source", "aligned"}[n], Title: []string{"Source", "Aligned view"}[n],
		Facts: report.Capital(run.facts()),
	}
	left := maxStripData
	for at := len(run.Screens) - 1; at >= 0 && len(out.Strip) < maxStrip; at-- {
		if out.Last == nil {
			s := newPageScreen(run.Screens[at], &left,
				func(at int, l string) pageLine { return r.line(n, OnScreen, at, l) })
			s.Areas = r.areas()
			out.Last = &s
			continue
		}
		out.Strip = append(out.Strip, newPageScreen(run.Screens[at], &left, unmarked))
	}
	slices.Reverse(out.Strip)
	if shown := len(out.Strip) + 1; out.Last != nil {
		out.Earlier = "Before it: " + units.Counted(shown-1, "screen")
		if more := len(run.Screens) + run.LeftOut - shown; more > 0 {
			out.Earlier += ", without the first " + units.Counted(more, "screen")
		}
	}
	lines := SerialLines(run.Serial)
	for at, l := range lines {
		if at >= len(lines)-serialLines {
			out.Serial = append(out.Serial, r.line(n, Serial, at, l))
		}
	}
	return out
}

// newPageScreen returns a screen with its lines, or with its picture if there are enough bytes left.
func newPageScreen(s ScreenReport, left *int, line func(at int, text string) pageLine) pageScreen {
	out := pageScreen{At: s.At, Alt: fmt.Sprintf("Screen at %v s", s.At), Width: s.Width, Height: s.Height}
	if s.png == nil {
		for at, l := range s.Lines {
			out.Lines = append(out.Lines, line(at, l))
		}
		return out
	}
	out.Alt = fmt.Sprintf("Screen of %d x %d pixels at %v s", s.Width, s.Height, s.At)
	if *left -= len(s.png); *left < 0 || s.Width == 0 {
		out.LeftOut = fmt.Sprintf("A picture of %d x %d pixels is left out, to keep the page small.", s.Width, s.Height)
		return out
	}
	out.Data = base64.StdEncoding.EncodeToString(s.png)
	return out
}

func unmarked(_ int, text string) pageLine { return pageLine{Same: report.Safe(text)} }

// areas returns where the pictures of the last screens differ.
func (r *Boot) areas() (out []Rect) {
	for _, d := range r.Differences {
		if d.Rect != nil && d.Before+d.After == "" {
			out = append(out, *d.Rect)
		}
	}
	return out
}

// line returns a line of run n, marked from the column on where a difference begins.
func (r *Boot) line(n int, where Place, at int, text string) pageLine {
	for _, d := range r.Differences {
		if d.Where != where || d.Line != at+1 || n == 0 && d.Before == "" || n == 1 && d.After == "" {
			continue
		}
		runes := []rune(text)
		column := d.Column - 1
		if column >= len(runes) {
			column = 0 // the other line goes on
		}
		return pageLine{report.Safe(string(runes[:column])), report.Safe(string(runes[column:]))}
	}
	return unmarked(at, text)
}

package results

import (
	"cmp"
	_ "embed" // body, style and script of the report
	"encoding/json"
	"io"
	"iter"
	"math"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/report/pages"
)

//go:embed templates/shared.tmpl
var sharedParts string

//go:embed html/report.html.tmpl
var htmlPage string

//go:embed html/report.css
var htmlStyle string

//go:embed html/report.js
var htmlScript string

var htmlFormat = Format{
	Name: "html", Write: func(w io.Writer, r *Report) error {
		return htmlKind.Write(w, safe(r.Summary.Version), newPage(r))
	},
}

// htmlKind is a page in one file that loads nothing from any server. Its rows are written one at a time. Equal values
// give equal bytes.
var htmlKind = pages.New(pages.Source{
	Body: sharedParts + htmlPage, Style: htmlStyle, Script: htmlScript, Functions: layoutFunctions,
})

// safe escapes a text from an image, a file name or the command line.
func safe(s string) string { return report.SafeMessage(s) }

// htmlReport is the data of the template. Its own texts are safe; texts in Summary and Rows are not.
type htmlReport struct {
	*Summary
	Lead         []string
	Tiles        []tile
	Kinds, Tags  []choice // filters; the script counts their rows
	Total        int
	Plain        iter.Seq[*Image] // rows without the script
	LeftOut      int              // rows that are not in Plain
	Rows, Shared iter.Seq[json.RawMessage]
}

// choice is a filter: its class and its words.
type choice struct{ Key, Word string }

func newPage(r *Report) htmlReport {
	rows := newRowData(r.Images)
	p := htmlReport{
		Summary: r.Summary, Lead: htmlLead(r.Summary), Tiles: htmlTiles(r.Summary), Total: r.Rows,
		Plain: rows.plain, LeftOut: max(0, r.Rows-maxPlain), Rows: rows.list, Shared: rows.listShared,
	}
	for _, k := range kindOrder {
		p.Kinds = append(p.Kinds, choice{k, wordOf(k)})
	}
	for _, t := range tagRows {
		p.Tags = append(p.Tags, choice{t.key, t.word})
	}
	return p
}

// htmlLead returns the result in a few sentences.
func htmlLead(s *Summary) (out []string) {
	for _, l := range (sentences{Summary: s}).lines("lead") {
		out = append(out, l...)
	}
	return out
}

// tile is one of the numbers at the top of the page. Share is its part of the bar, if any.
type tile struct {
	Class, Count, Word, About string
	At, Share                 percent
	Zero                      bool
}

func htmlTiles(s *Summary) (out []tile) {
	at := percent(0)
	for _, l := range (sentences{Summary: s}).lines("tiles") {
		t := tile{Class: l[0], Count: l[1], Word: l[2], About: l[3], At: at, Zero: l[1] == "0"}
		if n, err := strconv.ParseInt(l[1], 10, 64); err == nil && t.Class != "" {
			t.Share = share(n, int64(s.Images))
		}
		out, at = append(out, t), at+t.Share
	}
	return out
}

// Kinds of rows, as classes of the style sheet, worst first.
var (
	kindOrder = []string{
		"failed", "misaligned", "below", "unknown", "aligned", "nothing", "orphan", "original", "removed",
	}
	// kindWords holds the words of kinds that differ from their classes.
	kindWords = map[string]string{"below": "below boundary", "nothing": "nothing to judge", "unjudged": "not judged"}
)

func kindOf(i *Image) string { return i.look().class }

func wordOf(kind string) string { return cmp.Or(kindWords[kind], kind) }

// tagRows holds the words that a row can have next to its verdict, and their classes.
var tagRows = []struct {
	key, word string
	has       func(i *Image) bool
}{
	{"by-offset", "by offset", (*Image).byOffset},
	{"refused", "refused", func(i *Image) bool { return i.Priority != nil && i.hindered() }},
	{"copied", "copied", func(i *Image) bool { return i.Copied != "" }},
	{"guest-shut-down", "shut down", leftAs(boot.ShutDown)},
	{"guest-running", "running", leftAs(boot.Running)},
	{"guest-hibernated", "hibernated", leftAs(boot.Hibernated)},
	{"guest-unknown", "guest unknown", leftAs(boot.NotKnown)},
	{"accepted", "accepted", func(i *Image) bool { return i.Accepted != nil }},
	{"new", "new", func(i *Image) bool { return i.Change == New }},
	{"changed", "changed", func(i *Image) bool { return i.Change == Changed }},
}

func leftAs(state boot.State) func(*Image) bool {
	return func(i *Image) bool { return i.Priority != nil && i.guest() == state }
}

func tagsOf(i *Image) (out []choice) {
	for _, t := range tagRows {
		if t.has(i) {
			out = append(out, choice{t.key, t.word})
		}
	}
	return out
}

// classesOf returns the classes of a row for the style sheet: the kind, then the tags.
func classesOf(i *Image) string {
	out := []string{kindOf(i)}
	for _, t := range tagsOf(i) {
		out = append(out, t.Key)
	}
	return strings.Join(out, " ")
}

// noteOf returns the line below the path: the reason why there is no verdict, or why it does not count.
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

// extraPercent prints the share of extra work in percent.
func extraPercent(percent float64) string {
	switch {
	case math.IsNaN(percent) || percent <= 0:
		return ""
	case percent < 1:
		return "<1 %"
	}
	return strconv.FormatFloat(math.Min(percent, 1e6), 'f', 0, 64) + " %"
}

// percent is a length in a picture.
type percent float64

// String prints three decimal places, exact enough for a screen of 100,000 points.
func (p percent) String() string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(float64(p), 'f', 3, 64), "0"), ".") + "%"
}

// share returns n as a share of total. Neither may be negative.
func share(n, total int64) percent {
	if total <= 0 {
		return 0
	}
	return percent(100 * float64(n) / float64(total))
}

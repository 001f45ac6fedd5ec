package results

import (
	"bufio"
	"cmp"
	"embed"
	"fmt"
	"io"
	"iter"
	"path"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// layouts has the templates of the formats that are no pages. They lay values out; verdicts and sums are those of rows.
//
//go:embed templates/*.tmpl
var layouts embed.FS

// builtIn returns a function that executes one of layouts. The template is parsed when it is first used.
func builtIn(name string) func(w io.Writer, data any) error {
	parsed := sync.OnceValue(func() *template.Template {
		return template.Must(template.New(name).Funcs(functions).Funcs(layoutFunctions).
			ParseFS(layouts, "templates/"+name))
	})
	return func(w io.Writer, data any) error {
		b := bufio.NewWriterSize(w, 64<<10)
		err := parsed().Execute(b, data)
		if err == nil {
			err = b.Flush()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
}

// layoutFunctions are those that only layouts have.
var layoutFunctions = template.FuncMap{
	"cdata":  func(s string) string { return strings.ReplaceAll(s, "]]>", "]]]]><![CDATA[>") },
	"escape": report.Escape,
	"minus":  func(a, b int64) int64 { return a - b },
	"short":  units.Short,
}

var metricsFormat = Format{
	Name: "prometheus", Write: func(w io.Writer, r *Report) error {
		m := runMetrics{Summary: r.Summary}
		finished, err := time.Parse(time.RFC3339, m.Finished)
		if err != nil {
			return fmt.Errorf("metrics: end of the run: %w", err)
		}
		m.Ended = finished.Unix()
		return metricsTemplate(w, m)
	},
}

// metricsTemplate lays out the sums in the text format of Prometheus, version 0.0.4. See docs/scan-reports.md.
var metricsTemplate = builtIn("scan.prometheus.tmpl")

// runMetrics are the sums of a run.
type runMetrics struct {
	*Summary
	Ended int64 // seconds since 1970
}

// With returns the labels of a sample, of pairs of names and values. Every sample has the label library, the paths that
// were scanned, so that one machine can have a file for each of several libraries.
func (m runMetrics) With(pairs ...string) string {
	all := []string{"library", strings.Join(m.Paths, " ")}
	if m.Shard != "" {
		all = append(all, "shard", m.Shard)
	}
	all = append(all, pairs...)
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var out []string
	for n := 0; n < len(all); n += 2 {
		out = append(out, all[n]+`="`+escape.Replace(report.Safe(all[n+1]))+`"`) // no line feed is left
	}
	return "{" + strings.Join(out, ",") + "}"
}

// suiteName is the name of the only suite without a title, and the class of cases about the run itself.
const suiteName = "trueup scan"

var junitFormat = Format{
	Name: "junit", Write: func(w io.Writer, r *Report) error {
		suite := junitSuite{
			Report: r, Name: cmp.Or(r.Summary.Title, suiteName),
			Counts: map[string]int{"failure": 0, "error": 0, "skipped": 0},
		}
		for c := range suite.Cases() { // the sums stand in front of them
			suite.Tests++
			suite.Counts[c.Element]++
		}
		return junitTemplate(w, suite)
	},
}

// junitTemplate lays out a test report for a CI system. Times are 0: they are not measured. See docs/scan-reports.md.
var junitTemplate = builtIn("scan.junit.tmpl")

type junitSuite struct {
	*Report
	Name   string
	Tests  int
	Counts map[string]int // cases by Element
}

// Cases yields a case for each image and each place that could not be looked at, and one for a run that was interrupted
// or judged no image. A case fails if FailOn asks for an exit code.
func (j junitSuite) Cases() iter.Seq[junitCase] {
	s, fail := j.Summary, j.Fail
	return func(yield func(junitCase) bool) {
		run := junitCase{Class: suiteName, Name: "run"}
		if !s.Complete && !yield(run.lost("interrupted",
			fmt.Sprintf("the run was interrupted: %d images were looked at, and not all", s.Images), fail)) {
			return
		}
		if s.noneJudged() && !yield(run.lost("empty", "no image was judged; if that is right, give --allow-empty", fail)) {
			return
		}
		for i := range j.Images {
			if i.State != Gone && !yield(caseOf(i, fail)) {
				return
			}
		}
		for _, u := range s.Unreadable {
			if !yield(newCase(u.Path).lost(u.Error.Code, u.Error.Message, fail)) {
				return
			}
		}
	}
}

// junitCase is a test case, whose class and name are the path. The template escapes its texts.
type junitCase struct {
	Class, Name            string
	Element, Type, Message string   // the result; empty: it passed
	Body                   []string // lines of the result
	Out                    string
}

func newCase(at string) junitCase {
	folder, name := path.Split(at)
	if folder != "/" {
		folder = cmp.Or(strings.TrimSuffix(folder, "/"), ".")
	}
	return junitCase{Class: folder, Name: name}
}

// lost returns the case with an unknown result: an error, unless errors do not count.
func (c junitCase) lost(code, message string, fail FailOn) junitCase {
	if fail == Never {
		return c.skipped(code, message)
	}
	c.Element, c.Type, c.Message, c.Body = "error", code, message, []string{message}
	return c
}

func (c junitCase) skipped(kind, message string) junitCase {
	c.Element, c.Type, c.Message = "skipped", kind, message
	return c
}

// caseOf returns the case of an image. One without a verdict never passes: at best it is skipped.
func caseOf(i *Image, fail FailOn) junitCase {
	c, code := newCase(i.ExactPath()), fail.Code(i)
	switch {
	case i.Accepted != nil:
		return c.skipped("accepted", i.Accepted.text())
	case i.State == Failed && i.Error != nil:
		return c.lost(i.Error.Code, i.Error.Message, fail)
	case i.unknown() && code != 0:
		return c.lost(i.unknownCode(), i.unknownText(), fail)
	case i.unknown() && !i.Verdict.Off():
		return c.skipped(i.unknownCode(), i.unknownText())
	case i.State != Judged:
		return c.skipped(string(i.State), i.finding())
	case code != 0:
		lines := i.offLines(fail)
		c.Element, c.Type, c.Message, c.Body = "failure", string(i.Verdict), lines[0], append(lines, i.fixLines()...)
	case i.Verdict == align.NothingToJudge:
		return c.skipped(string(i.Content), "nothing to judge: "+contentLooks[i.Content].word)
	case i.lostDisk() != "":
		return c.skipped("disk", i.lostDisk())
	case i.Priority != nil:
		c.Out = string(i.Verdict) + ", which does not fail the run: " + i.Priority.Reason
	}
	return c
}

// unknownCode returns the type of the case of an image with unknown content.
func (i *Image) unknownCode() string {
	if i.State == Packed {
		return string(Packed)
	}
	return string(align.UnknownContent)
}

// lostDisk returns which disk of a package could not be judged, and why.
func (i *Image) lostDisk() string {
	for n := range i.Disks {
		if i.Disks[n].Error != nil {
			return i.Disks[n].firstHindrance()
		}
	}
	return ""
}

// maxOffLines bounds the partitions that a test case lists; the other reports list all of them.
const maxOffLines = 20

// offLines lists the partitions that fail, one in a line. There is at least one line.
func (i *Image) offLines(fail FailOn) (out []string) {
	more := 0
	for _, d := range i.Disks {
		boundary := d.Boundary
		if b, ok := levels[fail]; ok {
			boundary = b
		}
		for _, p := range d.Partitions {
			switch {
			case !p.VerdictBy(boundary).Off():
			case len(out) == maxOffLines:
				more++
			default:
				out = append(out, offLine(d, p, boundary))
			}
		}
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	if len(out) == 0 {
		out = []string{string(i.Verdict)}
	}
	return out
}

func offLine(d Disk, p report.Partition, boundary int64) string {
	where := "partition " + strconv.Itoa(p.Number)
	if d.Member != "" {
		where = d.Member + ": " + where
	}
	if p.Verdict == align.Misaligned {
		boundary = align.Block
	}
	return fmt.Sprintf("%s starts at byte %d (LBA %d), off %s", where, p.Start, p.StartLBA, units.Short(boundary))
}

// fixLines returns the remedy for an image.
func (i *Image) fixLines() (out []string) {
	if i.Priority == nil {
		return nil
	}
	out = append(out, i.Priority.Reason)
	hindrances := i.hindrances()
	for _, f := range hindrances {
		out = append(out, "refused: "+findingText(f))
		if f.Remedy != "" {
			out = append(out, "  "+f.Remedy)
		}
	}
	switch {
	case len(hindrances) > 0:
	case i.Copied != "":
		out = append(out, i.copiedText())
	default:
		out = append(out, i.Priority.Command)
	}
	return out
}

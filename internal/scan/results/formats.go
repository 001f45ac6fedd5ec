package results

import (
	"bufio"
	"cmp"
	"embed"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	html "html/template"
	"io"
	"iter"
	"path"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// Format is a way to print the report of a run.
type Format struct {
	Name string
	// Row prints the row of an image as soon as it is known. If it is nil, the rows are kept until the end.
	Row func(w io.Writer, i *Image) error
	// Write prints the rest of the report at the end of the run.
	Write func(w io.Writer, r *Report) error
	// Terminal marks text for people, which --quiet suppresses on standard output.
	Terminal bool
}

// Report is the result of a finished run.
type Report struct {
	Summary *Summary
	Images  iter.Seq[*Image] // in the order of Rank; printers go through them several times
	Rows    int              // number of Images
	Fail    FailOn
	Text    *report.Text // layout of text
}

// Formats is the table of contents, the default first.
var Formats = []Format{
	textFormat,
	jsonFormat,
	csvFormat,
	htmlFormat,
	junitFormat,
	metricsFormat,
}

// FormatNames lists the names of the formats.
func FormatNames() []string {
	var out []string
	for _, f := range Formats {
		out = append(out, f.Name)
	}
	return out
}

// jsonFormat prints one object in a line for each image, and one for the summary.
var jsonFormat = Format{
	Name:  "json",
	Row:   func(w io.Writer, i *Image) error { return report.Line(w, i) },
	Write: func(w io.Writer, r *Report) error { return report.Line(w, r.Summary) },
}

// Interrupted returns a note on the incomplete report of an interrupted run, empty for a complete run.
func (r *Report) Interrupted() string {
	switch s := r.Summary; {
	case s.Complete:
		return ""
	case s.Images < s.Found:
		return fmt.Sprintf("interrupted: %d of the %d images found so far were looked at, and the report has those",
			s.Images, s.Found)
	default:
		return fmt.Sprintf("interrupted: %d images were looked at, and the report has those; the PATHs may have more",
			s.Images)
	}
}

// NoneJudged reports whether the run fails because it judged no image.
func (r *Report) NoneJudged() bool { return r.Fail != Never && r.Summary.noneJudged() }

// MaxTemplate bounds a user's template, in bytes.
const MaxTemplate = 1 << 20

// functions holds the functions of all templates. docs/scan.md lists them for users.
var functions = template.FuncMap{
	"bytes": units.Format,
	"csv":   csvCell,
	"json":  jsonText,
	"xml":   escapeXML,
}

// escapeXML escapes a text for an element or an attribute.
func escapeXML(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // into memory
	return b.String()
}

func jsonText(value any) (string, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return strings.TrimSuffix(b.String(), "\n"), err
}

// ParseTemplate returns the format of a user's template. It is an html/template, which escapes values by their place,
// if its name ends in .html or .html.tmpl; else a text/template. Its data equal the JSON: "summary" is the object of
// the sums, and "images" yields the objects of the rows, ranked. Objects have all fields; fields that JSON omits are
// nil, empty or 0. An error has the name, the line and the reason.
func ParseTemplate(name, text string) (Format, error) {
	execute, err := parseTemplate(name, text)
	if err != nil {
		return Format{}, templateError(err)
	}
	return Format{Name: "template", Write: func(w io.Writer, r *Report) error {
		b := bufio.NewWriterSize(w, 64<<10)
		err := execute(b, map[string]any{"summary": jsonValue(reflect.ValueOf(r.Summary)), "images": jsonRows(r)})
		if err == nil {
			err = b.Flush()
		}
		return templateError(err)
	}}, nil
}

func parseTemplate(name, text string) (execute func(io.Writer, any) error, err error) {
	const missing = "missingkey=error"
	if !strings.HasSuffix(name, ".html") && !strings.HasSuffix(name, ".html.tmpl") {
		t, err := template.New(name).Funcs(functions).Option(missing).Parse(text)
		if err != nil {
			return nil, err
		}
		return t.Execute, nil
	}
	t, err := html.New(name).Funcs(functions).Option(missing).Parse(text)
	if err != nil {
		return nil, err
	}
	// The first execution checks the context of each value. Without data it fails anyway, but not with an html.Error.
	if misplaced, ok := errors.AsType[*html.Error](t.Execute(io.Discard, nil)); ok {
		return nil, misplaced
	}
	return t.Execute, nil
}

// templateError puts the flag before the position at the start of a template's error. It returns other errors, such as
// errors of a writer, unchanged.
func templateError(err error) error {
	if err == nil {
		return nil
	}
	for _, prefix := range []string{"template: ", "html/template:"} {
		if place, ok := strings.CutPrefix(err.Error(), prefix); ok {
			return ondisk.In(ondisk.ErrUsage, "--template %s", place)
		}
	}
	return err
}

// jsonRows yields the rows of a report as objects, with their exit codes under --fail-on.
func jsonRows(r *Report) iter.Seq[map[string]any] {
	return func(yield func(map[string]any) bool) {
		for i := range r.Images {
			row := jsonValue(reflect.ValueOf(i)).(map[string]any)
			row["exit_code"] = r.Fail.Code(i)
			if !yield(row) {
				return
			}
		}
	}
}

// jsonValue returns a value in the form of its JSON, with plain types and all fields: a nil pointer is nil, a nil slice
// is empty. Texts are escaped as for a terminal. The result has no methods that a template could call.
func jsonValue(v reflect.Value) any {
	if raw, ok := reflect.TypeAssert[json.RawMessage](v); ok {
		var plain any
		if json.Unmarshal(raw, &plain) != nil || plain == nil {
			return nil
		}
		return jsonValue(reflect.ValueOf(plain))
	}
	if b, ok := reflect.TypeAssert[align.Boundary](v); ok {
		return b.Bytes()
	}
	switch v.Kind() { //nolint:exhaustive // all others are plain
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return jsonValue(v.Elem())
	case reflect.Struct:
		out := map[string]any{}
		jsonFields(v, out)
		return out
	case reflect.Slice:
		out := make([]any, v.Len())
		for n := range out {
			out[n] = jsonValue(v.Index(n))
		}
		return out
	case reflect.Map:
		out := make(map[string]any, v.Len())
		for at := v.MapRange(); at.Next(); {
			out[report.Escape(at.Key().String())] = jsonValue(at.Value())
		}
		return out
	case reflect.String:
		return report.Escape(v.String())
	}
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return v.Uint()
	}
	return v.Interface()
}

// jsonFields adds the fields of a struct by their JSON names. Fields of embedded structs come first, so that others
// hide them.
func jsonFields(v reflect.Value, out map[string]any) {
	for n := range v.NumField() {
		if f := v.Type().Field(n); f.Anonymous && f.Tag.Get("json") == "" {
			jsonFields(v.Field(n), out)
		}
	}
	for n := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(n).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			out[name] = jsonValue(v.Field(n))
		}
	}
}

// layouts holds the templates of all formats except pages. They only lay out values; verdicts and sums come from the
// rows.
//
//go:embed templates/*.tmpl
var layouts embed.FS

// parsed returns a function that returns a template of layouts. The template is parsed on first use.
func parsed(name string) func() *template.Template {
	return sync.OnceValue(func() *template.Template {
		return template.Must(template.New(name).Funcs(functions).Funcs(layoutFunctions).
			ParseFS(layouts, "templates/shared.tmpl", "templates/"+name))
	})
}

// builtIn returns a function that executes a template of layouts.
func builtIn(name string) func(w io.Writer, data any) error {
	layout := parsed(name)
	return func(w io.Writer, data any) error {
		b := bufio.NewWriterSize(w, 64<<10)
		err := layout().Execute(b, data)
		if err == nil {
			err = b.Flush()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
}

// layoutFunctions holds the functions of layouts and of the page. They return safe texts, except for note and command.
var layoutFunctions = template.FuncMap{
	"add":   func(a, b int) int { return a + b },
	"bytes": units.Format, "cdata": func(s string) string { return strings.ReplaceAll(s, "]]>", "]]]]><![CDATA[>") },
	"counted": counted, "escape": report.Escape, "images": images, "isolation": isolationWords, "moment": moment,
	"number": func(n int) string { return thousands(int64(n)) }, "safe": safe, "seconds": report.Seconds,
	"plain": units.Counted[int], "message": report.SafeMessage,
	"red": report.Painted(report.Red), "cyan": report.Painted(report.Cyan), "green": report.Painted(report.Green),
	"bash": func() bool { return shell.ForBash(runtime.GOOS) },
	"plan": func(path string) string { return shell.Command("plan", nil, path) },
	"run":  func(script string) string { return "bash " + shell.Quote(script) },

	"accepted": (*Accepted).text, "classes": classesOf, "command": (*Image).command, "extra": extraPercent,
	"arguments": func(command string) string { return strings.TrimPrefix(command, "trueup ") },
	"copies":    (*Image).copies, "exchange": func(i *Image) string { return i.exchange }, "finding": findingText,
	"guest": (*Image).guest, "hindrances": (*Image).hindrances,
	"leaves": func(p *Priority) bool { return p.Class == classStays },
	"join":   strings.Join, "kind": kindOf, "minus": func(a, b int) int { return a - b }, "note": noteOf,
	"tags": tagsOf, "unknown": (*Summary).unknown, "unreadable": (*Summary).unreadable, "word": wordOf,
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

// metricsTemplate lays out the sums in the text format of Prometheus, version 0.0.4. See docs/scan.md.
var metricsTemplate = builtIn("scan.prometheus.tmpl")

// runMetrics holds the sums of a run.
type runMetrics struct {
	*Summary
	Ended int64 // seconds since 1970
}

// With returns the labels of a sample from pairs of names and values. Every sample has the label library with the
// scanned paths, so that one machine can have a file for each of several libraries.
func (m runMetrics) With(pairs ...string) string {
	all := []string{"library", strings.Join(m.Paths, " ")}
	if m.Shard != "" {
		all = append(all, "shard", m.Shard)
	}
	all = append(all, pairs...)
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var out []string
	for n := 0; n < len(all); n += 2 {
		out = append(out, all[n]+`="`+escape.Replace(report.Safe(all[n+1]))+`"`) // Safe leaves no line feed
	}
	return "{" + strings.Join(out, ",") + "}"
}

// suiteName is the name of the only suite, and the class of cases about the run itself.
const suiteName = "trueup scan"

var junitFormat = Format{
	Name: "junit", Write: func(w io.Writer, r *Report) error {
		suite := junitSuite{
			Report: r, Name: suiteName,
			Counts: map[string]int{"failure": 0, "error": 0, "skipped": 0},
		}
		for c := range suite.Cases() { // the sums precede the cases
			suite.Tests++
			suite.Counts[c.Element]++
		}
		return junitTemplate(w, suite)
	},
}

// junitTemplate lays out a test report for a CI system. Times are 0, since they are not measured. See
// docs/scan.md.
var junitTemplate = builtIn("scan.junit.tmpl")

type junitSuite struct {
	*Report
	Name   string
	Tests  int
	Counts map[string]int // cases by Element
}

// Cases yields a case for each image and each unreadable place, and one for a run that was interrupted or judged no
// image. A case fails if FailOn gives it an exit code.
func (j junitSuite) Cases() iter.Seq[junitCase] {
	s, fail := j.Summary, j.Fail
	return func(yield func(junitCase) bool) {
		run := junitCase{Class: suiteName, Name: "run"}
		if !s.Complete && !yield(run.lost("interrupted",
			fmt.Sprintf("the run was interrupted: %d images were looked at, and not all", s.Images), fail)) {
			return
		}
		if s.noneJudged() &&
			!yield(run.lost("empty", "no image was judged; if that is right, give --allow-empty", fail)) {
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

// junitCase is a test case, whose class and name are the path. It has no attribute "file", because the schema of
// Jenkins's xUnit plugin rejects that. The template escapes its texts.
type junitCase struct {
	Class, Name            string
	Element, Type, Message string   // the result, empty if passed
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

// caseOf returns the case of an image. An image without a verdict never passes: at best it is skipped.
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
		c.Element, c.Type = "failure", string(i.Verdict)
		c.Message = cmp.Or(orZero(i.Priority).Reason, c.Type)
		c.Body = i.fixLines()
	case i.Verdict == align.NothingToJudge:
		return c.skipped(string(i.Content), "nothing to judge: "+contentLooks[i.Content].word)
	case i.lostDisk() != "":
		return c.skipped("disk", i.lostDisk())
	case i.Priority != nil:
		c.Out = string(i.Verdict) + ", which does not fail the run: " + i.Priority.Reason
	case i.byOffset():
		c.Out = i.look().word
	}
	return c
}

// unknownCode returns the case type for an image with unknown content.
func (i *Image) unknownCode() string {
	if i.State == Packed {
		return string(Packed)
	}
	return string(align.UnknownContent)
}

// lostDisk returns the first disk of a package that could not be judged, with the reason.
func (i *Image) lostDisk() string {
	for n := range i.Disks {
		if i.Disks[n].Error != nil {
			return i.Disks[n].firstHindrance()
		}
	}
	return ""
}

// startOf returns the start that decides the verdict on a partition, and its description.
func startOf(p report.Partition) (at int64, text string) {
	if p.StartFile != 0 && !align.Kept.On(p.StartFile-p.Start) && units.Alignment(p.StartFile) == p.Alignment {
		return p.StartFile, fmt.Sprintf("byte %d of the file", p.StartFile)
	}
	return p.Start, fmt.Sprintf("byte %d (LBA %d)", p.Start, p.StartLBA)
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

package results

import (
	"bufio"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	html "html/template"
	"io"
	"iter"
	"reflect"
	"strings"
	"text/template"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Format is a way to print the report of a run.
type Format struct {
	Name string
	// Row prints the row of an image as soon as it is known. Nil: the rows are kept until the end.
	Row func(w io.Writer, i *Image) error
	// Write prints at the end of the run what Row has not.
	Write func(w io.Writer, r *Report) error
	// Terminal marks text for people, which --quiet keeps off standard output.
	Terminal bool
}

// Report is a run that has ended.
type Report struct {
	Summary *Summary
	Images  iter.Seq[*Image] // in the order of Rank; printers go through them several times
	Fail    FailOn
	Text    *report.Text // how text is laid out
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

// jsonFormat is one object in a line for each image, and one for the sum of them.
var jsonFormat = Format{
	Name:  "json",
	Row:   func(w io.Writer, i *Image) error { return report.Line(w, i) },
	Write: func(w io.Writer, r *Report) error { return report.Line(w, r.Summary) },
}

// Interrupted returns what a run that was ended early leaves out, empty for a complete one.
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

// NoneJudged reports whether the run fails since it judged no image.
func (r *Report) NoneJudged() bool { return r.Fail != Never && r.Summary.noneJudged() }

// MaxTemplate bounds a template of a user, in bytes.
const MaxTemplate = 1 << 20

// functions are those of all templates. docs/scan-reports.md lists them for users.
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

// ParseTemplate returns the format that a user's template lays out: an html/template if its name ends in .html or
// .html.tmpl, which escapes values by their place, else a text/template. The data of a template are those of the JSON:
// "summary" is the object of the sums, and "images" yields the objects of the rows, ranked. All fields of an object are
// there: nil, empty or 0 where the JSON leaves them out. An error has the name, the line and the reason.
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
	// The first execution judges the places of values. One without data fails, for another reason if all is well.
	if misplaced, ok := errors.AsType[*html.Error](t.Execute(io.Discard, nil)); ok {
		return nil, misplaced
	}
	return t.Execute, nil
}

// templateError names the flag before the place that an error of a template begins with. Other errors, such as those of
// a writer, stay as they are.
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

// jsonRows yields the rows of a report as objects, with two fields that are known at the end of a run: the exit code
// that --fail-on asks for, and the path of an aligned copy.
func jsonRows(r *Report) iter.Seq[map[string]any] {
	return func(yield func(map[string]any) bool) {
		for i := range r.Images {
			row := jsonValue(reflect.ValueOf(i)).(map[string]any)
			row["exit_code"], row["copied_to"] = r.Fail.Code(i), i.Copied
			if !yield(row) {
				return
			}
		}
	}
}

// jsonValue returns a value as its JSON has it, with plain types and all fields: a nil pointer is nil, a nil slice
// empty. Texts are escaped as for a terminal. There are no methods that a template could call.
func jsonValue(v reflect.Value) any {
	if raw, ok := reflect.TypeAssert[json.RawMessage](v); ok {
		var plain any
		if json.Unmarshal(raw, &plain) != nil || plain == nil {
			return nil
		}
		return jsonValue(reflect.ValueOf(plain))
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

// jsonFields adds the fields of a struct by the names of their JSON, those of embedded structs first: others hide them.
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

package results

import (
	"fmt"
	"io"
	"iter"

	"github.com/trueup/trueup/internal/report"
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

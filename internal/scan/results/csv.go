package results

import (
	"fmt"
	"io"
	"iter"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
)

var csvFormat = Format{
	Name: "csv",
	Write: func(w io.Writer, r *Report) error {
		return csvTemplate(w, struct{ Rows iter.Seq[*csvRow] }{csvRows(r.Images, r.Summary.Fragmentation)})
	},
}

// csvTemplate lays out rows as RFC 4180 defines CSV: lines end in CR LF. docs/scan-reports.md explains the columns.
// Texts are escaped for a terminal and never read as formulas; numbers are plain.
var csvTemplate = builtIn("scan.csv.tmpl")

// csvRows yields a header, a row for each partition, and one for each disk or image that has none, so that none is
// lost. counted adds the pieces of files.
func csvRows(images iter.Seq[*Image], counted bool) iter.Seq[*csvRow] {
	return func(yield func(*csvRow) bool) {
		if !yield(&csvRow{Image: &Image{}, Counted: counted, header: true}) {
			return
		}
		for i := range images {
			for _, r := range rowsOf(i) {
				if r.Counted = counted; counted {
					r.Fragments = r.fragments()
				}
				if !yield(&r) {
					return
				}
			}
		}
	}
}

// csvRow is the subject of a row. There may be no disk or no partition.
type csvRow struct {
	*Image
	Disk *Disk
	Part *report.Partition
	// Fragments has the pieces of files of its volumes. Nil: nothing was counted.
	Fragments *report.Fragmentation
	Counted   bool // the pieces of files, in the run
	header    bool // names of columns instead of cells
	begun     bool
}

func rowsOf(i *Image) (out []csvRow) {
	for n := range i.Disks {
		d := &i.Disks[n]
		if len(d.Partitions) == 0 {
			out = append(out, csvRow{Image: i, Disk: d})
		}
		for m := range d.Partitions {
			out = append(out, csvRow{Image: i, Disk: d, Part: &d.Partitions[m]})
		}
	}
	if len(out) == 0 {
		return []csvRow{{Image: i}}
	}
	return out
}

// Column returns the cell of a column with the comma before it, or the name of the column in the header. A nil value is
// an empty cell.
func (r *csvRow) Column(name string, value any) string {
	comma := ""
	if r.begun {
		comma = ","
	}
	if r.begun = true; r.header {
		return comma + name
	}
	return comma + csvCell(value)
}

// csvCell prints a value as a cell of CSV. Floating-point numbers have at most two digits behind the point.
func csvCell(value any) string {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.String:
		return csvQuote(cell(v.String()))
	case reflect.Float64:
		return hundredths(v.Float())
	case reflect.Invalid, reflect.Pointer: // of something that is not there
		return ""
	default:
		return fmt.Sprint(value)
	}
}

// csvQuote quotes a cell as encoding/csv does. It has no line break.
func csvQuote(s string) string {
	if s != `\.` && !strings.ContainsAny(s, `,"`) && strings.TrimLeftFunc(s, unicode.IsSpace) == s {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// Volume returns the partition's volume, or the disk's if it has no partitions.
func (r *csvRow) Volume() *report.Volume {
	switch {
	case r.Part != nil:
		return r.Part.Volume
	case r.Disk != nil:
		return r.Disk.Volume
	}
	return nil
}

// Failure returns why there is no verdict on the disk or the image.
func (r *csvRow) Failure() *report.Error {
	if r.Disk != nil && r.Disk.Error != nil {
		return r.Disk.Error
	}
	return r.Error
}

// Nothing returns the content of the disk if there is nothing to judge, or of a package without a disk.
func (r *csvRow) Nothing() align.Content {
	if r.Disk != nil {
		return r.Disk.Content
	}
	return r.Content
}

// Refused returns the first reason why no aligned copy of the disk can be made.
func (r *csvRow) Refused() string {
	if r.Disk == nil {
		return ""
	}
	return r.Disk.firstHindrance()
}

// Finding returns the first finding on the image as a whole.
func (r *csvRow) Finding() string { return r.finding() }

// Command returns the command that makes the copy.
func (r *csvRow) Command() string { return r.command() }

// finding returns the first on the image as a whole.
func (i *Image) finding() string {
	if len(i.Findings) == 0 {
		return ""
	}
	return findingText(i.Findings[0])
}

func findingText(f align.Finding) string {
	if f.Subject == "" {
		return f.Text
	}
	return f.Subject + ": " + f.Text
}

// hindrances returns why no aligned copy of the disk can be made now.
func (d *Disk) hindrances() []align.Finding {
	switch {
	case d.Error != nil:
		return []align.Finding{{Code: d.Error.Code, Severity: align.Error, Subject: d.Member, Text: d.Error.Message}}
	case d.Fix != nil:
		return d.Fix.Refusals
	case d.Unplanned != nil:
		return []align.Finding{{Code: d.Unplanned.Code, Severity: align.Error, Text: d.Unplanned.Message}}
	}
	return nil
}

func (d *Disk) firstHindrance() string {
	if all := d.hindrances(); len(all) > 0 {
		return findingText(all[0])
	}
	return ""
}

// hundredths prints a number with at most two digits behind the point.
func hundredths(n float64) string { return strconv.FormatFloat(math.Round(n*100)/100, 'f', -1, 64) }

func number(n int64) string { return strconv.FormatInt(n, 10) }

// formulaStarts begin a formula in a spreadsheet, in both widths; TAB and CR are escaped.
const formulaStarts = "=+-@\uff1d\uff0b\uff0d\uff20"

// cell makes a text fit for a cell: control characters are escaped, and in front of what a spreadsheet could take for a
// formula goes an apostrophe, which makes it a text. Where a spreadsheet splits at semicolons, a cell begins behind
// each of them too.
func cell(s string) string {
	var b strings.Builder
	begins := true
	for _, r := range report.Escape(s) {
		switch {
		case r == ';':
			begins = true
		case begins && strings.ContainsRune(formulaStarts, r):
			b.WriteByte('\'')
			begins = false
		case r != ' ' && r != '"': // they do not hide the next one
			begins = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

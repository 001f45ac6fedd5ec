package results

import (
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
)

var csvFormat = Format{
	Name: "csv",
	Write: func(w io.Writer, r *Report) error {
		out := csv.NewWriter(w)
		out.UseCRLF = true
		var cells []string
		(&csvRow{Image: &Image{}}).columns(func(name string, _ any) { cells = append(cells, name) })
		if err := out.Write(cells); err != nil {
			return err
		}
		for i := range r.Images {
			for _, row := range rowsOf(i) {
				cells = cells[:0]
				row.columns(func(_ string, value any) { cells = append(cells, csvText(value)) })
				if err := out.Write(cells); err != nil { // skip the remaining images
					return err
				}
			}
		}
		out.Flush()
		return out.Error()
	},
}

// csvRow is the subject of a row. There may be no disk or no partition.
type csvRow struct {
	*Image
	disk *Disk
	part *report.Partition
}

// rowsOf returns a row for each partition, and one for each disk without partitions or image without disks.
func rowsOf(i *Image) (out []csvRow) {
	for n := range i.Disks {
		d := &i.Disks[n]
		if len(d.Partitions) == 0 {
			out = append(out, csvRow{i, d, nil})
		}
		for m := range d.Partitions {
			out = append(out, csvRow{i, d, &d.Partitions[m]})
		}
	}
	if len(out) == 0 {
		return []csvRow{{Image: i}}
	}
	return out
}

// columns adds the cells of a row. docs/scan.md explains them. New columns are added at the end only: scripts
// count columns. Texts are escaped for a terminal and never read as formulas; numbers are plain.
func (r *csvRow) columns(add func(name string, value any)) {
	disk, part, volume, failure := orZero(r.disk), orZero(r.part), orZero(r.volume()), orZero(r.failure())
	priority, accepted := orZero(r.Priority), orZero(r.Accepted)
	add("path", r.ExactPath())
	add("member", disk.Member)
	add("state", r.State)
	add("format", r.Format)
	add("subformat", r.Subformat)
	add("verdict", r.Verdict)
	add("rank", notZero(priority.Rank))
	add("class", ifSet(r.Priority, priority.Class))
	add("cost_percent", ifSet(r.Priority, priority.Cost))
	add("scheme", disk.Table.Scheme)
	add("disk_size_bytes", notZero(disk.Size))
	add("stored_bytes", r.Stored)
	add("partition", ifSet(r.part, part.Number))
	add("kind", part.Kind)
	add("active", ifSet(r.part, part.Active))
	add("type", part.Type)
	add("type_name", part.TypeName)
	add("name", part.Name)
	add("start_lba", ifSet(r.part, part.StartLBA))
	add("start_bytes", ifSet(r.part, part.Start))
	add("size_bytes", ifSet(r.part, part.Size))
	add("alignment_bytes", ifSet(r.part, part.Alignment))
	add("aligned_4k", ifSet(r.part, part.Aligned.To4K))
	add("aligned_64k", ifSet(r.part, part.Aligned.To64K))
	add("aligned_1m", ifSet(r.part, part.Aligned.To1M))
	add("partition_verdict", part.Verdict)
	add("filesystem", volume.Kind)
	add("label", volume.Label)
	add("uuid", volume.UUID)
	add("cluster_bytes", notZero(volume.Cluster))
	add("boot_code", disk.Boot.Name)
	add("role", orZero(disk.Advice).Role)
	add("refused", disk.firstHindrance())
	add("grows_bytes", ifSet(disk.Fix, orZero(disk.Fix).Grows()))
	add("error_code", failure.Code)
	add("error", failure.Message)
	add("finding", r.finding())
	add("accepted_reason", accepted.Reason)
	add("accepted_until", accepted.Until)
	add("change", r.Change)
	add("reason", priority.Reason)
	add("command", r.command())
	add("content", r.nothing())
	add("copied_to", r.Copied)
	add("guest", orZero(disk.Guest).State)
	add("labels", r.Labels.String())
	add("file_start_bytes", notZero(part.StartFile))
}

// orZero returns p, or a pointer to a zero value if p is nil.
func orZero[T any](p *T) *T {
	if p == nil {
		return new(T)
	}
	return p
}

// ifSet returns the value of a column, or nil if its subject is nil.
func ifSet[T any](subject *T, value any) any {
	if subject == nil {
		return nil
	}
	return value
}

// notZero returns the value of a column in which 0 is an empty cell.
func notZero[T int | int64](n T) any {
	if n == 0 {
		return nil
	}
	return n
}

// csvText prints a value for a cell of CSV. Floating-point numbers have at most two digits behind the point.
func csvText(value any) string {
	v := reflect.ValueOf(value)
	switch v.Kind() {
	case reflect.String:
		return cell(v.String())
	case reflect.Float64:
		return strconv.FormatFloat(math.Round(v.Float()*100)/100, 'f', -1, 64)
	case reflect.Invalid, reflect.Pointer: // without a subject
		return ""
	case reflect.Int, reflect.Int64:
		return strconv.FormatInt(v.Int(), 10)
	default:
		return fmt.Sprint(value)
	}
}

// csvCell prints a value as a cell of CSV, with its quotes.
func csvCell(value any) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write([]string{csvText(value)}) // into memory
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// volume returns the partition's volume, or the disk's if it has no partitions.
func (r *csvRow) volume() *report.Volume {
	switch {
	case r.part != nil:
		return r.part.Volume
	case r.disk != nil:
		return r.disk.Volume
	}
	return nil
}

// failure returns the reason why the disk or the image has no verdict.
func (r *csvRow) failure() *report.Error {
	if r.disk != nil && r.disk.Error != nil {
		return r.disk.Error
	}
	return r.Error
}

// nothing returns the content of a disk with nothing to judge, or of a package without a disk.
func (r *csvRow) nothing() align.Content {
	if r.disk != nil {
		return r.disk.Content
	}
	return r.Content
}

// finding returns the first finding on the image as a whole.
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

// hindrances returns the reasons why no aligned copy of the disk can be made now.
func (d *Disk) hindrances() []align.Finding {
	switch {
	case d.Error != nil:
		return []align.Finding{{Code: d.Error.Code, Severity: align.Error, Subject: d.Member, Text: d.Error.Message}}
	case d.Fix != nil:
		return d.Fix.Refusals
	case d.Unplanned != nil:
		return []align.Finding{{Code: d.Unplanned.Code, Severity: align.Error, Text: d.Unplanned.Message}}
	case d.Verdict.Off() && d.Depth != Head:
		return []align.Finding{{Severity: align.Error, Text: "no plan could be made"}}
	}
	return nil
}

// hindrances returns the reasons of all disks.
func (i *Image) hindrances() (out []align.Finding) {
	for n := range i.Disks {
		out = append(out, i.Disks[n].hindrances()...)
	}
	return out
}

func (d *Disk) firstHindrance() string {
	if all := d.hindrances(); len(all) > 0 {
		return findingText(all[0])
	}
	return ""
}

// formulaStarts begin a formula in a spreadsheet, in both widths; TAB and CR are escaped.
const formulaStarts = "=+-@\uff1d\uff0b\uff0d\uff20"

// cell escapes a text for a cell. It escapes control characters, and puts an apostrophe before the beginning of a
// formula to make it a text. A spreadsheet may split at semicolons, so a cell begins after each semicolon, too.
func cell(s string) string {
	s = report.Escape(s)
	var b strings.Builder
	b.Grow(len(s))
	begins := true
	for _, r := range s {
		switch {
		case r == ';':
			begins = true
		case begins && strings.ContainsRune(formulaStarts, r):
			b.WriteByte('\'')
			begins = false
		case r != ' ' && r != '"': // a formula may follow them
			begins = false
		}
		b.WriteRune(r)
	}
	return b.String()
}

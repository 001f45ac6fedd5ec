package results

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/advice"
	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
)

var csvFormat = Format{Name: "csv", Write: func(w io.Writer, r *Report) error {
	if r.Summary.Fragmentation {
		return writeCSV(w, r.Images, fragmentColumns...)
	}
	return writeCSV(w, r.Images)
}}

// writeCSV writes a row for each partition as RFC 4180 has it, and one for each disk or image that has none, so that
// none is lost. docs/scan-reports.md explains the columns. Texts are escaped for a terminal and never read as formulas;
// numbers are plain. More columns follow the usual ones.
func writeCSV(w io.Writer, images iter.Seq[*Image], more ...csvColumn) error {
	columns := slices.Concat(csvColumns, more)
	b := bufio.NewWriter(w)
	out := csv.NewWriter(b)
	out.UseCRLF = true // RFC 4180, 2.1
	record := make([]string, len(columns))
	for n, c := range columns {
		record[n] = c.name
	}
	if err := out.Write(record); err != nil {
		return fmt.Errorf("csv: %w", err)
	}
	for i := range images {
		for _, r := range rowsOf(i) {
			for n, c := range columns {
				record[n] = c.of(r)
			}
			if err := out.Write(record); err != nil {
				return fmt.Errorf("csv: %w", err)
			}
		}
	}
	if out.Flush(); out.Error() != nil {
		return fmt.Errorf("csv: %w", out.Error())
	}
	return b.Flush()
}

// csvRow is the subject of a row. There may be no disk or no partition.
type csvRow struct {
	*Image
	disk *Disk
	part *report.Partition
}

func rowsOf(i *Image) (out []csvRow) {
	for n := range i.Disks {
		d := &i.Disks[n]
		if len(d.Partitions) == 0 {
			out = append(out, csvRow{Image: i, disk: d})
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

// csvColumn is one column: its name, and its cell in a row.
type csvColumn struct {
	name string
	of   func(csvRow) string
}

// csvColumns only grow at the end: scripts count them.
var csvColumns = []csvColumn{
	{"path", func(r csvRow) string { return cell(r.ExactPath()) }},
	{"member", ofDisk(func(d *Disk) string { return cell(d.Member) })},
	{"state", func(r csvRow) string { return cell(string(r.State)) }},
	{"format", func(r csvRow) string { return cell(r.Format) }},
	{"subformat", func(r csvRow) string { return cell(r.Subformat) }},
	{"verdict", func(r csvRow) string { return cell(string(r.Verdict)) }},
	{"rank", ofPriority(func(p *Priority) string { return known(int64(p.Rank)) })},
	{"class", ofPriority(func(p *Priority) string { return number(int64(p.Class)) })},
	{"cost_percent", ofPriority(func(p *Priority) string { return hundredths(p.Cost) })},
	{"scheme", ofDisk(func(d *Disk) string { return cell(d.Table.Scheme) })},
	{"disk_size_bytes", ofDisk(func(d *Disk) string { return known(d.Size) })},
	{"stored_bytes", func(r csvRow) string { return number(r.Stored) }},
	{"partition", ofPart(func(p *report.Partition) string { return number(int64(p.Number)) })},
	{"kind", ofPart(func(p *report.Partition) string { return cell(p.Kind) })},
	{"active", ofPart(func(p *report.Partition) string { return strconv.FormatBool(p.Active) })},
	{"type", ofPart(func(p *report.Partition) string { return cell(p.Type) })},
	{"type_name", ofPart(func(p *report.Partition) string { return cell(p.TypeName) })},
	{"name", ofPart(func(p *report.Partition) string { return cell(p.Name) })},
	{"start_lba", ofPart(func(p *report.Partition) string { return number(p.StartLBA) })},
	{"start_bytes", ofPart(func(p *report.Partition) string { return number(p.Start) })},
	{"size_bytes", ofPart(func(p *report.Partition) string { return number(p.Size) })},
	{"alignment_bytes", ofPart(func(p *report.Partition) string { return number(p.Alignment) })},
	{"aligned_4k", ofPart(func(p *report.Partition) string { return strconv.FormatBool(p.Aligned.To4K) })},
	{"aligned_64k", ofPart(func(p *report.Partition) string { return strconv.FormatBool(p.Aligned.To64K) })},
	{"aligned_1m", ofPart(func(p *report.Partition) string { return strconv.FormatBool(p.Aligned.To1M) })},
	{"partition_verdict", ofPart(func(p *report.Partition) string { return cell(string(p.Verdict)) })},
	{"filesystem", ofVolume(func(v *report.Volume) string { return cell(v.Kind) })},
	{"label", ofVolume(func(v *report.Volume) string { return cell(v.Label) })},
	{"uuid", ofVolume(func(v *report.Volume) string { return cell(v.UUID) })},
	{"cluster_bytes", ofVolume(func(v *report.Volume) string { return known(v.Cluster) })},
	{"boot_code", ofDisk(func(d *Disk) string { return cell(d.Boot.Name) })},
	{"role", ofDisk(func(d *Disk) string { return cell(string(d.role())) })},
	{"refused", ofDisk(func(d *Disk) string { return cell(d.firstHindrance()) })},
	{"grows_bytes", ofDisk(func(d *Disk) string { return d.grows() })},
	{"error_code", func(r csvRow) string { return cell(r.failure().Code) }},
	{"error", func(r csvRow) string { return cell(r.failure().Message) }},
	{"finding", func(r csvRow) string { return cell(r.finding()) }},
	{"accepted_reason", ofAccepted(func(a *Accepted) string { return cell(a.Reason) })},
	{"accepted_until", ofAccepted(func(a *Accepted) string { return cell(a.Until) })},
	{"change", func(r csvRow) string { return cell(string(r.Change)) }},
	{"reason", ofPriority(func(p *Priority) string { return cell(p.Reason) })},
	{"command", func(r csvRow) string { return cell(r.command()) }},
	{"content", func(r csvRow) string { return cell(string(r.content())) }},
	{"copied_to", func(r csvRow) string { return cell(r.Copied) }},
	{"guest", ofDisk(func(d *Disk) string { return cell(d.left()) })},
	{"labels", func(r csvRow) string { return cell(r.Labels.String()) }},
}

// of makes an empty cell of an absent value.
func of[T any](find func(csvRow) *T, value func(*T) string) func(csvRow) string {
	return func(r csvRow) string {
		if t := find(r); t != nil {
			return value(t)
		}
		return ""
	}
}

func ofPriority(value func(*Priority) string) func(csvRow) string {
	return of(func(r csvRow) *Priority { return r.Priority }, value)
}

func ofAccepted(value func(*Accepted) string) func(csvRow) string {
	return of(func(r csvRow) *Accepted { return r.Accepted }, value)
}

func ofDisk(value func(*Disk) string) func(csvRow) string {
	return of(func(r csvRow) *Disk { return r.disk }, value)
}

func ofPart(value func(*report.Partition) string) func(csvRow) string {
	return of(func(r csvRow) *report.Partition { return r.part }, value)
}

// ofVolume returns cells of the partition's volume, or the disk's if it has no partitions.
func ofVolume(value func(*report.Volume) string) func(csvRow) string {
	return of(func(r csvRow) *report.Volume {
		switch {
		case r.part != nil:
			return r.part.Volume
		case r.disk != nil:
			return r.disk.Volume
		}
		return nil
	}, value)
}

// failure returns why there is no verdict on the disk or the image.
func (r csvRow) failure() report.Error {
	switch {
	case r.disk != nil && r.disk.Error != nil:
		return *r.disk.Error
	case r.Error != nil:
		return *r.Error
	}
	return report.Error{}
}

// content returns that of the disk if there is nothing to judge, or of a package without a disk.
func (r csvRow) content() align.Content {
	if r.disk != nil {
		return r.disk.Content
	}
	return r.Content
}

// finding returns the first on the image as a whole.
func (r csvRow) finding() string {
	if len(r.Findings) == 0 {
		return ""
	}
	return findingText(r.Findings[0])
}

func findingText(f align.Finding) string {
	if f.Subject == "" {
		return f.Text
	}
	return f.Subject + ": " + f.Text
}

func (d *Disk) role() advice.Role {
	if d.Advice == nil {
		return ""
	}
	return d.Advice.Role
}

// left returns how the machine was left, if the disk was looked into.
func (d *Disk) left() string {
	if d.Guest == nil {
		return ""
	}
	return string(d.Guest.State)
}

func (d *Disk) grows() string {
	if d.Fix == nil {
		return ""
	}
	return number(d.Fix.NewSize - d.Fix.OldSize)
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

// known prints a number, of which 0 means that it is absent.
func known(n int64) string {
	if n == 0 {
		return ""
	}
	return number(n)
}

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

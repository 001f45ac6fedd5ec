package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Bench is the result of bench.
type Bench struct {
	report.Head
	measured.Result
	ExitCode int `json:"exit_code"`
}

// Text prints what was found, and the table of all points.
func (b *Bench) Text(t *report.Text) {
	for _, s := range b.leads() {
		t.Lead(text.Bold, s.words, report.SafeMessage(s.text)+".")
	}
	fmt.Fprintln(t.W)
	for _, fact := range b.facts() {
		t.Para(0, "%s.", fact)
	}
	fmt.Fprintln(t.W)
	columns(t, b.rows())
	fmt.Fprintln(t.W)
	for _, note := range b.legend() {
		t.Para(0, "%s", note)
	}
}

// lead is a sentence on what matters.
type lead struct{ words, text string }

// leads say what alignment brings for the typical loads, for each start that is not aligned.
func (b *Bench) leads() (out []lead) {
	for _, start := range b.Starts[min(1, len(b.Starts)):] {
		from := "Aligned instead of " + units.Format(start) + ":"
		var parts []string
		for _, g := range measured.Typical(b.measuredAt(start)) {
			parts = append(parts, g.Text())
		}
		for _, l := range b.Loads {
			if p := pointAt(l, start); l.Access == measured.JobFile && p != nil {
				g := measured.Gain{Measured: *p.Against}
				parts = append(parts, l.Name+": "+g.Times())
			}
		}
		out = append(out, lead{from, strings.Join(parts, "; ")})
	}
	return out
}

// measuredAt returns the gains of one start that was measured itself.
func (b *Bench) measuredAt(start int64) (out []measured.Gain) {
	for _, g := range b.Gains(start) {
		if g.Start == start {
			out = append(out, g)
		}
	}
	return out
}

// pointAt returns the point of a start that is held against the aligned one.
func pointAt(l measured.Load, start int64) *measured.Point {
	for n := range l.Points {
		if p := &l.Points[n]; p.Start == start && p.Against != nil {
			return p
		}
	}
	return nil
}

// facts say where and how the numbers were measured. They are safe to print.
func (b *Bench) facts() []string {
	s := b.Storage
	disk := s.Device
	if s.Model != "" {
		disk += " (" + s.Model + ")"
	}
	if s.Logical > 0 {
		disk += fmt.Sprintf(", logical blocks of %s, physical of %s", units.Format(s.Logical), units.Format(s.Physical))
	}
	how := "past the page cache"
	if !b.Direct {
		how = "through the page cache"
	}
	target := "a scratch file"
	if !b.Scratch {
		target = "an existing image or device, read only"
	}
	out := []string{"Storage: " + report.SafeMessage(s.Where())}
	if disk != "" {
		out = append(out, "Disk: "+report.SafeMessage(disk))
	}
	out = append(out, "Measured: "+b.Date.Format("2006-01-02 15:04 MST")+" on "+report.Safe(b.Kernel),
		fmt.Sprintf("How: %s on %s, %s over %s, %s of %s s for each point", report.Safe(b.Tool), target, how,
			units.Format(b.Size), units.Counted(b.Rounds(), "round"), strconv.FormatFloat(b.Seconds, 'f', -1, 64)))
	for _, n := range b.Notes {
		out = append(out, "Note: "+report.SafeMessage(n))
	}
	if len(b.Skipped) > 0 {
		out = append(out, "Not possible: starts "+list(b.Skipped)+", which this storage refuses")
	}
	return out
}

// legend explains the numbers.
func (b *Bench) legend() []string {
	out := []string{
		"Numbers are medians of all rounds; percentages are latencies that so many I/Os stayed below. A difference " +
			"is called one only where the rounds of both starts do not overlap, from least to most, and the medians " +
			"differ by 5 % or more; all else is noise.",
	}
	switch n := b.Rounds(); {
	case n < measured.Fewest:
		out = append(out, fmt.Sprintf("%s cannot show a difference; --rounds %d or more can.",
			units.Counted(n, "round"), measured.Fewest))
	case n < 5:
		out = append(out, fmt.Sprintf("By chance alone, %d rounds of equal storage do not overlap in one of %d "+
			"comparisons; --rounds 5 makes that one of 126.", n, map[int]int{3: 10, 4: 35}[n]))
	}
	return out
}

// rows returns the table of all points, the names of its columns first. A row of one cell is a heading.
func (b *Bench) rows() [][]string {
	rows := [][]string{{
		"start", "I/O a second", "least to most", "MiB/s", "50 %", "95 %", "99 %",
		"aligned does ... as many",
	}}
	for _, l := range b.Loads {
		rows = append(rows, []string{report.Safe(l.Name)})
		for _, p := range l.Points {
			rows = append(rows, b.row(p))
		}
	}
	return rows
}

func (b *Bench) row(p measured.Point) []string {
	rate := measured.SpreadOf(p.Rounds, func(r measured.Round) float64 { return r.Bytes })
	what := p.Against.Text()
	if p.Against == nil {
		what = "(aligned)"
	}
	out := []string{
		"  " + units.Format(p.Start), whole(p.IOPS.Median), whole(p.IOPS.Min) + " to " + whole(p.IOPS.Max),
		strconv.FormatFloat(rate.Median/float64(units.MiB), 'f', 1, 64),
	}
	for _, of := range []func(measured.Round) int64{
		func(r measured.Round) int64 { return r.P50 }, func(r measured.Round) int64 { return r.P95 },
		func(r measured.Round) int64 { return r.P99 },
	} {
		out = append(out, latency(p.Latency(of)))
	}
	return append(out, what)
}

// whole prints a number with blanks between thousands.
func whole(x float64) string {
	s := strconv.FormatFloat(x, 'f', 0, 64)
	for n := len(s) - 3; n > 0; n -= 3 {
		s = s[:n] + " " + s[n:]
	}
	return s
}

// latency prints nanoseconds with three digits.
func latency(ns int64) string {
	switch d := time.Duration(ns); {
	case d >= time.Second:
		return strconv.FormatFloat(d.Seconds(), 'g', 3, 64) + " s"
	case d >= time.Millisecond:
		return strconv.FormatFloat(float64(ns)/1e6, 'g', 3, 64) + " ms"
	}
	return strconv.FormatFloat(float64(ns)/1e3, 'f', 0, 64) + " us"
}

// columns prints rows, with numbers at the right. A row of one cell is a heading.
func columns(t *report.Text, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for n, cell := range row {
			if n == len(widths) {
				widths = append(widths, 0)
			}
			if len(row) > 1 {
				widths[n] = max(widths[n], text.StringWidthWithoutEscSequences(cell))
			}
		}
	}
	for _, row := range rows {
		cells := slices.Clone(row)
		for n := range cells[:len(cells)-1] {
			if n == 0 {
				cells[0] = text.Pad(cells[0], widths[0], ' ')
			} else {
				cells[n] = text.AlignRight.Apply(cells[n], widths[n])
			}
		}
		fmt.Fprintln(t.W, strings.TrimRight(strings.Join(cells, "  "), " "))
	}
}

package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

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

// Text prints what alignment brings for the typical loads, where and how that was measured, and all points.
func (b *Bench) Text(t *report.Text) {
	for _, start := range b.Starts[min(1, len(b.Starts)):] {
		var parts []string
		for _, g := range measured.Typical(b.measuredAt(start)) {
			parts = append(parts, g.Text())
		}
		t.Lead(report.Bold, "Aligned instead of "+units.Format(start)+":", strings.Join(parts, "; ")+".")
	}
	fmt.Fprintln(t.W)
	for _, fact := range b.facts() {
		t.Para(0, "%s.", fact)
	}
	fmt.Fprintln(t.W)
	b.table(t)
	fmt.Fprintln(t.W)
	t.Para(0, "Numbers are medians of all rounds; percentages are latencies that so many I/Os stayed below. A "+
		"difference is called one only where the rounds of both starts do not overlap, from least to most, and the "+
		"medians differ by 5 %% or more; all else is noise.")
	if n := b.Rounds(); n < measured.Fewest {
		t.Para(0, "%s cannot show a difference; --rounds %d or more can.", units.Counted(n, "round"), measured.Fewest)
	}
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

// facts say where and how the numbers were measured. They are safe to print.
func (b *Bench) facts() []string {
	how := "past the page cache"
	if !b.Direct {
		how = "through the page cache"
	}
	out := []string{
		"Storage: " + report.SafeMessage(b.Storage.Where()),
		"Measured: " + b.Date.Format("2006-01-02 15:04 MST") + " on " + report.Safe(b.Kernel),
		fmt.Sprintf("How: %s on a scratch file, %s over %s, %s of %s s for each point", report.Safe(b.Tool), how,
			units.Format(b.Size), units.Counted(b.Rounds(), "round"), strconv.FormatFloat(b.Seconds, 'f', -1, 64)),
	}
	for _, n := range b.Notes {
		out = append(out, "Note: "+report.SafeMessage(n))
	}
	if len(b.Skipped) > 0 {
		out = append(out, "Not possible: starts "+list(b.Skipped)+", which this storage refuses")
	}
	return out
}

// table prints all points, those of a load below its name.
func (b *Bench) table(t *report.Text) {
	var rows [][]string
	ms := func(ns int64) string { return fmt.Sprintf("%.2f ms", float64(ns)/1e6) }
	for _, l := range b.Loads {
		rows = append(rows, []string{report.Safe(l.Name)})
		for _, p := range l.Points {
			against := "(aligned)"
			if p.Against != nil {
				against = p.Against.Text()
			}
			rows = append(rows, []string{
				"  " + units.Format(p.Start), fmt.Sprintf("%.0f", p.IOPS.Median),
				fmt.Sprintf("%.0f to %.0f", p.IOPS.Min, p.IOPS.Max),
				ms(p.Latency(func(r measured.Round) int64 { return r.P50 })),
				ms(p.Latency(func(r measured.Round) int64 { return r.P99 })), against,
			})
		}
	}
	t.Table(slices.Values(rows), "start", ">I/O a second", ">least to most", ">50 %", ">99 %",
		"aligned does ... as many")
}

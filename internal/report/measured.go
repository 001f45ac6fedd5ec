package report

import (
	"strings"
	"time"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/units"
)

// Measured is what a benchmark of the storage proves for a disk.
type Measured struct {
	Date       time.Time           `json:"date"`
	Path       string              `json:"path"` // where it was measured
	Partitions []measuredPartition `json:"partitions"`

	other []string // starts of partitions that no measured start stands for
}

// measuredPartition is what alignment was measured to bring for a partition.
type measuredPartition struct {
	Partition int             `json:"partition"`
	Gains     []measured.Gain `json:"gains"`
	text      string
}

func newMeasured(r *measured.Result) *Measured {
	return &Measured{Date: r.Date, Path: r.Storage.Path, Partitions: []measuredPartition{}}
}

func (m *Measured) add(r *measured.Result, partition int, start int64) {
	gains := r.Gains(start)
	if len(gains) == 0 {
		if !measured.Aligned(start) {
			m.other = append(m.other, units.Format(start))
		}
		return
	}
	m.Partitions = append(m.Partitions, measuredPartition{partition, gains, r.Say(gains)})
}

// Benchmark is the result of a benchmark.
type Benchmark = measured.Result

// Benchmark adds what a benchmark proves for the partitions off the boundary. Nothing is claimed for one whose place in
// the file is less aligned than that on the disk: a copy changes both. Without a benchmark it adds nothing.
func (r *Inspect) Benchmark(b *Benchmark) {
	if b == nil {
		return
	}
	r.Measured = newMeasured(b)
	for _, p := range r.Partitions {
		if p.Verdict.Off() && (p.InFile == 0 || p.InFile >= p.Alignment) {
			r.Measured.add(b, p.Number, p.Start)
		}
	}
}

// Benchmark adds what a benchmark proves for the partitions that move. Without a benchmark it adds nothing.
func (r *Plan) Benchmark(b *Benchmark) {
	if b == nil {
		return
	}
	r.Measured = newMeasured(b)
	for _, m := range r.Moves {
		r.Measured.add(b, m.Partition, m.From)
	}
}

// measured prints what was measured. A text that several partitions share is printed once.
func (t *Text) measured(m *Measured) {
	if m == nil || len(m.Partitions)+len(m.other) == 0 {
		return
	}
	t.printf("\n")
	var c Costs
	for _, p := range m.Partitions {
		if p.text != "" {
			c.add(p.text, p.Partition)
		}
	}
	for _, same := range c.each {
		t.para(0, "%s %s.", Capital(partitions(same.numbers))+",", SafeMessage(same.text))
	}
	if len(m.other) > 0 {
		t.para(0, "The benchmark has no start that stands for %s; measure it with trueup bench --starts.",
			strings.Join(m.other, ", "))
	}
}

package report

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/units"
)

// Measured is what a benchmark of the storage proves for a disk.
type Measured struct {
	Date       time.Time           `json:"date"`
	Path       string              `json:"path"` // where it was measured
	Partitions []measuredPartition `json:"partitions"`

	other  []string // starts of partitions that no measured start stands for
	unlike []string // partitions that no start can stand for
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

// add adds what a benchmark proves for a partition, and returns it.
func (m *Measured) add(b *Benchmark, p Partition) []measured.Gain {
	start := p.DataStart()
	gains := b.Gains(start)
	switch {
	case !p.measurable():
		m.unlike = append(m.unlike, strconv.Itoa(p.Number))
		return nil
	case len(gains) > 0:
		m.Partitions = append(m.Partitions, measuredPartition{p.Number, gains, b.Say(gains)})
	case !measured.Aligned(start):
		m.other = append(m.other, units.Format(start))
	}
	return gains
}

// Benchmark is the result of a benchmark.
type Benchmark = measured.Result

// gainOrder has the gains from the worst on, and none in front.
var gainOrder = []align.Gain{"", align.Loss, align.NoGain, align.Some, align.High}

// Benchmark adds what a benchmark proves for the partitions off the boundary. Nothing is claimed for one whose place in
// the file is less aligned than that on the disk: a copy changes both. The advice becomes that of the benchmark where it
// has measured a start for each of the partitions that would move. Without a benchmark it adds nothing.
func (r *Inspect) Benchmark(b *Benchmark) {
	if b == nil {
		return
	}
	r.Measured = newMeasured(b)
	gain, text, all := gainOrder[0], "", true
	for _, p := range r.Partitions {
		if !p.Verdict.Off() {
			continue
		}
		found := r.Measured.add(b, p)
		if p.Stays != "" {
			continue
		}
		all = all && len(found) > 0
		if g := gainOf(found); slices.Index(gainOrder, g) > slices.Index(gainOrder, gain) {
			gain, text = g, b.Say(found)
		}
	}
	if all && text != "" {
		r.Advice.Measured(gain, text)
	}
}

// DataStart returns the byte of the disk from which the blocks of the partition are counted.
func (p Partition) DataStart() int64 { return cmp.Or(p.Data, p.Start) }

// measurable reports whether a benchmark of the storage can stand for the partition: its place in the file is as
// aligned as its place on the disk, and its data are aligned when its start is.
func (p Partition) measurable() bool {
	return (p.InFile == 0 || p.InFile >= p.Alignment) && (p.DataStart()-p.Start)%align.DefaultBoundary == 0
}

// gainOf returns the gain that a benchmark shows for the I/O that its text names. A loss of reads or writes outweighs a
// gain of the other.
func gainOf(all []measured.Gain) align.Gain {
	out := align.NoGain
	for _, g := range measured.Typical(all) {
		switch m := g.Measured; {
		case !m.Distinct:
		case m.Median < 1:
			return align.Loss
		case m.Median >= align.HighGain:
			out = align.High
		case out == align.NoGain && m.Median > 1:
			out = align.Some
		}
	}
	return out
}

// Benchmark adds what a benchmark proves for the partitions that move, by the same rule as for a disk. Without a
// benchmark it adds nothing, and of a plan that is refused nothing is claimed.
func (r *Plan) Benchmark(b *Benchmark) {
	if b == nil {
		return
	}
	r.Measured = newMeasured(b)
	if r.Before == nil {
		return
	}
	for _, m := range r.Moves {
		for _, p := range r.Before.Partitions {
			if p.Number == m.Partition {
				r.Measured.add(b, p)
			}
		}
	}
}

// measured prints what was measured. A text that several partitions share is printed once.
func (t *Text) measured(m *Measured) {
	if m == nil || len(m.Partitions)+len(m.other)+len(m.unlike) == 0 {
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
	if len(m.unlike) > 0 {
		t.para(0, "The benchmark says nothing about %s: the data or the place in the file are aligned otherwise than "+
			"the start, and no measured start stands for both.", partitions(m.unlike))
	}
	if len(m.other) > 0 {
		t.para(0, "The benchmark has no start that stands for %s; measure it with trueup bench --starts.",
			strings.Join(m.other, ", "))
	}
}

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Impact is the cost of the start of a partition on a storage.
type Impact struct {
	Storage      string          `json:"storage"`
	StorageBlock int64           `json:"storage_block_bytes"`
	Offset       int64           `json:"storage_offset_bytes"`
	Rewrites     bool            `json:"read_modify_write"`
	Data         int64           `json:"data_bytes"`
	Block        int64           `json:"block_bytes"`
	Assumed      bool            `json:"block_assumed"`
	Text         string          `json:"text,omitempty"`
	IO           []align.Touched `json:"io"`

	unit string // name of the unit of Block: cluster, block
}

// Costs holds the costs of the starts of partitions on a storage named by the user.
type Costs struct {
	Storage align.Storage
	Each    []Shared
}

// Shared is a text about some partitions.
type Shared struct {
	Text    string
	Numbers []string
}

// NewCosts computes the costs of the starts of the partitions.
func NewCosts(l *layout.Layout, s align.Storage) *Costs {
	c := &Costs{Storage: s}
	for _, p := range l.Partitions {
		if !align.Judged(p) {
			continue
		}
		if text := align.ImpactOf(p, s).Text(); text != "" {
			c.add(text, p.Number)
		}
	}
	return c
}

// add records the cost of one partition.
func (c *Costs) add(text string, partition int) {
	i := slices.IndexFunc(c.Each, func(x Shared) bool { return x.Text == text })
	if i < 0 {
		i = len(c.Each)
		c.Each = append(c.Each, Shared{Text: text})
	}
	c.Each[i].Numbers = append(c.Each[i].Numbers, strconv.Itoa(partition))
}

func partitions(numbers []string) string {
	if len(numbers) == 1 {
		return "partition " + numbers[0]
	}
	return "partitions " + strings.Join(numbers, ", ")
}

// listed returns a part of a sentence. It names the partitions if their costs differ.
func listed(costs []Shared) string {
	if len(costs) == 1 {
		return costs[0].Text
	}
	var out []string
	for _, x := range costs {
		out = append(out, partitions(x.Numbers)+": "+x.Text)
	}
	return strings.Join(out, "; ")
}

// maxImpacts bounds the length of a report: no disk in use has so many partitions, a hostile GPT can have 16,384.
const maxImpacts = 1024

// AddImpacts computes the cost of each partition for all sizes of I/O.
func (r *Inspect) AddImpacts(l *layout.Layout, s align.Storage) {
	for n, p := range l.Partitions[:min(len(l.Partitions), maxImpacts)] {
		if align.Judged(p) {
			i := align.ImpactOf(p, s)
			r.Partitions[n].Impact = &Impact{
				Storage: s.Name, StorageBlock: s.Block, Offset: s.Offset, Rewrites: s.Rewrites, Data: i.Data,
				Block: i.Block, Assumed: i.Assumed, Text: i.Text(), IO: i.Table(),
				unit: identify.Traits(p.Volume.Kind).Unit,
			}
		}
	}
}

// impacts prints the tables of costs. Partitions with equal costs share one table.
func (t *Text) impacts(ps []Partition) {
	first := true
	for i, p := range ps {
		if p.Impact == nil || slices.ContainsFunc(ps[:i], p.costsAs) {
			continue
		}
		if first {
			t.Say("impacts", p.Impact)
			first = false
		}
		var same []string
		for _, q := range ps[i:] {
			if p.costsAs(q) {
				same = append(same, strconv.Itoa(q.Number))
			}
		}
		t.impact(p.Impact, same)
	}
}

// costsAs reports whether two partitions have equal tables of costs.
func (p Partition) costsAs(q Partition) bool {
	return q.Impact != nil && p.Impact.Block == q.Impact.Block && p.Impact.unit == q.Impact.unit &&
		p.Impact.Assumed == q.Impact.Assumed && slices.Equal(p.Impact.IO, q.Impact.IO)
}

func (t *Text) impact(i *Impact, numbers []string) {
	unit := i.unit + "s of " + units.Format(i.Block)
	if i.Assumed {
		unit += " (assumed: the content states none)"
	}
	t.printf("\n")
	t.Para(2, "%s, %s:", Capital(partitions(numbers)), unit)
	names := []string{">I/O size", ">random", ">sequential"}
	if i.Rewrites {
		names = []string{">I/O size", ">random reads", ">random writes", ">sequential reads", ">sequential writes"}
	}
	var rows [][]string
	for _, io := range i.IO {
		row := []string{units.Format(io.Size), t.blocks(io.Random), t.blocks(io.Sequential)}
		if i.Rewrites {
			row = []string{row[0], row[1], t.blocks(io.RandomWrite), row[2], t.blocks(io.SequentialWrite)}
		}
		rows = append(rows, row)
	}
	t.Table(slices.Values(rows), names...)
}

// blocks returns the present number of blocks, colored if it could be smaller, and the number for an aligned partition.
func (t *Text) blocks(x align.Change) string {
	now := fmt.Sprintf("%.3f", x.Now)
	if x.Worse() {
		now = t.Paint(Red, now)
	}
	return fmt.Sprintf("%s / %.3f", now, x.Aligned)
}

// cost explains a misalignment to beginners, in general or for the storage named by the user. A text shared by several
// partitions is printed once. Starts without a cost on most storage are listed separately.
func (t *Text) cost(named *Costs, fs []align.Finding) {
	about := struct {
		Misplaced   []align.Finding
		Named       *Costs
		Costs, Free Costs
		Fix         string
	}{Named: named, Fix: "Moving the partition fixes it."}
	for _, f := range fs {
		if f.Cost == "" {
			continue
		}
		about.Misplaced = append(about.Misplaced, f)
		if f.Free {
			about.Free.add(f.Cost, f.Partition)
			continue
		}
		about.Costs.add(f.Cost, f.Partition)
		if f.Remedy != "" {
			about.Fix = Capital(f.Remedy) + "."
		}
	}
	if len(about.Misplaced) > 0 || named != nil && len(named.Each) > 0 {
		t.Say("cost", about)
	}
}

// Capital returns a text that begins with a capital letter.
func Capital(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// advice prints whether a copy is worthwhile. It prints nothing for an aligned disk: the verdict is enough.
func (t *Text) advice(a align.Advice) {
	if a.Action == align.Nothing {
		return
	}
	t.printf("\n")
	t.Lead(Bold, "Should you bother?", SafeMessage(a.Text))
}

// Measured holds the results of a storage benchmark that apply to a disk.
type Measured struct {
	Date       time.Time           `json:"date"`
	Path       string              `json:"path"` // of the measured storage
	Partitions []measuredPartition `json:"partitions"`

	other  []string // starts of partitions without an equivalent measured start
	unlike []string // partitions that have no equivalent start
}

// measuredPartition holds the measured gains of aligning a partition.
type measuredPartition struct {
	Partition int             `json:"partition"`
	Gains     []measured.Gain `json:"gains"`
	text      string
}

func newMeasured(r *measured.Result) *Measured {
	return &Measured{Date: r.Date, Path: r.Storage.Path, Partitions: []measuredPartition{}}
}

// add adds the gains that a benchmark proves for a partition, and returns them.
func (m *Measured) add(b *measured.Result, p Partition) []measured.Gain {
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

// Benchmark adds the gains that a benchmark proves for the partitions off the boundary. It adds no gain for a partition
// that is less aligned in the file than on the disk, since a copy changes both alignments. The benchmark decides the
// advice if it has measured a start for each partition that would move. Without a benchmark it adds nothing.
func (r *Inspect) Benchmark(b *measured.Result) {
	if b == nil {
		return
	}
	r.Measured = newMeasured(b)
	gain, text, all := align.Gain(""), "", true
	for _, p := range r.Partitions {
		if !p.Verdict.Off() {
			continue
		}
		found := r.Measured.add(b, p)
		if p.Stays != "" {
			continue
		}
		all = all && len(found) > 0
		if g := gainOf(found); g.Above(gain) {
			gain, text = g, b.Say(found)
		}
	}
	if all && text != "" {
		r.Advice.Measured(gain, text)
	}
}

// DataStart returns the offset at which the storage sees the first block of the partition, in bytes.
func (p Partition) DataStart() int64 { return cmp.Or(p.Data, p.Start) + p.shift }

// measurable reports whether a benchmark of the storage applies to the partition: it is at least as aligned in the file
// as on the disk, and its data are aligned if its start is.
func (p Partition) measurable() bool {
	return (p.InFile == 0 || p.InFile >= p.Alignment) && align.DefaultBoundary.On(p.DataStart()-p.Start-p.shift)
}

// gainOf returns the gain of the typical I/O that the text of a benchmark names. A loss in reads or writes outweighs a
// gain in the other.
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

// Benchmark adds the gains that a benchmark proves for the partitions that move, by the same rules as for a disk. It
// adds nothing without a benchmark or for a refused plan.
func (r *Plan) Benchmark(b *measured.Result) {
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

// said returns the texts about the measured gains. Partitions share them.
func (m *Measured) said() []Shared {
	var c Costs
	for _, p := range m.Partitions {
		if p.text != "" {
			c.add(p.text, p.Partition)
		}
	}
	return c.Each
}

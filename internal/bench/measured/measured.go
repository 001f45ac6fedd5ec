// Package measured holds the result of a benchmark as values: measurements, medians and their spread, and their meaning
// for the start of a partition. It does no I/O. A result read from a file is untrusted.
package measured

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Kinds of access, and directions.
const (
	Random     = "random"
	Sequential = "sequential"
	Read       = "read"
	Write      = "write"
)

// Result is the result of one run of the benchmark.
type Result struct {
	Date    time.Time `json:"date"`
	Kernel  string    `json:"kernel"`
	Tool    string    `json:"tool"` // fio and its version
	Storage Storage   `json:"storage"`
	Direct  bool      `json:"direct"`         // past the page cache
	Size    int64     `json:"size_bytes"`     // covered by the I/O of each start
	Seconds float64   `json:"run_seconds"`    // of each round
	Starts  []int64   `json:"starts_bytes"`   // the aligned one first
	Notes   []string  `json:"notes"`          // limits of the measurement
	Skipped []int64   `json:"skipped_starts"` // refused by the storage, in results of earlier versions
	Loads   []Load    `json:"loads"`
}

// Storage identifies the measured storage: a path, its file system and its device or server.
type Storage struct {
	Path       string `json:"path"`
	FileSystem string `json:"file_system"` // in the kernel's words
	Source     string `json:"source"`      // underlying device or server
}

// Load is one kind of I/O, at all starts.
type Load struct {
	Name   string  `json:"name"`
	Access string  `json:"access"`
	Op     string  `json:"direction"`
	Size   int64   `json:"io_bytes"` // of one I/O
	Jobs   int     `json:"jobs"`     // threads, each with one I/O at a time
	Points []Point `json:"points"`
}

// Point is a load at one start, in all rounds.
type Point struct {
	Start   int64   `json:"start_bytes"`
	Rounds  []Round `json:"rounds"`
	IOPS    Spread  `json:"iops"`
	Against *Ratio  `json:"aligned_against_this,omitempty"` // nil for the aligned start
}

// Round is one run of fio. Latencies are in nanoseconds.
type Round struct {
	IOPS  float64 `json:"iops"`
	Bytes float64 `json:"bytes_per_second"`
	Mean  int64   `json:"latency_mean_ns"`
	P50   int64   `json:"latency_p50_ns"`
	P95   int64   `json:"latency_p95_ns"`
	P99   int64   `json:"latency_p99_ns"`
	P999  int64   `json:"latency_p99_9_ns"`
}

// Spread is the median, minimum and maximum of all rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Ratio is the number of I/Os at the aligned start divided by the number at another start.
type Ratio struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"` // the worst aligned round against the best round of the other start
	High   float64 `json:"high"`
	// Distinct reports that both starts have Fewest rounds that do not overlap, and medians that differ by at least
	// Least.
	Distinct bool `json:"told_apart"`
}

// Fewest is the minimum number of rounds for a spread.
const Fewest = 3

// Least is the minimum difference to report: less is not worth a copy, for any cause.
const Least = 0.05

// spreadOf returns median, minimum and maximum of the values of all rounds. There must be at least one round.
func spreadOf(rounds []Round, value func(Round) float64) Spread {
	var all []float64
	for _, r := range rounds {
		all = append(all, value(r))
	}
	slices.Sort(all)
	n := len(all)
	return Spread{(all[(n-1)/2] + all[n/2]) / 2, all[0], all[n-1]}
}

// Latency returns the median of a latency over all rounds.
func (p Point) Latency(of func(Round) int64) int64 {
	return int64(spreadOf(p.Rounds, func(r Round) float64 { return float64(of(r)) }).Median)
}

// ratio compares an aligned start with another one.
func ratio(a, other *Point) *Ratio {
	low, high := a.IOPS.Min/other.IOPS.Max, a.IOPS.Max/other.IOPS.Min
	median := a.IOPS.Median / other.IOPS.Median
	r := &Ratio{Median: round(median), Low: round(low), High: round(high)}
	apart := (low > 1 || high < 1) && min(len(a.Rounds), len(other.Rounds)) >= Fewest
	r.Distinct = apart && max(median, 1/median) >= 1+Least
	return r
}

// round rounds to four decimal places.
func round(x float64) float64 { return math.Round(1e4*x) / 1e4 }

// Text describes the ratio for a table.
func (r *Ratio) Text() string {
	if !r.Distinct {
		return "no difference"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", r.Median, r.Low, r.High)
}

// Summarize computes the values derived from the rounds.
func (r *Result) Summarize() {
	for l := range r.Loads {
		load := &r.Loads[l]
		for n := range load.Points {
			p := &load.Points[n]
			p.IOPS, p.Against = spreadOf(p.Rounds, func(r Round) float64 { return r.IOPS }), nil
			if n > 0 {
				p.Against = ratio(&load.Points[0], p)
			}
		}
	}
}

// Rounds returns the number of rounds, which is the same for all points of a run.
func (r *Result) Rounds() int {
	return len(r.Loads[0].Points[0].Rounds)
}

// Loads returns the measured kinds of I/O, without points: random I/O like databases and most guests, sequential I/O
// like a copy.
func Loads() (out []Load) {
	for _, op := range []string{Read, Write} {
		for _, l := range []Load{
			{Access: Random, Size: 8 * units.KiB, Jobs: 1},
			{Access: Random, Size: 8 * units.KiB, Jobs: typicalJobs},
			{Access: Sequential, Size: 64 * units.KiB, Jobs: 1},
		} {
			l.Op = op
			l.Name = fmt.Sprintf("%s %s of %s, %s", l.Access, op, units.Format(l.Size), units.Counted(l.Jobs, "job"))
			out = append(out, l)
		}
	}
	return out
}

// typicalJobs is the number of jobs of the random loads in texts.
const typicalJobs = 8

// Where describes the storage.
func (s Storage) Where() string {
	return fmt.Sprintf("%s (%s on %s)", s.Path, s.FileSystem, s.Source)
}

// Gain is the measured gain of alignment for a partition.
type Gain struct {
	Load     string `json:"load"`
	Op       string `json:"direction"`
	Access   string `json:"access"`
	Size     int64  `json:"io_bytes"`
	Jobs     int    `json:"jobs"`
	Start    int64  `json:"start_bytes"` // the measured start that represents the partition
	Measured Ratio  `json:"aligned_against_this"`
}

// Gains returns the gains for partitions that start at an offset, one per load. It leaves out loads without a
// representative start.
func (r *Result) Gains(start int64) (out []Gain) {
	for _, l := range r.Loads {
		if p := l.standsFor(start); p != nil && p.Against != nil {
			out = append(out, Gain{l.Name, l.Op, l.Access, l.Size, l.Jobs, p.Start, *p.Against})
		}
	}
	return out
}

// block is the block size of most storage, in bytes. A start at a multiple is aligned.
const block = 4 * units.KiB

// Aligned reports whether a start can represent an aligned partition.
func Aligned(start int64) bool { return units.Alignment(start) >= block }

// standsFor returns the point whose I/Os lie on the storage blocks in the same way as a partition's. I/Os of n bytes
// from two starts do so if the starts are equal modulo n, for blocks of powers of two. Starts at odd sectors represent
// each other, too: both ends of each of their I/Os lie inside sectors of 4 KiB.
func (l Load) standsFor(start int64) *Point {
	if start%block == 0 && start%l.Size == 0 {
		return nil // it is aligned
	}
	same := func(p Point) bool { return p.Against != nil && (p.Start-start)%l.Size == 0 }
	odd := func(p Point) bool {
		return p.Against != nil && l.Access == Random && units.Alignment(p.Start) == units.SectorSize &&
			units.Alignment(start) == units.SectorSize
	}
	for _, fits := range []func(Point) bool{same, odd} {
		if n := slices.IndexFunc(l.Points, fits); n >= 0 {
			return &l.Points[n]
		}
	}
	return nil
}

// Typical returns the gains to show in a text: random writes and then random reads, with typicalJobs jobs.
func Typical(all []Gain) (out []Gain) {
	for _, op := range []string{Write, Read} {
		for _, g := range all {
			if g.Op == op && g.Access == Random && g.Jobs == typicalJobs {
				out = append(out, g)
			}
		}
	}
	return out
}

// Text describes the gain: "random writes of 8 KiB 2.1 times as many".
func (g *Gain) Text() string {
	load := fmt.Sprintf("%s %ss of %s", g.Access, g.Op, units.Format(g.Size))
	switch {
	case !g.Measured.Distinct:
		return load + ": no difference that can be told apart from noise"
	case g.Measured.Median < 1:
		return fmt.Sprintf("%s %.2f times as many, which is fewer", load, g.Measured.Median)
	}
	return fmt.Sprintf("%s %.1f times as many", load, g.Measured.Median)
}

// Say describes the gains of one partition in a sentence. It returns an empty string without typical gains.
func (r *Result) Say(all []Gain) string {
	typical := Typical(all)
	if len(typical) == 0 {
		return ""
	}
	var parts []string
	for n := range typical {
		parts = append(parts, typical[n].Text())
	}
	how := fmt.Sprintf("measured %s, start %s", r.Date.Format(dateOnly), units.Format(typical[0].Start))
	if !r.Direct {
		how += ", through the page cache"
	}
	return fmt.Sprintf("on this storage, aligned: %s (%s)", strings.Join(parts, "; "), how)
}

// dateOnly is the layout of a printed date.
const dateOnly = "2006-01-02"

// MaxFile limits a result file, in bytes. A full run with ten rounds has 300 KB.
const MaxFile = 4 << 20

// Limits for a result from a file.
const (
	mostStart = units.GiB
	leastRate = 1e-3 // of I/Os and bytes per second: keeps ratios finite
	mostRate  = 1e12
	mostTime  = int64(time.Hour)
)

// Decode reads a result written by trueup bench as JSON. It recomputes all derived values.
func Decode(text []byte) (*Result, error) {
	if len(text) > MaxFile {
		return nil, ondisk.In(ondisk.ErrLimit, "result of trueup bench: more than %d bytes", MaxFile)
	}
	var r struct {
		Schema  string `json:"schema"`
		Command string `json:"command"`
		Result
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, ondisk.In(ondisk.ErrFormat, "result of trueup bench: no JSON of it: %w", err)
	}
	if r.Schema != "trueup/1" || r.Command != "bench" {
		return nil, ondisk.In(ondisk.ErrFormat,
			"result of trueup bench: schema %.40q, command %.40q, want \"trueup/1\" and \"bench\"; trueup bench "+
				"--json writes it",
			r.Schema, r.Command)
	}
	if err := r.check(); err != nil {
		return nil, ondisk.In(ondisk.ErrFormat, "result of trueup bench: %w", err)
	}
	r.Summarize()
	return &r.Result, nil
}

// check rejects impossible measurements.
func (r *Result) check() error {
	known := Loads()
	if len(r.Loads) == 0 || len(r.Loads) > len(known) {
		return fmt.Errorf("loads: %d, want 1 to %d", len(r.Loads), len(known))
	}
	for n, l := range r.Loads {
		i := slices.IndexFunc(known, l.same)
		if i < 0 {
			return fmt.Errorf("load %.80q: trueup bench measures no such I/O; measure again", l.Name)
		}
		r.Loads[n].Name = known[i].Name
		if err := l.check(); err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
	}
	return nil
}

// same reports whether two loads have the same I/O.
func (l Load) same(o Load) bool {
	return l.Access == o.Access && l.Op == o.Op && l.Size == o.Size && l.Jobs == o.Jobs
}

func (l Load) check() error {
	if len(l.Points) == 0 || !Aligned(l.Points[0].Start) {
		return errors.New("no points, or the first start is not the aligned one, a multiple of 4096")
	}
	for _, p := range l.Points {
		if p.Start < 0 || p.Start > mostStart || p.Start%units.SectorSize != 0 {
			return fmt.Errorf("start %d, want a multiple of 512 up to %d", p.Start, mostStart)
		}
		if len(p.Rounds) == 0 {
			return fmt.Errorf("start %d: no rounds", p.Start)
		}
		for _, round := range p.Rounds {
			if err := round.Check(); err != nil {
				return fmt.Errorf("start %d: %w", p.Start, err)
			}
		}
	}
	return nil
}

// Check returns an error for numbers that no run can have.
func (r Round) Check() error {
	for _, rate := range []float64{r.IOPS, r.Bytes} {
		if !(rate >= leastRate && rate <= mostRate) {
			return fmt.Errorf("%g I/Os and %g bytes a second, want %g to %g", r.IOPS, r.Bytes, leastRate, mostRate)
		}
	}
	for _, ns := range []int64{r.Mean, r.P50, r.P95, r.P99, r.P999} {
		if ns < 0 || ns > mostTime {
			return fmt.Errorf("latency %d ns, want 0 to %d", ns, mostTime)
		}
	}
	return nil
}

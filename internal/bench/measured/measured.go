// Package measured holds the result of a benchmark as values: what was measured, medians and their spread, and what
// they prove for the start of a partition. It is pure. A result that is read from a file is untrusted.
package measured

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/trueup/trueup/internal/units"
)

// Kinds of access, and directions. A job file of the user has neither.
const (
	Random     = "random"
	Sequential = "sequential"
	JobFile    = "job_file"
	Read       = "read"
	Write      = "write"
	Mixed      = "mixed"
)

// Result is what one run of the benchmark measured.
type Result struct {
	Date    time.Time `json:"date"`
	Kernel  string    `json:"kernel"`
	Tool    string    `json:"tool"` // fio and its version
	Storage Storage   `json:"storage"`
	Scratch bool      `json:"scratch_file"`   // false: an image or a device was only read
	Direct  bool      `json:"direct"`         // past the page cache
	Size    int64     `json:"size_bytes"`     // that the I/O of each start covers
	Seconds float64   `json:"run_seconds"`    // of each round
	Starts  []int64   `json:"starts_bytes"`   // the aligned one first
	Notes   []string  `json:"notes"`          // what limits the worth of the numbers
	Skipped []int64   `json:"skipped_starts"` // that the storage cannot do
	Loads   []Load    `json:"loads"`
}

// Storage is where a result was measured.
type Storage struct {
	Path       string `json:"path"`
	FileSystem string `json:"file_system,omitempty"` // as the kernel names it
	Source     string `json:"source,omitempty"`      // device or server below it
	Device     string `json:"device,omitempty"`      // the kernel's name of the whole disk
	Model      string `json:"model,omitempty"`
	Rotational bool   `json:"rotational"`
	Logical    int64  `json:"logical_block_bytes,omitempty"`
	Physical   int64  `json:"physical_block_bytes,omitempty"`
}

// Load is one kind of I/O, at all starts.
type Load struct {
	Name   string  `json:"name"`
	Access string  `json:"access"`
	Op     string  `json:"direction"`
	Size   int64   `json:"io_bytes,omitempty"` // of one I/O; 0 for a job file
	Jobs   int     `json:"jobs,omitempty"`     // threads, each with one I/O at a time
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

// Spread is the median of all rounds, the least and the most.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Ratio is how many times as many I/Os the aligned start did.
type Ratio struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"` // the worst aligned round against the best of the other
	High   float64 `json:"high"`
	// Distinct: there are Fewest rounds, they do not overlap, and the medians differ by at least Least.
	Distinct bool `json:"told_apart"`
}

// Fewest is the smallest number of rounds that shows a spread.
const Fewest = 3

// Least is the smallest difference that is called one: less is not worth a copy, whatever its cause.
const Least = 0.05

// SpreadOf returns median, least and most of the values of all rounds.
func SpreadOf(rounds []Round, value func(Round) float64) Spread {
	var all []float64
	for _, r := range rounds {
		all = append(all, value(r))
	}
	slices.Sort(all)
	n := len(all)
	if n == 0 {
		return Spread{}
	}
	return Spread{(all[(n-1)/2] + all[n/2]) / 2, all[0], all[n-1]}
}

// IOPS returns the I/Os of a round in a second.
func IOPS(r Round) float64 { return r.IOPS }

// Latency returns the median over all rounds of a latency.
func (p Point) Latency(of func(Round) int64) int64 {
	return int64(SpreadOf(p.Rounds, func(r Round) float64 { return float64(of(r)) }).Median)
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

// round keeps four digits behind the point.
func round(x float64) float64 { return math.Round(1e4*x) / 1e4 }

// Text describes the ratio for a table.
func (r *Ratio) Text() string {
	switch {
	case r == nil:
		return ""
	case !r.Distinct:
		return "no difference"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", r.Median, r.Low, r.High)
}

// Sort puts the aligned start first: the one on the largest power of two, of several the first. The others follow by
// their offset.
func Sort(starts []int64) []int64 {
	out := slices.Compact(slices.Sorted(slices.Values(starts)))
	if len(out) == 0 {
		return out
	}
	best := slices.MaxFunc(out, func(a, b int64) int { return cmp.Compare(units.Alignment(a), units.Alignment(b)) })
	return append([]int64{best}, slices.DeleteFunc(out, func(n int64) bool { return n == best })...)
}

// Settle computes what follows from the rounds.
func (r *Result) Settle() {
	for l := range r.Loads {
		load := &r.Loads[l]
		for p := range load.Points {
			load.Points[p].IOPS = SpreadOf(load.Points[p].Rounds, IOPS)
			load.Points[p].Against = nil
		}
		for p := range load.Points {
			if p > 0 {
				load.Points[p].Against = ratio(&load.Points[0], &load.Points[p])
			}
		}
	}
}

// Rounds returns the number of rounds.
func (r *Result) Rounds() int {
	n := 0
	for _, l := range r.Loads {
		for _, p := range l.Points {
			n = max(n, len(p.Rounds))
		}
	}
	return n
}

// LoadName describes a load.
func LoadName(access, op string, size int64, jobs int) string {
	s := fmt.Sprintf("%s %s of %s", access, op, units.Format(size))
	if jobs == 1 {
		return s + ", 1 job"
	}
	return fmt.Sprintf("%s, %d jobs", s, jobs)
}

// Where describes the storage.
func (s Storage) Where() string {
	out := s.Path
	switch {
	case s.FileSystem != "" && s.Source != "":
		out += fmt.Sprintf(" (%s on %s)", s.FileSystem, s.Source)
	case s.FileSystem != "":
		out += " (" + s.FileSystem + ")"
	case s.Device != "":
		out += " (device " + s.Device + ")"
	}
	return out
}

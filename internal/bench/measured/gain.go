package measured

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/units"
)

// Gain is what alignment was measured to bring for a partition.
type Gain struct {
	Load     string `json:"load"`
	Op       string `json:"direction"`
	Access   string `json:"access"`
	Size     int64  `json:"io_bytes"`
	Jobs     int    `json:"jobs"`
	Start    int64  `json:"start_bytes"` // the measured start that stands for the partition
	Measured Ratio  `json:"aligned_against_this"`
}

// typical is the I/O that the texts name: that of databases and of most guests. Bytes, and jobs.
const (
	typicalSize = 8 * units.KiB
	typicalJobs = 8
)

// Gains returns what was measured for partitions that start at an offset, by load. There is none for a start that no
// measured one stands for.
func (r *Result) Gains(start int64) (out []Gain) {
	for _, l := range r.Loads {
		if l.Access == JobFile {
			continue
		}
		if p := l.standsFor(start); p != nil && p.Against != nil {
			out = append(out, Gain{l.Name, l.Op, l.Access, l.Size, l.Jobs, p.Start, *p.Against})
		}
	}
	return out
}

// block is that of most storage, in bytes. A start on it is aligned.
const block = 4 * units.KiB

// Aligned reports whether a start can stand for an aligned partition.
func Aligned(start int64) bool { return units.Alignment(start) >= block }

// standsFor returns the point whose I/Os lie on the blocks of any storage as those of a partition do. I/Os of n bytes
// from two starts do so if the starts are equal modulo n, for blocks of powers of two. Starts at odd sectors stand for
// each other, too: the ends of each of their I/Os lie inside of sectors of 4 KiB.
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

// Typical returns the gains that a text names: random writes and reads of 8 KiB, or of the size nearest to it, with the
// number of jobs nearest to 8.
func Typical(all []Gain) (out []Gain) {
	for _, op := range []string{Write, Read} {
		var best *Gain
		for n := range all {
			g := &all[n]
			if g.Op == op && g.Access == Random && (best == nil || g.distance() < best.distance()) {
				best = g
			}
		}
		if best != nil {
			out = append(out, *best)
		}
	}
	return out
}

func (g *Gain) distance() int64 {
	size, jobs := g.Size-typicalSize, int64(g.Jobs-typicalJobs)
	return max(size, -size)*int64(mostJobs) + max(jobs, -jobs)
}

// Text says what the gain is: "random writes of 8 KiB 2.1 times as many".
func (g *Gain) Text() string {
	what := fmt.Sprintf("%s %ss of %s", g.Access, g.Op, units.Format(g.Size))
	if !g.Measured.Distinct {
		what += ":"
	}
	return what + " " + g.Times()
}

// Times says how many times as many I/Os there are.
func (g *Gain) Times() string {
	switch {
	case !g.Measured.Distinct:
		return "no difference that can be told apart from noise"
	case g.Measured.Median < 1:
		return fmt.Sprintf("%.2f times as many, which is fewer", g.Measured.Median)
	}
	return fmt.Sprintf("%.1f times as many", g.Measured.Median)
}

// Say describes gains of one partition in a sentence; empty without any.
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

// dateOnly is how a date is printed.
const dateOnly = "2006-01-02"

package progress

import (
	"fmt"
	"time"
)

// Bench shows how far a benchmark is: in each phase a share of what there is to do.
type Bench struct {
	phases
}

// NewBench begins to show the progress of a benchmark.
func NewBench(o Output) *Bench {
	b := &Bench{phases{start: time.Now()}}
	b.display = o.show(b.counts)
	return b
}

func (b *Bench) counts() counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	done := min(b.done, b.total) // the last piece may be larger than what is left
	n := benchCounts{head: headOf("bench"), Phase: b.name, Percent: 100 * done / max(b.total, 1)}
	return n.after(time.Since(b.start), time.Since(b.begun), done, b.total)
}

// benchCounts are how far a phase is, and a line of JSON.
type benchCounts struct {
	head
	Phase   string   `json:"phase"`
	Percent int64    `json:"percent"`
	Elapsed float64  `json:"elapsed_seconds"`
	Left    *float64 `json:"eta_seconds,omitempty"`
}

func (c benchCounts) begun() bool { return c.Phase != "" }

// after adds what follows from the time that the run and its phase took.
func (c benchCounts) after(run, phase time.Duration, done, total int64) benchCounts {
	c.Elapsed, c.Left = tenths(run.Seconds()), nil
	if done > 0 {
		left := tenths(float64(total-done) / perSecond(done, phase))
		c.Left = &left
	}
	return c
}

// line shows the counts.
func (c benchCounts) line(width int) string {
	if c.Phase == "" {
		return ""
	}
	left := ""
	if c.Left != nil {
		left = " " + clock(int64(*c.Left)) + " left"
	}
	line, _ := barLine(fmt.Sprintf("%s %d %% ", c.Phase, c.Percent), []string{left, ""}, c.Percent, 100, width)
	return line
}

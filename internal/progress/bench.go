package progress

import (
	"fmt"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/report"
)

// Bench shows how far a benchmark is: in each phase a share of what there is to do.
type Bench struct {
	*display
	mu    sync.Mutex
	start time.Time // of the run
	phase time.Time
	done  int64
	total int64
	now   benchCounts
}

// NewBench begins to show the progress of a benchmark.
func NewBench(o Output) *Bench {
	b := &Bench{start: time.Now(), now: benchCounts{Schema: report.Schema, Event: "progress", Command: "bench"}}
	b.display = o.show(b.counts)
	return b
}

// Begin ends a phase and begins the next.
func (b *Bench) Begin(phase string, total int64) {
	b.flush()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.phase, b.now.Phase, b.done, b.total = time.Now(), phase, 0, max(total, 1)
}

// Add counts what is done.
func (b *Bench) Add(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done = min(b.done+n, b.total)
}

func (b *Bench) counts() counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.now
	n.Percent = 100 * b.done / max(b.total, 1)
	return n.after(time.Since(b.start), time.Since(b.phase), b.done, b.total)
}

// benchCounts are how far a phase is, and a line of JSON.
type benchCounts struct {
	Schema  string   `json:"schema"`
	Event   string   `json:"event"`
	Command string   `json:"command"`
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

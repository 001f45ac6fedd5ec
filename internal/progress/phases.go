package progress

import (
	"fmt"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/units"
)

// Bench shows the progress of a benchmark, in percent of each phase.
type Bench struct {
	phases
}

// NewBench starts to show the progress of a benchmark.
func NewBench(o Output) *Bench {
	b := &Bench{phases{start: time.Now()}}
	b.display = o.show(b.counts)
	return b
}

func (b *Bench) counts() counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	done := min(b.done, b.total) // the last piece may exceed the remaining amount
	n := benchCounts{head: headOf("bench"), Phase: b.name, Percent: 100 * done / max(b.total, 1)}
	return n.after(time.Since(b.start), time.Since(b.begun), done, b.total)
}

// benchCounts holds the progress of a phase. It is also a line of JSON.
type benchCounts struct {
	head
	Phase   string   `json:"phase"`
	Percent int64    `json:"percent"`
	Elapsed float64  `json:"elapsed_seconds"`
	Left    *float64 `json:"eta_seconds,omitempty"`
}

func (c benchCounts) begun() bool { return c.Phase != "" }

// after adds the elapsed time of the run and the remaining time of the phase.
func (c benchCounts) after(run, phase time.Duration, done, total int64) benchCounts {
	c.Elapsed, c.Left = tenths(run.Seconds()), nil
	if done > 0 {
		c.Left = new(tenths(float64(total-done) / perSecond(done, phase)))
	}
	return c
}

// line shows the counts.
func (c benchCounts) line(width int) string {
	left := ""
	if c.Left != nil {
		left = " " + clock(int64(*c.Left)) + " left"
	}
	line, _ := barLine(fmt.Sprintf("%s %d %% ", c.Phase, c.Percent), []string{left, ""}, c.Percent, 100, width)
	return line
}

// Trial shows the elapsed time of the runs of a trial boot. The time that a guest needs is unknown, only its limit is
// known.
type Trial struct {
	*display
	mu    sync.Mutex
	start time.Time // of the run
	now   trialCounts
}

// NewTrial starts to show the progress of a command.
func NewTrial(o Output, command string) *Trial {
	t := &Trial{now: trialCounts{head: headOf(command)}}
	t.display = o.show(t.counts)
	return t
}

// Begin ends the current run and begins the run of another disk.
func (t *Trial) Begin(disk string, longest time.Duration) {
	t.flush()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start, t.now.Disk, t.now.Longest = time.Now(), disk, tenths(longest.Seconds())
}

func (t *Trial) counts() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.now
	n.Elapsed = tenths(time.Since(t.start).Seconds())
	return n
}

// trialCounts holds the elapsed time of a run and its limit. It is also a line of JSON.
type trialCounts struct {
	head
	Disk    string  `json:"disk"`
	Elapsed float64 `json:"elapsed_seconds"`
	Longest float64 `json:"limit_seconds"`
}

func (c trialCounts) begun() bool { return c.Disk != "" }

// line returns the counts as text. It omits the bar if there is little room.
func (c trialCounts) line(width int) string {
	left := "boot " + c.Disk + " " + clock(int64(c.Elapsed)) + ", limit " + clock(int64(c.Longest)) + " "
	line, _ := barLine(left, []string{""}, int64(c.Elapsed), int64(c.Longest), width)
	return line
}

// Copy counts and shows the bytes of one disk or package, phase by phase.
type Copy struct {
	phases
	command string
	proves  bool
}

// NewCopy starts to show the progress of a command. proves is set if every byte of a copy is read again. NewCopy
// returns nil if nothing is shown.
func NewCopy(o Output, command string, proves bool) *Copy {
	c := &Copy{phases: phases{start: time.Now()}, command: command, proves: proves}
	if c.display = o.show(c.counts); c.display == nil {
		return nil
	}
	return c
}

func (c *Copy) counts() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copyCounts{head: headOf(c.command), Phase: c.name, Done: c.done, Total: c.total, proves: c.proves}
	return n.after(time.Since(c.start), time.Since(c.begun))
}

// copyCounts holds the progress of a phase. It is also a line of JSON.
type copyCounts struct {
	head
	Phase   string   `json:"phase"`
	Done    int64    `json:"done_bytes"`
	Total   int64    `json:"total_bytes"`
	Rate    int64    `json:"bytes_per_second"`
	Elapsed float64  `json:"elapsed_seconds"`
	Left    *float64 `json:"eta_seconds,omitempty"`

	proves bool // every byte is read again after the copy
}

func (c copyCounts) begun() bool { return c.Phase != "" }

// after adds the rate of the phase, the elapsed time of the run and the remaining time.
func (c copyCounts) after(run, phase time.Duration) copyCounts {
	rate := perSecond(c.Done, phase)
	c.Rate, c.Elapsed, c.Left = int64(rate), tenths(run.Seconds()), nil
	if c.Done > 0 {
		bytes := max(c.Total-c.Done, 0)
		if c.proves && c.Phase == diskcopy.PhaseCopy {
			bytes += c.Total // two reads of each byte take as long as a read and a write
		}
		c.Left = new(tenths(float64(bytes) / rate))
	}
	return c
}

// line returns the counts as text. If there is little room, it omits the rate first and the remaining time last.
func (c copyCounts) line(width int) string {
	long, short := "", ""
	if c.Left != nil {
		short = " " + clock(int64(*c.Left))
		long = fmt.Sprintf(" %s/s%s left", units.Format(c.Rate), short)
	}
	line, _ := barLine(c.Phase+" "+units.Part(c.Done, c.Total)+" ", []string{long, short}, c.Done, c.Total, width)
	return line
}

package progress

import (
	"fmt"
	"time"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/units"
)

// Copy counts and shows the bytes of one disk or package, phase by phase.
type Copy struct {
	phases
	command string
	proves  bool
}

// NewCopy begins to show the progress of a command. Proves: every byte of a copy is read again. It returns nil if
// nothing is shown.
func NewCopy(o Output, command string, proves bool) *Copy {
	c := &Copy{phases: phases{start: time.Now()}, command: command, proves: proves}
	if c.display = o.show(c.counts); c.display == nil {
		return nil
	}
	return c
}

// Stop ends the display. It may be called on nil.
func (c *Copy) Stop() {
	if c != nil {
		c.display.Stop()
	}
}

func (c *Copy) counts() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copyCounts{head: headOf(c.command), Phase: c.name, Done: c.done, Total: c.total, proves: c.proves}
	return n.after(time.Since(c.start), time.Since(c.begun))
}

// copyCounts are how far a phase is, and a line of JSON.
type copyCounts struct {
	head
	Phase   string   `json:"phase"`
	Done    int64    `json:"done_bytes"`
	Total   int64    `json:"total_bytes"`
	Rate    int64    `json:"bytes_per_second"`
	Elapsed float64  `json:"elapsed_seconds"`
	Left    *float64 `json:"eta_seconds,omitempty"`

	proves bool // after the copy
}

func (c copyCounts) begun() bool { return c.Phase != "" }

// after adds what follows from the time that the run and its phase took.
func (c copyCounts) after(run, phase time.Duration) copyCounts {
	rate := perSecond(c.Done, phase)
	c.Rate, c.Elapsed, c.Left = int64(rate), tenths(run.Seconds()), nil
	if c.Done > 0 {
		bytes := max(c.Total-c.Done, 0)
		if c.proves && c.Phase == diskcopy.PhaseCopy {
			bytes += c.Total // two reads of each byte take as long as a read and a write
		}
		left := tenths(float64(bytes) / rate)
		c.Left = &left
	}
	return c
}

// line shows the counts. Where there is little room the time left goes last.
func (c copyCounts) line(width int) string {
	if c.Phase == "" {
		return ""
	}
	long, short := "", ""
	if c.Left != nil {
		short = " " + clock(int64(*c.Left))
		long = fmt.Sprintf(" %s/s%s left", units.Format(c.Rate), short)
	}
	line, _ := barLine(c.Phase+" "+units.Part(c.Done, c.Total)+" ", []string{long, short}, c.Done, c.Total, width)
	return line
}

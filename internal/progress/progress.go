// Package progress shows the progress of long work: as a bar at the bottom of a terminal, as lines of JSON, or not at
// all.
package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Kinds lists the ways to show progress, the default first: a bar if the output is a terminal, lines of JSON, nothing.
var Kinds = []string{auto, asJSON, none}

const (
	auto   = "auto"
	asJSON = "json"
	none   = "none"
)

// Output is the destination of progress, and its form.
type Output struct {
	W     io.Writer
	Kind  string // one of Kinds
	Quiet bool   // show no bar
}

// counts holds the progress of work at one moment.
type counts interface {
	line(width int) string // in at most width characters
	begun() bool           // reports whether there is something to show
}

// head begins each line of JSON.
type head struct {
	Schema  string `json:"schema"`
	Event   string `json:"event"`
	Command string `json:"command"`
}

func headOf(command string) head { return head{report.Schema, "progress", command} }

// display shows counts. A nil display shows nothing.
type display struct {
	now  func() // prints the current counts; nil for a bar
	stop func() // ends the display
}

// show shows the counts returned by now until the display is stopped.
func (o Output) show(now func() counts) *display {
	if o.Kind == asJSON {
		return o.lines(now)
	}
	if f, isFile := o.W.(*os.File); isFile && o.Kind == auto && !o.Quiet && Terminal(f) {
		return o.bar(f, now)
	}
	return nil
}

// Terminal reports whether w is a terminal with cursor control.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, terminal := sys.Columns(f)
	return terminal
}

// Stop ends the display. Call it after all other work has ended. It may be called more than once.
func (d *display) Stop() {
	if d != nil {
		d.stop()
	}
}

// flush prints the counts before they are reset.
func (d *display) flush() {
	if d != nil && d.now != nil {
		d.now()
	}
}

// lines prints a line of JSON each second, and one at the end.
func (o Output) lines(now func() counts) *display {
	var mu sync.Mutex
	printLine := func() {
		mu.Lock()
		defer mu.Unlock()
		c := now()
		if b, err := json.Marshal(c); err == nil && c.begun() {
			fmt.Fprintf(o.W, "%s\n", b)
		}
	}
	return &display{now: printLine, stop: sync.OnceFunc(every(time.Second, printLine))}
}

// every calls f at an interval. The returned function calls f a last time and ends the calls.
func every(interval time.Duration, f func()) (end func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(interval)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				f()
			case <-quit:
				f()
				return
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// roomForKeys is the room for ^C and the cursor on a terminal, in characters.
const roomForKeys = 3

// bar shows a line at the bottom of a terminal until the display is stopped. A text of another writer, which begins
// with Above, stays above it.
func (o Output) bar(terminal *os.File, now func() counts) *display {
	drawn := false
	end := every(200*time.Millisecond, func() {
		columns, open := sys.Columns(terminal)
		if c := now(); open && c.begun() {
			drawn = true
			fmt.Fprintf(terminal, "\r%s\x1b[K", c.line(columns-roomForKeys))
		}
	})
	return &display{stop: sync.OnceFunc(func() {
		end()
		if drawn { // otherwise the line belongs to another program
			fmt.Fprint(terminal, Above)
		}
	})}
}

// Above clears the line of a bar, also of characters that a ^C has shifted.
const Above = "\r\x1b[J"

// Widths of the bar in characters, including its ends. A shorter bar is less useful than the numbers next to it.
const (
	longestBar  = 32
	shortestBar = 8
)

// barLine returns left, a bar, and the first of rights that leaves room for one. If there is no room for a bar, it
// returns left, cut to width.
func barLine(left string, rights []string, done, total int64, width int) string {
	for _, right := range rights {
		if room := width - len(left) - len(right); room >= shortestBar {
			return left + drawBar(done, total, min(room, longestBar)) + right
		}
	}
	return left[:max(min(len(left), width), 0)]
}

// drawBar draws the share of completed work as a bar of width characters.
func drawBar(done, total int64, width int) string {
	inside := width - 2
	full := 0
	if total > 0 {
		full = int(float64(inside) * min(float64(done)/float64(total), 1))
	}
	tip := ""
	if full > 0 && full < inside {
		full, tip = full-1, ">"
	}
	return "[" + strings.Repeat("=", full) + tip + strings.Repeat("-", inside-full-len(tip)) + "]"
}

// leastTime is the least time for a rate, to keep the first rates from being too high.
const leastTime = 100 * time.Millisecond

// perSecond returns the rate of n per second.
func perSecond(n int64, took time.Duration) float64 {
	return float64(n) / max(took, leastTime).Seconds()
}

// tenths rounds to one decimal place.
func tenths(n float64) float64 { return math.Round(10*n) / 10 }

// clock prints a time as 02:05 or 1:02:05.
func clock(seconds int64) string {
	if seconds < 3600 {
		return fmt.Sprintf("%02d:%02d", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
}

// Copy counts and shows the bytes of one disk or package, phase by phase. Its methods may be called from any goroutine.
type Copy struct {
	*display
	command string
	proves  bool

	mu    sync.Mutex
	start time.Time // of the run
	begun time.Time // of the phase
	phase string
	done  int64
	total int64
}

// NewCopy starts to show the progress of a command. proves is set if every byte of a copy is read again. NewCopy
// returns nil if nothing is shown.
func NewCopy(o Output, command string, proves bool) *Copy {
	c := &Copy{start: time.Now(), command: command, proves: proves}
	if c.display = o.show(c.counts); c.display == nil {
		return nil
	}
	return c
}

// Begin ends the current phase and begins the next. total is its number of bytes.
func (c *Copy) Begin(phase string, total int64) {
	c.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun, c.phase, c.done, c.total = time.Now(), phase, 0, total
}

// Add adds n to the number of completed bytes.
func (c *Copy) Add(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
}

func (c *Copy) counts() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copyCounts{head: headOf(c.command), Phase: c.phase, Done: c.done, Total: c.total, proves: c.proves}
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
	return barLine(c.Phase+" "+units.Part(c.Done, c.Total)+" ", []string{long, short}, c.Done, c.Total, width)
}

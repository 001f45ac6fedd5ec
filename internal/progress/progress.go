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

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/sys"
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
	Kind  string          // one of Kinds
	Quiet bool            // show no bar
	Above func(io.Writer) // receives the writer that prints above a bar; may be nil
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

// phases counts work that consists of phases. Its methods may be called from any goroutine.
type phases struct {
	*display
	mu    sync.Mutex
	start time.Time // of the run
	begun time.Time // of the phase
	name  string
	done  int64
	total int64
}

// Begin ends the current phase and begins the next. total is its amount of work.
func (p *phases) Begin(phase string, total int64) {
	p.flush()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun, p.name, p.done, p.total = time.Now(), phase, 0, total
}

// Add adds n to the amount of completed work.
func (p *phases) Add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
}

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
	if f, isFile := o.W.(*os.File); isFile && o.Kind == auto && !o.Quiet {
		if _, terminal := sys.Columns(f); terminal {
			return o.bar(f, now)
		}
	}
	return nil
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

// bar is a line at the bottom of a terminal.
type bar struct {
	mu       sync.Mutex
	terminal *os.File
	line     string // the shown text
	drawn    bool   // a line was shown
	ended    bool
}

// bar shows a line at the bottom of a terminal until the display is stopped.
func (o Output) bar(terminal *os.File, now func() counts) *display {
	b := &bar{terminal: terminal}
	if o.Above != nil {
		o.Above(b)
	}
	end := every(200*time.Millisecond, func() {
		columns, open := sys.Columns(terminal)
		if c := now(); open && c.begun() {
			b.show(c.line(columns - roomForKeys))
		}
	})
	return &display{stop: sync.OnceFunc(func() {
		end()
		b.end()
	})}
}

// show replaces the line.
func (b *bar) show(line string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawn = true
	b.replace(line)
}

func (b *bar) replace(line string) {
	const key = len("^C")
	fmt.Fprintf(b.terminal, "\r%-*s\r%s", len(b.line)+key, line, line) // blanks overwrite a longer line
	b.line = line
}

// Write prints a text above the line. It fails after the display has ended.
func (b *bar) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, os.ErrClosed
	}
	line := b.line
	b.replace("")
	n, err := b.terminal.Write(text)
	b.replace(line)
	return n, err
}

func (b *bar) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended = true; !b.drawn {
		return // the line belongs to another program
	}
	b.replace("")
	fmt.Fprint(b.terminal, "\r\x1b[J") // removes characters that a ^C has shifted
}

// Widths of the bar in characters, including its ends. A shorter bar is less useful than the numbers next to it.
const (
	longestBar  = 32
	shortestBar = 8
)

// barLine returns left, a bar, and the first of rights that leaves room for one. If there is no room for a bar, it
// returns left, cut to width.
func barLine(left string, rights []string, done, total int64, width int) (line string, drawn bool) {
	for _, right := range rights {
		if room := width - len(left) - len(right); room >= shortestBar {
			return left + drawBar(done, total, min(room, longestBar)) + right, true
		}
	}
	return left[:max(min(len(left), width), 0)], false
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

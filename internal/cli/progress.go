package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// progress shows how far long work is, phase by phase.
type progress interface {
	realign.Progress
	stop() // once, when all else has ended
}

// newProgress chooses how progress is shown: a bar on a terminal, lines of JSON on request, nothing otherwise.
func (c *common) newProgress(w io.Writer, kind, command string) progress {
	f, ok := w.(*os.File)
	switch {
	case kind == "json":
		return newJSONProgress(w, command)
	case kind == "auto" && !c.quiet && ok && term.IsTerminal(int(f.Fd())):
		b := newBar(w)
		c.ending.shows(b.all)
		return b
	}
	return silent{}
}

// watched shows the progress of work from the moment on in which watch is called, until end is.
func (c *common) watched(w io.Writer, kind, command string) (watch func() realign.Progress, end func()) {
	var p progress = silent{}
	watch = func() realign.Progress {
		if p = c.newProgress(w, kind, command); p == (silent{}) {
			return nil
		}
		return p
	}
	return watch, func() {
		p.stop()
		p = silent{}
	}
}

type silent struct{}

func (silent) Begin(string, int64) {}
func (silent) Add(int64)           {}
func (silent) stop()               {}

// copyCounts is how far a phase is, and a line of --progress json.
type copyCounts struct {
	Schema  string   `json:"schema"`
	Event   string   `json:"event"`
	Command string   `json:"command"`
	Phase   string   `json:"phase"`
	Done    int64    `json:"done_bytes"`
	Total   int64    `json:"total_bytes"`
	Rate    int64    `json:"bytes_per_second"`
	Elapsed float64  `json:"elapsed_seconds"`
	Left    *float64 `json:"eta_seconds,omitempty"`
}

// copyMeter counts.
type copyMeter struct {
	done  atomic.Int64 // of the phase
	mu    sync.Mutex
	start time.Time // of the run
	phase time.Time
	now   copyCounts
}

func newCopyMeter(command string) *copyMeter {
	return &copyMeter{start: time.Now(), now: copyCounts{Schema: report.Schema, Event: "progress", Command: command}}
}

// Begin begins a phase.
func (m *copyMeter) Begin(phase string, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.phase, m.now.Phase, m.now.Total = time.Now(), phase, total
	m.done.Store(0)
}

// Add counts bytes that are done, from any goroutine.
func (m *copyMeter) Add(n int64) { m.done.Add(n) }

// counts are those of now.
func (m *copyMeter) counts() copyCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.now
	c.Done = m.done.Load()
	return c.after(time.Since(m.start), time.Since(m.phase))
}

// after adds what follows from the time that the run and its phase took.
func (c copyCounts) after(run, phase time.Duration) copyCounts {
	rate := float64(c.Done) / max(phase, leastTime).Seconds()
	c.Rate, c.Elapsed, c.Left = int64(rate), tenths(run.Seconds()), nil
	if c.Done > 0 {
		left := tenths(float64(max(c.Total-c.Done, 0)) / rate)
		c.Left = &left
	}
	return c
}

// tenths rounds to one digit behind the point.
func tenths(n float64) float64 { return math.Round(10*n) / 10 }

// line shows the counts in at most width characters. Where there is little room the time left goes last.
func (c copyCounts) line(width int) string {
	if c.Phase == "" {
		return ""
	}
	left, short := c.Phase+" "+units.Part(c.Done, c.Total)+" ", ""
	if c.Left != nil {
		short = " " + clock(int64(*c.Left))
	}
	long := short
	if long != "" {
		long = fmt.Sprintf(" %s/s%s left", units.Format(c.Rate), short)
	}
	for _, right := range []string{long, short} {
		if room := width - len(left) - len(right); room >= shortestBar {
			return left + drawBar(c.Done, c.Total, min(room, longestBar)) + right
		}
	}
	return left[:max(min(len(left), width), 0)]
}

// bar is a line at the bottom of a terminal.
type bar struct {
	*copyMeter
	w   io.Writer
	all *mpb.Progress
	one *mpb.Bar
}

func newBar(w io.Writer) *bar {
	b := &bar{copyMeter: newCopyMeter(""), w: w, all: mpb.New(mpb.WithOutput(w), mpb.WithRefreshRate(200*time.Millisecond))}
	line := decor.Any(func(s decor.Statistics) string { return b.counts().line(s.AvailableWidth - roomForKeys) })
	b.one = b.all.MustAdd(0, nil, mpb.BarFillerTrim(), mpb.PrependDecorators(line))
	return b
}

func (b *bar) stop() {
	b.one.Abort(true)
	b.all.Wait()
	fmt.Fprint(b.w, "\r\x1b[J") // what a ^C has shifted stays otherwise
}

// jsonProgress writes a line a second, and one at the end of each phase.
type jsonProgress struct {
	*copyMeter
	w       io.Writer
	writing sync.Mutex
	end     func()
}

func newJSONProgress(w io.Writer, command string) *jsonProgress {
	p := &jsonProgress{copyMeter: newCopyMeter(command), w: w}
	p.end = everySecond(p.print)
	return p
}

// Begin ends a phase and begins the next.
func (p *jsonProgress) Begin(phase string, total int64) {
	p.print()
	p.copyMeter.Begin(phase, total)
}

func (p *jsonProgress) print() {
	p.writing.Lock()
	defer p.writing.Unlock()
	c := p.counts()
	if b, err := json.Marshal(c); err == nil && c.Phase != "" {
		fmt.Fprintf(p.w, "%s\n", b)
	}
}

func (p *jsonProgress) stop() { p.end() }

// everySecond calls f once a second, and a last time before the function that it returns does.
func everySecond(f func()) (end func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(time.Second)
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

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// scanProgress is told how a scan goes on, from any goroutine.
type scanProgress interface {
	found(n int)           // the walk has come upon n more images
	walked()               // it will find no more
	done(i *results.Image) // a row is known
	stop()                 // once, when all else has ended
}

// newScanProgress chooses how the progress of a scan is shown: a bar on a terminal, lines of JSON on request, nothing otherwise.
func (c *common) newScanProgress(w io.Writer, kind string) scanProgress {
	f, ok := w.(*os.File)
	switch {
	case kind == "json":
		return newScanJSON(w)
	case kind == "auto" && !c.quiet && ok && term.IsTerminal(int(f.Fd())):
		b := newScanBar(w)
		c.ending.shows(b.all)
		return b
	}
	return scanSilent{}
}

// scanSilent shows nothing.
type scanSilent struct{}

func (scanSilent) found(int)           {}
func (scanSilent) walked()             {}
func (scanSilent) done(*results.Image) {}
func (scanSilent) stop()               {}

// scanCounts is how far a scan is, and a line of --progress json.
type scanCounts struct {
	Schema     string  `json:"schema"`
	Event      string  `json:"event"`
	Command    string  `json:"command"`
	Done       int     `json:"done_images"`
	Found      int     `json:"found_images"`
	Walking    bool    `json:"walking"`
	Rate       float64 `json:"images_per_second"`
	Elapsed    float64 `json:"elapsed_seconds"`
	Left       *int64  `json:"seconds_left,omitempty"`
	Aligned    int     `json:"aligned"`
	Below      int     `json:"below_boundary"`
	Misaligned int     `json:"misaligned"`
	Failed     int     `json:"failed"`
	Orphans    int     `json:"orphans"`
	Nothing    int     `json:"nothing_to_judge"`
	Packed     int     `json:"packed"`
}

// scanMeter counts.
type scanMeter struct {
	mu    sync.Mutex
	start time.Time
	now   scanCounts
}

func newScanMeter() *scanMeter {
	return &scanMeter{start: time.Now(), now: scanCounts{Schema: report.Schema, Event: "progress", Command: results.Command, Walking: true}}
}

func (m *scanMeter) found(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Found += n
}

func (m *scanMeter) walked() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Walking = false
}

func (m *scanMeter) done(i *results.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := &m.now
	switch {
	case i.State == results.Gone: // it was not looked for
		return
	case i.State == results.Failed:
		n.Failed++
	case i.State == results.Orphan:
		n.Orphans++
	case i.State == results.Packed:
		n.Packed++
	case i.Verdict == align.NothingToJudge:
		n.Nothing++
	case i.Verdict == align.Misaligned:
		n.Misaligned++
	case i.Verdict == align.BelowBoundary:
		n.Below++
	default:
		n.Aligned++
	}
	n.Done++
	n.Found = max(n.Found, n.Done)
}

// counts are those of now, with rate and time left.
func (m *scanMeter) counts() scanCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.after(time.Since(m.start))
}

// leastTime keeps the first rates from being those of a moment.
const leastTime = 100 * time.Millisecond

// after adds what follows from the time that it took.
func (c scanCounts) after(d time.Duration) scanCounts {
	rate := float64(c.Done) / max(d, leastTime).Seconds()
	c.Rate, c.Elapsed, c.Left = tenths(rate), tenths(d.Seconds()), nil
	if !c.Walking && c.Done > 0 {
		left := int64(math.Ceil(float64(c.Found-c.Done) / rate))
		c.Left = &left
	}
	return c
}

// scanBar is a line at the bottom of a terminal.
type scanBar struct {
	*scanMeter
	w   io.Writer
	all *mpb.Progress
	one *mpb.Bar
}

func newScanBar(w io.Writer) *scanBar {
	b := &scanBar{scanMeter: newScanMeter(), w: w, all: mpb.New(mpb.WithOutput(w), mpb.WithRefreshRate(200*time.Millisecond))}
	line := decor.Any(func(s decor.Statistics) string { return b.counts().line(s.AvailableWidth - roomForKeys) })
	b.one = b.all.MustAdd(0, nil, mpb.BarFillerTrim(), mpb.PrependDecorators(line)) // the line has the bar, since it knows what it has room for
	return b
}

// roomForKeys is what a terminal needs to show ^C, and for the cursor, in characters.
const roomForKeys = 3

func (b *scanBar) stop() {
	b.one.Abort(true)
	b.all.Wait()
	fmt.Fprint(b.w, "\r\x1b[J") // what a ^C has shifted stays otherwise
}

// scanJSON writes one line a second, and one at the end.
type scanJSON struct {
	*scanMeter
	end func()
}

func newScanJSON(w io.Writer) *scanJSON {
	s := &scanJSON{scanMeter: newScanMeter()}
	s.end = everySecond(func() {
		if b, err := json.Marshal(s.counts()); err == nil {
			fmt.Fprintf(w, "%s\n", b)
		}
	})
	return s
}

func (s *scanJSON) stop() { s.end() }

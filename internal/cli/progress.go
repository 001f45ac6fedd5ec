package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// progress is told of bytes that are done, from any goroutine.
type progress interface {
	add(n int64)
	stop()
}

// newProgress chooses how progress is shown: a bar on a terminal, lines of JSON on request, nothing otherwise.
func (c *common) newProgress(w io.Writer, kind, command string, total int64) progress {
	f, ok := w.(*os.File)
	switch {
	case kind == "json":
		return newJSONProgress(w, command, total)
	case kind == "auto" && !c.quiet && ok && term.IsTerminal(int(f.Fd())):
		b := newBar(w, command, total)
		c.ending.shows(b.all)
		return b
	}
	return silent{}
}

type silent struct{}

func (silent) add(int64) {}
func (silent) stop()     {}

// bar shows bytes, rate and time left.
type bar struct {
	w   io.Writer
	all *mpb.Progress
	one *mpb.Bar
}

func newBar(w io.Writer, command string, total int64) *bar {
	// The bar is so short that the line has room for the ^C that a terminal shows.
	all := mpb.New(mpb.WithOutput(w), mpb.WithWidth(30), mpb.WithRefreshRate(200*time.Millisecond))
	one := all.AddBar(total,
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Name(command+" "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_MMSS)))
	return &bar{w, all, one}
}

func (b *bar) add(n int64) { b.one.IncrInt64(n) }

func (b *bar) stop() {
	b.one.Abort(true)
	b.all.Wait()
	fmt.Fprint(b.w, "\r\x1b[J") // what a ^C has shifted stays otherwise
}

// jsonProgress writes one line a second.
type jsonProgress struct {
	done atomic.Int64
	end  func()
}

// progressLine is a line of --progress json.
type progressLine struct {
	Schema  string `json:"schema"`
	Event   string `json:"event"`
	Command string `json:"command"`
	Done    int64  `json:"done_bytes"`
	Total   int64  `json:"total_bytes"`
	Rate    int64  `json:"bytes_per_second"`
}

func newJSONProgress(w io.Writer, command string, total int64) *jsonProgress {
	p := &jsonProgress{}
	start := time.Now()
	p.end = everySecond(func() {
		n := p.done.Load()
		l := progressLine{"trueup/1", "progress", command, n, total, int64(float64(n) / max(time.Since(start).Seconds(), 1e-3))}
		if b, err := json.Marshal(l); err == nil {
			fmt.Fprintf(w, "%s\n", b)
		}
	})
	return p
}

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

func (p *jsonProgress) add(n int64) { p.done.Add(n) }
func (p *jsonProgress) stop()       { p.end() }

package progress

import (
	"sync"
	"time"
)

// Trial shows how long the runs of a trial boot take. How long a guest needs is not known, only when it is stopped.
type Trial struct {
	*display
	mu    sync.Mutex
	start time.Time // of the run
	now   trialCounts
}

// NewTrial begins to show the progress of a command. It returns nil if nothing is shown.
func NewTrial(o Output, command string) *Trial {
	t := &Trial{now: trialCounts{head: headOf(command)}}
	if t.display = o.show(t.counts); t.display == nil {
		return nil
	}
	return t
}

// Stop ends the display. It may be called on nil, and more than once.
func (t *Trial) Stop() {
	if t != nil && t.display != nil {
		t.display.Stop()
		t.display = nil
	}
}

// Begin ends a run and begins that of another disk. It may be called on nil.
func (t *Trial) Begin(disk string, longest time.Duration) {
	if t == nil {
		return
	}
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

// trialCounts are how long a run takes, and a line of JSON.
type trialCounts struct {
	head
	Disk    string  `json:"disk"`
	Elapsed float64 `json:"elapsed_seconds"`
	Longest float64 `json:"limit_seconds"`
}

func (c trialCounts) begun() bool { return c.Disk != "" }

// line shows the counts. Where there is little room the bar goes.
func (c trialCounts) line(width int) string {
	if !c.begun() {
		return ""
	}
	left := "boot " + c.Disk + " " + clock(int64(c.Elapsed)) + " of at most " + clock(int64(c.Longest)) + " "
	line, _ := barLine(left, []string{""}, int64(c.Elapsed), int64(c.Longest), width)
	return line
}

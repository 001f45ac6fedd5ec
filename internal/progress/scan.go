package progress

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/scan/results"
)

// Scan counts and shows the images of a scan. Its methods may be called from any goroutine.
type Scan struct {
	*display
	mu      sync.Mutex
	start   time.Time
	found   int
	walking bool
	done    *results.Summary
}

// NewScan starts to show the progress of a scan.
func NewScan(o Output) *Scan {
	s := &Scan{start: time.Now(), walking: true, done: results.NewSummary()}
	s.display = o.show(s.counts)
	return s
}

// Found adds n images to the number of found images.
func (s *Scan) Found(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found += n
}

// Walked records the end of the walk.
func (s *Scan) Walked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.walking = false
}

// Done counts a finished row.
func (s *Scan) Done(i *results.Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done.Add(i)
}

func (s *Scan) counts() counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.done
	return scanCounts{
		head: headOf(results.Command), Done: d.Images, Found: max(s.found, d.Images), Walking: s.walking,
		Aligned: d.Aligned, Below: d.Below, Misaligned: d.Misaligned, Failed: d.Failed, Orphans: d.Orphans,
		Originals: d.Originals, Nothing: d.Nothing, Packed: d.Packed,
	}.after(time.Since(s.start))
}

// scanCounts holds the progress of a scan. It is also a line of JSON.
type scanCounts struct {
	head
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
	Originals  int     `json:"originals"`
	Nothing    int     `json:"nothing_to_judge"`
	Packed     int     `json:"packed"`
}

func (c scanCounts) begun() bool { return true }

// after adds the rate, the elapsed time and the remaining time.
func (c scanCounts) after(d time.Duration) scanCounts {
	rate := perSecond(int64(c.Done), d)
	c.Rate, c.Elapsed, c.Left = tenths(rate), tenths(d.Seconds()), nil
	if !c.Walking && c.Done > 0 {
		c.Left = new(int64(math.Ceil(float64(c.Found-c.Done) / rate)))
	}
	return c
}

// line returns the counts as text. If there is little room, it omits the least important parts first: words, the number
// of aligned images, the rate.
func (c scanCounts) line(width int) string {
	more := ""
	if c.Walking {
		more = "+" // more images may be found
	}
	left, forms := fmt.Sprintf("scan %d/%d%s ", c.Done, c.Found, more), c.forms()
	line, drawn := barLine(left, forms, int64(c.Done), int64(c.Found), width)
	if short := left + forms[len(forms)-1][1:]; !drawn && len(short) <= width {
		return short
	}
	return line
}

// forms returns the counts in texts of different lengths, the longest first.
func (c scanCounts) forms() []string {
	rate, left, long := c.rate()+"/s", "", ""
	if c.Left != nil {
		left = " " + clock(*c.Left)
		long = left + " left"
	}
	bad := []string{some(c.Below, "below"), some(c.Misaligned, "off"), some(c.Failed, "error")}
	all := append([]string{some(c.Aligned, "aligned")}, bad...)
	if c.Orphans > 0 {
		all = append(all, some(c.Orphans, "orphan"))
	}
	return []string{
		" " + rate + long + ": " + strings.Join(all, ", "),
		" " + rate + left + " " + strings.Join(bad, ", "),
		left + " " + strings.Join(bad, ", "),
		fmt.Sprintf(" %d off, %d err", c.Misaligned, c.Failed),
	}
}

// some prints a number and its noun, in the plural if necessary.
func some(n int, what string) string {
	if n != 1 && (what == "error" || what == "orphan") {
		what += "s"
	}
	return strconv.Itoa(n) + " " + what
}

// rate prints images per second; a slow datastore can have less than one.
func (c scanCounts) rate() string {
	if c.Rate >= 10 {
		return strconv.FormatFloat(c.Rate, 'f', 0, 64)
	}
	return strconv.FormatFloat(c.Rate, 'f', 1, 64)
}

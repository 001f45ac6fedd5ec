package progress

import (
	"fmt"
	"math"
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
	more, left := "", ""
	if c.Walking {
		more = "+" // more images may be found
	}
	if c.Left != nil {
		left = " " + clock(*c.Left)
	}
	bad := fmt.Sprintf("%d below, %d off, %d failed", c.Below, c.Misaligned, c.Failed)
	return barLine(fmt.Sprintf("scan %d/%d%s ", c.Done, c.Found, more), []string{
		fmt.Sprintf(" %.1f/s%s: %d aligned, %s", c.Rate, left, c.Aligned, bad), left + " " + bad, "",
	}, int64(c.Done), int64(c.Found), width)
}

// This part of the package reports a trial boot: as text, as JSON and as pictures.

package trial

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"image"
	"math"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/report"
)

// Boot is the result of boot.
type Boot struct {
	report.Head
	Source      string             `json:"source"`
	Verdict     Verdict            `json:"verdict"`
	Reason      string             `json:"reason"`
	Differences []DifferenceReport `json:"differences"`
	Tolerated   []string           `json:"tolerated"`
	Moved       int                `json:"moved"` // partitions
	Machine     MachineReport      `json:"machine"`
	Before      *Run               `json:"before"` // of the source as it is
	After       *Run               `json:"after"`  // of the aligned view; nil: nothing has to move
	ExitCode    int                `json:"exit_code"`

	slow bool // the emulation was, for timers of the guest
}

// MachineReport describes the machine of both runs.
type MachineReport struct {
	Firmware string `json:"firmware"` // bios or uefi
	Bus      string `json:"bus"`
	Memory   int64  `json:"memory_bytes"`
	Seconds  int    `json:"limit_seconds"`
}

// Run is one run of the machine.
type Run struct {
	Ended    End            `json:"ended"`
	Note     string         `json:"note,omitempty"` // of QEMU
	Accel    string         `json:"accelerator"`
	Settled  bool           `json:"settled"`
	Seconds  float64        `json:"duration_seconds"`
	Screens  []ScreenReport `json:"screens"`
	LeftOut  int            `json:"screens_left_out"` // of the middle
	Serial   string         `json:"serial"`
	SerialID string         `json:"serial_sha256"`
}

// ScreenReport is a screen of a run. A hash names what it shows.
type ScreenReport struct {
	At      float64  `json:"at_seconds"`
	Kind    string   `json:"kind"` // text or picture
	Lines   []string `json:"lines,omitempty"`
	Width   int      `json:"width,omitempty"` // pixels
	Height  int      `json:"height,omitempty"`
	Picture string   `json:"picture,omitempty"` // the file of --pictures
	SHA256  string   `json:"sha256"`

	png []byte
}

// DifferenceReport is a difference between the two runs.
type DifferenceReport struct {
	Difference
	Rect  *Rect   `json:"area,omitempty"`
	Share float64 `json:"share,omitempty"` // of the pixels, 0 to 1
}

// Rect is an area of a picture, in pixels.
type Rect struct {
	X      int `json:"x"`
	Y      int `json:"y"`
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Exit codes of the verdicts.
const (
	exitSame      = 0
	exitNotJudged = 1
	exitDiffers   = 5
)

// New reports on the films of the source and of the aligned view. Without the latter nothing has to move, and nothing
// is compared. moves are the places of the partitions.
func New(
	h report.Head, source string, m MachineReport, moved int, before, after *Film, moves ...Move,
) *Boot {
	r := &Boot{
		Head: h, Source: source, Machine: m, Moved: moved, Before: newRun("source", before),
		Differences: []DifferenceReport{}, Tolerated: []string{},
	}
	if after != nil {
		r.After = newRun("aligned", after)
	}
	j := Compare(before, after, moves...)
	r.Verdict, r.Reason, r.slow = j.Verdict, j.Reason, j.Slow
	if after == nil {
		r.Reason = "nothing has to move, so the source was started once: " + j.Reason
	}
	for _, d := range j.Differences {
		r.Differences = append(r.Differences, reportDifference(d))
	}
	r.Tolerated = append(r.Tolerated, j.Tolerated...)
	switch j.Verdict {
	case Same:
		r.ExitCode = exitSame
	case Differs:
		r.ExitCode = exitDiffers
	case Neither, Unclear:
		r.ExitCode = exitNotJudged
	}
	return r
}

func newRun(name string, f *Film) *Run {
	r := &Run{
		Ended: f.Ended, Note: f.Note, Accel: f.Accel, Settled: f.Settled, Seconds: seconds(f.Took),
		Screens: []ScreenReport{},
		LeftOut: f.Dropped, Serial: strings.ToValidUTF8(f.Serial, "\uFFFD"), SerialID: sum([]byte(f.Serial)),
	}
	for n, frame := range f.Frames {
		s := ScreenReport{
			At: seconds(frame.At), Kind: "text", Lines: frame.Text,
			SHA256: sum([]byte(strings.Join(frame.Text, "\n"))),
		}
		if frame.Picture != nil {
			s.Kind, s.SHA256, s.png = "picture", sum(frame.Picture), frame.Picture
			s.Picture = fmt.Sprintf("%s-%03d.png", name, n+1)
			if size, err := Size(frame.Picture); err == nil {
				s.Width, s.Height = size.X, size.Y
			}
		}
		r.Screens = append(r.Screens, s)
	}
	return r
}

func reportDifference(d Difference) DifferenceReport {
	out := DifferenceReport{Difference: d, Share: math.Round(d.Share*1e4) / 1e4}
	if d.Area != (image.Rectangle{}) {
		out.Rect = &Rect{d.Area.Min.X, d.Area.Min.Y, d.Area.Dx(), d.Area.Dy()}
	}
	return out
}

// seconds are in tenths, as in all reports.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// Remedy returns what may let runs be judged that were not, empty if nothing is known that would.
func (r *Boot) Remedy() string {
	if r.Verdict != Unclear {
		return ""
	}
	if r.slow {
		return "try again when this machine has less to do"
	}
	remedy := "give the guest more time with --seconds N, and let its screen rest longer with --settle N"
	for _, run := range r.Runs() {
		if run.failed() {
			return ""
		}
		if run.Ended == TimeOver {
			remedy = "give the guest more time with --seconds N"
		}
	}
	return remedy
}

// Runs returns the runs that there are.
func (r *Boot) Runs() []*Run {
	if r.After == nil {
		return []*Run{r.Before}
	}
	return []*Run{r.Before, r.After}
}

// Pictures calls save with the name and the PNG of each screen in graphics.
func (r *Boot) Pictures(save func(name string, png []byte) error) error {
	for _, run := range r.Runs() {
		for _, s := range run.Screens {
			if s.png == nil {
				continue
			}
			if err := save(s.Picture, s.png); err != nil {
				return err
			}
		}
	}
	return nil
}

// Unnamed removes the names of pictures, for runs that write none.
func (r *Boot) Unnamed() {
	for _, run := range r.Runs() {
		for n := range run.Screens {
			run.Screens[n].Picture = ""
		}
	}
}

// Place prints where a difference is.
func (d DifferenceReport) Place() string {
	switch d.Where {
	case OnScreen:
		if d.Line == 0 {
			return "screen"
		}
		return fmt.Sprintf("screen, line %d, column %d", d.Line, d.Column)
	case Serial:
		return fmt.Sprintf("serial port, line %d, column %d", d.Line, d.Column)
	case Picture:
		return fmt.Sprintf("picture, %d x %d pixels at %d, %d (%s of the screen)", d.Area.Dx(), d.Area.Dy(),
			d.Area.Min.X, d.Area.Min.Y, percent(d.Share))
	case Passing:
		return "shown on the way"
	case AtEnd:
	}
	return "end of the run"
}

func percent(share float64) string {
	if share > 0 && share < 0.001 {
		return "<0.1 %"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}

// verdictTexts are the verdicts in words.
var verdictTexts = map[Verdict]string{
	Same: "Same", Differs: "Differs", Neither: "Neither boots", Unclear: "Not judged",
}

// Word returns the verdict in words.
func (r *Boot) Word() string { return verdictTexts[r.Verdict] }

package trial

import (
	"bytes"
	"fmt"
	"image/png"
	"math"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Boot is the result of the boot command.
type Boot struct {
	report.Head
	Source string `json:"source"`
	Judgement
	Moved    int           `json:"moved"` // partitions
	Machine  machineReport `json:"machine"`
	Before   *Run          `json:"before"` // of the source as it is
	After    *Run          `json:"after"`  // of the aligned view; nil if it was not started
	ExitCode int           `json:"exit_code"`
}

// machineReport describes the machine of both runs.
type machineReport struct {
	Firmware string `json:"firmware"` // bios or uefi
	Bus      string `json:"bus"`
	Memory   int64  `json:"memory_bytes"`
	Seconds  int    `json:"limit_seconds"`
}

// Run is one run of the machine.
type Run struct {
	Ended   End            `json:"ended"`
	Note    string         `json:"note,omitempty"` // from QEMU
	Accel   string         `json:"accelerator"`
	Settled bool           `json:"settled"`
	Seconds float64        `json:"duration_seconds"`
	Screens []screenReport `json:"screens"`
	LeftOut int            `json:"screens_left_out"` // dropped from the middle
	Serial  string         `json:"serial"`
}

// screenReport is a screen of a run.
type screenReport struct {
	At      float64  `json:"at_seconds"`
	Kind    string   `json:"kind"` // text or picture
	Lines   []string `json:"lines,omitempty"`
	Width   int      `json:"width,omitempty"` // pixels
	Height  int      `json:"height,omitempty"`
	Picture string   `json:"picture,omitempty"` // file name in --pictures

	png []byte
}

// newBoot returns the report on the films of the source and the aligned view. If after is nil, it compares nothing.
// moves are the places of the partitions.
func newBoot(
	h report.Head, source string, m machineReport, moved int, before, after *Film, moves ...Move,
) *Boot {
	r := &Boot{
		Head: h, Source: source, Judgement: Compare(before, after, moves...), Machine: m, Moved: moved,
		Before: newRun(before),
	}
	if after != nil {
		r.After = newRun(after)
	} else if !moot(before) {
		r.Reason = "nothing is moved, so the source was started once: " + r.Reason
	}
	r.Differences = append([]Difference{}, r.Differences...)
	for n := range r.Differences {
		r.Differences[n].Share = math.Round(r.Differences[n].Share*1e4) / 1e4
	}
	r.ExitCode = looks[r.Verdict].exit
	return r
}

func newRun(f *Film) *Run {
	r := &Run{
		Ended: f.Ended, Note: f.Note, Accel: f.Accel, Seconds: seconds(f.Took), Screens: []screenReport{},
		Settled: f.Ended == Settled || f.Ended == PoweredOff || f.Ended == Panicked,
		LeftOut: f.Dropped, Serial: strings.ToValidUTF8(f.Serial, "\uFFFD"),
	}
	for _, frame := range f.Frames {
		s := screenReport{At: seconds(frame.At), Kind: "text", Lines: frame.Text}
		if frame.Picture != nil {
			s.Kind, s.png = "picture", frame.Picture
			if head, err := png.DecodeConfig(bytes.NewReader(frame.Picture)); err == nil {
				s.Width, s.Height = head.Width, head.Height
			}
		}
		r.Screens = append(r.Screens, s)
	}
	return r
}

// seconds rounds to tenths, as all reports do.
func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }

// remedy suggests how to get a verdict for unjudged runs, or "".
func (r *Boot) remedy() string {
	if r.Verdict != Unclear {
		return ""
	}
	if r.Slow {
		return "try again when this machine is less busy"
	}
	remedy := "to give the guest more time, add --seconds N; to let its screen rest longer, add --settle N"
	for _, run := range r.runs() {
		if run.Ended.failed() {
			return ""
		}
		if run.Ended == TimeOver {
			remedy = "to give the guest more time, add --seconds N"
		}
	}
	return remedy
}

// runs returns all runs.
func (r *Boot) runs() []*Run {
	if r.After == nil {
		return []*Run{r.Before}
	}
	return []*Run{r.Before, r.After}
}

// Pictures names the graphics screens, and calls save with the name and PNG of each.
func (r *Boot) Pictures(save func(name string, png []byte) error) error {
	for i, run := range r.runs() {
		for n := range run.Screens {
			s := &run.Screens[n]
			if s.png == nil {
				continue
			}
			s.Picture = fmt.Sprintf("%s-%03d.png", []string{Source, Aligned}[i], n+1)
			if err := save(s.Picture, s.png); err != nil {
				return err
			}
		}
	}
	return nil
}

// place describes the place of a difference.
func (d Difference) place() string {
	switch d.Where {
	case OnScreen:
		if d.Line == 0 {
			return "screen"
		}
		return fmt.Sprintf("screen, line %d", d.Line)
	case Serial:
		return fmt.Sprintf("serial port, line %d", d.Line)
	case Picture:
		return fmt.Sprintf("picture, %d x %d pixels at %d, %d (%s of the screen)", d.Area.Width, d.Area.Height,
			d.Area.X, d.Area.Y, percent(d.Share))
	case Passing:
		return "shown before the end"
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

// looks maps verdicts to words, colours and exit codes.
var looks = map[Verdict]struct {
	words string
	color report.Color
	exit  int
}{
	Same: {"Same:", report.Green, 0}, Differs: {"Differs:", report.Red, report.ExitDiffers},
	Neither: {"Neither boots:", report.Yellow, 1}, Unclear: {"Not judged:", report.Yellow, 1},
}

// Limits of the text: listed differences and lines of a serial port.
const (
	maxShown  = 12
	lastLines = 12
)

// Text prints the verdict, the differences, and the last screen of each run.
func (r *Boot) Text(t *report.Text) {
	lead, look := r.Reason, looks[r.Verdict]
	if remedy := r.remedy(); remedy != "" {
		lead += "; " + remedy
	}
	t.Lead(look.color, look.words, report.SafeMessage(lead)+".")
	for n, d := range r.Differences {
		if n == maxShown {
			least := map[bool]string{true: "at least "}[len(r.Differences) == maxDifferences]
			fmt.Fprintf(t.W, "  and %s%s\n", least, units.Counted(len(r.Differences)-n, "more difference"))
			break
		}
		fmt.Fprintf(t.W, "  %s\n", d.place())
		if d.Before+d.After != "" {
			fmt.Fprintf(t.W, "    source   %s\n    aligned  %s\n", orNothing(d.Before), orNothing(d.After))
		}
	}
	for n, run := range r.runs() {
		fmt.Fprintf(t.W, "\n%s: %s.\n", []string{"Source", "Aligned view"}[n], run.facts())
		run.text(t)
	}
}

func orNothing(s string) string {
	if s == "" {
		return "(nothing)"
	}
	return report.Safe(s)
}

// facts describes the end and length of a run.
func (r *Run) facts() string {
	out := map[End]string{
		Settled: "nothing changed any more", TimeOver: "time ran out", PoweredOff: "it powered off",
		ResetLoop: "it was reset repeatedly", Panicked: "it reported a panic",
		DiskFailed: "its disk failed", DiskFull: "it filled its temporary overlay",
		Broken: "QEMU failed",
	}[r.Ended]
	out += fmt.Sprintf(" after %.1f s (%s), %s", r.Seconds, strings.ToUpper(report.Safe(r.Accel)),
		units.Counted(len(r.Screens)+r.LeftOut, "screen"))
	if r.Note != "" {
		out += ", " + report.SafeMessage(r.Note)
	}
	return out
}

// text prints the last screen and the last lines of the serial port.
func (r *Run) text(t *report.Text) {
	if len(r.Screens) > 0 {
		last := r.Screens[len(r.Screens)-1]
		switch {
		case last.Kind == "picture" && last.Picture != "":
			fmt.Fprintf(t.W, "  a screen of %d x %d pixels: %s\n", last.Width, last.Height, last.Picture)
		case last.Kind == "picture":
			fmt.Fprintf(t.W, "  a screen of %d x %d pixels; --pictures DIR shows it\n", last.Width, last.Height)
		default:
			box(t, last.Lines)
		}
	}
	if lines := serialLines(r.Serial); len(lines) > 0 {
		fmt.Fprintf(t.W, "  The serial port ends with:\n")
		box(t, lines[max(0, len(lines)-lastLines):])
	}
}

// box prints lines of a guest, each after a bar, without blank lines at both ends.
func box(t *report.Text, lines []string) {
	first, end := 0, len(lines)
	for first < end && strings.TrimSpace(lines[first]) == "" {
		first++
	}
	for end > first && strings.TrimSpace(lines[end-1]) == "" {
		end--
	}
	if first == end {
		fmt.Fprintf(t.W, "  | (empty)\n")
	}
	for _, l := range lines[first:end] {
		fmt.Fprintf(t.W, "%s\n", strings.TrimRight("  | "+report.Safe(strings.TrimRight(l, " ")), " "))
	}
}

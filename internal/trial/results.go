package trial

import (
	"bytes"
	"fmt"
	"image/png"
	"math"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/report"
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

// Result returns the report on the runs. Without a run of the aligned view, it compares nothing.
func (t *Pair) Result(h report.Head) *Boot {
	r := &Boot{
		Head: h, Source: t.Source, Judgement: Compare(&t.Before, t.After, t.moves()...), Moved: t.plan.Moved,
		Machine: machineReport{t.Machine.Firmware, t.Machine.Bus, int64(t.Machine.Memory) << 20, t.Seconds},
		Before:  newRun(&t.Before),
	}
	if t.After != nil {
		r.After = newRun(t.After)
	} else if !moot(&t.Before) {
		r.Reason = "nothing is moved, so the source was started once: " + r.Reason
	}
	r.Differences = append([]Difference{}, r.Differences...)
	for n := range r.Differences {
		r.Differences[n].Share = math.Round(r.Differences[n].Share*1e4) / 1e4
	}
	r.ExitCode = exits[r.Verdict]
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

// Remedy suggests how to get a verdict for unjudged runs, or "".
func (r *Boot) Remedy() string {
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

// Percent returns the share of differing pixels in percent.
func (d Difference) Percent() string {
	if d.Share > 0 && d.Share < 0.001 {
		return "<0.1 %"
	}
	return fmt.Sprintf("%.1f %%", 100*d.Share)
}

// exits maps verdicts to exit codes.
var exits = map[Verdict]int{Same: 0, Differs: report.ExitDiffers, Neither: 1, Unclear: 1}

// lastLines limits the lines of a serial port in the text.
const lastLines = 12

// Text prints the verdict, the differences, and the last screen of each run.
func (r *Boot) Text(t *report.Text) { t.Say("boot", r) }

// Shown returns the lines of a screen for the text.
func (s screenReport) Shown() []string { return boxed(s.Lines) }

// Said returns the last lines of the serial port for the text, or nil without any.
func (r *Run) Said() []string {
	lines := serialLines(r.Serial)
	if len(lines) == 0 {
		return nil
	}
	return boxed(lines[max(0, len(lines)-lastLines):])
}

// boxed returns lines of a guest, each behind a bar, without blank lines at both ends.
func boxed(lines []string) (out []string) {
	first, end := 0, len(lines)
	for first < end && strings.TrimSpace(lines[first]) == "" {
		first++
	}
	for end > first && strings.TrimSpace(lines[end-1]) == "" {
		end--
	}
	if first == end {
		return []string{"| (empty)"}
	}
	for _, l := range lines[first:end] {
		out = append(out, strings.TrimRight("| "+report.Safe(strings.TrimRight(l, " ")), " "))
	}
	return out
}

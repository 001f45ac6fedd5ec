package trial

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// maxShown bounds the differences that a text lists, and the lines of a serial port.
const (
	maxShown  = 12
	maxSerial = 12
)

// Text prints the verdict, the differences, and the last screen of each run.
func (r *Boot) Text(t *report.Text) {
	colour := map[Verdict]text.Color{Same: text.FgGreen, Differs: text.FgRed}[r.Verdict]
	if colour == 0 {
		colour = text.FgYellow
	}
	remedy := r.Remedy()
	lead := r.Reason
	if remedy != "" {
		lead += "; " + remedy
	}
	t.Lead(colour, r.Word()+":", report.SafeMessage(lead)+".")
	for n, d := range r.Differences {
		if n == maxShown {
			least := map[bool]string{true: "at least "}[len(r.Differences) == MaxDifferences]
			fmt.Fprintf(t.W, "  and %s%s\n", least, units.Counted(len(r.Differences)-n, "more difference"))
			break
		}
		fmt.Fprintf(t.W, "  %s\n", d.Place())
		if d.Before+d.After != "" {
			fmt.Fprintf(t.W, "    source   %s\n    aligned  %s\n", orNothing(d.Before), orNothing(d.After))
		}
	}
	for n, run := range r.Runs() {
		fmt.Fprintf(t.W, "\n%s: %s.\n", []string{"Source", "Aligned view"}[n], run.facts())
		run.text(t)
	}
}

// failed reports whether a run ended with a failure of its machine, which more time does not mend.
func (r *Run) failed() bool {
	return r.Ended == Broken || r.Ended == DiskFailed || r.Ended == DiskFull
}

func orNothing(s string) string {
	if s == "" {
		return "(nothing there)"
	}
	return report.Safe(s)
}

// facts returns how a run went.
func (r *Run) facts() string {
	if r.Ended == LeftOut {
		return "it was left out, since the run on the source judges nothing"
	}
	out := map[End]string{
		Settled: "nothing changed any more", TimeOver: "time was over", PoweredOff: "it powered off",
		ResetLoop: "it was reset again and again", Panicked: "it reported a panic",
		DiskFailed: "its disk failed", DiskFull: "it wrote more than its overlay may hold",
		Broken: "QEMU failed",
	}[r.Ended]
	out += fmt.Sprintf(" after %.1f s (%s), %s", r.Seconds, strings.ToUpper(report.Safe(r.Accel)),
		units.Counted(len(r.Screens)+r.LeftOut, "screen"))
	if r.Note != "" {
		out += ", " + report.SafeMessage(r.Note)
	}
	return out
}

// text prints the last screen, and the last lines of the serial port.
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
	if lines := SerialLines(r.Serial); len(lines) > 0 {
		fmt.Fprintf(t.W, "  The serial port ends with:\n")
		box(t, lines[max(0, len(lines)-maxSerial):])
	}
}

// box prints lines that came from a guest, each behind a bar. Blank ones at both ends are left out.
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

package trial

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/ondisk"
)

// line is one line of a screen or of the serial port.
type line struct {
	at    int    // from 0: row of the screen, or number in the text of the serial port
	shown string // as it was
	norm  string // without what differs from run to run
}

// maxSerialLine bounds a line of the serial port, in bytes.
const maxSerialLine = 1024

// variable are parts of a line that differ between two runs of one guest. The words around them stay.
var variable = []struct {
	find func() *regexp.Regexp
	put  string
}{
	{ondisk.LazyPattern(`\[[ \d]{1,8}\.\d{3,9}\]`), "[time]"}, // of the kernel log
	{ondisk.LazyPattern(`\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?\b`), "date"},
	{ondisk.LazyPattern(`\b([A-Z][a-z]{2},? )?[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\b`), "date"},
	{ondisk.LazyPattern(`\b\d{1,2}:\d\d:\d\d([.,]\d+)?\b`), "time"},
	{ondisk.LazyPattern(`\b\d{1,2}:\d\d ?([ap]m?|[AP]M)\b`), "time"},
	// Countdowns of menus and durations.
	{ondisk.LazyPattern(`\b\d+(\.\d+)? ?([num]?s|[mu]?secs?|seconds?|min|minutes?)\b`), "duration"},
	{ondisk.LazyPattern(`automatically: *\d+`), "automatically: duration"},
	{ondisk.LazyPattern(`\b\d+(\.\d+)? ?(MHz|GHz|BogoMIPS)\b|\(lpj=\d+\)|\b\d+(\.\d+)? [KMG]?i?B/s`), "speed"},
	{ondisk.LazyPattern(`\b\d{1,3}(\.\d+)? ?%`), "share"},
	// Process numbers, addresses and identifiers that are random.
	{ondisk.LazyPattern(`\[\d{1,7}\]:`), "[pid]:"},
	{ondisk.LazyPattern(`\b0x[0-9a-f]{8,16}\b|\b[0-9a-f]{16,128}\b|\bSHA256:\S+`), "id"},
	// An aligned copy can be larger than its source.
	{ondisk.LazyPattern(`\b\d+ (512|4096)-byte (logical|physical) blocks.*`), "blocks"},
	{ondisk.LazyPattern(`\b\d+ sectors\b|capacity change from \d+ to \d+`), "sectors"},
	// Spinners and rows of dots.
	{ondisk.LazyPattern(`(^| )[|/\\-]$`), ""},
	{ondisk.LazyPattern(`\[[ *]{3,8}\]`), "[busy]"},
	{ondisk.LazyPattern(`\.{4,}`), "..."},
}

// chatter matches lines of a kernel log that may stand at any place of it, or be missing.
var chatter = ondisk.LazyPattern(`^\[time\] (random: |clocksource: |tsc: |TSC found unstable |rcu: |hrtimer: |perf: ` +
	`interrupt took|sched_clock: |input: |kworker|audit: |systemd\[pid\]: |Freeing |e1000|usb \S+ ` +
	`(new|New|Product|Manufacturer|SerialNumber)|` +
	// Timers of a slow machine. Source: Linux arch/x86/kernel/apic/io_apic.c, check_timer; apic.c.
	`\.\.MP-BIOS bug: |\.\.\.(trying to set up timer| \(found apic | works\.$)|APIC (calibration|delta) )`)

// trouble matches messages of systemd that say what did not work. The kernel's own on its timers may say that, too.
var trouble = ondisk.LazyPattern(`(?i)^\[time\] systemd\[pid\]: .*\b(fail(ed|ure)?|cannot|timed out|dependency ` +
	`failed|not found)\b`)

// mayMiss reports whether a line may stand at any place of a log, or be missing.
func mayMiss(norm string) bool { return chatter().MatchString(norm) && !trouble().MatchString(norm) }

// normal returns a line without what differs from run to run.
func normal(s string) string {
	s = strings.TrimSpace(s)
	if !strings.ContainsFunc(s, func(r rune) bool { return unicode.IsDigit(r) || strings.ContainsRune(`|/\-.*`, r) }) {
		return s
	}
	for _, v := range variable {
		s = v.find().ReplaceAllString(s, v.put)
	}
	return strings.Join(strings.Fields(s), " ")
}

// whole returns the rows of a text screen with those joined that the terminal wrapped: the first fills its row. Rows
// that are continued stay in their places, and what continues them leaves its own empty. A row of a kernel log begins a
// line.
func whole(rows []string) []string {
	width := 80
	if slices.ContainsFunc(rows, func(row string) bool { return utf8.RuneCountInString(row) > width }) {
		width = MaxColumns
	}
	return joined(rows, width)
}

// joined returns the rows of a screen of that width as whole does. The last column of a row of a kernel log can hold
// the blank between two words.
func joined(rows []string, width int) []string {
	out := slices.Clone(rows)
	for n, first := 1, 0; n < len(rows); n++ {
		missing := width - utf8.RuneCountInString(rows[n-1])
		full := missing <= 0 || missing == 1 && rows[n] != "" && logTime().MatchString(rows[first])
		if !full || logTime().MatchString(rows[n]) {
			first = n
			continue
		}
		out[first] += strings.Repeat(" ", max(missing, 0)) + rows[n]
		out[n] = ""
	}
	return out
}

// lines returns those of a text that show something of a guest, without those of firmware.
func lines(text []string) []line {
	out := make([]line, 0, len(text))
	for n, s := range text {
		shown := strings.TrimRight(s, " \x00")
		if norm := normal(shown); norm != "" && !firmware().MatchString(norm) {
			out = append(out, line{n, shown, norm})
		}
	}
	return out
}

// control matches what places and paints a text on a terminal. What moves the cursor begins a line.
var control = ondisk.LazyPattern(`\x1b\[[0-9;?=]*([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78cM]`)

// SerialLines divides the text of a serial port into lines as a terminal shows them.
func SerialLines(s string) []string {
	s = control().ReplaceAllStringFunc(s, func(c string) string {
		if strings.ContainsAny(c[len(c)-1:], "HfJ") {
			return "\n"
		}
		return ""
	})
	var out []string
	for l := range strings.SplitSeq(s, "\n") {
		l = strings.TrimRight(l, "\r")
		l = l[strings.LastIndexByte(l, '\r')+1:] // the line was written once more
		if len(l) > maxSerialLine {
			l = l[:maxSerialLine]
		}
		l = strings.Map(func(r rune) rune {
			if r == utf8.RuneError || unicode.IsControl(r) {
				return ' '
			}
			return r
		}, l)
		if l = strings.TrimRight(l, " "); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// pool is the set of all lines that a run has shown.
type pool map[string]bool

func (p pool) add(all []line) {
	for _, l := range all {
		p[l.norm] = true
	}
}

// unknown returns the lines that are not in the pool, without those that may stand anywhere.
func (p pool) unknown(all []line, moves Moves) []line {
	return slices.DeleteFunc(slices.Clone(all), func(l line) bool {
		return p[l.norm] || mayMiss(l.norm) || p.hasMoved(l.norm, moves)
	})
}

// last returns the lowest line that is not chatter.
func last(all []line) (line, bool) {
	for _, l := range slices.Backward(all) {
		if !mayMiss(l.norm) {
			return l, true
		}
	}
	return line{}, false
}

// has reports whether a line with this text is among all.
func has(all []line, norm string, moves Moves) bool {
	return slices.ContainsFunc(all, func(l line) bool { return l.norm == norm || moves.sameButMoved(norm, l.norm) })
}

// differing returns where the final lines of two runs differ. Each line must have been shown by the other run at some
// time, since screens scroll at different moments; the last one, where the cursor stands, must be among its final
// lines.
func differing(
	where Place, before, after []line, seenBefore, seenAfter pool, moves Moves,
) []Difference {
	gone, come := seenAfter.unknown(before, moves), seenBefore.unknown(after, moves)
	if len(gone)+len(come) == 0 {
		b, hasB := last(before)
		a, hasA := last(after)
		if hasB && !has(after, b.norm, moves) {
			gone = append(gone, b)
		}
		if hasA && !has(before, a.norm, moves) {
			come = append(come, a)
		}
	}
	var out []Difference
	for len(gone)+len(come) > 0 {
		switch {
		case len(come) == 0 || len(gone) > 0 && gone[0].at < come[0].at:
			out, gone = append(out, newDifference(where, gone[0], line{at: gone[0].at})), gone[1:]
		case len(gone) == 0 || come[0].at < gone[0].at:
			out, come = append(out, newDifference(where, line{at: come[0].at}, come[0])), come[1:]
		default:
			out, gone, come = append(out, newDifference(where, gone[0], come[0])), gone[1:], come[1:]
		}
	}
	return out
}

// logTime matches the time in front of a line of a kernel log.
var logTime = ondisk.LazyPattern(`^\[[ \d]+\.\d+\]`)

// newDifference returns that between two lines of one place, counted from 1. Times in front of them do not count.
func newDifference(where Place, before, after line) Difference {
	b, a := logTime().ReplaceAllString(before.shown, ""), logTime().ReplaceAllString(after.shown, "")
	column := len(after.shown) - len(a) + 1
	if len(b) == len(before.shown) || len(a) == len(after.shown) {
		b, a, column = before.shown, after.shown, 1
	}
	was, now := []rune(b), []rune(a)
	for n := 0; n < min(len(was), len(now)) && was[n] == now[n]; n++ {
		column++
	}
	return Difference{
		Where: where, Line: max(after.at, before.at) + 1, Column: column, Before: before.shown, After: after.shown,
	}
}

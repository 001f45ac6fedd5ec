package trial

import (
	"fmt"
	"image"
	"maps"
	"slices"
	"strings"
	"time"
)

// Verdict is the result of comparing two runs.
type Verdict string

// Verdicts. Only Same and Differs judge the guest.
const (
	Same    Verdict = "same"    // both runs have the same end, and it is no known failure
	Differs Verdict = "differs" // the runs have different ends
	Neither Verdict = "neither" // neither run booted a guest
	Unclear Verdict = "unclear" // the runs timed out or the machine failed before a comparison was possible
)

// Place is the kind of evidence for a difference.
type Place string

// Places of differences.
const (
	AtEnd    Place = "end"     // the end of the run
	OnScreen Place = "screen"  // a line of text
	Picture  Place = "picture" // an area of a screen in graphics
	Serial   Place = "serial"  // a line of the serial port
	Passing  Place = "passing" // a failure that only one run showed before its end
)

// Difference is one difference between two runs.
type Difference struct {
	Where  Place   `json:"where"`
	Line   int     `json:"line,omitempty"` // of a text, from 1
	Before string  `json:"before"`         // empty if that run has nothing there
	After  string  `json:"after"`
	Area   *Area   `json:"area,omitempty"`  // of an image
	Share  float64 `json:"share,omitempty"` // differing pixels of the image, 0 to 1
}

// Area is a part of an image, in pixels.
type Area struct {
	X      int `json:"x"`
	Y      int `json:"y"`
	Width  int `json:"width"`
	Height int `json:"height"`
}

// maxDifferences limits the list of differences.
const maxDifferences = 40

// Judgement is the verdict on two runs with its reason in one sentence.
type Judgement struct {
	Verdict     Verdict      `json:"verdict"`
	Reason      string       `json:"reason"`
	Differences []Difference `json:"differences"`
	Slow        bool         `json:"-"` // emulation was too slow for guest timers
}

// Compare compares a run on the source with a run on the aligned view. If after is nil, it judges the source run alone.
// moves are the places of partitions in both, because guests print them.
func Compare(before, after *Film, moves ...Move) Judgement {
	glyphs := alphabet{}
	b := newSide(before, glyphs, &side{}, nil)
	a := b
	if after != nil {
		a = newSide(after, glyphs, b, moves)
	}
	if j, broken := machineFailed(b, a); broken {
		return j
	}
	var j Judgement
	j.Differences = ends(b, a)
	j.Differences = append(j.Differences, screens(b, a)...)
	j.Differences = append(j.Differences, differing(Serial, b.tail, a.tail, b.said, a.said)...)
	j.Differences = append(j.Differences, passing(b, a)...)
	if len(j.Differences) > 0 {
		j.Verdict, j.Reason = different(b, a, j.Differences)
	} else {
		j.Verdict, j.Reason = alike(b, a)
	}
	j.Differences = j.Differences[:min(len(j.Differences), maxDifferences)]
	return j
}

// moot reports whether the source run makes a second run useless, because its machine failed.
func moot(before *Film) bool {
	s := newSide(before, alphabet{}, &side{}, nil)
	_, failed := machineFailed(s, s)
	return failed
}

// machineFailed returns an Unclear judgement if a machine failed or its emulation was too slow.
func machineFailed(b, a *side) (Judgement, bool) {
	for _, s := range []struct {
		run string
		*side
	}{{"source", b}, {"aligned view", a}} {
		if s.slow != "" {
			reason := fmt.Sprintf("emulation was too slow for the guest's timers in the run of the %s: %s", s.run,
				quoted(s.slow))
			return Judgement{Verdict: Unclear, Reason: reason, Slow: true}, true
		}
		if s.film.Ended.failed() {
			reason := fmt.Sprintf("the virtual machine of the %s failed (%s)", s.run,
				s.film.Ended.words())
			if s.film.Note != "" {
				reason += ": " + s.film.Note
			}
			return Judgement{Verdict: Unclear, Reason: reason}, true
		}
	}
	return Judgement{}, false
}

// running reports whether the machine was still running at the end of a film.
func running(f *Film) bool { return f.Ended == Settled || f.Ended == TimeOver }

// ends returns the difference in how two runs ended. A timeout alone is no difference.
func ends(b, a *side) []Difference {
	if b.film.Ended == a.film.Ended || running(b.film) && running(a.film) {
		return nil
	}
	return []Difference{{Where: AtEnd, Before: string(b.film.Ended), After: string(a.film.Ended)}}
}

// passing returns the failures that only one run showed before its end.
func passing(b, a *side) (out []Difference) {
	for _, text := range slices.Sorted(maps.Keys(b.failures)) {
		if !a.failures[text] && !b.ended(text) {
			out = append(out, Difference{Where: Passing, Before: text})
		}
	}
	for _, text := range slices.Sorted(maps.Keys(a.failures)) {
		if !b.failures[text] && !a.ended(text) {
			out = append(out, Difference{Where: Passing, After: text})
		}
	}
	return out
}

// ended reports whether a failure is among the final lines.
func (s *side) ended(text string) bool {
	return slices.ContainsFunc(slices.Concat(s.final, s.tail),
		func(l line) bool { return strings.Contains(l.norm, text) })
}

// outOfTime describes a timeout before both runs ended, with their last states.
func outOfTime(b, a *side) string {
	switch {
	case a == b:
		return "time ran out before it settled: it was at " + b.endState()
	case b.endState() == a.endState():
		return "time ran out before both runs settled: they were at " + b.endState()
	}
	return fmt.Sprintf("time ran out before both runs settled: the source was at %s, the aligned view at %s",
		b.endState(), a.endState())
}

// different returns Differs for runs with differences, unless one may only have been slower.
func different(b, a *side, all []Difference) (Verdict, string) {
	bFails, aFails := b.stopped(), a.stopped()
	switch {
	case !b.steady || !a.steady:
		return Unclear, outOfTime(b, a)
	case aFails != nil && bFails == nil:
		return Differs, fmt.Sprintf("the source boots to %s, but the aligned view stops: %s", b.endState(),
			aFails.shown)
	case bFails != nil && aFails == nil:
		return Differs, fmt.Sprintf("the source stops: %s; the aligned view continues to %s", bFails.shown,
			a.endState())
	case bFails != nil && stoppedAlike(b, a):
		return alike(b, a)
	case bFails != nil:
		return Differs, fmt.Sprintf("the source stops: %s; the aligned view stops: %s", bFails.shown, aFails.shown)
	}
	switch {
	case a.partOf(b):
		return Unclear, fmt.Sprintf("the aligned view stopped at %s, but the source continued to %s: the aligned "+
			"view needs more time, or hangs there", a.endState(), b.endState())
	case b.partOf(a):
		return Unclear, fmt.Sprintf("the source stopped at %s, but the aligned view continued to %s: the source "+
			"needs more time, or hangs there", b.endState(), a.endState())
	}
	reason := fmt.Sprintf("the source reaches %s, the aligned view %s", b.endState(), a.endState())
	if b.endState() == a.endState() {
		reason = "both runs reach " + a.endState() + ", but differ before it"
	}
	if d := all[0]; d.Where == Picture && d.Share < 1 {
		reason = fmt.Sprintf("%.1f %% of the pixels of the last screens differ, in areas too large for a "+
			"clock or a cursor",
			100*d.Share)
	}
	if all[0].Where == AtEnd {
		reason = fmt.Sprintf("the run of the source ended with %q, the run of the aligned view with %q", all[0].Before,
			all[0].After)
	}
	return Differs, reason
}

// stoppedAlike reports whether two runs with a failure ended with it. A failure is not the end of a run that continued.
func stoppedAlike(b, a *side) bool {
	bFails, aFails := b.stopped(), a.stopped()
	if bFails.norm != aFails.norm || bFails.norm == "" || !maps.Equal(b.failures, a.failures) {
		return bFails.norm == "" && b.film.Ended == a.film.Ended
	}
	unread := b.picture != nil && len(b.final) == 0 || a.picture != nil && len(a.final) == 0
	return (unread || alikeLast(b.final, a.final)) && alikeLast(b.tail, a.tail)
}

// alikeLast reports whether the last lines are the same, or both failures.
func alikeLast(before, after []line) bool {
	b, _ := last(before)
	a, _ := last(after)
	bFails, _ := failure(b.norm)
	aFails, _ := failure(a.norm)
	return endAlike(before, after) || bFails != "" && aFails != ""
}

// alike returns Same for runs without a difference, unless their end proves nothing about a guest. A single run counts
// as both.
func alike(b, a *side) (Verdict, string) {
	words := func(two, one string) string {
		if a == b {
			return one
		}
		return two
	}
	stop, steady, evidence := b.stopped(), b.steady && a.steady, b.evidence && a.evidence
	switch {
	case evidence && !steady:
		return Unclear, outOfTime(b, a)
	case stop != nil && stop.guest:
		return Neither, words("both runs stop with the same failure, so nothing was judged: ",
			"it stops with a failure: ") + stop.shown
	case stop != nil:
		return Neither, words("no system was found in either run: ", "no system was found: ") + stop.shown
	case !evidence:
		if b.cleared() || a.cleared() {
			return Unclear, words("both runs end", "it ends") + " with an empty screen after others"
		}
		if steady {
			return Neither, words("neither run showed anything", "it showed nothing") +
				" but output of the firmware"
		}
		return Unclear, "time ran out before " + words("either run", "it") + " showed anything of a guest"
	case b.onTheWay() || a.onTheWay():
		return Unclear, words("both runs stopped at ", "it stopped at ") + b.endState() +
			", which is not the end of a boot"
	}
	return Same, words("both runs reach ", "it reaches ") + a.endState()
}

// cleared reports whether a run ended with an empty screen after it showed more than firmware: text, or graphics that
// do not exist in text mode.
func (s *side) cleared() bool {
	drawn := func(f Frame) bool {
		p, err := decode(f.Picture)
		return err == nil && !plain(p)
	}
	return len(s.final) == 0 && s.picture == nil && (len(s.seen) > 0 || slices.ContainsFunc(s.film.Frames, drawn))
}

// painted reports whether the run showed an image close to p.
func (s *side) painted(p *image.RGBA) bool {
	return slices.ContainsFunc(s.film.Frames, func(f Frame) bool {
		q, err := decode(f.Picture)
		return err == nil && sameScreen(p, q)
	})
}

// quiet is the time without changes on screen and serial port that counts as an end. It is guest CPU time, because on a
// busy host a booting guest shows nothing for long. If the screen still changed at the timeout (a countdown, the bar of
// a logo), two unfinished boots look alike.
const quiet = 8 * time.Second

// partOf reports whether a run showed only output that the other run also showed, and has a different end: it hangs on
// the same way, or is only slower.
func (s *side) partOf(other *side) bool {
	if !running(s.film) || s.picture != nil && !other.painted(s.picture) {
		return false
	}
	for _, all := range []struct{ own, others pool }{{s.seen, other.seen}, {s.said, other.said}} {
		for text := range all.own {
			if !all.others[text] && !mayMiss(text) {
				return false
			}
		}
	}
	return (!endAlike(s.final, other.final) || !endAlike(s.tail, other.tail)) && !s.stuck(other)
}

// ample is the factor by which a stuck run must have rested longer than the other run needed to continue.
const ample = 3

// stuck reports whether a settled run had ample time to continue from its last screen as the other run did: it hangs
// there. Serial lines have no times, so with serial output the whole boot of the other run counts.
func (s *side) stuck(other *side) bool {
	if len(other.film.Frames) == 0 {
		return false
	}
	if len(s.tail)+len(other.tail) > 0 {
		return s.rest > 0 && s.rest >= ample*other.film.Heard
	}
	frames := other.film.Frames
	from := 0
	for i, f := range frames[:len(frames)-1] {
		if f.Picture == nil && s.picture == nil && endAlike(lines(whole(f.Text)), s.final) {
			from = i
		}
	}
	gone := frames[min(from+1, len(frames)-1)].At - frames[from].At
	if s.picture != nil { // the matching screens of the other run are unknown
		gone = frames[len(frames)-1].At
	}
	var since time.Duration
	if last, ok := s.film.Last(); ok {
		since = last.At
	}
	return s.film.Took-since >= ample*gone
}

// endAlike reports whether the last lines are the same.
func endAlike(x, y []line) bool {
	a, hasA := last(x)
	b, hasB := last(y)
	return hasA == hasB && a.norm == b.norm
}

// stop is the failure at the end of a run.
type stop struct {
	shown, norm string
	guest       bool // a loader or system was found and failed
}

// stopped returns the failure at the end of a run, or nil.
func (s *side) stopped() *stop {
	switch s.film.Ended {
	case ResetLoop:
		return &stop{"the machine resets repeatedly", "", true}
	case Panicked:
		return &stop{"the guest reports a panic", "", true}
	default:
	}
	for _, all := range [][]line{s.final, s.tail} {
		for _, l := range all {
			if known, guest := failure(l.norm); known != "" {
				return &stop{quoted(l.shown), l.norm, guest}
			}
		}
	}
	return nil
}

// onTheWay reports whether a run ended at a line of an unfinished boot, without later serial output.
func (s *side) onTheWay() bool {
	screen, hasScreen := last(s.final)
	serial, hasSerial := last(s.tail)
	switch {
	case !running(s.film):
		return false
	case hasSerial && hasScreen:
		return stays(serial.norm) && stays(screen.norm)
	case hasSerial:
		return stays(serial.norm) && s.picture == nil
	case hasScreen:
		return stays(screen.norm)
	}
	return false
}

// endState describes the last state of a run.
func (s *side) endState() string {
	if l, ok := last(s.final); ok && readable(l.shown) {
		return "the line " + quoted(l.shown)
	}
	if s.picture != nil {
		size := s.picture.Bounds().Size()
		return fmt.Sprintf("a screen of %d x %d pixels", size.X, size.Y)
	}
	if l, ok := last(s.tail); ok {
		return "the line " + quoted(l.shown) + " on the serial port"
	}
	return "an empty screen"
}

// maxQuoted limits a quoted line, in characters: wrapped rows count as one line.
const maxQuoted = 160

// quoted returns a line in quotation marks.
func quoted(s string) string {
	if all := []rune(strings.TrimSpace(s)); len(all) > maxQuoted {
		return `"` + string(all[:maxQuoted]) + `…"`
	}
	return `"` + strings.TrimSpace(s) + `"`
}

// side is one run, prepared for comparison.
type side struct {
	film     *Film
	final    []line // of the last screen, if it is text
	seen     pool   // lines of all screens
	tail     []line // last lines of the serial port
	said     pool   // all serial lines
	picture  *image.RGBA
	failures map[string]bool // shown at any time
	rest     time.Duration   // guest CPU time since the last change on screen or serial port
	steady   bool            // it settled, rested long enough, or ended by itself
	slow     string          // the failure line of a too slow emulation
	evidence bool            // output beyond firmware was shown
}

// Limits of the comparison.
const (
	tailLines = 24 // of the serial port: one screen
	maxRead   = 32 // images with recognized text
)

// newSide prepares a film. Lines that differ from source lines only in the places of moved partitions become the source
// lines.
func newSide(f *Film, glyphs alphabet, source *side, moves Moves) *side {
	s := &side{film: f, seen: pool{}, said: pool{}, failures: map[string]bool{}}
	read := func(text []string, to pool, undo func([]line) []line) []line {
		all := undo(lines(text))
		to.add(all)
		return all
	}
	serial := read(serialLines(f.Serial), s.said, moves.undo(source.said))
	s.tail = serial[max(0, len(serial)-tailLines):]
	at, onScreen := s.lastFrame(), moves.undo(source.seen)
	for n, frame := range f.Frames {
		all := read(whole(frame.Text), s.seen, onScreen)
		s.note(all)
		if n == at {
			s.final = all
		}
	}
	s.note(serial)
	if at >= 0 {
		s.addPictures(at, func(p *image.RGBA) []line { return read(glyphs.read(p), s.seen, onScreen) })
		s.rest = f.Work - max(f.Frames[at].Work, f.Heard)
	}
	s.steady = f.Ended != TimeOver || s.rest >= quiet
	s.evidence = len(s.tail) > 0 || s.picture == nil && len(s.final) > 0 || s.picture != nil && !s.firmwareOnly(at)
	return s
}

// note records the failures among lines.
func (s *side) note(all []line) {
	for _, l := range all {
		if text, _ := failure(l.norm); text != "" {
			s.failures[text] = true
		}
		if s.film.Accel == "tcg" && strings.Contains(l.norm, tooSlow) {
			s.slow = l.shown
		}
	}
}

// lastFrame returns the index of the last screen, or -1 without any. It skips an empty screen if the machine went off,
// because the guest may have cleared it.
func (s *side) lastFrame() int {
	at := len(s.film.Frames) - 1
	for !running(s.film) && at > 0 && len(lines(s.film.Frames[at].Text)) == 0 && s.film.Frames[at].Picture == nil {
		at--
	}
	return at
}

// addPictures reads the text of the graphics screens at the end of a film. A screen of a single colour does not count.
func (s *side) addPictures(at int, read func(p *image.RGBA) []line) {
	for n := at; n >= 0 && at-n < maxRead && s.film.Frames[n].Picture != nil; n-- {
		p, err := decode(s.film.Frames[n].Picture)
		if err != nil || n == at && plain(p) {
			break // an undecodable image is no evidence
		}
		text := read(p)
		if n == at {
			s.picture, s.final = p, text
			s.note(text)
		}
	}
}

// firmwareOnly reports whether the image was there from the first screen on and so may belong to the firmware.
func (s *side) firmwareOnly(at int) bool {
	for n := range at {
		frame := s.film.Frames[n]
		if strings.TrimSpace(strings.Join(frame.Text, "")) != "" {
			return false // a BIOS shows text
		}
		if frame.Picture == nil {
			continue
		}
		if p, err := decode(frame.Picture); err == nil && !plain(p) {
			return sameScreen(p, s.picture)
		}
	}
	return true
}

// mute reports whether a run showed nothing at all. All firmware shows something.
func mute(f *Film) bool {
	return f.Serial == "" && !slices.ContainsFunc(f.Frames[:min(len(f.Frames), maxRead)], func(x Frame) bool {
		if x.Picture == nil {
			return strings.TrimSpace(strings.Join(x.Text, "")) != ""
		}
		p, err := decode(x.Picture)
		return err == nil && !plain(p)
	})
}

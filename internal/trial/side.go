package trial

import (
	"image"
	"slices"
	"strings"
	"time"
)

// side is one run, prepared for a comparison.
type side struct {
	film     *Film
	final    []line // of the last screen, if that is text
	seen     pool   // lines of all screens
	tail     []line // the last of the serial port
	said     pool   // all of the serial port
	picture  *image.NRGBA
	phases   []*image.NRGBA  // the last screens in graphics, the very last first
	failures map[string]bool // that it showed at any time
	rest     time.Duration   // of the processor, for which screen and serial port were as they are in the end
	steady   bool            // it settled, rested so long that it has, or ended by itself
	slow     string          // a failure of a machine that is emulated too slowly
	evidence bool            // something was shown that is not the firmware's
}

// Bounds of what is compared.
const (
	tailLines = 24 // of the serial port: a screen
	maxPhases = 12 // of a screen in graphics
	maxRead   = 32 // pictures of which the text is read
)

func newSide(f *Film, glyphs alphabet) *side {
	s := &side{film: f, seen: pool{}, said: pool{}, failures: map[string]bool{}}
	serial := lines(SerialLines(f.Serial))
	s.said.add(serial)
	s.tail = serial[max(0, len(serial)-tailLines):]
	for _, frame := range f.Frames {
		all := lines(whole(frame.Text))
		s.seen.add(all)
		s.note(all)
	}
	s.note(serial)
	at := s.lastFrame()
	if at >= 0 {
		s.final = lines(whole(f.Frames[at].Text))
		s.addPictures(at, glyphs)
		s.rest = f.Work - max(s.stood(at), f.Heard)
	}
	s.steady = f.Settled || !running(f) || s.rest >= quiet
	s.evidence = len(s.tail) > 0 || s.picture == nil && len(s.final) > 0 || s.picture != nil && !s.firmwareOnly(at)
	return s
}

// note remembers the failures among lines.
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

// lastFrame returns the index of the screen that a run came to, -1 if it showed none. A machine that went off may have
// cleared its screen before.
func (s *side) lastFrame() int {
	at := len(s.film.Frames) - 1
	for !running(s.film) && at > 0 && len(lines(s.film.Frames[at].Text)) == 0 && s.film.Frames[at].Picture == nil {
		at--
	}
	return at
}

// addPictures decodes the screens in graphics at the end of a film. A screen of a single colour does not count.
func (s *side) addPictures(at int, glyphs alphabet) {
	if s.film.Frames[at].Picture == nil {
		return
	}
	for n := at; n >= 0 && at-n < maxRead && s.film.Frames[n].Picture != nil; n-- {
		if at-n >= maxPhases && len(s.final) == 0 {
			break // no text
		}
		p, err := Decode(s.film.Frames[n].Picture)
		if err != nil || n == at && plain(p) {
			break // what cannot be decoded is no evidence
		}
		if at-n < maxPhases {
			s.phases = append(s.phases, p)
		}
		text := lines(glyphs.read(p))
		s.seen.add(text)
		if n == at {
			s.picture, s.final = p, text
			s.note(text)
		}
	}
}

// stood returns the time of the processor since when the screen of a film was as in the end, apart from what is
// tolerated.
func (s *side) stood(at int) time.Duration {
	since := s.film.Frames[at].Work
	for n := at - 1; n >= 0; n-- {
		frame := s.film.Frames[n]
		switch {
		case s.picture != nil && at-n < len(s.phases) && near(s.phases[at-n], s.picture, nil, clockAndCursor):
		case s.picture == nil && frame.Picture == nil && slices.EqualFunc(lines(whole(frame.Text)), s.final,
			func(x, y line) bool { return x.norm == y.norm }):
		default:
			return since
		}
		since = frame.Work
	}
	return since
}

// firmwareOnly reports whether the picture was there from the first screen on: then it may be the firmware's own.
func (s *side) firmwareOnly(at int) bool {
	for n := range at {
		frame := s.film.Frames[n]
		if strings.TrimSpace(strings.Join(frame.Text, "")) != "" {
			return false // a BIOS, which shows text
		}
		if frame.Picture == nil {
			continue
		}
		if p, err := Decode(frame.Picture); err == nil && !plain(p) {
			return near(p, s.picture, nil, clockAndCursor)
		}
	}
	return true
}

// Mute reports whether a run has shown nothing at all, not even what firmware shows.
func Mute(f *Film) bool {
	return f.Serial == "" && !slices.ContainsFunc(f.Frames[:min(len(f.Frames), maxRead)], func(x Frame) bool {
		if x.Picture == nil {
			return strings.TrimSpace(strings.Join(x.Text, "")) != ""
		}
		p, err := Decode(x.Picture)
		return err == nil && !plain(p)
	})
}

package results

import (
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/report"
)

// guest returns how the machine of an image was left: the gravest state of the disks that were looked into, and empty
// where none was.
func (i *Image) guest() boot.State {
	var signs []boot.Sign
	for _, d := range i.Disks {
		if d.Guest != nil {
			signs = append(signs, boot.Sign{State: d.Guest.State})
		}
	}
	if len(signs) == 0 {
		return ""
	}
	return boot.Overall(signs)
}

// guestTags are the words by which the page filters for a state, as classes.
var guestTags = map[boot.State]string{
	boot.ShutDown: "guest-shut-down", boot.Running: "guest-running", boot.Hibernated: "guest-hibernated",
	boot.NotKnown: "guest-unknown",
}

// tagWords are the words of tags that are no words themselves.
var tagWords = map[string]string{
	"guest-shut-down": "shut down", "guest-running": "running", "guest-hibernated": "hibernated",
	"guest-unknown": "guest unknown",
}

// guestText describes how the machine of a disk was left, and what shows that.
func guestText(g *report.Guest) string {
	if g == nil {
		return ""
	}
	out := []string{}
	for _, s := range g.Signs[:min(len(g.Signs), maxFindings)] {
		if s.State != g.State || s.State == boot.ShutDown {
			continue
		}
		text := s.Text
		if s.OnMove != "" {
			text += " (" + s.OnMove + ")"
		}
		out = append(out, text)
	}
	text := "Guest: " + string(g.State)
	if len(out) > 0 {
		text += ": " + strings.Join(out, "; ")
	}
	return safe(text + ".")
}

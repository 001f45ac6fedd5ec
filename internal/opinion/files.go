package opinion

import (
	"errors"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// files compares the names of all files of a file system, and the SHA-256 of the regular ones. Both appliances read
// side by side: equal file systems list their files in one order, so that nothing has to be kept.
func (p *pair) files(v volume) error {
	asked := v.device + ": files of " + v.kind
	if _, _, err := p.both("mount-ro "+quoted(v.device)+" /", noLine); err != nil {
		return err
	}
	x, y := p.source.said.String(), p.dest.said.String()
	switch {
	case x != "" && y != "":
		p.say(false, true, asked, "cannot be mounted on either disk: %.200s", y)
		return nil
	case x != "":
		p.say(true, false, asked, "cannot be mounted on SOURCE, and on DEST it can: %.200s", x)
	case y != "":
		p.say(true, false, asked, "cannot be mounted on DEST: %.200s", y)
	default:
		if err := p.contents(asked); err != nil {
			return err
		}
	}
	_, _, err := p.both("umount-all", noLine)
	return err
}

// isSum matches a line of sha256sum, which begins with \ where the name has escapes.
var isSum = ondisk.LazyPattern(`^\\?[0-9a-f]{64} [ *]`)

// contents compares the files of what is mounted.
func (p *pair) contents(asked string) error {
	names, err := p.stream("find0 / -", 0, anyLine)
	if err != nil {
		return err
	}
	sums, err := p.stream("checksums-out sha256 / -", '\n', isSum().MatchString)
	if err != nil {
		return err
	}
	switch {
	case names.differs != "":
		p.say(true, false, asked, "names differ: %s", names.differs)
	case sums.differs != "":
		p.say(true, false, asked, "SHA-256 differs: %s", sums.differs)
	case names.said != "" || sums.said != "":
		p.say(false, true, asked, "equal SHA-256 for %d of them; the others cannot be read on either disk: %.200s",
			sums.items, strings.TrimLeft(names.said+"; "+sums.said, "; "))
	default:
		p.say(true, true, asked, "all names (%d) and the SHA-256 of all regular files (%d) are equal", names.items,
			sums.items)
	}
	return nil
}

// streamed is what came of two streams.
type streamed struct {
	items   int64
	differs string // the first item that differs, and how many do
	said    string // the error of both
}

// stream compares the items that both sessions answer, one by one.
func (p *pair) stream(command string, sep byte, valid func(string) bool) (c streamed, err error) {
	if err = errors.Join(p.source.send(command), p.dest.send(command)); err != nil {
		return c, err
	}
	return p.streams(sep, valid)
}

// streams compares the answers of both sessions.
func (p *pair) streams(sep byte, valid func(string) bool) (c streamed, err error) {
	var first string
	var differing int64
	for more := true; more; {
		x, inX, err := p.source.next(sep, valid)
		if err != nil {
			return c, err
		}
		y, inY, err := p.dest.next(sep, valid)
		if err != nil {
			return c, err
		}
		switch {
		case inX && inY && x == y:
			c.items++
		case inX != inY: // one has more
			if differing++; first == "" {
				first = x + y
			}
			if err := drain(p.source, inX, sep, valid); err != nil {
				return c, err
			}
			if err := drain(p.dest, inY, sep, valid); err != nil {
				return c, err
			}
			more = false
		case inX:
			if differing++; first == "" {
				first = y
			}
		default:
			more = false
		}
	}
	c.said = p.dest.said.String()
	if differing > 0 {
		if c.differs = nameOf(first); differing > 1 {
			c.differs += fmt.Sprintf(", and %d more", differing-1)
		}
	} else if other := p.source.said.String(); other != c.said {
		c.differs = fmt.Sprintf("SOURCE: %.200s; DEST: %.200s", other, c.said)
	}
	return c, nil
}

// drain reads an answer to its end.
func drain(s *session, more bool, sep byte, valid func(string) bool) (err error) {
	for more && err == nil {
		_, more, err = s.next(sep, valid)
	}
	return err
}

// nameOf returns the name of an item, without its sum.
func nameOf(item string) string {
	if isSum().MatchString(item) {
		_, item, _ = strings.Cut(item, " ")
		item = item[1:]
	}
	return fmt.Sprintf("%.200q", item)
}

package library

import (
	"strings"
	"unicode/utf8"
)

// segment is what a glob says of one name.
type segment struct {
	folders bool // **
	ops     []op
}

// op is a step of a segment.
type op struct {
	kind  opKind
	text  string // of a literal
	class class
}

type opKind int

const (
	literal opKind = iota
	star
	question
	oneOf
)

// class are the characters of brackets.
type class struct {
	not    bool
	ranges [][2]rune // both ends belong to them
}

func (c class) has(r rune, n int) bool {
	if r == utf8.RuneError && n == 1 { // a byte that is no character is in no range
		return c.not
	}
	for _, x := range c.ranges {
		if x[0] <= r && r <= x[1] {
			return !c.not
		}
	}
	return c.not
}

// text is that of a segment that stands for itself, "*" for any other.
func (s segment) text() string {
	switch {
	case len(s.ops) == 0 && !s.folders:
		return ""
	case len(s.ops) == 1 && s.ops[0].kind == literal:
		return s.ops[0].text
	}
	return "*"
}

// parseSegment reads a glob from one slash to the next, whose place it returns, or the end.
func parseSegment(s string, off int) (segment, int, error) {
	var out segment
	var lit strings.Builder
	add := func(o op) {
		if lit.Len() > 0 {
			out.ops = append(out.ops, op{kind: literal, text: lit.String()})
			lit.Reset()
		}
		if n := len(out.ops); o.kind != literal && (o.kind != star || n == 0 || out.ops[n-1].kind != star) {
			out.ops = append(out.ops, o)
		}
	}
	i := off
	for i < len(s) && s[i] != '/' {
		switch s[i] {
		case '*':
			add(op{kind: star})
		case '?':
			add(op{kind: question})
		case '[':
			c, end, err := parseClass(s, i)
			if err != nil {
				return segment{}, 0, err
			}
			add(op{kind: oneOf, class: c})
			i = end
			continue
		case '\\':
			if i++; i == len(s) || s[i] == '/' {
				return segment{}, 0, &GlobError{i - 1, `a character must follow the \, which takes its meaning away; \\ is a \ itself`}
			}
			lit.WriteByte(s[i])
		default:
			lit.WriteByte(s[i])
		}
		i++
	}
	add(op{})
	if s[off:i] == "**" {
		out = segment{folders: true}
	}
	return out, i, nil
}

// parseClass reads brackets, and returns the place behind them.
func parseClass(s string, open int) (class, int, error) {
	var c class
	i := open + 1
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		c.not = true
		i++
	}
	for begin := i; ; {
		if i < len(s) && s[i] == ']' && i > begin {
			return c, i + 1, nil
		}
		at := i
		low, next, err := classRune(s, open, i)
		if err != nil {
			return class{}, 0, err
		}
		high := low
		if i = next; i+1 < len(s) && s[i] == '-' && s[i+1] != ']' {
			if high, i, err = classRune(s, open, i+1); err != nil {
				return class{}, 0, err
			}
		}
		if high < low {
			return class{}, 0, &GlobError{at, "the range " + s[at:i] + " ends before it begins"}
		}
		c.ranges = append(c.ranges, [2]rune{low, high})
	}
}

// classRune reads one character of the brackets that begin at open.
func classRune(s string, open, i int) (rune, int, error) {
	if i < len(s) && s[i] == '\\' {
		i++
	}
	if i >= len(s) {
		return 0, 0, &GlobError{open, `the [ is not closed; \[ is a [ itself`}
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case r == '/':
		return 0, 0, &GlobError{i, "a slash cannot be in brackets: they are about one character of a name"}
	case r == utf8.RuneError && n == 1:
		return 0, 0, &GlobError{i, "what is in brackets must be UTF-8"}
	}
	return r, i + n, nil
}

// match compares a whole name. What one * took is given up for the next: whatever the earlier could take more, the later can too.
func (s segment) match(name string) bool {
	at, i := 0, 0
	back, again := -1, 0 // the last * that was met, and where what it has not taken begins
	for {
		if at < len(s.ops) {
			if s.ops[at].kind == star {
				at++
				if at == len(s.ops) {
					return true
				}
				back, again = at, i
				continue
			}
			if n := s.ops[at].take(name[i:]); n > 0 {
				at, i = at+1, i+n
				continue
			}
		} else if i == len(name) {
			return true
		}
		if back < 0 || again >= len(name) {
			return false
		}
		_, n := utf8.DecodeRuneInString(name[again:])
		again += n
		at, i = back, again
	}
}

// take is how many bytes of s an op other than a star matches, 0 for none.
func (o op) take(s string) int {
	if o.kind == literal {
		if strings.HasPrefix(s, o.text) {
			return len(o.text)
		}
		return 0
	}
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 || o.kind == oneOf && !o.class.has(r, n) {
		return 0
	}
	return n
}

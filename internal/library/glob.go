package library

import (
	"fmt"
	"strings"
)

// Glob is a pattern of paths.
//
//   - any characters but /
//     ?       one character but /
//     [a-z]   one of these; [!a-z] and [^a-z] one that is none of these and no /; ] stands for itself when it comes first
//     \x      x itself
//     **      between slashes, or at an end: any number of folders, also none; behind the last slash whatever lies in them
//
// All else stands for itself, upper and lower case are different, and * and ? match a dot in front too. A glob without a slash is about the
// last name of a path, in any folder; one with a slash is about the whole path. Leading "./" and doubled slashes count in neither.
// A byte of a name that is not UTF-8 is a character.
type Glob struct {
	segments []segment
	last     string // what every match ends with: most paths are told from it by their last characters
	name     bool   // it is about the last name of a path
}

// maxGlob is how long a glob may be in bytes: as long as a path (PATH_MAX of Linux).
const maxGlob = 4096

// GlobError says what is wrong with a glob, and at which byte.
type GlobError struct {
	Off  int
	Text string
}

func (e *GlobError) Error() string { return fmt.Sprintf("character %d: %s", e.Off+1, e.Text) }

// ParseGlob makes a glob of its text. An error is a *GlobError.
func ParseGlob(s string) (*Glob, error) {
	switch {
	case s == "":
		return nil, &GlobError{0, "the glob is empty, want at least one character"}
	case len(s) > maxGlob:
		return nil, &GlobError{maxGlob, fmt.Sprintf("the glob has %d bytes, want at most %d", len(s), maxGlob)}
	case strings.HasSuffix(s, "/"):
		return nil, &GlobError{len(s) - 1, "the glob ends in a slash; ** behind it means whatever lies in the folder"}
	}
	g := &Glob{name: !strings.Contains(s, "/")}
	for off := 0; ; {
		seg, end, err := parseSegment(s, off)
		if err != nil {
			return nil, err
		}
		if drop := seg.text() == "." && !g.name || seg.text() == "" && off > 0; !drop {
			g.segments = append(g.segments, seg)
		}
		if end == len(s) {
			break
		}
		off = end + 1
	}
	if len(g.segments) == 0 {
		return nil, &GlobError{0, "the glob names no file"}
	}
	g.finish()
	return g, nil
}

// finish notes what makes matching fast.
func (g *Glob) finish() {
	last := g.segments[len(g.segments)-1]
	if last.folders {
		if g.name {
			g.segments = nil // ** alone is any name
		}
		g.segments = append(g.segments, segment{ops: []op{{kind: star}}})
		return
	}
	if n := len(last.ops); n > 0 && last.ops[n-1].kind == literal {
		g.last = last.ops[n-1].text
	}
}

// Match reports whether the glob is about a path. It takes time in the product of both lengths at most.
func (g *Glob) Match(path string) bool {
	if !strings.HasSuffix(path, g.last) {
		return false
	}
	if g.name {
		return g.segments[0].match(path[strings.LastIndexByte(path, '/')+1:])
	}
	at, rest := 0, path
	first := true
	back, again := -1, "" // the last ** that was met, and what of the path it has not taken
	for {
		name, tail, more := cutName(rest, first)
		switch {
		case at < len(g.segments) && g.segments[at].folders:
			at++
			back, again = at, rest
			continue
		case !more && at == len(g.segments):
			return true
		case more && at < len(g.segments) && g.segments[at].match(name):
			at, rest, first = at+1, tail, false
			continue
		case back < 0:
			return false
		}
		_, tail, more = cutName(again, len(again) == len(path))
		if !more {
			return false
		}
		at, rest, again, first = back, tail, tail, false
	}
}

// cutName takes the first name of a path. The empty name in front of a leading slash counts, other empty ones and dots do not.
func cutName(path string, first bool) (name, rest string, ok bool) {
	if first && strings.HasPrefix(path, "/") {
		return "", path[1:], true
	}
	for path != "" {
		name, rest, _ = strings.Cut(path, "/")
		if name != "" && name != "." {
			return name, rest, true
		}
		path = rest
	}
	return "", "", false
}

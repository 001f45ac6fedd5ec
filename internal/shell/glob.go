package shell

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Glob is a pattern of paths for --include, --exclude and the list of accepted images, as package doublestar matches
// them: *, ?, [a-z], [!a-z], {a,b}, ** for folders, and \ in front of a character that stands for itself. Upper and
// lower case are different, and * and ? match a dot in front too.
//
// A glob without a slash is matched against the last name of a path, in any folder; one with a slash against the whole
// path. Leading "./" and doubled slashes count in neither. "lib/**" matches whatever lies in lib, and not lib itself.
type Glob struct {
	pattern string
	last    string // every match ends with it: most paths are rejected by their last characters
	name    bool   // it is matched against the last name of a path
}

// maxGlob is how long a glob may be in bytes: as long as a path (PATH_MAX of Linux).
const maxGlob = 4096

// GlobError reports what is wrong with a glob, and at which byte.
type GlobError struct {
	Off  int
	Text string
}

func (e *GlobError) Error() string { return fmt.Sprintf("character %d: %s", e.Off+1, e.Text) }

// ParseGlob parses a glob. An error is a *GlobError.
func ParseGlob(s string) (*Glob, error) {
	switch {
	case s == "":
		return nil, &GlobError{0, "the glob is empty, want at least one character"}
	case len(s) > maxGlob:
		return nil, &GlobError{maxGlob, fmt.Sprintf("the glob has %d bytes, want at most %d", len(s), maxGlob)}
	case strings.HasSuffix(s, "/"):
		return nil, &GlobError{len(s) - 1, "the glob ends in a slash; ** behind it means whatever lies in the folder"}
	case !doublestar.ValidatePattern(s):
		const want = `want each [ and { closed, a character in each [], and one behind each \`
		return nil, &GlobError{0, "the glob is malformed: " + want}
	}
	g := &Glob{pattern: plainPath(s), name: !strings.Contains(s, "/")}
	if g.pattern == "" {
		return nil, &GlobError{0, "the glob names no file"}
	}
	if path.Base(g.pattern) == "**" {
		g.pattern += "/*"
	}
	if g.name && g.pattern == "**/*" {
		g.pattern = "*"
	}
	g.last = g.pattern[strings.LastIndexAny(g.pattern, `*?[]{}\/`)+1:]
	return g, nil
}

// MatchAny reports whether one of the ways to write a path matches.
func (g *Glob) MatchAny(names []string) bool {
	if g.name { // the last name is the same in all
		return g.match(names[0])
	}
	return slices.ContainsFunc(names, g.match)
}

// match reports whether a path matches. Globs have slashes on every system.
func (g *Glob) match(p string) bool {
	p = filepath.ToSlash(p)
	if !strings.HasSuffix(p, g.last) {
		return false
	}
	if g.name {
		return doublestar.MatchUnvalidated(g.pattern, p[strings.LastIndexByte(p, '/')+1:])
	}
	return doublestar.MatchUnvalidated(g.pattern, plainPath(p))
}

// plainPath drops empty names and dots from a path, but for the slash in front.
func plainPath(p string) string {
	if !strings.Contains(p, "//") && !strings.Contains("/"+p+"/", "/./") {
		return p
	}
	names := strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
	kept := names[:0]
	for _, n := range names {
		if n != "." {
			kept = append(kept, n)
		}
	}
	plain := strings.Join(kept, "/")
	if strings.HasPrefix(p, "/") {
		return "/" + plain
	}
	return plain
}

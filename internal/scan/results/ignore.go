package results

import (
	"bytes"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/shell"
)

// Limits of an ignore file.
const (
	MaxIgnore        = 1 << 20 // bytes
	maxIgnoreEntries = 100_000
)

// day is how a date is written; such dates sort as texts do.
const day = time.DateOnly

// Ignore is a list of images that the user accepts, with counts of the matches of each entry. It is for one goroutine.
type Ignore struct {
	entries []ignoreEntry
}

type ignoreEntry struct {
	line     int
	glob     *shell.Glob
	accepted Accepted
	matched  int // images
	needed   int // of them, those that would fail the run or stand in the worklist
}

func (e *ignoreEntry) expired(today string) bool {
	return e.accepted.Until != "" && today > e.accepted.Until
}

// IgnoreError is an error in an ignore file. Line and column begin at 1; the column counts bytes.
type IgnoreError struct {
	Line, Column int
	Text         string
}

func (e *IgnoreError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Text)
}

// ParseIgnore reads an ignore file: lines of a glob, the last day it counts ("2027-01-31") or "never", and a reason.
// Empty lines, and those that begin with #, are skipped. A glob with blanks stands in double quotes. An error is an
// *IgnoreError.
func ParseIgnore(text []byte) (*Ignore, error) {
	if len(text) > MaxIgnore {
		return nil, &IgnoreError{1, 1, fmt.Sprintf("the file has more than %d bytes, the most that is read", MaxIgnore)}
	}
	out := &Ignore{}
	line := 0
	for l := range bytes.Lines(bytes.TrimPrefix(text, []byte("\uFEFF"))) {
		line++
		s := strings.TrimRight(string(l), "\r\n")
		if t := strings.TrimLeft(s, blanks); t == "" || t[0] == '#' {
			continue
		}
		if len(out.entries) == maxIgnoreEntries {
			return nil, &IgnoreError{line, 1, fmt.Sprintf("more than %d entries, the most that are read",
				maxIgnoreEntries)}
		}
		e, err := parseIgnoreLine(s, line)
		if err != nil {
			return nil, err
		}
		out.entries = append(out.entries, e)
	}
	return out, nil
}

const blanks = " \t"

// parseIgnoreLine reads the three parts of an entry.
func parseIgnoreLine(s string, line int) (ignoreEntry, error) {
	fail := func(off int, format string, args ...any) (ignoreEntry, error) {
		return ignoreEntry{}, &IgnoreError{line, off + 1, fmt.Sprintf(format, args...)}
	}
	if off := strings.IndexByte(s, 0); off >= 0 {
		return fail(off, "a NUL byte; an ignore file is text")
	}
	begin := skipBlanks(s, 0)
	from, to, next, ok := globIn(s, begin)
	if !ok {
		return fail(begin, `the " is not closed; \" is a " itself`)
	}
	pattern, err := shell.ParseGlob(s[from:to])
	if err != nil {
		wrong := err.(*shell.GlobError) //nolint:errorlint // ParseGlob promises it
		return fail(from+wrong.Off, "%s", wrong.Text)
	}
	at := skipBlanks(s, next)
	until, rest, _ := strings.Cut(strings.ReplaceAll(s[at:], "\t", " "), " ")
	e := ignoreEntry{line: line, glob: pattern}
	switch _, err := time.Parse(day, until); {
	case until == "":
		return fail(len(s), "a date is missing behind the glob: want the last day it counts, as 2027-01-31, or never")
	case until == "never":
	case err != nil:
		return fail(at, "%.40q, want the last day it counts, as 2027-01-31, or never; a glob with blanks stands in "+
			"double quotes", until)
	default:
		e.accepted.Until = until
	}
	reason := strings.Trim(rest, blanks)
	switch {
	case reason == "":
		return fail(len(s), "a reason is missing behind the date: say why these images are accepted")
	case !utf8.ValidString(reason):
		return fail(skipBlanks(s, at+len(until)), "the reason is not UTF-8")
	}
	e.accepted.Reason = reason
	return e, nil
}

func skipBlanks(s string, off int) int {
	for off < len(s) && strings.IndexByte(blanks, s[off]) >= 0 {
		off++
	}
	return off
}

// globIn finds a glob in a line, and where the line goes on. A backslash keeps its character from ending the glob.
func globIn(s string, off int) (from, to, next int, ok bool) {
	end, quoted := blanks, off < len(s) && s[off] == '"'
	if quoted {
		off, end = off+1, `"`
	}
	to = off
	for to < len(s) && strings.IndexByte(end, s[to]) < 0 {
		if s[to] == '\\' && to+1 < len(s) {
			to++
		}
		to++
	}
	if !quoted {
		return off, to, to, true
	}
	return off, to, to + 1, to < len(s)
}

// match finds the first entry that has not expired and is about a path, whose names it gets. today is a date as
// 2027-01-31. Entries count their matches.
func (i *Ignore) match(names []string, today string, needed bool) (found *Accepted) {
	for n := range i.entries {
		e := &i.entries[n]
		if !e.glob.MatchAny(names) {
			continue
		}
		e.matched++
		if needed {
			e.needed++
		}
		if found == nil && !e.expired(today) {
			a := e.accepted
			found = &a
		}
	}
	return found
}

// Accept marks an image as accepted where an entry says so. One without a problem is left alone.
func (i *Ignore) Accept(img *Image, roots Roots, today string, level FailOn) {
	img.Accepted = nil
	if img.State == Gone || len(i.entries) == 0 {
		return
	}
	needed := img.State != Judged || img.Verdict.Off() || level.Code(img) != 0
	if a := i.match(pathNames(img.Path, roots), today, needed); needed {
		img.Accepted = a
	}
}

// Notes lists the entries that have expired, that matched nothing, or nothing off the boundary. It is for the end of a
// run.
func (i *Ignore) Notes(today string) []string {
	out := []string{}
	for _, e := range i.entries {
		var what string
		switch {
		case e.expired(today):
			what = fmt.Sprintf("expired on %s, matched %s", e.accepted.Until, images(e.matched))
		case e.matched == 0:
			what = "matched no image"
		case e.needed == 0:
			what = fmt.Sprintf("matched %s, of which none needs it", images(e.matched))
		default:
			continue
		}
		out = append(out, fmt.Sprintf("ignore line %d: %s", e.line, what))
	}
	return out
}

package results

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
)

// FailOn is the level from which a run fails. 4K includes errors, and Default includes both.
type FailOn string

// Levels. Default is the level of inspect: errors, and starts off the boundary of the run.
const (
	Default FailOn = ""
	Never   FailOn = "never"
	Errors  FailOn = "error"
	Off4K   FailOn = "4K"
)

// FailOns lists the levels that a user can choose.
func FailOns() []string {
	return []string{string(Off4K), string(Errors), string(Never)}
}

// ParseFailOn finds a level by its name. An empty name is Default.
func ParseFailOn(s string) (FailOn, error) {
	if s == "" {
		return Default, nil
	}
	for _, level := range FailOns() {
		if strings.EqualFold(s, level) {
			return FailOn(level), nil
		}
	}
	return "", ondisk.NoChoice("--fail-on", s, FailOns()...)
}

// exitError is the exit code for an image that could not be judged. Package align has the codes of verdicts.
const exitError = 1

// Code returns the exit code for one image. It is 0 for an accepted image.
func (f FailOn) Code(i *Image) int {
	switch {
	case f == Never || i.Accepted != nil || i.State == Gone:
		return 0
	case i.State == Failed, i.unknown() && !i.Tolerated:
		return exitError
	case i.State != Judged || f == Errors || f == Off4K && i.Verdict != align.Misaligned:
		return 0
	}
	return i.Verdict.ExitCode()
}

// Exit raises the exit code if an image requires it. Among equally bad images, the first one in the report counts,
// regardless of which was finished first.
func (s *Summary) Exit(i *Image, fail FailOn) {
	code := fail.Code(i)
	if code == 0 || Worse(s.ExitCode, code) || code == s.ExitCode && s.worst != nil && Compare(s.worst, i) <= 0 {
		return
	}
	s.worst, s.ExitCode, s.Worst = i, code, i.Path
}

// Worse reports whether exit code a is worse than b. An error is worst, since it leaves the result unknown; then come
// refusals (4), 3 and 2.
func Worse(a, b int) bool {
	weight := func(code int) int {
		if code == exitError {
			return 5
		}
		return code
	}
	return weight(a) > weight(b)
}

// Limits of an ignore file.
const (
	MaxIgnore        = 1 << 20 // bytes
	maxIgnoreEntries = 100_000
)

// day is the format of a date. Dates in this format sort as texts.
const day = time.DateOnly

// Ignore lists the images accepted by the user.
type Ignore []ignoreEntry

type ignoreEntry struct {
	glob     *shell.Glob
	accepted Accepted
}

// ignoreLine matches a line of an ignore file: a glob, in double quotes if it has blanks, the last valid day, and a
// reason.
var ignoreLine = ondisk.LazyPattern(
	`^(?:"((?:[^"\\]|\\.)*)"|((?:[^ \t\\"]|\\.)(?:[^ \t\\]|\\.)*))[ \t]+([^ \t]+)[ \t]+(.+)$`)

// ParseIgnore parses an ignore file. Each line has a glob, in double quotes if it has blanks, the last valid day
// ("2027-01-31") or "never", and a reason. Empty lines and lines that begin with # are skipped. An error names the
// line.
func ParseIgnore(text []byte) (out Ignore, err error) {
	line := 0
	for l := range bytes.Lines(bytes.TrimPrefix(text, []byte("\uFEFF"))) {
		line++
		s := strings.Trim(string(l), " \t\r\n")
		if s == "" || s[0] == '#' {
			continue
		}
		if len(out) == maxIgnoreEntries {
			return nil, fmt.Errorf("line %d: more than %d entries", line, maxIgnoreEntries)
		}
		e, err := parseIgnoreLine(s)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		out = append(out, e)
	}
	return out, nil
}

// parseIgnoreLine parses the glob, the last day and the reason of an entry.
func parseIgnoreLine(s string) (e ignoreEntry, err error) {
	parts := ignoreLine().FindStringSubmatch(s)
	if parts == nil {
		return e, fmt.Errorf("%.80q: must be a glob, its last day (2027-01-31 or never), and a reason; put a glob "+
			"with blanks in double quotes", s)
	}
	glob, until, reason := parts[1]+parts[2], parts[3], parts[4]
	if _, err := time.Parse(day, until); err != nil && until != "never" {
		return e, fmt.Errorf("%.40q: must be the last day (2027-01-31 or never); put a glob with blanks in double "+
			"quotes", until)
	}
	switch {
	case strings.Contains(s, "\x00"):
		return e, errors.New("a NUL byte; an ignore file is text")
	case !utf8.ValidString(reason):
		return e, errors.New("the reason is not UTF-8")
	}
	if until == "never" {
		until = ""
	}
	e.accepted = Accepted{reason, until}
	e.glob, err = shell.ParseGlob(glob)
	return e, err
}

// match returns the first unexpired entry whose glob matches one of the names of a path, or nil. today is a date such
// as 2027-01-31.
func (i Ignore) match(names []string, today string) *Accepted {
	for _, e := range i {
		if expired := e.accepted.Until != "" && today > e.accepted.Until; !expired && e.glob.MatchAny(names) {
			a := e.accepted
			return &a
		}
	}
	return nil
}

// Accept marks an image as accepted if an entry matches it. It does not mark an image without a problem.
func (i Ignore) Accept(img *Image, roots Roots, today string, level FailOn) {
	img.Accepted = nil
	if img.State != Gone && len(i) > 0 && (img.State != Judged || img.Verdict.Off() || level.Code(img) != 0) {
		img.Accepted = i.match(pathNames(img.Path, roots), today)
	}
}

// Labels are keys with values that a user assigns to rows, such as the host or the datastore. A row from several hosts
// has the values of all.
type Labels map[string][]string

// Limits of labels.
const (
	maxLabels = 16
	maxKey    = 64   // bytes
	maxValue  = 256  // bytes
	maxValues = 4096 // of one label, in a row of many hosts
)

// ParseLabel splits KEY=VALUE.
func ParseLabel(s string) (key, value string, err error) {
	key, value, ok := strings.Cut(s, "=")
	if !ok {
		return "", "", fmt.Errorf("%.64q: must be KEY=VALUE, such as host=esx1", s)
	}
	return key, value, Labels{key: {value}}.Check()
}

// ParseLabels parses a list of KEY=VALUE.
func ParseLabels(list []string) (Labels, error) {
	out := Labels{}
	for _, s := range list {
		key, value, err := ParseLabel(s)
		if err != nil {
			return nil, err
		}
		if _, again := out[key]; again {
			return nil, fmt.Errorf("%.64q is given twice", key)
		}
		out[key] = []string{value}
	}
	return out, out.Check()
}

// Check returns the first fault of the labels.
func (l Labels) Check() error {
	if len(l) > maxLabels {
		return fmt.Errorf("%d labels; at most %d are allowed", len(l), maxLabels)
	}
	for key, values := range l {
		odd := func(r rune) bool {
			return r != '_' && r != '-' && r != '.' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
		}
		if key == "" || len(key) > maxKey || strings.ContainsFunc(key, odd) {
			return fmt.Errorf("key %.80q: must be 1 to %d of a-z, 0-9, dot, dash and underscore", key, maxKey)
		}
		if len(values) == 0 || len(values) > maxValues {
			return fmt.Errorf("%q has %d values: must be 1 to %d", key, len(values), maxValues)
		}
		for _, v := range values {
			if v == "" || len(v) > maxValue || !utf8.ValidString(v) {
				return fmt.Errorf("value %.80q of %q: must be 1 to %d bytes of UTF-8", v, key, maxValue)
			}
		}
	}
	return nil
}

// Merge returns the labels of a row from two runs: the values of both.
func (l Labels) Merge(other Labels) Labels {
	out := maps.Clone(l)
	if out == nil {
		out = Labels{}
	}
	for key, values := range other {
		all := slices.Concat(out[key], values)
		slices.Sort(all)
		all = slices.Compact(all)
		out[key] = all[:min(len(all), maxValues)]
	}
	return out
}

// String lists the labels, sorted.
func (l Labels) String() string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(l)) {
		for _, v := range l[key] {
			out = append(out, key+"="+v)
		}
	}
	return strings.Join(out, " ")
}

// Roots is the set of paths given to a scan. It can be as large as the number of rows.
type Roots map[string]bool // without trailing slashes

// NewRoots returns the set of paths given by the user. It drops empty paths.
func NewRoots(paths []string) Roots {
	r := Roots{}
	for _, p := range paths {
		if p != "" {
			r[strings.TrimRight(p, "/")] = true
		}
	}
	return r
}

// Has reports whether a path is a root or lies below one.
func (r Roots) Has(path string) bool {
	if r[path] {
		return true
	}
	for n := range len(path) {
		if path[n] == '/' && r[path[:n]] {
			return true
		}
	}
	return false
}

// pathNames returns the paths that globs are matched against: the path itself, and the path relative to each root above
// it.
func pathNames(path string, roots Roots) []string {
	out := []string{path}
	for n := range len(path) {
		if path[n] != '/' || !roots[path[:n]] {
			continue
		}
		if below := path[n+1:]; below != "" && !slices.Contains(out, below) {
			out = append(out, below)
		}
	}
	return out
}

// Package shell quotes names for shells, prints command lines of trueup, and matches paths against globs.
package shell

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// Quote quotes a path for the shells of this system.
func Quote(s string) string {
	if !ForBash(runtime.GOOS) {
		return QuoteWindows(s)
	}
	return quoteUnix(s)
}

// flagName matches the name of a trueup flag on a command line.
var flagName = regexp.MustCompile(`^--[a-z-]+$`)

// Command returns a trueup command line. flags holds the words before the paths: flag names and their values.
func Command(name string, flags []string, paths ...string) string {
	words := []string{"trueup", name}
	for _, word := range flags {
		if !flagName.MatchString(word) {
			word = Quote(word)
		}
		words = append(words, word)
	}
	for _, path := range paths {
		words = append(words, Quote(path))
	}
	return strings.Join(words, " ")
}

// ForBash reports whether Quote quotes for shells of Unix on a system. system is a GOOS value.
func ForBash(system string) bool { return system != "windows" }

// quoteUnix quotes a path for sh. The shell reads back exactly the same bytes, but "./" precedes a leading dash, which
// would start a flag. The result is one line without terminal control characters, and it is never truncated. Names
// contain no NUL. The result contains no semicolon, because some spreadsheets would split the line of CSV there.
func quoteUnix(s string) string {
	if strings.HasPrefix(s, "-") {
		s = "./" + s
	}
	switch {
	case s == "":
		return "''"
	case strings.HasSuffix(s, "\n"): // a command substitution would drop it; only bash, ksh and zsh read this form
		return "$'" + octal(s) + "'"
	case strings.ContainsFunc(s, escaped) || !utf8.ValidString(s):
		return `"$(printf '` + strings.ReplaceAll(octal(s), "%", "%%") + `')"`
	// zsh expands =name to the path of a command
	case s[0] != '=' && onlyOf(s, "-_./+=:,@%"):
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// onlyOf reports whether s consists of letters and digits of ASCII and of some other characters.
func onlyOf(s, others string) bool {
	others += "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return strings.Trim(s, others) == ""
}

// escaped reports whether a character must be escaped, because plain quotes cannot hold it.
func escaped(r rune) bool { return Dangerous(r) || r == ';' }

// octal writes bytes that plain quotes cannot hold as \ooo, for printf and for $'…'. It includes exclamation marks,
// because older shells expand their history there.
func octal(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if escaped(r) || strings.ContainsRune(`'\!`, r) || (r == utf8.RuneError && n == 1) {
			for _, c := range []byte(s[i : i+n]) {
				fmt.Fprintf(&b, `\%03o`, c)
			}
		} else {
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

// Dangerous reports whether r is a control or format character, such as one that reverses the direction of text. It
// includes the last two code points of each plane: they are noncharacters, and XML forbids the first pair.
func Dangerous(r rune) bool {
	if r < utf8.RuneSelf {
		return unicode.IsControl(r)
	}
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' || r&0xfffe == 0xfffe
}

// QuoteWindows quotes a path for cmd and PowerShell. Both read double quotes. Escapes are PowerShell's, because cmd has
// none for these characters. A backslash before the closing quote is doubled, because programs treat it as an escape.
// Windows names contain no double quote.
// Spec: about_Quoting_Rules and about_Parsing (PowerShell), Parsing C command-line arguments (Microsoft).
func QuoteWindows(s string) string {
	if strings.HasPrefix(s, "-") {
		s = `.\` + s
	}
	if s != "" && onlyOf(s, `-_.\/:+`) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		_, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1: // invalid UTF-8
			b.WriteString("$([char]0xfffd)")
		case r > 0xffff && Dangerous(r):
			fmt.Fprintf(&b, "$([char]::ConvertFromUtf32(%#x))", r)
		case escaped(r) || strings.ContainsRune("\"$`%!\u201c\u201d\u201e", r):
			fmt.Fprintf(&b, "$([char]%#x)", r)
		default:
			b.WriteRune(r)
		}
	}
	tail := s[len(strings.TrimRight(s, `\`)):]
	return `"` + b.String() + tail + `"`
}

// Glob is a path pattern for --include, --exclude and the list of accepted images, in the syntax of package doublestar:
// *, ?, [a-z], [!a-z], {a,b}, ** for folders, and \ to escape a character. Case matters, and * and ? match a leading
// dot too.
//
// A glob without a slash is matched against the base name of a path, in any folder; one with a slash against the whole
// path. Leading "./" and doubled slashes are ignored in both. "lib/**" matches everything in lib, but not lib itself.
type Glob struct {
	pattern string
	last    string // literal suffix of every match: it rejects most paths early
	name    bool   // match the base name only
}

// maxGlob limits the length of a glob, in bytes: the longest path on Linux (PATH_MAX).
const maxGlob = 4096

// ParseGlob parses a glob.
func ParseGlob(s string) (*Glob, error) {
	switch {
	case s == "":
		return nil, errors.New("the glob is empty")
	case len(s) > maxGlob:
		return nil, fmt.Errorf("the glob has %d bytes, must have at most %d", len(s), maxGlob)
	case strings.HasSuffix(s, "/"):
		return nil, errors.New("the glob ends in a slash; append ** for all files in the folder")
	case !doublestar.ValidatePattern(s):
		return nil, errors.New("the glob is malformed: each [ and { must be closed, each [] contain a character, and " +
			"each \\ precede one")
	}
	g := &Glob{pattern: plainPath(s), name: !strings.Contains(s, "/")}
	if g.pattern == "" {
		return nil, errors.New("the glob matches no file")
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

// MatchAny reports whether any spelling of a path matches.
func (g *Glob) MatchAny(names []string) bool {
	if g.name { // all spellings share the base name
		return g.match(names[0])
	}
	return slices.ContainsFunc(names, g.match)
}

// match reports whether a path matches. Globs use slashes on every system.
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

// plainPath removes empty and "." elements from a path, but keeps a leading slash.
func plainPath(p string) string {
	if !strings.Contains(p, "//") && !strings.Contains("/"+p+"/", "/./") {
		return p
	}
	names := strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
	names = slices.DeleteFunc(names, func(n string) bool { return n == "." })
	plain := strings.Join(names, "/")
	if strings.HasPrefix(p, "/") {
		return "/" + plain
	}
	return plain
}

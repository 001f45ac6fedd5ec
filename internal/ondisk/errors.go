// Package ondisk decodes untrusted bytes and names what can be wrong with them.
//
// Bytes of an image have three outcomes: they are not mine (ErrNoMatch, seen only by probe loops), mine but
// broken (*FormatError), or mine but not supported (wraps ErrUnsupported). I/O errors are none of these.
package ondisk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sentinels, one for each class of what can be wrong; the command line makes the JSON error code of them.
var (
	ErrNoMatch     = errors.New("no match")
	ErrUnsupported = errors.New("not supported")
	ErrReference   = errors.New("reference not allowed") // a file names another that it must not name
	ErrLimit       = errors.New("limit exceeded")        // well-formed, but above what we are ready to spend
	ErrFormat      = errors.New("malformed")             // what every *FormatError is
	ErrBusy        = errors.New("in use")                // another program has the image open, or had it when it died
	ErrChanged     = errors.New("changed while it was read")
	ErrOutput      = errors.New("output") // the place where a file goes: it exists, there is no room, no permission
	ErrUsage       = errors.New("usage")  // what was asked for can never be right, such as a DEST that is the source
)

// FormatError says which field of which structure has a value it cannot have.
type FormatError struct {
	What  string // the structure: "vmdk header", "mbr"
	Off   int64  // byte offset of the field in the file or disk that holds the structure
	Field string // its name in the specification
	Got   any    // value found
	Want  any    // values allowed
	Past  bool   // it names a place behind the end of the file, as one that was truncated does
}

func (e *FormatError) Error() string {
	lead := ""
	if e.Past {
		lead = "the file is truncated or damaged, copy it again: "
	}
	return lead + fmt.Sprintf("%s at %#x: %s %s, want %v", e.What, e.Off, e.Field, value(e.Got), e.Want)
}

// Is makes every FormatError match ErrFormat.
func (e *FormatError) Is(target error) bool { return target == ErrFormat }

// value prints texts from an image quoted, so that a control character cannot reach a terminal, and cut.
func value(v any) string {
	switch v := v.(type) {
	case string:
		if isHex(v) {
			return v // a number that was formatted for its field
		}
		return fmt.Sprintf("%.256q", v)
	case []byte:
		return fmt.Sprintf("% x", v[:min(len(v), 32)])
	default:
		return fmt.Sprint(v)
	}
}

// isHex reports whether a text is a hexadecimal number of our own making.
func isHex(s string) bool {
	digits, ok := strings.CutPrefix(s, "0x")
	return ok && len(digits) <= 16 && strings.Trim(digits, "0123456789abcdef") == ""
}

// TextError is a FormatError of a line in a text, where a line number helps more than an offset alone.
type TextError struct {
	What string // "vmdk descriptor"
	Line int    // from 1
	Msg  string
	Kind error // ErrFormat, ErrReference, ErrLimit or ErrUnsupported
}

func (e *TextError) Error() string { return fmt.Sprintf("%s line %d: %s", e.What, e.Line, e.Msg) }

// Unwrap gives the class.
func (e *TextError) Unwrap() error { return e.Kind }

// Shift moves the place that a FormatError names by n bytes: a reader of a partition knows only its own offsets.
func Shift(err error, n int64) error {
	var fe *FormatError
	if !errors.As(err, &fe) {
		return err
	}
	moved := *fe
	moved.Off += n
	return &moved
}

// Legible drops an error of malformed bytes. A look that the rest does without goes on by it: that a container is
// broken is its own finding.
func Legible(err error) error {
	if errors.Is(err, ErrFormat) {
		return nil
	}
	return err
}

// In gives an error a class that its text does not name: people read the text, scripts the code that the command
// line makes of the class.
func In(class error, format string, args ...any) error {
	return &classed{class, fmt.Errorf(format, args...)}
}

type classed struct{ class, err error }

func (c *classed) Error() string   { return c.err.Error() }
func (c *classed) Unwrap() []error { return []error{c.class, c.err} }

// Field returns a FormatError of a field of a structure. off is the place of the field in bytes.
func Field(what, name string, off int64, got, want any) error {
	return &FormatError{What: what, Off: off, Field: name, Got: got, Want: want}
}

// Effect is the meaning of an issue for a copy.
type Effect int

// Effects, mildest first.
const (
	Note       Effect = iota // worth knowing
	Warn                     // worth acting on; a copy is made all the same
	Unbootable               // a copy is refused unless the user accepts that it may not boot
	BadVolume                // a malformed volume: a move fails unless the user accepts opaque bytes
	Refuse                   // a copy is refused
	Broken                   // malformed: a copy fails
)

// Issue is a remark of a reader of on-disk structures beside its values. It is a value and no log line, so that the
// verdict is made in one place (package align) and one broken part does not hide the rest.
type Issue struct {
	Code      string // stable, for scripts: "ntfs-hidden-sectors"
	Effect    Effect
	OnMove    bool // matters only when the partition (or, for partition 0, any partition) moves
	Partition int  // number of the partition, 0 for the disk
	DiskWide  bool // matters when any partition moves; a volume does not know its number
	Text      string
	Remedy    string
	Err       error // for Broken: the error that a copy ends with; for Refuse: its class, ErrUnsupported when it is nil
}

// Refusal is the error of a job that is understood and would be unsafe.
//
//nolint:errname // "refusal" is the word of the product contract
type Refusal struct {
	Code   string // error code of the JSON output: "unsupported", "busy", "reference", "format"
	Reason string
	Remedy string
}

func (r *Refusal) Error() string {
	if r.Remedy == "" {
		return "refused: " + r.Reason
	}
	return fmt.Sprintf("refused: %s; %s", r.Reason, r.Remedy)
}

// NoChoice returns the usage error of a word that is none of the choices, such as the value of a flag. It suggests the
// choice with the most similar spelling.
func NoChoice(subject, word string, choices ...string) error {
	want := "one of " + strings.Join(choices, ", ")
	if len(choices) == 2 {
		want = choices[0] + " or " + choices[1]
	}
	return In(ErrUsage, "%s %.256q, want %s%s", subject, word, want, DidYouMean(word, choices...))
}

// DidYouMean returns the end of a message that suggests a choice, empty if none is similar.
func DidYouMean(word string, choices ...string) string {
	if near := Near(word, choices...); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// Near returns the choice with the most similar spelling, empty if none is similar: two letters may differ, and one in
// a word of up to five. The only choice that begins with the word is similar, too.
func Near(word string, choices ...string) string {
	word = strings.ToLower(word)
	best, least := "", min(len(word)/3, 2)+1
	var begun []string
	for _, choice := range choices {
		lower := strings.ToLower(choice)
		if d := distance(word, lower); d < least && d < len(word) {
			best, least = choice, d
		}
		if len(word) > 1 && strings.HasPrefix(lower, word) {
			begun = append(begun, choice)
		}
	}
	if best == "" && len(begun) == 1 {
		return begun[0]
	}
	return best
}

// distance returns how many letters must be changed, added or left out to make one word of another: the distance of
// Levenshtein.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = slices.Min([]int{change, row[j] + 1, row[j+1] + 1})
		}
	}
	return row[len(b)]
}

// Package ondisk decodes untrusted bytes and classifies their errors.
//
// A decoder has three outcomes for bytes: not its format (ErrNoMatch, seen only by probe loops), its format but broken
// (*FormatError), or its format but not supported (wraps ErrUnsupported). I/O errors are none of these.
package ondisk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Sentinels, one for each class of errors. The command line derives the JSON error code from them.
var (
	ErrNoMatch     = errors.New("no match")
	ErrUnsupported = errors.New("not supported")
	ErrReference   = errors.New("reference not allowed") // a file refers to another file that it must not use
	ErrLimit       = errors.New("limit exceeded")        // well-formed, but too expensive in time or memory
	ErrFormat      = errors.New("malformed")             // the class of every *FormatError
	ErrBusy        = errors.New("in use")                // another program has the image open, or had it when it died
	ErrChanged     = errors.New("changed while it was read")
	ErrOutput      = errors.New("output") // the destination of a file: it exists, or lacks space or permission
	ErrUsage       = errors.New("usage")  // a request that can never be right, such as a DEST that is the source
)

// Codes lists the error codes of the JSON output.
var Codes = []string{
	"format", "unsupported", "reference", "limit", "busy", "changed", "io", "output", "verify", "internal", "usage",
	"interrupted", "unfinished",
}

// FormatError reports a field of a structure with an illegal value.
type FormatError struct {
	What  string // the structure: "vmdk header", "mbr"
	Off   int64  // byte offset of the field in the file or disk that holds the structure
	Field string // name in the specification
	Got   any    // value found
	Want  any    // values allowed
	Past  bool   // the field refers to an offset past the end of the file, as in a truncated file
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

// value formats a value. It quotes and cuts texts from an image, so that no control character reaches a terminal.
func value(v any) string {
	switch v := v.(type) {
	case string:
		digits, hex := strings.CutPrefix(v, "0x")
		if hex && len(digits) <= 16 && strings.Trim(digits, "0123456789abcdef") == "" {
			return v // a number formatted for its field
		}
		return fmt.Sprintf("%.256q", v)
	case []byte:
		return fmt.Sprintf("% x", v[:min(len(v), 32)])
	default:
		return fmt.Sprint(v)
	}
}

// TextError is a FormatError for a line of text. It has a line number instead of an offset.
type TextError struct {
	What string // "vmdk descriptor"
	Line int    // from 1
	Msg  string
	Kind error // ErrFormat, ErrReference, ErrLimit or ErrUnsupported
}

func (e *TextError) Error() string { return fmt.Sprintf("%s line %d: %s", e.What, e.Line, e.Msg) }

// Unwrap returns the class.
func (e *TextError) Unwrap() error { return e.Kind }

// Shift moves the offset of a FormatError by n bytes: a reader of a partition sees only its own offsets.
func Shift(err error, n int64) error {
	var fe *FormatError
	if !errors.As(err, &fe) {
		return err
	}
	moved := *fe
	moved.Off += n
	return &moved
}

// Legible returns nil for an error of malformed bytes, and any other error unchanged. An optional read can thus fail,
// because a broken container is a finding of its own.
func Legible(err error) error {
	if errors.Is(err, ErrFormat) {
		return nil
	}
	return err
}

// Understood reports whether an error describes the content of a disk or file. Any other is a read error.
func Understood(err error) bool {
	return errors.Is(err, ErrFormat) || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrLimit)
}

// In returns an error with a class that its text does not mention: people read the text, scripts the code that the
// command line derives from the class.
func In(class error, format string, args ...any) error {
	return &classed{class, fmt.Errorf(format, args...)}
}

// OutputError returns nil for nil, otherwise err with the class ErrOutput after a text.
func OutputError(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return In(ErrOutput, "%s: %w", fmt.Sprintf(format, args...), err)
}

type classed struct{ class, err error }

func (c *classed) Error() string   { return c.err.Error() }
func (c *classed) Unwrap() []error { return []error{c.class, c.err} }

// Field returns a FormatError for a field of a structure. off is the byte offset of the field.
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

// Issue is a finding of a reader of on-disk structures. It is a value rather than a log line, so that the verdict is
// made in one place (package align) and one broken part does not hide the rest.
type Issue struct {
	Code      string // stable, for scripts: "ntfs-hidden-sectors"
	Effect    Effect
	OnMove    bool // matters only when the partition (or, for partition 0, any partition) moves
	Partition int  // number of the partition, 0 for the disk
	DiskWide  bool // matters when any partition moves; a volume has no partition number
	Text      string
	Remedy    string
	Err       error // for Broken, the error of the copy; for Refuse, its class, where nil means ErrUnsupported
}

// Refusal is the error for a valid job that would be unsafe.
//
//nolint:errname // "refusal" is the word of the product contract
type Refusal struct {
	Code   string // one of Codes
	Reason string
	Remedy string
}

func (r *Refusal) Error() string {
	if r.Remedy == "" {
		return "refused: " + r.Reason
	}
	return fmt.Sprintf("refused: %s; %s", r.Reason, r.Remedy)
}

// NoChoice returns the usage error for a word outside of the choices, such as the value of a flag. It suggests the
// choice with the most similar spelling.
func NoChoice(subject, word string, choices ...string) error {
	want := "one of " + strings.Join(choices, ", ")
	if len(choices) == 2 {
		want = choices[0] + " or " + choices[1]
	}
	return In(ErrUsage, "%s %.256q, must be %s%s", subject, word, want, DidYouMean(word, choices...))
}

// DidYouMean returns the end of a message that suggests a choice, or "" if no choice is similar.
func DidYouMean(word string, choices ...string) string {
	if near := Near(word, choices...); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}

// Near returns the choice with the most similar spelling, or "" if no choice is similar. Two letters may differ, or one
// in a word of up to five. The only choice that begins with the word is similar, too.
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

// distance returns the Levenshtein distance of two words: the number of letters to change, add or leave out.
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

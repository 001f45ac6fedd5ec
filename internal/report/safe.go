package report

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
)

// maxText bounds a printed text from an image, in characters. maxMessage bounds a line with such texts, in printed
// bytes.
const maxText, maxMessage = 256, 4096

// Safe makes a text from an image safe for a terminal. It escapes characters that could move the cursor, change the
// title or reverse the line, and cuts the text.
func Safe(s string) string { return escaped(s, maxText, math.MaxInt) }

// SafeMessage is like Safe, with a higher limit, for our own lines that contain texts from an image.
func SafeMessage(s string) string { return escaped(s, math.MaxInt, maxMessage) }

// Escape is like Safe but does not cut, for reports that must distinguish all names.
func Escape(s string) string { return escaped(s, math.MaxInt, math.MaxInt) }

func escaped(s string, characters, bytes int) string {
	escapes := func(r rune) bool { return r == utf8.RuneError || shell.Dangerous(r) }
	if len(s) <= min(characters, bytes) && !strings.ContainsFunc(s, escapes) {
		return s
	}
	var b strings.Builder
	n := 0
	for i, r := range s {
		if n++; n > characters || b.Len() > bytes {
			b.WriteString("…")
			break
		}
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case shell.Dangerous(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Message returns the text of an error in one line, safe for a terminal and without secrets of URIs.
func Message(err error) string {
	return SafeMessage(realign.Shown(strings.NewReplacer("\n", "; ", "\t", "").Replace(withoutCall(err))))
}

// lookups lists the calls that look up a file. For their errors, users need only the path and the reason.
var lookups = []string{"open", "stat", "lstat"}

// withoutCall returns the text of an error without the name of the failed lookup, and without a repeated path before
// it.
func withoutCall(err error) string {
	text := err.Error()
	p, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		return text
	}
	named := p.Path + ": "
	before, after, found := strings.Cut(text, p.Error())
	if !found || !slices.Contains(lookups, p.Op) && !strings.HasSuffix(before, named) {
		return text
	}
	return strings.TrimSuffix(before, named) + named + p.Err.Error() + after
}

// escaper escapes dangerous characters. Each write must consist of whole characters.
type escaper struct{ w *bufio.Writer }

func (e escaper) Write(p []byte) (int, error) {
	whole := 0 // number of bytes already written
	for i := 0; i < len(p); {
		r, n := rune(p[i]), 1
		if r >= utf8.RuneSelf {
			r, n = utf8.DecodeRune(p[i:])
		}
		if i += n; r == '\n' || !shell.Dangerous(r) {
			continue
		}
		if _, err := e.w.Write(p[whole : i-n]); err != nil {
			return whole, err
		}
		for _, u := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(e.w, `\u%04x`, u)
		}
		whole = i
	}
	n, err := e.w.Write(p[whole:])
	return whole + n, err
}

// JSON writes one object, indented by two blanks. Values are exact. Control characters for terminals are escaped, which
// JSON allows anywhere in a string. Otherwise the output equals encoding/json. That package would hold the whole output
// in memory, twice: the report of a disk with thousands of partitions is large.
func JSON(w io.Writer, v any) error { return writeJSON(w, v, jsontext.WithIndent("  ")) }

// Line writes one object in one line, for a stream of objects. It escapes like JSON.
func Line(w io.Writer, v any) error { return writeJSON(w, v) }

func writeJSON(w io.Writer, v any, more ...jsonv2.Options) error {
	b := bufio.NewWriter(w)
	// An encoder writes whole tokens, so the escaper never receives a part of a character.
	err := jsonv2.MarshalWrite(escaper{b}, v, jsonv1.DefaultOptionsV1(), jsontext.EscapeForHTML(false),
		jsonv2.JoinOptions(more...))
	if err == nil {
		err = b.WriteByte('\n')
	}
	if failed := b.Flush(); failed != nil { // an error of w, unchanged
		return failed
	}
	if err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return nil
}

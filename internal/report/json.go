package report

import (
	"bufio"
	"fmt"
	"io"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// JSON writes one object, indented by two blanks. Values are exact. Characters that a terminal would obey are written
// as escapes, which JSON allows anywhere in a string. The other bytes equal those of encoding/json, which would hold
// them all in memory, twice: the report of a disk with thousands of partitions is large.
func JSON(w io.Writer, v any) error { return writeJSON(w, v, jsontext.WithIndent("  ")) }

// Line writes one object in one line, for a stream of objects. It escapes as JSON does.
func Line(w io.Writer, v any) error { return writeJSON(w, v) }

func writeJSON(w io.Writer, v any, more ...jsonv2.Options) error {
	b := bufio.NewWriter(w)
	// An encoder writes whole tokens, so that the escaper sees no part of a character.
	err := jsonv2.MarshalWrite(escaper{b}, v, jsonv1.DefaultOptionsV1(), jsontext.EscapeForHTML(false),
		jsonv2.JoinOptions(more...))
	if err == nil {
		err = b.WriteByte('\n')
	}
	if failed := b.Flush(); failed != nil { // of w, in its own words
		return failed
	}
	if err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return nil
}

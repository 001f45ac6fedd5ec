package report

import (
	"bufio"
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
)

// JSON writes one object. Values are exact; characters that a terminal would obey are written as escapes, which JSON allows
// anywhere in a string. The bytes are those of encoding/json with an indent of two blanks, which would hold them all in memory,
// twice: the report of a disk with thousands of partitions is larger than all else that is known of it.
func JSON(w io.Writer, v any) error {
	b := bufio.NewWriter(w)
	e := &jsonWriter{w: b, fields: map[reflect.Type][]jsonField{}, walked: map[reflect.Type]bool{}}
	e.enc = json.NewEncoder(&e.leaf)
	e.enc.SetEscapeHTML(false)
	e.value(reflect.ValueOf(v), "\n")
	if e.err != nil {
		return fmt.Errorf("json: %w", e.err)
	}
	if err := b.WriteByte('\n'); err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return b.Flush()
}

// Line writes one object in one line, for a stream of them. Its characters are those of JSON.
func Line(w io.Writer, v any) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(escaper{b})
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("json: %w", err)
	}
	return b.Flush()
}

// jsonWriter writes structures and lists piece by piece, and leaves the rest to encoding/json.
type jsonWriter struct {
	w      *bufio.Writer
	fields map[reflect.Type][]jsonField
	walked map[reflect.Type]bool
	leaf   bytes.Buffer
	enc    *json.Encoder // into leaf
	err    error
}

// jsonField is a field of a structure, or of one embedded in it.
type jsonField struct {
	index     []int
	name      string
	omitEmpty bool
}

// value writes v. line is what begins a line: its end, and the blanks in front.
func (e *jsonWriter) value(v reflect.Value, line string) {
	for v.IsValid() && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && !v.IsNil() {
		v = v.Elem()
	}
	switch {
	case e.err != nil:
	case !v.IsValid() || !e.walks(v.Type()):
		e.other(v, line)
	case v.Kind() == reflect.Struct:
		e.object(v, line)
	case v.Kind() == reflect.Slice && v.IsNil():
		e.text("null")
	default:
		e.list(v, line)
	}
}

// walks reports whether a type is written piece by piece.
func (e *jsonWriter) walks(t reflect.Type) bool {
	is, known := e.walked[t]
	if !known {
		is = inPieces(t)
		e.walked[t] = is
	}
	return is
}

func inPieces(t reflect.Type) bool {
	for _, own := range []reflect.Type{reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()} {
		if t.Implements(own) || reflect.PointerTo(t).Implements(own) {
			return false
		}
	}
	return t.Kind() == reflect.Struct || (t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8)
}

func (e *jsonWriter) object(v reflect.Value, line string) {
	next, first := line+"  ", true
	e.text("{")
	for _, f := range e.fieldsOf(v.Type()) {
		x := v.FieldByIndex(f.index)
		if f.omitEmpty && empty(x) {
			continue
		}
		if !first {
			e.text(",")
		}
		first = false
		e.text(next)
		e.other(reflect.ValueOf(f.name), next)
		e.text(": ")
		e.value(x, next)
	}
	if !first {
		e.text(line)
	}
	e.text("}")
}

func (e *jsonWriter) list(v reflect.Value, line string) {
	next := line + "  "
	e.text("[")
	for i := range v.Len() {
		if i > 0 {
			e.text(",")
		}
		e.text(next)
		e.value(v.Index(i), next)
	}
	if v.Len() > 0 {
		e.text(line)
	}
	e.text("]")
}

// other writes a value as a whole.
func (e *jsonWriter) other(v reflect.Value, line string) {
	e.leaf.Reset()
	var x any
	if v.IsValid() {
		x = v.Interface()
		if v.Kind() == reflect.Map || v.Kind() == reflect.Array {
			e.enc.SetIndent(line[1:], "  ")
			defer e.enc.SetIndent("", "")
		}
	}
	if err := e.enc.Encode(x); err != nil {
		e.err = err
		return
	}
	if _, err := (escaper{e.w}).Write(bytes.TrimSuffix(e.leaf.Bytes(), []byte("\n"))); err != nil {
		e.err = err
	}
}

func (e *jsonWriter) text(s string) {
	if _, err := e.w.WriteString(s); err != nil {
		e.err = err
	}
}

// fieldsOf lists the fields as encoding/json does, in the same order. No type here has two of one name.
func (e *jsonWriter) fieldsOf(t reflect.Type) []jsonField {
	if fs, ok := e.fields[t]; ok {
		return fs
	}
	var out []jsonField
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out = append(out, jsonField{f.Index, name, options == "omitempty"})
	}
	e.fields[t] = out
	return out
}

// empty is what omitempty leaves out.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	default:
		return v.IsZero()
	}
}

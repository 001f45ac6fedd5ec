package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
)

// TestJSONIsThatOfEncodingJSON compares the writer with the one of the library on every object, with all fields set and
// with none.
func TestJSONIsThatOfEncodingJSON(t *testing.T) {
	for _, v := range []any{
		&report.Inspect{}, &report.Plan{}, &report.Align{}, &report.Verify{}, &report.Failure{},
		&report.PackageInspect{},
	} {
		t.Run(reflect.TypeOf(v).Elem().Name(), func(t *testing.T) {
			requireLibrary(t, v)
			n := 0
			set(reflect.ValueOf(v).Elem(), &n)
			requireLibrary(t, v)
			require.Greater(t, n, 3)
		})
	}
	for _, v := range []any{
		nil, 1, "<a&b>",
		[]string{},
		[]string(nil),
		map[string]string{},
		map[string]any{"a": []int{1}},
		struct{}{},
		[]byte("x"),
		[2]int{1, 2},
	} {
		requireLibrary(t, v)
	}
}

func requireLibrary(t *testing.T, v any) {
	t.Helper()
	var got, want bytes.Buffer
	require.NoError(t, report.JSON(&got, v))
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(v))
	require.Equal(t, want.String(), got.String())
}

// set fills v with values that differ from each other; n counts them.
func set(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && v.Type().Field(i).Tag.Get("json") != "-" {
				set(v.Field(i), n)
			}
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		set(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		set(v.Index(0), n)
		set(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"b": fmt.Sprint(*n), "a": "<&>"}))
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d \"<é>", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.25)
	case reflect.Uint32:
		v.SetUint(uint64(*n))
	default:
		panic(v.Type().String())
	}
}

// Whatever the encoder writes at once, no character is cut, so that none passes the escapes; and it writes early.
func TestJSONOfManyDangerousCharacters(t *testing.T) {
	var texts []string
	for n := range 3000 {
		texts = append(texts, strings.Repeat("x", n%7)+strings.Repeat("\u202e\U000e0001\u009b", 1+n%50))
	}
	w := &largestWrite{}
	require.NoError(t, report.JSON(w, texts))
	require.NotContains(t, w.String(), "\u202e")
	require.NotContains(t, w.String(), "\U000e0001")
	require.NotContains(t, w.String(), "\u009b")
	var back []string
	require.NoError(t, json.Unmarshal(w.Bytes(), &back))
	require.Equal(t, texts, back)
	require.Less(t, w.largest, w.Len()/100)
}

type largestWrite struct {
	bytes.Buffer
	largest int
}

func (l *largestWrite) Write(p []byte) (int, error) {
	l.largest = max(l.largest, len(p))
	return l.Buffer.Write(p)
}

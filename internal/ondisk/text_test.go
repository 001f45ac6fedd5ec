package ondisk

import (
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// The expected texts are those of iconv(1); half of a surrogate pair has none.
func TestUTF16(t *testing.T) {
	for _, tc := range []struct{ name, hex, all, cut string }{
		{"nothing", "", "", ""},
		{"letters, and two behind a zero", "41004200000043004400", "AB\x00CD", "AB"},
		{"an odd byte at the end", "4100e4", "A", "A"},
		{"zero in one half only", "00014100", "\u0100A", "\u0100A"},
		{"a pair of surrogates", "3dd800de", "\U0001f600", "\U0001f600"},
		{"half a pair", "3dd84100", "\ufffdA", "\ufffdA"},
	} {
		little, err := hex.DecodeString(tc.hex)
		require.NoError(t, err)
		big := append([]byte{}, little...)
		for i := 0; i+1 < len(big); i += 2 {
			big[i], big[i+1] = big[i+1], big[i]
		}
		require.Equal(t, tc.all, UTF16(little, binary.LittleEndian), tc.name)
		require.Equal(t, tc.all, UTF16(big, binary.BigEndian), tc.name)
		require.Equal(t, tc.cut, UTF16Z(little, binary.LittleEndian), tc.name)
		require.Equal(t, tc.cut, UTF16Z(big, binary.BigEndian), tc.name)
	}
}

// The bytes are those that Hyper-V writes for the GUID of the BAT region.
func TestGUID(t *testing.T) {
	const text = "2dc27766-f623-4200-9d64-115e9bfd4a08"
	g, ok := ParseGUID("{2DC27766-F623-4200-9D64-115E9BFD4A08}")
	require.True(t, ok)
	require.Equal(t, "6677c22d23f600429d64115e9bfd4a08", hex.EncodeToString(g[:]))
	require.Equal(t, text, g.String())
	for _, bad := range []string{
		"", "{", "{" + text, text + "}", text[1:], "{}", "2dc27766-f623-4200-9d64x115e9bfd4a08",
		"2dc27766-f623-4200-9d64-115e9bfd4a0g", "2-c27766-f623-4200-9d64-115e9bfd4a08",
	} {
		_, ok := ParseGUID(bad)
		require.False(t, ok, bad)
	}
}

func TestNoChoice(t *testing.T) {
	formats := []string{"text", "json", "csv", "html", "junit", "prometheus"}
	for word, want := range map[string]string{
		"jsn": "json", "JSON": "json", "ndjson": "json", "htm": "html", "prom": "prometheus", "j": "", "": "",
		"xml": "", "yaml": "", "table": "", "x": "", "cvs": "",
	} {
		require.Equal(t, want, Near(word, formats...), word)
	}
	err := NoChoice("--output", "jsn", formats...)
	require.ErrorIs(t, err, ErrUsage)
	require.EqualError(t, err,
		`--output "jsn", must be one of text, json, csv, html, junit, prometheus; did you mean json?`)
	require.EqualError(t, NoChoice("--keep", "x", "original", "none"), `--keep "x", must be original or none`)
}

// The words of Levenshtein's distance as textbooks have it.
func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"kitten", "sitting", 3}, {"saturday", "sunday", 3}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}} {
		require.Equal(t, c.want, distance(c.a, c.b))
	}
}

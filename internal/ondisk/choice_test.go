package ondisk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
		`--output "jsn", want one of text, json, csv, html, junit, prometheus; did you mean json?`)
	require.EqualError(t, NoChoice("--keep", "x", "original", "none"), `--keep "x", want original or none`)
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

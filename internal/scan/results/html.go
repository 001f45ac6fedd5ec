package results

import (
	"cmp"
	_ "embed" // body, style and script of the report
	"io"
	"iter"
	"slices"

	"github.com/trueup/trueup/internal/report/pages"
)

//go:embed html/report.html.tmpl
var htmlPage string

//go:embed html/report.css
var htmlStyle string

//go:embed html/report.js
var htmlScript string

var htmlFormat = Format{
	Name: "html", Write: func(w io.Writer, r *Report) error { return writeHTML(w, r.Summary, r.Images) },
}

// writeHTML writes the report of a run as one file that asks no server for anything. images are in the order of Rank.
// Rows are made one at a time, and the same values give the same bytes.
func writeHTML(w io.Writer, s *Summary, images iter.Seq[*Image]) error {
	return kind.Write(w, safe(s.Version), newPage(s, images))
}

var kind = pages.New(pages.Source{
	Body: htmlPage, Style: htmlStyle, Script: htmlScript, Functions: htmlFunctions,
})

// choice is something to filter by, and how many rows have it.
type choice struct {
	Key, Word string
	Count     int
}

// choices counts what rows have, in the order of keys, or sorted where there are none. Choices without a row are left
// out.
func choices(counts map[string]int, keys []string, words map[string]string) (out []choice) {
	if keys == nil {
		for k := range counts {
			keys = append(keys, k)
		}
		slices.Sort(keys)
	}
	for _, k := range keys {
		if counts[k] > 0 {
			out = append(out, choice{k, cmp.Or(words[k], k), counts[k]})
		}
	}
	return out
}

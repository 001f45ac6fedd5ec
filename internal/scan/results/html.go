package results

import (
	"cmp"
	_ "embed" // body, style and script of the report
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/report/pages"
	"github.com/trueup/trueup/internal/units"
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

// maxMeasured bounds the sentences on a benchmark.
const maxMeasured = 4

// htmlMeasured says for how many images a benchmark of the storage proves what. Each image counts once for a sentence.
func htmlMeasured(r *measured.Result, images iter.Seq[*Image]) (out []string) {
	if r == nil {
		return nil
	}
	count, other := map[string]int{}, 0
	for i := range images {
		said, unmatched := measuredOf(r, i)
		for text := range said {
			count[text]++
		}
		if unmatched && len(said) == 0 {
			other++
		}
	}
	texts := slices.SortedFunc(maps.Keys(count),
		func(a, b string) int { return cmp.Or(count[b]-count[a], cmp.Compare(a, b)) })
	for _, text := range texts[:min(len(texts), maxMeasured)] {
		out = append(out, fmt.Sprintf("For %s off the boundary: %s.", units.Counted(count[text], "image"), safe(text)))
	}
	if other > 0 {
		out = append(out, fmt.Sprintf("No measured start stands for %s off the boundary.",
			units.Counted(other, "other image")))
	}
	return out
}

// measuredOf returns what a benchmark proves for the partitions of an image that are off the boundary.
func measuredOf(r *measured.Result, i *Image) (said map[string]bool, unmatched bool) {
	said = map[string]bool{}
	if i.State != Judged || i.Copied != "" { // such as a kept original
		return said, false
	}
	for _, d := range i.Disks {
		for _, p := range d.Partitions {
			if !p.Verdict.Off() || p.Stays != "" {
				continue
			}
			if text := r.Say(r.Gains(p.DataStart())); text != "" {
				said[text] = true
			} else {
				unmatched = true
			}
		}
	}
	return said, unmatched
}

package results

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/units"
)

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
	for _, d := range i.Disks {
		for _, p := range d.Partitions {
			if !p.Verdict.Off() {
				continue
			}
			if text := r.Say(r.Gains(p.Start)); text != "" {
				said[text] = true
			} else {
				unmatched = true
			}
		}
	}
	return said, unmatched
}

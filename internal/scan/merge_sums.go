package scan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/scan/results"
)

// maxLabelSums bounds the labels of which there are sums.
const maxLabelSums = 1000

// labelSums adds up images by their labels.
type labelSums struct {
	sums map[[2]string]*results.LabelSum
	left map[[2]string]bool // labels without a sum; as many as there are sums
}

// add counts an image for each of its labels.
func (l *labelSums) add(i *results.Image) {
	if l.sums == nil {
		l.sums, l.left = map[[2]string]*results.LabelSum{}, map[[2]string]bool{}
	}
	for key, values := range i.Labels {
		for _, value := range values {
			at := [2]string{key, value}
			sum := l.sums[at]
			switch {
			case sum == nil && len(l.sums) < maxLabelSums:
				sum = &results.LabelSum{Key: key, Value: value}
				l.sums[at] = sum
			case sum == nil:
				if len(l.left) < maxLabelSums {
					l.left[at] = true
				}
				continue
			}
			sum.Add(i)
		}
	}
}

// put puts the sums into those of a report, sorted.
func (l *labelSums) put(m *results.Merged) {
	m.Labels, m.LabelsCut = []results.LabelSum{}, len(l.left)
	order := func(a, b [2]string) int { return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1])) }
	for _, at := range slices.SortedFunc(maps.Keys(l.sums), order) {
		m.Labels = append(m.Labels, *l.sums[at])
	}
}

// below returns a path below the only root; empty if there are several, where folders can have images of one name, or
// if it does not lie there. A root that is an image has no path below itself.
func below(r results.Roots, path string) string {
	for root := range r {
		switch rest, in := strings.CutPrefix(path, root+"/"); {
		case len(r) > 1:
		case in:
			return rest
		case root == "." && !strings.HasPrefix(path, "/"):
			return path
		}
	}
	return ""
}

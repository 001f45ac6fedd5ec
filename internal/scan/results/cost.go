package results

import (
	"math"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/layout"
)

// NewCost finds the start off a boundary that costs a storage most: by how many blocks a random I/O of one block of the
// volume touches more than it must. Nil: every start is on the boundary.
func NewCost(l *layout.Layout, boundary int64, s align.Storage) (out *Cost) {
	for _, p := range l.Partitions {
		if !align.IsOff(p, boundary) {
			continue
		}
		i := align.ImpactOf(p, s)
		// Of() is a fraction; a tenth of a percent is enough.
		more := math.Round(1000*(i.Of(i.Block).Random.More()-1)) / 10
		if out == nil || more > out.More {
			out = &Cost{Storage: s.Name, Block: s.Block, Partition: p.Number, More: more, Text: i.Text()}
		}
	}
	return out
}

package realign

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ovf"
)

// A capacity contradicts a disk that is larger, or smaller by a whole unit.
func TestCapacityIssues(t *testing.T) {
	for name, c := range map[string]struct {
		capacity, unit, size int64
		issues               int
	}{
		"equal":                {8 << 20, 1, 8 << 20, 0},
		"too small":            {8<<20 - 1, 1, 8 << 20, 1},
		"too large":            {8<<20 + 1, 1, 8 << 20, 1},
		"rounded up to a GiB":  {1 << 30, 1 << 30, 8 << 20, 0},
		"a GiB too large":      {2 << 30, 1 << 30, 1 << 30, 1},
		"chosen at deployment": {-1, 1, 8 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := image.PackageDisk{Member: "a.vmdk", Disks: []ovf.Disk{{ID: "d", Capacity: c.capacity, Unit: c.unit}}}
			require.Len(t, CapacityIssues(d, c.size), c.issues)
		})
	}
}

package vmdk

import (
	"errors"
	"math"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// maxProbes bounds the random reads of a check. A reader looks at the marker of each grain that it takes.
const maxProbes = 1024

// probe looks at the marker of a compressed grain, one for each table: a table that was shifted or belongs to another
// file is found out by its first.
func (c *tableFaults) probe(off, grain int64) error {
	if c.probed++; c.probed > maxProbes {
		return nil
	}
	_, err := c.x.grainAt(off, grain)
	if errors.Is(err, ondisk.ErrFormat) {
		c.add(otherGrain, "%v", err)
		return nil
	}
	return err
}

// dataArea returns where grains begin, in bytes.
func (c *tableFaults) dataArea() int64 {
	return min(ondisk.I64(min(c.x.h.OverHead, math.MaxUint32))*units.SectorSize, c.x.file.Size())
}

// addOrphans counts the grains of the file that no table names. Compressed grains can be told from other data only by
// reading all of the file, and ESX takes space in advance, so these are not counted; nor is anything where tables are
// damaged.
func (c *tableFaults) addOrphans() {
	if c.x.h.packed() || c.x.cowd || len(c.counts) > 0 || c.partial {
		return
	}
	if n := (c.x.file.Size() - c.dataArea() - c.used) / c.x.h.grainBytes(); n > 0 {
		c.orphans += n
		c.lost += n * c.x.h.grainBytes()
	}
}

package vmdk

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/ondisk"
)

// seFaults looks for faults in one space-efficient sparse extent.
type seFaults struct {
	*faults
	x      *seExtent
	tables *ondisk.PlaceSet // by number
	grains *ondisk.PlaceSet // by number
	holes  *ondisk.Holes
	buf    []byte // the table in work
}

// check walks every grain table once.
func (x *seExtent) check(f *faults) error {
	c := &seFaults{
		faults: f, x: x, tables: ondisk.NewPlaceSet(1), grains: ondisk.NewPlaceSet(1), holes: ondisk.NewHoles(x.file),
		buf: make([]byte, seTableBytes),
	}
	if err := c.eachTable(x.tables(), x.table, c.table); err != nil {
		return err
	}
	f.partial = f.partial || c.tables.Full() || c.grains.Full()
	return nil
}

// table checks table i, which lies at loc.
func (c *seFaults) table(i, loc int64) error {
	number := (loc - c.x.gts) / seTableBytes
	if c.tables.Add(ondisk.U64(number)) {
		c.add(takenTable, "grain directory entry %d names table %d", i, number)
		return nil
	}
	if c.holes.Has(loc, seTableBytes) {
		return nil
	}
	if err := c.x.tabs.Read(c.buf, loc); err != nil {
		return err
	}
	c.entries(i, loc)
	return nil
}

// entries looks at the entries of the table in the buffer.
func (c *seFaults) entries(table, loc int64) {
	grains := (c.x.bytes + seGrainBytes - 1) / seGrainBytes
	for j := range min(seGTEs, grains-table*seGTEs) {
		entry := binary.LittleEndian.Uint64(c.buf[8*j:])
		off, stored, err := c.x.place(entry, loc+8*j)
		switch {
		case err != nil:
			c.add(badGrain, "%v", err)
		case stored && c.grains.Add(ondisk.U64((off-c.x.grains0)/seGrainBytes)):
			c.add(takenGrain, "grain table entry at %#x names grain %d", loc+8*j, (off-c.x.grains0)/seGrainBytes)
		}
	}
}

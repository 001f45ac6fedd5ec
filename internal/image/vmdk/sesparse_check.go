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
	for i := int64(0); i < x.tables(); {
		skip, err := c.table(i)
		if err != nil {
			return err
		}
		i += skip
	}
	f.partial = f.partial || c.tables.Full() || c.grains.Full()
	return nil
}

// table checks table i and returns how many tables it covers: absent ones are passed over together.
func (c *seFaults) table(i int64) (int64, error) {
	loc, zeros, err := c.x.table(i)
	if fe, ok := err.(*ondisk.FormatError); ok { //nolint:errorlint // made by table itself, never wrapped
		c.add(badTable, "%v", fe)
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	if loc == 0 {
		return zeros, nil
	}
	number := (loc - c.x.gts) / seTableBytes
	if c.tables.Add(ondisk.U64(number)) {
		c.add(takenTable, "grain directory entry %d names table %d", i, number)
		return 1, nil
	}
	if c.holes.Has(loc, seTableBytes) {
		return 1, nil
	}
	if err := c.x.tabs.Read(c.buf, loc); err != nil {
		return 0, err
	}
	c.entries(i, loc)
	return 1, nil
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

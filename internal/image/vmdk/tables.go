package vmdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// faults counts table damage across all extents.
type faults struct {
	driver.Faults
	partial bool  // not all places were compared
	orphans int64 // grains that no table names
	lost    int64 // bytes of these
	mirrors mirrors
}

// The kinds of damage.
const (
	badTable   = "grain tables outside of the file or inside the directory"
	takenTable = "grain tables at a place in use"
	badGrain   = "grains outside of the file's data area"
	takenGrain = "grains at a place in use"
	otherGrain = "grains with another marker"
)

// tableFaults looks for faults in one extent.
type tableFaults struct {
	*faults
	x      *sparse
	tables *ondisk.PlaceSet
	grains *ondisk.PlaceSet
	mirror *mirror
	holes  *ondisk.Holes
	buf    []byte // the table in work
	used   int64  // bytes of the data area that are in use
	probed int    // markers that were looked at
}

// checkTables walks every grain table once. A reader would meet an entry that points outside of the file, but never two
// entries that share a grain.
func (x *sparse) checkTables() ([]ondisk.Issue, error) {
	c := &faults{}
	if err := x.check(c); err != nil {
		return nil, err
	}
	return c.issues(), nil
}

// check adds what is wrong to f.
func (x *sparse) check(f *faults) error {
	c := &tableFaults{
		faults: f, x: x, mirror: newMirror(x, f), holes: ondisk.NewHoles(x.file), buf: make([]byte, x.h.gtBytes()),
		tables: ondisk.NewPlaceSet(ondisk.U64(x.h.gtBytes() / units.SectorSize)),
		grains: ondisk.NewPlaceSet(x.h.GrainSize),
	}
	if x.h.packed() {
		c.grains = ondisk.NewPlaceSet(1) // of any length: only those that start at one sector are found
	}
	if err := c.eachTable(x.h.tables(), x.table, c.table); err != nil {
		return err
	}
	f.partial = f.partial || c.tables.Full() || c.grains.Full()
	c.addOrphans()
	return nil
}

// eachTable checks n tables. find returns the place of a table, or 0 and how many in a row are absent.
func (c *faults) eachTable(
	n int64, find func(i int64) (loc, absent int64, err error), check func(i, loc int64) error,
) error {
	for i := int64(0); i < n; i++ {
		loc, absent, err := find(i)
		if fe, ok := err.(*ondisk.FormatError); ok { //nolint:errorlint // made by find itself, never wrapped
			c.Add(badTable, "%v", fe)
			continue
		}
		if err == nil && loc == 0 {
			i += absent - 1
			continue
		}
		if err == nil {
			err = check(i, loc)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// table checks table i, which lies at loc.
func (c *tableFaults) table(i, loc int64) error {
	if c.tables.Add(ondisk.U64(loc/units.SectorSize)) || c.amongGrains(loc) {
		// Its entries are not looked at a second time: a directory of two million entries to one table costs nothing
		// to write.
		c.Add(takenTable, "grain directory entry %d names sector %d", i, loc/units.SectorSize)
		return nil
	}
	if loc >= c.dataArea() {
		c.used += c.x.h.gtBytes()
	}
	hole := c.holes.Has(loc, c.x.h.gtBytes())
	if hole {
		clear(c.buf)
	} else if err := c.x.tabs.Read(c.buf, loc); err != nil {
		return err
	}
	if err := c.mirror.compare(i, c.buf, hole); err != nil {
		return err
	}
	if hole {
		return nil
	}
	return c.entries(i, loc)
}

// amongGrains enters a table into the places of the grains, between which the tables of the older kind lie, and
// reports whether a grain is there.
func (c *tableFaults) amongGrains(loc int64) (taken bool) {
	if !c.x.cowd || c.x.h.grainBytes() > c.x.h.gtBytes() {
		return false
	}
	for off := int64(0); off < c.x.h.gtBytes(); off += c.x.h.grainBytes() {
		taken = c.grains.Add(ondisk.U64((loc+off)/units.SectorSize)) || taken
	}
	return taken
}

// entries looks at the entries of the table in the buffer.
func (c *tableFaults) entries(table, loc int64) error {
	x := c.x
	probe := x.h.packed()
	for j := range min(x.h.gtes(), x.h.grains()-table*x.h.gtes()) {
		entry := binary.LittleEndian.Uint32(c.buf[4*j:])
		if x.isZero(entry) {
			continue
		}
		at, off := loc+4*j, int64(entry)*units.SectorSize
		if err := x.checkGrains(entry, 1, table*x.h.gtes()+j, at); err != nil {
			c.Add(badGrain, "%v", err)
		} else if c.grains.Add(uint64(entry)) {
			c.Add(takenGrain, "grain table entry at %#x names sector %d", at, entry)
		} else if probe {
			if err := c.probe(off, table*x.h.gtes()+j); err != nil {
				return err
			}
		}
		c.used += min(x.h.grainBytes(), x.file.Size()-off)
		probe = false
	}
	return nil
}

// issues makes one issue for each kind of damage.
func (c *faults) issues() []ondisk.Issue {
	out := c.Issues(ondisk.Issue{
		Code: "vmdk-tables", Effect: ondisk.Broken,
		Remedy: "restore the image from a good copy, or repair it with vmware-vdiskmanager -R",
	}, "vmdk grain tables", badTable, takenTable, badGrain, takenGrain, otherGrain)
	if c.partial {
		out = append(out, driver.Unchecked("vmdk-tables-unchecked", "grains"))
	}
	if m := c.mirrors; m.differ > 0 {
		out = append(out, ondisk.Issue{
			Code: "vmdk-redundant-tables", Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
			Text: fmt.Sprintf("the redundant grain tables disagree with the primary ones in %d places; first: %s",
				m.differ, m.first),
			Remedy: "repair it with vmware-vdiskmanager -R, or take the primary tables with qemu-img convert",
		})
	}
	if c.orphans > 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%d grains (%s) of the file are named by no grain table: a copy does not have them",
				c.orphans, units.Format(c.lost)),
		})
	}
	return out
}

// mirrors counts where redundant grain tables disagree with the primary ones.
type mirrors struct {
	differ int
	first  string
}

// mirror compares the redundant grain tables of an extent with the primary ones.
type mirror struct {
	x      *sparse
	faults *faults
	gd     int64 // 0: the file has no redundant directory
	holes  *ondisk.Holes
	buf    [gtBytes]byte
}

func newMirror(x *sparse, f *faults) *mirror {
	m := &mirror{x: x, faults: f, holes: ondisk.NewHoles(x.file)}
	if x.h.redundant() {
		m.gd = ondisk.I64(x.h.RGDOffset) * units.SectorSize
	}
	return m
}

// compare compares primary table i with its copy. hole reports whether the primary is all zero.
func (m *mirror) compare(i int64, primary []byte, hole bool) error {
	if m.gd == 0 {
		return nil
	}
	sector, err := m.x.tabs.U32(m.gd + 4*i)
	if err != nil {
		return err
	}
	loc := int64(sector) * units.SectorSize
	if sector == 0 || loc > m.x.file.Size()-gtBytes {
		m.note("redundant directory entry %d is %d", i, sector)
		return nil
	}
	if hole && m.holes.Has(loc, gtBytes) {
		return nil
	}
	if err := m.x.tabs.Read(m.buf[:], loc); err != nil {
		return err
	}
	if !bytes.Equal(m.buf[:], primary) {
		m.note("copy of table %d at %#x", i, loc)
	}
	return nil
}

func (m *mirror) note(format string, args ...any) {
	to := &m.faults.mirrors
	if to.differ++; to.differ == 1 {
		to.first = m.faults.Where() + fmt.Sprintf(format, args...)
	}
}

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
		c.Add(otherGrain, "%v", err)
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
	if c.x.h.packed() || c.x.cowd || c.Any() || c.partial {
		return
	}
	if n := (c.x.file.Size() - c.dataArea() - c.used) / c.x.h.grainBytes(); n > 0 {
		c.orphans += n
		c.lost += n * c.x.h.grainBytes()
	}
}

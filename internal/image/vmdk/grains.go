package vmdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// grains is the map of an extent with grains: a directory names tables, and these have an entry for each grain.
type grains struct {
	file     driver.File
	tabs     *ondisk.Pages
	entries  entries
	bytes    int64 // of the extent on the disk
	grain    int64 // bytes
	width    int64 // bytes of an entry
	perTable int64 // entries of a table
	gd       int64 // byte offset of the directory
	mirror   int64 // byte offset of the redundant one; 0: the extent has none
	data     int64 // byte offset from which the file holds grains and tables alone, or noData
	mixed    bool  // tables lie among the grains

	unpacked *driver.Unpacked // grains by number; nil: they are not compressed
	// marker checks the marker of a grain at a byte offset; nil: there is none
	marker func(off, grain int64) (n int64, err error)
	below  func(off, n int64) disk.Run // what a hole shows, by offset in the extent; nil: zeros
}

// noData says that grains that no table names cannot be told from other bytes of the file.
const noData = -1

// entries gives the entries of directory and tables their meaning. at is the byte offset of the entry.
type entries interface {
	tablePlace(entry uint64, at int64) (loc int64, err error)
	state(entry uint64, grain, at int64) (grainState, error)
}

// grainState is the meaning of a table entry.
type grainState struct {
	kind grainKind
	off  int64 // of a stored grain, in the file
}

type grainKind int

const (
	absentGrain grainKind = iota // a hole
	zeroGrain
	storedGrain
)

func (x *grains) size() int64                            { return x.bytes }
func (x *grains) over(below func(off, n int64) disk.Run) { x.below = below }

// hole returns what n bytes from off show that are not there.
func (x *grains) hole(off, n int64) disk.Run {
	if x.below == nil {
		return disk.Run{Len: n}
	}
	return x.below(off, n)
}

// count returns how many grains the extent has; the last one may be cut by its end.
func (x *grains) count() int64 { return (x.bytes-1)/x.grain + 1 }

// tables returns how many entries the directory has.
func (x *grains) tables() int64 { return (x.count()-1)/x.perTable + 1 }

func (x *grains) directory() disk.Range { return disk.Range{Off: x.gd, Len: x.width * x.tables()} }
func (x *grains) tableBytes() int64     { return x.width * x.perTable }

// get returns entry i of a stretch of a table.
func (x *grains) get(b []byte, i int64) uint64 {
	if x.width == 4 {
		return uint64(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return binary.LittleEndian.Uint64(b[8*i:])
}

// maxEntries is how many entries of a table are looked at for one run.
const maxEntries = 512

// run returns the map: directory entry, table entry, grain. It gives the longest run that one piece of a table shows.
func (x *grains) run(off int64) (disk.Run, error) {
	grain, into := off/x.grain, off%x.grain
	table, first := grain/x.perTable, grain%x.perTable
	loc, absent, err := x.table(table)
	if err != nil {
		return disk.Run{}, err
	}
	if loc == 0 {
		return x.hole(off, (absent*x.perTable-first)*x.grain-into), nil
	}
	n := min(x.perTable-first, x.count()-grain, maxEntries)
	b := make([]byte, x.width*n)
	if err := x.tabs.Read(b, loc+x.width*first); err != nil {
		return disk.Run{}, err
	}
	if ondisk.IsZero(b) { // as in nearly all of the two million tables that a large disk of qemu-img has
		return x.hole(off, n*x.grain-into), nil
	}
	return x.join(b, loc+x.width*first, off)
}

// gdScan is how many empty directory entries run looks over at once: a 64 TiB disk has two million of them, and one
// of ESX 32.
const gdScan = 8192

// table returns the byte offset of a grain table, or 0 and the number of absent tables from there on.
func (x *grains) table(i int64) (loc, absent int64, err error) {
	at := x.gd + x.width*i
	var b [8]byte
	if err := x.tabs.Read(b[:x.width], at); err != nil {
		return 0, 0, err
	}
	if entry := x.get(b[:], 0); entry != 0 {
		loc, err = x.entries.tablePlace(entry, at)
		return loc, 0, err
	}
	n := x.width * min(gdScan, x.tables()-i)
	zeros, err := x.tabs.Zeros(at, n)
	if err == nil && zeros == n {
		zeros += x.width * emptyEntries(x.file, at+n, x.directory().End(), x.width)
	}
	return 0, zeros / x.width, err
}

// maxEmpty is how many directory entries in a hole are passed over at once: of the largest grain tables that is 128
// PiB of disk.
const maxEmpty = 1 << 28

// emptyEntries returns how many entries of a directory lie in a hole of the file from a place on. A directory of
// terabytes costs nothing to make.
func emptyEntries(f driver.File, from, end, entry int64) int64 {
	if from >= end {
		return 0
	}
	e, err := f.Extent(from, end-from)
	if err != nil || !e.Zero {
		return 0 // reading them will find the error
	}
	return min(e.Len/entry, maxEmpty)
}

// join makes one run of the entries that continue the first. at is the byte offset of the first entry.
func (x *grains) join(b []byte, at, off int64) (disk.Run, error) {
	grain, into := off/x.grain, off%x.grain
	first, err := x.entries.state(x.get(b, 0), grain, at)
	if err != nil {
		return disk.Run{}, err
	}
	n := int64(1)
	for ; n < int64(len(b))/x.width; n++ {
		// An entry that is malformed does not spoil those in front of it.
		next, err := x.entries.state(x.get(b, n), grain+n, at+x.width*n)
		if err != nil || !x.continues(first, next, n) {
			break
		}
	}
	size := n*x.grain - into
	switch {
	case first.kind == absentGrain:
		return x.hole(off, size), nil
	case first.kind == zeroGrain:
		return disk.Run{Len: size}, nil
	case x.unpacked != nil:
		return disk.Run{Len: size, Src: x.unpacked.Unit(grain), Off: into}, nil
	}
	return disk.Run{Len: size, Src: x.file, Off: first.off + into}, nil
}

// continues reports whether the n-th grain behind one reads from the same place. A marked grain of zeros hides what a
// hole shows.
func (x *grains) continues(first, next grainState, n int64) bool {
	if first.kind == storedGrain {
		return next.kind == storedGrain && next.off == first.off+n*x.grain && x.unpacked == nil
	}
	return next.kind == first.kind || next.kind != storedGrain && x.below == nil
}

// faults counts table damage across all extents.
type faults struct {
	driver.Faults
	partial bool  // not all places were compared
	orphans int64 // grains that no table names
	lost    int64 // bytes of these
	differ  int   // places where redundant tables disagree with the primary ones
	first   string
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
	x      *grains
	tables *ondisk.PlaceSet // in sectors, as grains
	grains *ondisk.PlaceSet
	holes  *ondisk.Holes // of the tables, which are walked in order
	gaps   *ondisk.Holes // of their copies, which lie elsewhere
	buf    []byte        // the table in work
	copied []byte        // the redundant one
	used   int64         // bytes of the data area that are in use
	probed int           // markers that were looked at
}

// checkTables walks every grain table once. A reader would meet an entry that points outside of the file, but never two
// entries that share a grain.
func (x *grains) checkTables() ([]ondisk.Issue, error) {
	c := &faults{}
	if err := x.check(c); err != nil {
		return nil, err
	}
	return c.issues(), nil
}

// check adds what is wrong to f.
func (x *grains) check(f *faults) error {
	c := &tableFaults{
		faults: f, x: x, holes: ondisk.NewHoles(x.file), gaps: ondisk.NewHoles(x.file),
		buf:    make([]byte, x.tableBytes()),
		copied: make([]byte, x.tableBytes()), tables: ondisk.NewPlaceSet(sectorsOf(x.tableBytes())),
		grains: ondisk.NewPlaceSet(sectorsOf(x.grain)),
	}
	if x.unpacked != nil {
		c.grains = ondisk.NewPlaceSet(1) // of any length: only those that start at one sector are found
	}
	for i := int64(0); i < x.tables(); i++ {
		loc, absent, err := x.table(i)
		if fe := (*ondisk.FormatError)(nil); errors.As(err, &fe) {
			c.Add(badTable, "%v", fe)
			continue
		}
		if err == nil && loc == 0 {
			i += absent - 1
			continue
		}
		if err == nil {
			err = c.table(i, loc)
		}
		if err != nil {
			return err
		}
	}
	f.partial = f.partial || c.tables.Full() || c.grains.Full()
	c.addOrphans()
	return nil
}

// sectorsOf returns the number of a sector, or how many there are in n bytes.
func sectorsOf(n int64) uint64 { return ondisk.U64(n / units.SectorSize) }

// table checks table i, which lies at loc.
func (c *tableFaults) table(i, loc int64) error {
	x := c.x
	if c.tables.Add(sectorsOf(loc)) || c.amongGrains(loc) {
		// Its entries are not looked at a second time: a directory of two million entries to one table costs nothing
		// to write.
		c.Add(takenTable, "grain directory entry %d names sector %d", i, sectorsOf(loc))
		return nil
	}
	if loc >= x.data {
		c.used += x.tableBytes()
	}
	hole := c.holes.Has(loc, x.tableBytes())
	if hole {
		clear(c.buf)
	} else if err := x.tabs.Read(c.buf, loc); err != nil {
		return err
	}
	if err := c.compare(i, hole); err != nil || hole {
		return err
	}
	return c.entries(i, loc)
}

// amongGrains enters a table into the places of the grains, between which the tables of the older kind lie, and
// reports whether a grain is there.
func (c *tableFaults) amongGrains(loc int64) (taken bool) {
	if !c.x.mixed || c.x.grain > c.x.tableBytes() {
		return false
	}
	for off := int64(0); off < c.x.tableBytes(); off += c.x.grain {
		taken = c.grains.Add(sectorsOf(loc+off)) || taken
	}
	return taken
}

// entries looks at the entries of the table in the buffer.
func (c *tableFaults) entries(table, loc int64) error {
	x := c.x
	probe := x.marker != nil
	for j := range min(x.perTable, x.count()-table*x.perTable) {
		grain, at := table*x.perTable+j, loc+x.width*j
		s, err := x.entries.state(x.get(c.buf, j), grain, at)
		switch {
		case err != nil:
			c.Add(badGrain, "%v", err)
		case s.kind != storedGrain:
			continue
		case c.grains.Add(sectorsOf(s.off)):
			c.Add(takenGrain, "grain table entry at %#x names sector %d", at, sectorsOf(s.off))
		case probe:
			if err := c.probe(s.off, grain); err != nil {
				return err
			}
		}
		c.used += min(x.grain, x.file.Size()-s.off)
		probe = false
	}
	return nil
}

// compare compares table i, which is in the buffer, with its copy. hole reports whether it is all zero.
func (c *tableFaults) compare(i int64, hole bool) error {
	x := c.x
	if x.mirror == 0 {
		return nil
	}
	sector, err := x.tabs.U32(x.mirror + x.width*i)
	if err != nil {
		return err
	}
	loc := int64(sector) * units.SectorSize
	if sector == 0 || loc > x.file.Size()-x.tableBytes() {
		c.differs("redundant directory entry %d is %d", i, sector)
		return nil
	}
	if hole && c.gaps.Has(loc, x.tableBytes()) {
		return nil
	}
	if err := x.tabs.Read(c.copied, loc); err != nil {
		return err
	}
	if !bytes.Equal(c.copied, c.buf) {
		c.differs("copy of table %d at %#x", i, loc)
	}
	return nil
}

func (c *tableFaults) differs(format string, args ...any) {
	if c.differ++; c.differ == 1 {
		c.first = c.Where() + fmt.Sprintf(format, args...)
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
	_, err := c.x.marker(off, grain)
	if errors.Is(err, ondisk.ErrFormat) {
		c.Add(otherGrain, "%v", err)
		return nil
	}
	return err
}

// addOrphans counts the grains of the file that no table names. Compressed grains can be told from other data only by
// reading all of the file, so these are not counted; nor is anything where tables are damaged.
func (c *tableFaults) addOrphans() {
	x := c.x
	if x.data == noData || c.Any() || c.partial {
		return
	}
	if n := (x.file.Size() - x.data - c.used) / x.grain; n > 0 {
		c.orphans += n
		c.lost += n * x.grain
	}
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
	if c.differ > 0 {
		out = append(out, ondisk.Issue{
			Code: "vmdk-redundant-tables", Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
			Text: fmt.Sprintf("the redundant grain tables disagree with the primary ones in %d places; first: %s",
				c.differ, c.first),
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

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

// grains is the map of an extent with grains: a directory of tables with an entry for each grain.
type grains struct {
	file     driver.File
	tabs     *ondisk.Pages
	entries  entries
	bytes    int64 // size of the extent on the disk, bytes
	grain    int64 // bytes
	width    int64 // bytes of an entry
	perTable int64 // entries of a table
	gd       int64 // byte offset of the directory
	mirror   int64 // byte offset of the redundant directory, or 0
	data     int64 // byte offset from which the file holds only grains and tables, or noData
	mixed    bool  // tables lie between grains

	unpacked *driver.Unpacked // cache of compressed grains by number, or nil
	// marker checks the marker of a compressed grain at byte offset off, and returns the size of its data. It is nil
	// without markers.
	marker func(off, grain int64) (n int64, err error)
	below  func(off, n int64) disk.Run // data behind a hole, by offset in the extent; nil for zeros
}

// noData means that unreferenced grains cannot be told from other bytes of the file.
const noData = -1

// entries decodes the entries of directory and tables. at is the byte offset of the entry.
type entries interface {
	tablePlace(entry uint64, at int64) (loc int64, err error)
	state(entry uint64, grain, at int64) (grainState, error)
}

// grainState is a decoded table entry.
type grainState struct {
	kind grainKind
	off  int64 // file offset of a stored grain, bytes
}

type grainKind int

const (
	absentGrain grainKind = iota // a hole
	zeroGrain
	storedGrain
)

func (x *grains) size() int64                            { return x.bytes }
func (x *grains) over(below func(off, n int64) disk.Run) { x.below = below }

// hole returns the run of n bytes without data from off on.
func (x *grains) hole(off, n int64) disk.Run {
	if x.below == nil {
		return disk.Run{Len: n}
	}
	return x.below(off, n)
}

// count returns the number of grains, of which the last may be partial.
func (x *grains) count() int64 { return (x.bytes-1)/x.grain + 1 }

// tables returns the number of directory entries.
func (x *grains) tables() int64 { return (x.count()-1)/x.perTable + 1 }

func (x *grains) directory() disk.Range { return disk.Range{Off: x.gd, Len: x.width * x.tables()} }
func (x *grains) tableBytes() int64     { return x.width * x.perTable }

// get returns entry i of a part of a table.
func (x *grains) get(b []byte, i int64) uint64 {
	if x.width == 4 {
		return uint64(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return binary.LittleEndian.Uint64(b[8*i:])
}

// maxEntries limits the table entries read for one run.
const maxEntries = 512

// run maps an offset through directory and table to the grain. It returns the longest run within one part of a table.
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
	var buf [8 * maxEntries]byte
	b := buf[:x.width*n]
	if err := x.tabs.Read(b, loc+x.width*first); err != nil {
		return disk.Run{}, err
	}
	if ondisk.IsZero(b) { // true for nearly all of the two million tables of a large qemu-img disk
		return x.hole(off, n*x.grain-into), nil
	}
	return x.join(b, loc+x.width*first, off)
}

// gdScan is the number of empty directory entries that run skips at once. A 64 TiB disk has two million entries, or 32
// in the ESX format.
const gdScan = 8192

// table returns the byte offset of grain table i. For an absent table, it returns 0 and the number of absent tables
// from there on.
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

// maxEmpty limits the directory entries in a hole that are skipped at once. With the largest grain tables, this is 128
// PiB of disk.
const maxEmpty = 1 << 28

// emptyEntries returns the number of directory entries in the hole at file offset from. A sparse directory of terabytes
// costs an attacker nothing.
func emptyEntries(f driver.File, from, end, entry int64) int64 {
	if from >= end {
		return 0
	}
	e, err := f.Extent(from, end-from)
	if err != nil || !e.Zero {
		return 0 // a read finds the error
	}
	return min(e.Len/entry, maxEmpty)
}

// join returns one run for the first entry and the entries that continue it. at is the byte offset of the first entry.
func (x *grains) join(b []byte, at, off int64) (disk.Run, error) {
	grain, into := off/x.grain, off%x.grain
	first, err := x.entries.state(x.get(b, 0), grain, at)
	if err != nil {
		return disk.Run{}, err
	}
	n := int64(1)
	for ; n < int64(len(b))/x.width; n++ {
		// A malformed entry does not affect the entries before it.
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

// continues reports whether the n-th grain after first extends its run. Over a parent, a zero grain and an absent grain
// differ.
func (x *grains) continues(first, next grainState, n int64) bool {
	if first.kind == storedGrain {
		return next.kind == storedGrain && next.off == first.off+n*x.grain && x.unpacked == nil
	}
	return next.kind == first.kind || next.kind != storedGrain && x.below == nil
}

// faults counts table damage in all extents.
type faults struct {
	driver.Faults
	partial bool  // some offsets were not compared
	orphans int64 // unreferenced grains
	lost    int64 // their size, bytes
	differ  int   // differences between redundant and primary tables
	first   string
}

// Kinds of damage.
const (
	badTable   = "grain tables outside of the file or inside the directory"
	takenTable = "grain tables at a place in use"
	badGrain   = "grains outside of the file's data area"
	takenGrain = "grains at a place in use"
	otherGrain = "grains with another marker"
)

// tableFaults checks the tables of one extent.
type tableFaults struct {
	*faults
	x      *grains
	tables *ondisk.PlaceSet // in sectors, like grains
	grains *ondisk.PlaceSet
	holes  *ondisk.Holes // holes of the primary tables, which are read in directory order
	gaps   *ondisk.Holes // holes of the redundant tables, in another part of the file
	buf    []byte        // the current table
	copied []byte        // its redundant copy
	used   int64         // bytes of the data area in use
	probed int           // markers checked
}

// check adds the faults of the extent to f. It walks every grain table once. Reads find an entry past the end of the
// file, but never two entries with the same grain.
func (x *grains) check(f *faults) error {
	c := &tableFaults{
		faults: f, x: x, holes: ondisk.NewHoles(x.file), gaps: ondisk.NewHoles(x.file),
		buf:    make([]byte, x.tableBytes()),
		copied: make([]byte, x.tableBytes()), tables: ondisk.NewPlaceSet(sectorsOf(x.tableBytes())),
		grains: ondisk.NewPlaceSet(sectorsOf(x.grain)),
	}
	if x.unpacked != nil {
		c.grains = ondisk.NewPlaceSet(1) // lengths vary, so only an equal first sector is found
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

// sectorsOf converts bytes to a sector number or a number of sectors.
func sectorsOf(n int64) uint64 { return ondisk.U64(n / units.SectorSize) }

// table checks table i, which lies at loc.
func (c *tableFaults) table(i, loc int64) error {
	x := c.x
	if c.tables.Add(sectorsOf(loc)) || c.amongGrains(loc) {
		// Skip its entries: a directory of two million entries with one table costs an attacker nothing.
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

// amongGrains adds a table to the grain offsets, since tables lie between grains in COWD extents. It reports whether
// the space is in use by a grain.
func (c *tableFaults) amongGrains(loc int64) (taken bool) {
	if !c.x.mixed || c.x.grain > c.x.tableBytes() {
		return false
	}
	for off := int64(0); off < c.x.tableBytes(); off += c.x.grain {
		taken = c.grains.Add(sectorsOf(loc+off)) || taken
	}
	return taken
}

// entries checks the entries of the table in the buffer.
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

// compare compares table i, in the buffer, with its redundant copy. hole reports whether the table is all zeros.
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

// maxProbes bounds the random reads of a check. Regular reads check the marker of each grain.
const maxProbes = 1024

// probe checks the marker of a compressed grain, one for each table. The first marker reveals a shifted table or one of
// another file.
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

// addOrphans counts the unreferenced grains of the file. It skips compressed grains, which only a scan of the whole
// file would find, and extents with damaged tables.
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

// issues returns one issue for each kind of damage.
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
			Text: fmt.Sprintf("the redundant grain tables differ from the primary ones in %d places; first: %s",
				c.differ, c.first),
			Remedy: "repair it with vmware-vdiskmanager -R, or copy it by the primary tables with qemu-img convert",
		})
	}
	if c.orphans > 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data", Effect: ondisk.Note,
			Text: fmt.Sprintf("%d grains (%s) of the file are in no grain table: a copy omits them",
				c.orphans, units.Format(c.lost)),
		})
	}
	return out
}

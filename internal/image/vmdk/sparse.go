package vmdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sparse is an opened sparse extent of a hosted product, or of the older kind of ESX, whose header is brought into
// the same form.
type sparse struct {
	file  driver.File
	h     sparseHeader
	tabs  *ondisk.Pages
	gd    int64            // byte offset of the directory in use
	grain *driver.Unpacked // compressed grains, by number
	cowd  bool             // grain tables lie among the grains
	holed
}

// holed is an extent with holes.
type holed struct {
	below func(off, n int64) disk.Run // what a hole shows, by offset in the extent; nil: zeros
}

func (h *holed) over(below func(off, n int64) disk.Run) { h.below = below }

// hole returns what n bytes from off show that are not there.
func (h *holed) hole(off, n int64) disk.Run {
	if h.below == nil {
		return disk.Run{Len: n}
	}
	return h.below(off, n)
}

func openSparse(s *driver.Source) (*driver.Image, error) {
	x := &sparse{file: s.File}
	if n := s.File.Size(); n < units.SectorSize {
		return nil, field("file size", 0, n, "at least 512 bytes, the size of the header")
	}
	if _, err := ondisk.Decode(s.File, 0, &x.h); err != nil {
		return nil, err
	}
	if x.h.Capacity == 0 && x.h.DescriptorOffset != 0 {
		// A header without data whose text names extents: the same rules as for a descriptor file.
		d, err := x.descriptor()
		if err != nil {
			return nil, err
		}
		return openDescriptor(s, d)
	}
	if err := x.h.check(s.File.Size()); err != nil {
		return nil, err
	}
	if err := x.readFooter(); err != nil {
		return nil, err
	}
	x.grain = driver.NewUnpacked(s.Memory(unpackedCache), x.h.grainBytes(), x.unpack)
	x.tabs = ondisk.NewPages(s.File, s.Memory(tableCache))
	x.gd = ondisk.I64(x.h.GDOffset) * units.SectorSize
	d, err := x.ownDescriptor()
	if err != nil {
		return nil, err
	}
	parent, err := d.openParent(s)
	if err != nil {
		return nil, err
	}
	x.below = over(parent, 0)
	d = d.inherit(parent)
	img, err := x.h.image(d, disk.New(x.size(), d.sectorSize(), x.run))
	if err != nil {
		return nil, err
	}
	img.Check = x.checkTables
	return img, nil
}

// image returns the image that header and descriptor of a sparse file define. dk is nil for a stream.
func (h *sparseHeader) image(d *descriptor, dk disk.Disk) (*driver.Image, error) {
	img, err := image(d, h.subformat(), dk)
	if err != nil {
		return nil, err
	}
	img.Details = append(img.Details, driver.Detail{Name: "grain size", Value: units.Format(h.grainBytes())})
	img.Template, img.ReadOnly = &template{d, ondisk.I64(h.GrainSize)}, h.packed()
	if h.UncleanShutdown != 0 {
		img.Issues = append(img.Issues, unclean("the sparse VMDK", atUnclean, h.UncleanShutdown))
	}
	return img, nil
}

// unclean returns the issue of a file that its writer did not close.
func unclean(name string, at int64, mark any) ondisk.Issue {
	return ondisk.Issue{
		Code: "vmdk-unclean", Effect: ondisk.Refuse, Err: ondisk.ErrBusy,
		Text: fmt.Sprintf("%s was not closed cleanly (uncleanShutdown at %#x is %d): its tables may be stale", name,
			at, mark),
		Remedy: "close the program that has it open, or repair it with vmware-vdiskmanager -R",
	}
}

// size returns the size of the extent on the disk in bytes.
func (x *sparse) size() int64 { return ondisk.I64(x.h.Capacity) * units.SectorSize }

func (x *sparse) descriptor() (*descriptor, error) {
	if x.h.DescriptorSize > maxText/uint64(units.SectorSize) {
		return nil, fmt.Errorf("vmdk sparse header at %#x: descriptor size of %d sectors: %w of %d bytes", atDescLen,
			x.h.DescriptorSize, ondisk.ErrLimit, maxText)
	}
	if x.h.DescriptorOffset > ondisk.U64(x.file.Size()/units.SectorSize) {
		return nil, field("descriptor offset", atDesc, x.h.DescriptorOffset,
			fmt.Sprintf("a sector of the file of %d bytes", x.file.Size()))
	}
	text, err := ondisk.Bytes(x.file, ondisk.I64(x.h.DescriptorOffset)*units.SectorSize,
		ondisk.I64(x.h.DescriptorSize)*units.SectorSize)
	if err != nil {
		return nil, err
	}
	return parseDescriptor(text)
}

// ownDescriptor reads the embedded text and checks it against the header. The file name in its extent line is not
// looked at: it is this very file, which users rename.
func (x *sparse) ownDescriptor() (*descriptor, error) {
	if x.h.DescriptorOffset == 0 {
		return nil, lone("sparse extent of a split disk (no descriptor inside)")
	}
	d, err := x.descriptor()
	if err != nil {
		return nil, err
	}
	return d, x.h.checkText(d)
}

// checkText checks the embedded descriptor against the header.
func (h *sparseHeader) checkText(d *descriptor) error {
	kind, no := d.get("createtype")
	if want := h.subformat(); kind != want {
		if kind == "" && len(d.extents) == 0 {
			return lone("sparse extent of a split disk (its descriptor is empty)")
		}
		if kind == otherType {
			return unsupported(kind)
		}
		return textErr(no, ondisk.ErrFormat, "createType %.64q, want %s in the descriptor of this sparse file", kind,
			want)
	}
	if len(d.extents) != 1 || d.extents[0].kind != "SPARSE" {
		return ondisk.Field(what, "extents", 0, len(d.extents), "one SPARSE extent")
	}
	if got := d.extents[0].size; got != ondisk.I64(h.Capacity)*units.SectorSize {
		return textErr(d.extents[0].line, ondisk.ErrFormat,
			"extent of %d sectors, but the capacity in the header is %d", got/units.SectorSize, h.Capacity)
	}
	return nil
}

// maxEntries is how many entries of a table are looked at for one run.
const maxEntries = 512

// run returns the map: directory entry, table entry, grain. It gives the longest run that one piece of a table shows.
func (x *sparse) run(off int64) (disk.Run, error) {
	grain := off / x.h.grainBytes()
	into := off % x.h.grainBytes()
	table, first := grain/x.h.gtes(), grain%x.h.gtes()
	loc, zeros, err := x.table(table)
	if err != nil {
		return disk.Run{}, err
	}
	if loc == 0 {
		return x.hole(off, (zeros*x.h.gtes()-first)*x.h.grainBytes()-into), nil
	}
	entries := make([]byte, 4*min(x.h.gtes()-first, x.h.grains()-grain, maxEntries))
	if err := x.tabs.Read(entries, loc+4*first); err != nil {
		return disk.Run{}, err
	}
	if ondisk.IsZero(entries) { // as in nearly all of the two million tables that a large disk of qemu-img has
		return x.hole(off, int64(len(entries)/4)*x.h.grainBytes()-into), nil
	}
	return x.join(entries, loc+4*first, grain, into)
}

// gdScan is how many empty directory entries run looks over at once: a 64 TiB disk has two million of them, and one
// of ESX 32.
const gdScan = 8192

// table returns the byte offset of a grain table, or 0 and the number of absent tables from there on.
func (x *sparse) table(i int64) (loc, zeros int64, err error) {
	at := x.gd + 4*i
	sector, err := x.tabs.U32(at)
	if err != nil {
		return 0, 0, err
	}
	if sector != 0 {
		return x.tableAt(sector, at)
	}
	n := 4 * min(gdScan, x.h.tables()-i)
	zeros, err = x.tabs.Zeros(at, n)
	if err == nil && zeros == n {
		zeros += 4 * emptyEntries(x.file, at+n, x.gd+x.h.gdBytes(), 4)
	}
	return 0, zeros / 4, err
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

// tableAt checks the place of a grain table. at is the byte offset of the directory entry that names it.
func (x *sparse) tableAt(sector uint32, at int64) (int64, int64, error) {
	loc := int64(sector) * units.SectorSize
	gd := disk.Range{Off: x.gd, Len: x.h.gdBytes()}
	if loc > x.file.Size()-x.h.gtBytes() || gd.Overlaps(disk.Range{Off: loc, Len: x.h.gtBytes()}) {
		return 0, 0, ondisk.Field("vmdk grain directory", "entry", at, sector,
			fmt.Sprintf("0, or the sector of a grain table inside the file of %d bytes and outside the directory",
				x.file.Size()))
	}
	return loc, 0, nil
}

// join makes one run of the entries that continue the first: all zero, or grains that follow each other in the file.
// at is the byte offset of the first entry.
func (x *sparse) join(entries []byte, at, grain, into int64) (disk.Run, error) {
	first := binary.LittleEndian.Uint32(entries)
	n := int64(1)
	if x.isZero(first) {
		for int(4*n) < len(entries) && x.continues(first, binary.LittleEndian.Uint32(entries[4*n:])) {
			n++
		}
		if first == 0 {
			return x.hole(grain*x.h.grainBytes()+into, n*x.h.grainBytes()-into), nil
		}
		return disk.Run{Len: n*x.h.grainBytes() - into}, nil
	}
	if x.h.packed() {
		return disk.Run{Len: x.h.grainBytes() - into, Src: x.grain.Unit(grain), Off: into},
			x.checkGrains(first, 1, grain, at)
	}
	// A grain that the file cuts short does not spoil those in front of it.
	whole := (x.file.Size() - int64(first)*units.SectorSize) / x.h.grainBytes()
	for n < whole && int(4*n) < len(entries) &&
		uint64(binary.LittleEndian.Uint32(entries[4*n:])) == uint64(first)+uint64(n)*x.h.GrainSize {
		n++
	}
	run := disk.Run{Len: n*x.h.grainBytes() - into, Src: x.file, Off: int64(first)*units.SectorSize + into}
	return run, x.checkGrains(first, n, grain, at)
}

func (x *sparse) isZero(entry uint32) bool { return x.h.isZero(entry) }

// continues reports whether a grain without data reads from the same place as one in front of it. A marked grain of
// zeros hides what a hole shows.
func (x *sparse) continues(first, entry uint32) bool {
	return x.isZero(entry) && (x.below == nil || entry == first)
}

// checkGrains makes sure that n grains from a sector on lie in the file, behind the metadata. The last grain of the
// disk may be cut by the capacity.
func (x *sparse) checkGrains(sector uint32, n, grain, at int64) error {
	size := min(n*x.h.grainBytes(), ondisk.I64(x.h.Capacity)*units.SectorSize-grain*x.h.grainBytes())
	if x.h.packed() {
		size = grainMarker // how much follows is said there
	}
	off := int64(sector) * units.SectorSize
	if uint64(sector) < x.h.OverHead || size > x.file.Size()-off {
		want := fmt.Sprintf("0, or at least %d, behind the metadata", x.h.OverHead)
		past := size > x.file.Size()-off
		if past {
			want = fmt.Sprintf("a grain of %d bytes that ends inside the file (%d bytes)", size, x.file.Size())
		}
		return &ondisk.FormatError{
			What: "vmdk grain table", Off: at, Field: "entry", Got: sector, Past: past,
			Want: want,
		}
	}
	return nil
}

// cowdHeader is the start of a sparse extent of ESX; counts and offsets are in sectors. Spec: Virtual Disk Format
// 1.1, "ESX Server Sparse Extents". The disks of Workstation 3 have the same header.
type cowdHeader struct {
	Magic           [4]byte // "COWD"
	Version         uint32
	Flags           uint32
	NumSectors      uint32
	GrainSize       uint32
	GDOffset        uint32
	NumGDEntries    uint32
	FreeSector      uint32
	_               [1028]byte // geometry of a root, or name and generation of the parent of a child
	_               uint32     // generation
	_               [60]byte   // name
	_               [512]byte  // description
	SavedGeneration uint32
	_               [8]byte
	UncleanShutdown uint32
	_               [396]byte
}

// Byte offsets of the fields that messages name.
const (
	atCOWDGrain   = 16
	atCOWDGD      = 20
	atCOWDNumGDE  = 24
	atCOWDUnclean = 1648
)

const (
	cowdGTEs   = 4096 // entries of a grain table
	cowdRoot   = 1 << 0
	cowdChecks = 1 << 1 // the other flag that ESX sets
)

func cowdField(name string, at int64, got, want any) error {
	return ondisk.Field("vmdk COWD header", name, at, got, want)
}

// openCOWD opens an extent of ESX. Beside the header it differs from the hosted kind in the size of its tables, which
// lie among the grains.
func openCOWD(f driver.File, tabs *ondisk.Pages) (*sparse, error) {
	var h cowdHeader
	size := int64(binary.Size(h))
	if f.Size() < size {
		return nil, cowdField("file size", 0, f.Size(), fmt.Sprintf("at least %d bytes, the size of the header", size))
	}
	if _, err := ondisk.Decode(f, 0, &h); err != nil {
		return nil, err
	}
	x := &sparse{file: f, tabs: tabs, cowd: true, gd: int64(h.GDOffset) * units.SectorSize}
	x.h = sparseHeader{
		Capacity: uint64(h.NumSectors), GrainSize: uint64(h.GrainSize), NumGTEsPerGT: cowdGTEs,
		GDOffset: uint64(h.GDOffset),
	}
	if err := h.check(); err != nil {
		return nil, err
	}
	if int64(h.NumGDEntries) < x.h.tables() {
		return nil, cowdField("numGDEntries", atCOWDNumGDE, h.NumGDEntries,
			fmt.Sprintf("at least %d for %d sectors", x.h.tables(), h.NumSectors))
	}
	gdBytes := 4 * int64(h.NumGDEntries)
	if err := newPlaces("vmdk COWD header", f.Size(), size).add("gdOffset", atCOWDGD, x.h.GDOffset,
		gdBytes); err != nil {
		return nil, err
	}
	x.h.OverHead = x.h.GDOffset + ondisk.U64(sectorsFor(gdBytes))
	if h.UncleanShutdown != 0 {
		x.h.UncleanShutdown = 1
	}
	return x, nil
}

func (h *cowdHeader) check() error {
	switch {
	case string(h.Magic[:]) != magicCOWD:
		return cowdField("magic number", 0, h.Magic[:], fmt.Sprintf("%q", magicCOWD))
	case h.Version != 1:
		return cowdField("version", atVersion, h.Version, 1)
	case h.Flags&^uint32(cowdRoot|cowdChecks) != 0:
		return fmt.Errorf("vmdk COWD header at %#x: flags %#x: %w, known are 0x3", atFlags, h.Flags,
			ondisk.ErrUnsupported)
	case h.Flags&cowdRoot == 0:
		return fmt.Errorf("vmdk COWD header at %#x: flags %#x of a child whose parent stands in the header: %w, want "+
			"the descriptor to name the parent",
			atFlags, h.Flags, ondisk.ErrUnsupported)
	case h.NumSectors == 0:
		return cowdField("numSectors", atCap, h.NumSectors, "at least 1")
	case h.GrainSize < 1 || h.GrainSize > maxGrain || !units.IsPowerOfTwo(int64(h.GrainSize)):
		return cowdField("grainSize", atCOWDGrain, h.GrainSize,
			fmt.Sprintf("a power of two from 1 to %d sectors", maxGrain))
	}
	return nil
}

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

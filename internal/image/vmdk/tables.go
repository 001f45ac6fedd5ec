package vmdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// tableFaults counts what is wrong with the tables of a sparse extent, and keeps the first place of each kind.
type tableFaults struct {
	x      *sparse
	tables *ondisk.PlaceSet
	grains *ondisk.PlaceSet
	counts map[string]int
	firsts map[string]string
	mirror *mirror
	holes  holes
	buf    [gtBytes]byte // the table in work
	used   int64         // bytes of the file's data area that grains take
	mixed  bool          // tables lie in the data area too
	probed int           // markers that were looked at
}

// checkTables walks every grain table once. A reader would meet an entry that points outside of the file, but never two
// entries that share a grain.
func (x *sparse) checkTables() ([]ondisk.Issue, error) {
	c := &tableFaults{
		x: x, counts: map[string]int{}, firsts: map[string]string{}, mirror: newMirror(x), holes: holes{file: x.file},
		tables: ondisk.NewPlaceSet(gtBytes / uint64(units.SectorSize)), grains: ondisk.NewPlaceSet(x.h.GrainSize),
	}
	if x.h.packed() {
		c.grains = ondisk.NewPlaceSet(1) // grains of any length: only those that start at one sector are found
	}
	n := x.h.tables()
	for i := int64(0); i < n; {
		skip, err := c.table(i)
		if err != nil {
			return nil, err
		}
		i += skip
	}
	return append(c.issues(), c.orphans()...), nil
}

func (c *tableFaults) add(kind, format string, args ...any) {
	if c.counts[kind]++; c.counts[kind] == 1 {
		c.firsts[kind] = fmt.Sprintf(format, args...)
	}
}

// table checks table i and tells how many tables it covers: absent ones are passed over together.
func (c *tableFaults) table(i int64) (int64, error) {
	loc, zeros, err := c.x.table(i)
	if fe, ok := err.(*ondisk.FormatError); ok { //nolint:errorlint // made by table itself, never wrapped
		c.add("grain tables outside of the file or inside the directory", "%v", fe)
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	if loc == 0 {
		return zeros, nil
	}
	if c.tables.Add(ondisk.U64(loc / units.SectorSize)) {
		// Its entries are not looked at a second time: a directory of two million entries to one table costs nothing to write.
		c.add("grain tables at a place in use", "grain directory entry %d names sector %d", i, loc/units.SectorSize)
		return 1, nil
	}
	c.mixed = c.mixed || loc >= c.dataArea()
	hole := c.holes.has(loc, gtBytes)
	if hole {
		clear(c.buf[:])
	} else if err := c.x.tabs.Read(c.buf[:], loc); err != nil {
		return 0, err
	}
	if err := c.mirror.compare(i, c.buf[:], hole); err != nil {
		return 0, err
	}
	if !hole {
		c.entries(i, loc)
	}
	return 1, nil
}

// holes knows whether tables lie in a hole of the file, where reading them would only give zeros: qemu-img creates a disk
// of 63 TiB with 16 GiB of such tables.
type holes struct {
	file  driver.File
	known disk.Extent // the last stretch of the file that was asked for
}

// has tells whether all n bytes from off are in a hole.
func (h *holes) has(off, n int64) bool {
	r := disk.Range{Off: off, Len: n}
	if !h.known.Contains(r) {
		e, err := h.file.Extent(off, h.file.Size()-off)
		if err != nil {
			return false
		}
		h.known = e
	}
	return h.known.Zero && h.known.Contains(r)
}

// entries looks at the entries of the table in the buffer.
func (c *tableFaults) entries(table, loc int64) {
	x := c.x
	probe := x.h.packed()
	for j := range min(gtes, x.h.grains()-table*gtes) {
		entry := binary.LittleEndian.Uint32(c.buf[4*j:])
		if x.isZero(entry) {
			continue
		}
		at, off := loc+4*j, int64(entry)*units.SectorSize
		if err := x.checkGrains(entry, 1, table*gtes+j, at); err != nil {
			c.add("grains outside of the file's data area", "%v", err)
		} else if c.grains.Add(uint64(entry)) {
			c.add("grains at a place in use", "grain table entry at %#x names sector %d", at, entry)
		} else if probe {
			c.probe(off, table*gtes+j)
		}
		c.used += min(x.h.grainBytes(), x.file.Size()-off)
		probe = false
	}
}

// maxProbes bounds the random reads of a check. A reader looks at the marker of each grain that it takes.
const maxProbes = 1024

// probe looks at the marker of a compressed grain, one for each table: a table that was shifted or belongs to another file is
// found out by its first.
func (c *tableFaults) probe(off, grain int64) {
	if c.probed++; c.probed > maxProbes {
		return
	}
	if _, err := c.x.grainAt(off, grain); err != nil {
		c.add("grains with another marker", "%v", err)
	}
}

// dataArea is where the grains begin, in bytes.
func (c *tableFaults) dataArea() int64 {
	return min(ondisk.I64(min(c.x.h.OverHead, math.MaxUint32))*units.SectorSize, c.x.file.Size())
}

// orphans tells how many grains of the file no table names. Compressed grains can be told from other data only by reading
// all of the file, so they are not counted.
func (c *tableFaults) orphans() []ondisk.Issue {
	h := &c.x.h
	if h.packed() || c.mixed || len(c.counts) > 0 || c.grains.Full() {
		return nil
	}
	n := (c.x.file.Size() - c.dataArea() - c.used) / h.grainBytes()
	if n <= 0 {
		return nil
	}
	return []ondisk.Issue{{
		Code: "orphaned-data", Effect: ondisk.Note,
		Text: fmt.Sprintf("%d grains (%s) of the file are named by no grain table: data of former times, which a copy does not take over", n, units.Format(n*h.grainBytes())),
	}}
}

// issues makes one issue for each kind of damage.
func (c *tableFaults) issues() []ondisk.Issue {
	var out []ondisk.Issue
	for _, kind := range []string{
		"grain tables outside of the file or inside the directory", "grain tables at a place in use",
		"grains outside of the file's data area", "grains at a place in use", "grains with another marker",
	} {
		if n := c.counts[kind]; n > 0 {
			text := fmt.Sprintf("%d %s; first: %s", n, kind, c.firsts[kind])
			out = append(out, ondisk.Issue{
				Code: "vmdk-tables", Effect: ondisk.Broken, Text: text,
				Remedy: "restore the image from a good copy, or repair it with vmware-vdiskmanager -R",
				Err:    fmt.Errorf("vmdk grain tables: %w: %s", ondisk.ErrFormat, text),
			})
		}
	}
	if c.tables.Full() || c.grains.Full() {
		out = append(out, ondisk.Issue{
			Code: "vmdk-tables-unchecked",
			Text: "the image is too large to look for grains that share a place; every byte is compared after a copy all the same",
		})
	}
	if m := c.mirror; m.differ > 0 {
		out = append(out, ondisk.Issue{
			Code: "vmdk-redundant-tables", Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
			Text:   fmt.Sprintf("the redundant grain tables disagree with the primary ones in %d places; first: %s", m.differ, m.first),
			Remedy: "repair it with vmware-vdiskmanager -R, or take the primary tables with qemu-img convert",
		})
	}
	return out
}

// mirror compares the redundant grain tables with the primary ones.
type mirror struct {
	x      *sparse
	gd     int64 // 0: the file has no redundant directory
	holes  holes
	buf    [gtBytes]byte
	differ int
	first  string
}

func newMirror(x *sparse) *mirror {
	m := &mirror{x: x, holes: holes{file: x.file}}
	if x.h.redundant() {
		m.gd = ondisk.I64(x.h.RGDOffset) * units.SectorSize
	}
	return m
}

// compare holds primary table i against its copy. hole tells that the primary is all zero.
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
	if hole && m.holes.has(loc, gtBytes) {
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
	if m.differ++; m.differ == 1 {
		m.first = fmt.Sprintf(format, args...)
	}
}

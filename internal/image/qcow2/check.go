package qcow2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Kinds of damage.
const (
	badTables    = "invalid entries in L1 and L2 tables"
	badPlaces    = "clusters with more references than their refcount"
	badSnapshots = "damaged places in the tables of snapshots and bitmaps"
	badRefcounts = "damaged entries of the refcount table"
	uncounted    = "clusters in use whose refcount is 0"
)

// checker walks all tables from the header on, and counts the references to each cluster of the file.
type checker struct {
	driver.Faults
	q      *qcow
	uses   uses
	tables *ondisk.PlaceSet // L2 tables walked
	blocks *ondisk.PlaceSet // refcount blocks walked
	kind   string           // kind of damage in the current tables
	holes  *ondisk.Holes
	budget int64 // remaining table entries of snapshots and bitmaps to read
	leaked int64 // clusters
	// counting marks the first pass, which only counts the references to L2 tables. The second pass walks each L2 table
	// once, and adds times references to each of its clusters. times is the number of references to the table, which
	// snapshots mostly share.
	counting bool
	met      int // damaged entries in the counting pass
	times    use
	// stopped reports whether the walk ended early.
	stopped bool
	buf     [8 * 512]byte
}

const (
	// maxExtraEntries limits the entries read from tables that many snapshots can share, to the number of a full L1
	// table.
	maxExtraEntries = maxL1 / 8
	// maxDamage is the number of faults at which the check stops, for example in a gigabyte of garbage.
	maxDamage = 1 << 16
)

// errGarbage ends a walk at maxDamage.
var errGarbage = errors.New("too much damage to go on")

// check walks the L1 and L2 tables, also of snapshots, and compares the refcounts with them, like qemu-img check. The
// leaks of qemu-img are called orphaned data here.
func (q *qcow) check() ([]ondisk.Issue, error) {
	c := &checker{
		q: q, tables: ondisk.NewPlaceSet(1), blocks: ondisk.NewPlaceSet(1), uses: uses{pages: map[int64]*usePage{}},
		holes: ondisk.NewHoles(q.file), kind: badTables, times: 1,
	}
	err := c.walk()
	if errors.Is(err, errGarbage) {
		c.stopped, err = true, nil
	}
	return c.issues(), err
}

func (c *checker) walk() error {
	c.mark(disk.Range{Len: 1}, meta)
	c.mark(c.q.h.refTable(), meta)
	for _, c.counting = range []bool{true, false} {
		if err := c.states(); err != nil && (!c.counting || !errors.Is(err, errGarbage)) {
			return err
		}
	}
	if err := c.damage(c.bitmaps()); err != nil {
		return err
	}
	return c.refcounts()
}

// states walks the tables of the current state and of the snapshots.
func (c *checker) states() error {
	c.kind, c.budget = badTables, maxExtraEntries
	if err := c.l1(c.q.h.l1()); err != nil {
		return err
	}
	c.kind = badSnapshots
	return c.damage(c.snapshots())
}

// damage counts a format or limit error of the current tables, and returns any other error. The counting pass only
// limits such errors, since the second pass finds them again.
func (c *checker) damage(err error) error {
	if errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit) {
		if c.counting {
			if c.met++; c.met == maxDamage {
				return errGarbage
			}
			return nil
		}
		if c.Add(c.kind, "%v", err); c.Count(c.kind) == maxDamage {
			return errGarbage
		}
		return nil
	}
	return err
}

// mark adds a reference to every cluster that a range of the file touches.
func (c *checker) mark(r disk.Range, u use) {
	if r.Len <= 0 {
		return
	}
	for i := r.Off / c.q.h.cluster(); i <= (r.End()-1)/c.q.h.cluster(); i++ {
		c.uses.add(i, u, c.times)
	}
}

// l1 walks the L2 tables of an L1 table.
func (c *checker) l1(l1 disk.Range) error {
	if c.counting {
		c.mark(l1, meta)
	}
	for i := int64(0); i < l1.Len/8; {
		place, absent, err := c.q.table(l1, i)
		switch {
		case err != nil:
			if err := c.damage(err); err != nil {
				return err
			}
		case place == 0:
			i += absent - 1
		default:
			if err := c.l2(place, i); err != nil {
				return err
			}
		}
		i++
	}
	return nil
}

// l2 counts or walks one L2 table, entry i of its L1 table. It walks each table once, since a million entries with one
// table cost an attacker nothing.
func (c *checker) l2(place, i int64) error {
	if c.counting {
		c.uses.add(place/c.q.h.cluster(), meta, 1)
		return nil
	}
	if c.tables.Add(ondisk.U64(place/c.q.h.cluster())) || c.holes.Has(place, c.q.h.cluster()) {
		return nil
	}
	c.times = max(1, c.uses.count(place/c.q.h.cluster()))
	defer func() { c.times = 1 }()
	h := c.q.h
	stretch := min(h.entries(), int64(len(c.buf))/h.entrySize())
	for first := int64(0); first < h.entries(); first += stretch {
		e := l2entries{q: c.q, table: place, first: first, b: c.buf[:min(stretch, h.entries()-first)*h.entrySize()]}
		if err := c.q.tabs.Read(e.b, e.place(0)); err != nil {
			return err
		}
		for j := range e.len() {
			if err := c.entry(&e, j, i*h.entries()+first+j); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry checks entry j of e, which maps a cluster of the disk.
func (c *checker) entry(e *l2entries, j, cluster int64) error {
	entry, bitmap := e.get(j)
	if entry == 0 && bitmap == 0 {
		return nil
	}
	for sub := range c.q.subs {
		if _, err := e.state(j, sub, c.q.need(cluster, sub)); err != nil {
			return c.damage(err)
		}
	}
	if entry&compressed == 0 {
		// Clusters of an external data file have no refcounts.
		if place := ondisk.I64(entry & placeMask); place != 0 && !c.q.h.external() {
			c.uses.add(place/c.q.h.cluster(), payload, c.times)
		}
		return nil
	}
	place, size := c.q.h.packedPlace(entry &^ compressed)
	c.mark(disk.Range{Off: place, Len: size}, payload)
	return nil
}

// snapshots walks the snapshot table and its L1 tables.
func (c *checker) snapshots() error {
	if c.q.h.NbSnapshots == 0 {
		return nil
	}
	table := disk.Range{Off: ondisk.I64(c.q.h.SnapshotsOffset)}
	err := c.q.eachSnapshot(func(e *snapshotEntry, r disk.Range) error {
		table.Len = r.End() - table.Off
		if c.budget -= int64(e.L1Size); c.budget < 0 {
			return nil
		}
		return c.l1(disk.Range{Off: ondisk.I64(e.L1TableOffset), Len: 8 * int64(e.L1Size)})
	})
	if c.counting {
		c.mark(table, meta)
	}
	return err
}

// issues returns one issue for each kind of damage. Wrong refcounts do not change the content of the disk.
func (c *checker) issues() []ondisk.Issue {
	out := slices.Concat(
		c.Issues(ondisk.Issue{
			Code: "qcow2-tables", Effect: ondisk.Broken,
			Remedy: "restore the image from a good copy, or repair it with qemu-img check -r all",
		}, "qcow2 tables", badTables, badPlaces),
		c.Issues(ondisk.Issue{
			Code: "qcow2-snapshot-tables", Effect: ondisk.Warn,
			Remedy: "see qemu-img check; the present state of the disk does not need these tables",
		}, "", badSnapshots),
		c.Issues(ondisk.Issue{
			Code: "qcow2-refcounts", Effect: ondisk.Warn,
			Remedy: "run qemu-img check -r all before anything writes to the image; a copy has correct refcounts",
		}, "", badRefcounts, uncounted))
	if c.leaked > 0 {
		out = append(out, ondisk.Issue{
			Code: "orphaned-data",
			Text: fmt.Sprintf("%d clusters (%s) of the file have a refcount, but no references", c.leaked,
				units.Format(c.leaked*c.q.h.cluster())),
			Remedy: "a copy does not have them; qemu-img check -r leaks frees them in place",
		})
	}
	if c.unchecked() {
		out = append(out, ondisk.Issue{
			Code: "qcow2-tables-unchecked",
			Text: "the image is too large to check all refcounts; a copy is still compared byte by byte",
		})
	}
	return out
}

// unchecked reports whether a limit was reached.
func (c *checker) unchecked() bool {
	return c.stopped || c.uses.full || c.tables.Full() || c.blocks.Full() || c.budget < 0
}

// use holds the references to a cluster of the file: their number in the low six bits, and their kinds.
type use uint8

const (
	countMask use = 1<<6 - 1 // the highest number means that or more
	meta      use = 1 << 6
	payload   use = 1 << 7
)

// uses holds the references to each cluster of the file, in one byte each, in pages allocated on demand.
type uses struct {
	pages map[int64]*usePage
	last  *usePage // the last page used, with index at
	at    int64
	full  bool // the limit was reached and references are missing
}

const (
	usesPerPage = 1 << 12
	maxUsePages = 1 << 12 // 16 MiB, for 1 TiB in clusters of 64 KiB
)

type usePage [usesPerPage]use

// page returns a page, or nil if it was not allocated.
func (s *uses) page(i int64) *usePage {
	if s.last == nil || s.at != i {
		s.last, s.at = s.pages[i], i
	}
	return s.last
}

// count returns the number of references to a cluster.
func (s *uses) count(cluster int64) use {
	p := s.page(cluster / usesPerPage)
	if p == nil {
		return 0
	}
	return p[cluster%usesPerPage] & countMask
}

// add adds references to one cluster.
func (s *uses) add(cluster int64, u, times use) {
	p := s.page(cluster / usesPerPage)
	if p == nil {
		if len(s.pages) == maxUsePages {
			s.full = true
			return
		}
		p = new(usePage)
		s.pages[cluster/usesPerPage], s.last, s.at = p, p, cluster/usesPerPage
	}
	b := &p[cluster%usesPerPage]
	*b |= u
	*b += min(times, countMask-*b&countMask)
}

// take returns the references to a cluster and clears them.
func (s *uses) take(cluster int64) use {
	p := s.page(cluster / usesPerPage)
	if p == nil {
		return 0
	}
	u := p[cluster%usesPerPage]
	p[cluster%usesPerPage] = 0
	return u
}

// refcounts compares the refcounts with the references. It counts the refcount blocks first, since they are references
// too.
func (c *checker) refcounts() error {
	c.kind = badRefcounts
	if err := c.eachBlock(func(_, place int64) error {
		c.uses.add(place/c.q.h.cluster(), meta, 1)
		return nil
	}); err != nil {
		return err
	}
	c.Reset(badRefcounts) // the second walk finds them again
	if c.unchecked() {
		return nil
	}
	if err := c.eachBlock(c.compare); err != nil {
		return err
	}
	if c.unchecked() {
		return nil
	}
	c.compareRest()
	return nil
}

// eachBlock calls visit for each refcount block in the refcount table, and reports damaged entries.
func (c *checker) eachBlock(visit func(i, place int64) error) error {
	table := c.q.h.refTable()
	if c.holes.Has(table.Off, table.Len) {
		return nil
	}
	const piece = 512 // entries per read: a table has at least a cluster, mostly zeros
	b := make([]byte, 8*min(piece, table.Len/8))
	for i := range table.Len / 8 {
		at := table.Off + 8*i
		if i%piece == 0 {
			if err := c.q.tabs.Read(b[:8*min(piece, table.Len/8-i)], at); err != nil {
				return err
			}
		}
		entry := binary.BigEndian.Uint64(b[i%piece*8:])
		size := ondisk.U64(c.q.h.cluster())
		switch {
		case entry == 0:
		case entry%size != 0 || entry > ondisk.U64(c.q.file.Size()) || size > ondisk.U64(c.q.file.Size())-entry:
			c.Add(badRefcounts, "entry at %#x leads to %#x, want a cluster inside the file of %d bytes", at, entry,
				c.q.file.Size())
		default:
			if err := visit(i, ondisk.I64(entry)); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare compares refcount block i, at file offset place, with the references to its clusters.
func (c *checker) compare(i, place int64) error {
	h := c.q.h
	if c.blocks.Add(ondisk.U64(place / h.cluster())) {
		c.Add(badRefcounts, "entry %d points to the block at %#x, like another entry", i, place)
		return nil
	}
	if c.holes.Has(place, h.cluster()) {
		return nil
	}
	perBlock := h.cluster() * 8 >> h.RefcountOrder
	b := c.buf[:min(h.cluster(), int64(len(c.buf)))]
	perRead := int64(len(b)) * 8 >> h.RefcountOrder
	for first := int64(0); first < perBlock; first += perRead {
		if err := c.q.tabs.Read(b, place+first<<h.RefcountOrder/8); err != nil {
			return err
		}
		if ondisk.IsZero(b) {
			continue
		}
		for j := range perRead {
			if n := refcount(b, j, h.RefcountOrder); n > 0 {
				c.compareOne(i*perBlock+first+j, n)
			}
		}
	}
	return nil
}

// refcount returns entry i of b, a part of a refcount block. Entries of less than a byte begin with the least
// significant bit. Spec: "Refcount block entry".
func refcount(b []byte, i int64, order uint32) uint64 {
	switch order {
	case 3:
		return uint64(b[i])
	case 4:
		return uint64(binary.BigEndian.Uint16(b[2*i:]))
	case 5:
		return uint64(binary.BigEndian.Uint32(b[4*i:]))
	case 6:
		return binary.BigEndian.Uint64(b[8*i:])
	}
	bit := i << order
	return uint64(b[bit/8]>>(bit%8)) & (1<<(1<<order) - 1)
}

// compareOne checks a cluster with refcount n, at least 1.
func (c *checker) compareOne(cluster int64, n uint64) {
	u := c.uses.take(cluster)
	switch {
	case u == 0:
		c.leaked++
	case u&meta != 0 && u&payload != 0, uint64(u&countMask) > n:
		c.Add(badPlaces, "the cluster at %#x has refcount %d and %s", cluster*c.q.h.cluster(), n, u)
	}
}

// compareRest checks the clusters without refcount, in file order.
func (c *checker) compareRest() {
	for _, i := range slices.Sorted(maps.Keys(c.uses.pages)) {
		for j, u := range c.uses.pages[i] {
			kind := uncounted
			if u&countMask > 1 {
				kind = badPlaces
			}
			if u != 0 {
				c.Add(kind, "the cluster at %#x has refcount 0 and %s", (i*usesPerPage+int64(j))*c.q.h.cluster(), u)
			}
		}
	}
}

func (u use) String() string {
	n := fmt.Sprintf("%d uses", u&countMask)
	if u&countMask == 1 {
		n = "1 use"
	}
	if u&meta != 0 && u&payload != 0 {
		n += ", as a table and as data"
	}
	return n
}

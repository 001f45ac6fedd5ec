package qcow2

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// use is how a cluster of the file is used: a count in the low six bits, and for what.
type use uint8

const (
	countMask use = 1<<6 - 1 // the highest count stands for all above it, too
	meta      use = 1 << 6
	payload   use = 1 << 7
)

// uses remembers the uses of each cluster of the file, a byte each, in pages that exist only where something is used.
type uses struct {
	pages map[int64]*usePage
	last  *usePage // the page that was asked for last, and its number
	at    int64
	full  bool // the bound was reached: not everything is known
}

const (
	usesPerPage = 1 << 12
	maxUsePages = 1 << 12 // 16 MiB: 1 TiB of clusters of 64 KiB
)

type usePage [usesPerPage]use

// page returns a page, nil for one that is not there.
func (s *uses) page(i int64) *usePage {
	if s.last == nil || s.at != i {
		s.last, s.at = s.pages[i], i
	}
	return s.last
}

// count returns how many uses of a cluster are known.
func (s *uses) count(cluster int64) use {
	p := s.page(cluster / usesPerPage)
	if p == nil {
		return 0
	}
	return p[cluster%usesPerPage] & countMask
}

// add counts uses of one cluster.
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

// take returns the uses of a cluster and forgets them.
func (s *uses) take(cluster int64) use {
	p := s.page(cluster / usesPerPage)
	if p == nil {
		return 0
	}
	u := p[cluster%usesPerPage]
	p[cluster%usesPerPage] = 0
	return u
}

// refcounts checks the refcounts against the uses. Blocks are counted first: they are uses too.
func (c *checker) refcounts() error {
	c.kind = badRefcounts
	if err := c.eachBlock(func(_, place int64) error {
		c.uses.add(place/c.q.h.cluster(), meta, 1)
		return nil
	}); err != nil {
		return err
	}
	c.counts[badRefcounts] = 0 // they are found once more
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

// eachBlock walks the refcount table. A damaged entry is one of which nothing else is known.
func (c *checker) eachBlock(visit func(i, place int64) error) error {
	table := c.q.h.refTable()
	if c.holes.Has(table.Off, table.Len) {
		return nil
	}
	const piece = 512 // entries that are read at once: a table has at least a cluster, and most are zero
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
			c.add(badRefcounts, "entry at %#x leads to %#x, want a cluster inside the file of %d bytes", at, entry,
				c.q.file.Size())
		default:
			if err := visit(i, ondisk.I64(entry)); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare checks refcount block i, at a place of the file, against the uses of its clusters.
func (c *checker) compare(i, place int64) error {
	h := c.q.h
	if c.blocks.Add(ondisk.U64(place / h.cluster())) {
		c.add(badRefcounts, "entry %d leads to the block at %#x, as another does", i, place)
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

// refcount returns entry i of a stretch of a block. Those of less than a byte begin with the least significant bit.
// Spec: "Refcount block entry".
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

// compareOne checks a cluster whose refcount is n, at least 1.
func (c *checker) compareOne(cluster int64, n uint64) {
	u := c.uses.take(cluster)
	switch {
	case u == 0:
		c.leaked++
	case u&meta != 0 && u&payload != 0, uint64(u&countMask) > n:
		c.add(badPlaces, "the cluster at %#x has refcount %d and %s", cluster*c.q.h.cluster(), n, u)
	}
}

// compareRest checks clusters that no block counts, in the order of the file.
func (c *checker) compareRest() {
	for _, i := range slices.Sorted(maps.Keys(c.uses.pages)) {
		for j, u := range c.uses.pages[i] {
			kind := uncounted
			if u&countMask > 1 {
				kind = badPlaces
			}
			if u != 0 {
				c.add(kind, "the cluster at %#x has refcount 0 and %s", (i*usesPerPage+int64(j))*c.q.h.cluster(), u)
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

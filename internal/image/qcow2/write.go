package qcow2

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// template holds what a copy takes over from its source.
type template struct{ clusterBits uint32 }

const (
	defaultBits = 16 // clusters of 64 KiB, as qemu-img writes them
	// leastBits keeps what lies on a MiB of the disk on 4 KiB of the file, whatever clusters the source has.
	leastBits = 12
	// maxPackedBits is a cluster of 1 MiB: what is packed at once must lie in one piece of a copy.
	maxPackedBits = 20
	// maxWrittenL1 is how long an L1 table may become, in bytes, before the clusters get larger: 64 KiB clusters go
	// to 256 TiB.
	maxWrittenL1 = 4 << 20
	// smallUnit is the unit for clusters that a chunk of the copy does not hold, in bytes.
	smallUnit = 64 << 10
	// maxFile is how far the offsets of compressed clusters of 1 MiB reach, with one bit to spare.
	maxFile = 1 << 49
)

func create(f driver.WriteFile, size int64, o driver.Options) (driver.Target, error) {
	bits, most, version := uint32(defaultBits), uint32(maxClusterBits), uint32(3)
	if t, ok := o.Template.(*template); ok {
		bits = max(t.clusterBits, leastBits)
	}
	switch o.Subformat {
	case v2:
		version = 2
	case asPacked:
		most = maxPackedBits
	}
	bits = min(bits, most)
	for l1Entries(size, bits) > maxWrittenL1/8 {
		if bits++; bits > most {
			return nil, fmt.Errorf("qcow2 of %d bytes: %w: its L1 table would pass %d bytes", size, ondisk.ErrLimit,
				maxWrittenL1)
		}
	}
	t := newTarget(f, size, bits, version)
	if o.Subformat == asPacked {
		return &packedTarget{target: t}, nil
	}
	return t, nil
}

// l1Entries returns how many L2 tables a disk needs.
func l1Entries(size int64, clusterBits uint32) int64 {
	perTable := int64(1) << (clusterBits + clusterBits - 3) // bytes of the disk
	return (size-1)/perTable + 1
}

// target writes an image from front to back: header, first refcount block, L1 table, then clusters in the order of
// the disk, each L2 table in front of the first cluster that it describes. A refcount block is the first cluster of
// those that it counts. So only the L2 table and the refcount block in work are in memory.
type target struct {
	driver.Blocks
	h       header
	next    int64 // number of the next free cluster in the file
	block   int64 // number of the refcount block in work
	counts  []byte
	table   int64 // number of the L2 table in work, -1 before the first
	place   int64 // byte offset of it
	entries []byte
}

func newTarget(f driver.WriteFile, size int64, bits, version uint32) *target {
	t := &target{table: -1, h: header{
		Version: version, ClusterBits: bits, Size: ondisk.U64(size), L1Size: ondisk.U32(l1Entries(size,
			bits)), RefcountOrder: 4,
		HeaderLength: version3Length,
	}}
	copy(t.h.Magic[:], magic)
	t.Blocks = driver.Blocks{File: f, Size: t.h.cluster(), Allocate: t.cluster}
	t.counts, t.entries = make([]byte, t.h.cluster()), make([]byte, t.h.cluster())
	const l1 = 2 // behind header and refcount block
	t.h.L1TableOffset = ondisk.U64(l1 * t.h.cluster())
	t.next = l1 + units.AlignUp(t.h.l1().Len, t.h.cluster())/t.h.cluster()
	for i := range t.next {
		t.count(i)
	}
	return t
}

// perBlock returns how many clusters a refcount block counts, with 16 bits each.
func (t *target) perBlock() int64 { return t.h.cluster() / 2 }

// blockPlace returns the byte offset of refcount block i. The very first cluster is the header's.
func (t *target) blockPlace(i int64) int64 { return max(1, i*t.perBlock()) * t.h.cluster() }

// count adds a reference to a cluster of the block in work. What shares a cluster is compressed data, whose pieces
// are too long for 65,535 of them.
func (t *target) count(cluster int64) {
	b := t.counts[2*(cluster%t.perBlock()):]
	binary.BigEndian.PutUint16(b, binary.BigEndian.Uint16(b)+1)
}

// alloc returns the byte offset of the next free cluster of the file.
func (t *target) alloc() (int64, error) {
	if t.next%t.perBlock() == 0 {
		if err := t.flushCounts(); err != nil {
			return 0, err
		}
		t.block = t.next / t.perBlock()
		t.count(t.next)
		t.next++
	}
	place := t.next * t.h.cluster()
	if place >= maxFile {
		return 0, fmt.Errorf("qcow2: %w: more than 512 TiB of data", ondisk.ErrLimit)
	}
	t.count(t.next)
	t.next++
	return place, nil
}

func (t *target) flushCounts() error {
	_, err := t.File.WriteAt(t.counts, t.blockPlace(t.block))
	clear(t.counts)
	return err
}

// Unit returns a cluster. Of larger ones than a chunk of the copy has, parts are written: the rest stays a hole.
func (t *target) Unit() int64 {
	if t.h.ClusterBits > maxPackedBits {
		return smallUnit
	}
	return t.h.cluster()
}

// cluster gives a cluster of the disk the next one of the file.
func (t *target) cluster(guest int64) (int64, error) {
	if err := t.wantTable(guest); err != nil {
		return 0, err
	}
	host, err := t.alloc()
	if err != nil {
		return 0, err
	}
	t.setEntry(guest, ondisk.U64(host)|copied)
	return host, nil
}

func (t *target) setEntry(guest int64, entry uint64) {
	binary.BigEndian.PutUint64(t.entries[8*(guest%t.h.entries()):], entry)
}

// wantTable makes the L2 table of a cluster the one in work.
func (t *target) wantTable(guest int64) error {
	i := guest / t.h.entries()
	if i == t.table {
		return nil
	}
	if err := t.flushTable(); err != nil {
		return err
	}
	t.table = i
	var err error
	t.place, err = t.alloc()
	return err
}

// flushTable writes the L2 table in work, and the L1 entry that leads to it. Tables without a cluster are not there.
func (t *target) flushTable() error {
	if t.table < 0 {
		return nil
	}
	if _, err := t.File.WriteAt(t.entries, t.place); err != nil {
		return err
	}
	clear(t.entries)
	entry := binary.BigEndian.AppendUint64(nil, ondisk.U64(t.place)|copied)
	_, err := t.File.WriteAt(entry, t.h.l1().Off+8*t.table)
	return err
}

// Finish writes the tables, of which the refcount table ends the file, and the header last: before that the file is no
// qcow2.
func (t *target) Finish() error {
	if err := t.flushTable(); err != nil {
		return err
	}
	if err := t.writeRefTable(); err != nil {
		return err
	}
	if err := t.File.Sync(); err != nil {
		return err
	}
	b := ondisk.Encode(binary.BigEndian, &t.h)
	if t.h.Version == 2 {
		b = b[:version2Length]
	}
	if _, err := t.File.WriteAt(b, 0); err != nil {
		return err
	}
	return t.File.Sync()
}

// writeRefTable ends the file with the refcount table, in one piece: where the clusters of the last block do not
// suffice, it begins a new one.
func (t *target) writeRefTable() error {
	most := 8 * (t.next/t.perBlock() + 2) // bytes, with a block to come
	n := units.AlignUp(most, t.h.cluster()) / t.h.cluster()
	if t.perBlock()-t.next%t.perBlock() < n {
		t.next = units.AlignUp(t.next, t.perBlock())
	}
	for i := range n {
		place, err := t.alloc()
		if err != nil {
			return err
		}
		if i == 0 {
			t.h.RefcountTableOffset = ondisk.U64(place)
		}
	}
	if err := t.flushCounts(); err != nil {
		return err
	}
	t.h.RefcountTableClusters = ondisk.U32(n)
	b := make([]byte, n*t.h.cluster())
	for i := range t.block + 1 {
		binary.BigEndian.PutUint64(b[8*i:], ondisk.U64(t.blockPlace(i)))
	}
	_, err := t.File.WriteAt(b, t.h.refTable().Off)
	return err
}

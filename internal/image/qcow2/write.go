package qcow2

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// template holds the metadata of a qcow2 source for its copy.
type template struct{ clusterBits uint32 }

const (
	defaultBits = 16 // clusters of 64 KiB, the default of qemu-img
	// leastBits is the minimum for a copy, so that a MiB boundary of the disk is a 4 KiB boundary of the file.
	leastBits = 12
	// maxPackedBits means clusters of 1 MiB: a unit to compress must lie in one chunk of a copy.
	maxPackedBits = 20
	// maxWrittenL1 is the size of the L1 table, in bytes, above which a copy gets larger clusters. Clusters of 64 KiB
	// reach 256 TiB.
	maxWrittenL1 = 4 << 20
	// smallUnit is the unit for clusters larger than a chunk of the copy, in bytes.
	smallUnit = 64 << 10
	// maxFile is the file size that the offsets of compressed clusters of 1 MiB can address, with one bit to spare.
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

// l1Entries returns the number of L2 tables of a disk.
func l1Entries(size int64, clusterBits uint32) int64 {
	perTable := int64(1) << (clusterBits + clusterBits - 3) // bytes of the disk per L2 table
	return (size-1)/perTable + 1
}

// target writes an image from front to back: header, first refcount block, L1 table, then clusters in disk order. Each
// L2 table precedes its first cluster, and each refcount block is the first cluster of those it counts. So memory holds
// only the current L2 table and refcount block.
type target struct {
	driver.Blocks
	h       header
	next    int64 // index of the next free file cluster
	block   int64 // index of the current refcount block
	counts  []byte
	table   int64 // index of the current L2 table, -1 before the first
	place   int64 // its byte offset
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

// perBlock returns the number of entries of a refcount block, of 16 bits each.
func (t *target) perBlock() int64 { return t.h.cluster() / 2 }

// blockPlace returns the byte offset of refcount block i. Block 0 follows the header cluster.
func (t *target) blockPlace(i int64) int64 { return max(1, i*t.perBlock()) * t.h.cluster() }

// count adds a reference to a cluster of the current refcount block. Only compressed data share a cluster, in pieces
// too large for 65,535 of them.
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

// Unit returns the cluster size. Clusters larger than a chunk of the copy are written in parts, so that the rest stays
// a hole.
func (t *target) Unit() int64 {
	if t.h.ClusterBits > maxPackedBits {
		return smallUnit
	}
	return t.h.cluster()
}

// cluster maps a cluster of the disk to the next file cluster.
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

// wantTable makes the L2 table of a cluster the current one.
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

// flushTable writes the current L2 table and its L1 entry. Tables without a cluster are never allocated.
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

// Finish writes the tables, with the refcount table at the end of the file, and the header last: before that the file
// is no qcow2.
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

// writeRefTable writes the refcount table in one piece at the end of the file. It begins a new refcount block if the
// clusters of the last one do not suffice.
func (t *target) writeRefTable() error {
	most := 8 * (t.next/t.perBlock() + 2) // bytes, including one more block
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

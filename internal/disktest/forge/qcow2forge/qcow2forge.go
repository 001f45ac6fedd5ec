// Package qcow2forge forges qcow2 files.
package qcow2forge

import (
	"encoding/binary"
	"slices"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places of the fields of a qcow2 header. Spec: QEMU docs/interop/qcow2, "Header".
const (
	Version         = 4
	Backing         = 8
	BackingSize     = 16
	ClusterBits     = 20
	Size            = 24
	Crypt           = 32
	L1Size          = 36
	L1              = 40
	RefTable        = 48
	RefClusters     = 56
	Snapshots       = 60
	SnapTable       = 64
	Incompatible    = 72
	qcow2Compatible = 80
	Autoclear       = 88
	Order           = 96
	Length          = 100
	Compression     = 104
)

// Bits of L1 and L2 entries.
const (
	Copied          = 1 << 63
	qcow2Compressed = 1 << 62
)

// qcow2Header is the length that is written: with compression_type and its padding.
const qcow2Header = 112

// File is a valid qcow2 file of version 3 and where its parts lie, in bytes. All parts are a cluster long.
type File struct {
	forge.Bytes
	Cluster                         int64
	RefTable, RefBlock, L1, L2, End int64
}

// New stores the clusters of a disk that are not zero: header, refcount table, refcount block, L1 table, one L2
// table, clusters. One L2 table and one refcount block must suffice.
func New(disk []byte, clusterBits uint32) *File {
	c := int64(1) << clusterBits
	q := &File{
		Cluster: c, RefTable: c, RefBlock: 2 * c, L1: 3 * c, L2: 4 * c, End: 5 * c,
		Bytes: make(forge.Bytes, 5*c),
	}
	q.Text(0, "QFI\xfb")
	q.BE32(Version, 3)
	q.BE32(ClusterBits, clusterBits)
	q.BE64(Size, uint64(len(disk)))
	q.BE32(L1Size, 1)
	q.BE64(L1, uint64(q.L1))
	q.BE64(RefTable, uint64(q.RefTable))
	q.BE32(RefClusters, 1)
	q.BE32(Order, 4)
	q.BE32(Length, qcow2Header)
	q.BE64(q.RefTable, uint64(q.RefBlock))
	q.BE64(q.L1, uint64(q.L2)|Copied)
	for i := range int64(5) {
		q.SetRefcount(i, 1)
	}
	for i := int64(0); i*c < int64(len(disk)); i++ {
		data := disk[i*c : min((i+1)*c, int64(len(disk)))]
		if slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
			q.SetEntry(i, uint64(q.Append(data))|Copied)
		}
	}
	return q
}

// Append puts data into new clusters at the end of the file, with refcount 1, and returns their place.
func (q *File) Append(data []byte) int64 {
	at := q.End
	n := (int64(len(data)) + q.Cluster - 1) / q.Cluster
	q.Bytes = append(q.Bytes, make([]byte, n*q.Cluster)...)
	q.Put(at, data)
	for i := range n {
		q.SetRefcount(at/q.Cluster+i, 1)
	}
	q.End += n * q.Cluster
	return at
}

// SetEntry sets entry i of the L2 table.
func (q *File) SetEntry(i int64, v uint64) { q.BE64(q.L2+8*i, v) }

// Entry returns entry i of the L2 table.
func (q *File) Entry(i int64) uint64 { return binary.BigEndian.Uint64(q.Bytes[q.L2+8*i:]) }

// SetRefcount sets the refcount of a cluster of the file, of 16 bits.
func (q *File) SetRefcount(cluster int64, n uint16) {
	binary.BigEndian.PutUint16(q.Bytes[q.RefBlock+2*cluster:], n)
}

// SetPacked lets entry i name n bytes of compressed data at a place of the file.
func (q *File) SetPacked(i, at, n int64) {
	bits := binary.BigEndian.Uint32(q.Bytes[ClusterBits:])
	sectors := (at+n-1)/512 - at/512
	q.SetEntry(i, qcow2Compressed|uint64(sectors)<<(62-(bits-8))|uint64(at))
}

// AddExtension puts a header extension after the header, before those that exist.
func (q *File) AddExtension(kind uint32, data []byte) {
	n := 8 + (int64(len(data))+7)/8*8
	copy(q.Bytes[qcow2Header+n:q.Cluster], slices.Clone(q.Bytes[qcow2Header:q.Cluster-n]))
	clear(q.Bytes[qcow2Header : qcow2Header+n])
	q.BE32(qcow2Header, kind)
	q.BE32(qcow2Header+4, uint32(len(data)))
	q.Put(qcow2Header+8, data)
}

// SetBacking names a backing file, at the end of the first cluster.
func (q *File) SetBacking(name, format string) {
	if format != "" {
		q.AddExtension(0xe2792aca, []byte(format))
	}
	at := q.Cluster - int64(len(name))
	q.Text(at, name)
	q.BE64(Backing, uint64(at))
	q.BE32(BackingSize, uint32(len(name)))
}

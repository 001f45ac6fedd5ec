package disktest

import (
	"encoding/binary"
	"slices"
)

// Places of the fields of a qcow2 header. Spec: QEMU docs/interop/qcow2, "Header".
const (
	Qcow2Version      = 4
	Qcow2Backing      = 8
	Qcow2BackingSize  = 16
	Qcow2ClusterBits  = 20
	Qcow2Size         = 24
	Qcow2Crypt        = 32
	Qcow2L1Size       = 36
	Qcow2L1           = 40
	Qcow2RefTable     = 48
	Qcow2RefClusters  = 56
	Qcow2Snapshots    = 60
	Qcow2SnapTable    = 64
	Qcow2Incompatible = 72
	Qcow2Compatible   = 80
	Qcow2Autoclear    = 88
	Qcow2Order        = 96
	Qcow2Length       = 100
	Qcow2Compression  = 104
)

// Bits of L1 and L2 entries.
const (
	Qcow2Copied     = 1 << 63
	Qcow2Compressed = 1 << 62
)

// qcow2Header is the length that is written: with compression_type and its padding.
const qcow2Header = 112

// Qcow2 is a valid qcow2 file of version 3 and where its parts lie, in bytes. All parts are a cluster long.
type Qcow2 struct {
	Forged
	Cluster                         int64
	RefTable, RefBlock, L1, L2, End int64
}

// ForgeQcow2 stores the clusters of a disk that are not zero: header, refcount table, refcount block, L1 table, one L2
// table, clusters. One L2 table and one refcount block must suffice.
func ForgeQcow2(disk []byte, clusterBits uint32) *Qcow2 {
	c := int64(1) << clusterBits
	q := &Qcow2{Cluster: c, RefTable: c, RefBlock: 2 * c, L1: 3 * c, L2: 4 * c, End: 5 * c, Forged: make(Forged, 5*c)}
	q.Text(0, "QFI\xfb")
	q.Set32(Qcow2Version, 3)
	q.Set32(Qcow2ClusterBits, clusterBits)
	q.Set64(Qcow2Size, uint64(len(disk)))
	q.Set32(Qcow2L1Size, 1)
	q.Set64(Qcow2L1, uint64(q.L1))
	q.Set64(Qcow2RefTable, uint64(q.RefTable))
	q.Set32(Qcow2RefClusters, 1)
	q.Set32(Qcow2Order, 4)
	q.Set32(Qcow2Length, qcow2Header)
	q.Set64(q.RefTable, uint64(q.RefBlock))
	q.Set64(q.L1, uint64(q.L2)|Qcow2Copied)
	for i := range int64(5) {
		q.SetRefcount(i, 1)
	}
	for i := int64(0); i*c < int64(len(disk)); i++ {
		data := disk[i*c : min((i+1)*c, int64(len(disk)))]
		if slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
			q.SetEntry(i, uint64(q.Append(data))|Qcow2Copied)
		}
	}
	return q
}

// Append puts data into new clusters at the end of the file, with refcount 1, and returns their place.
func (q *Qcow2) Append(data []byte) int64 {
	at := q.End
	n := (int64(len(data)) + q.Cluster - 1) / q.Cluster
	q.Forged = append(q.Forged, make([]byte, n*q.Cluster)...)
	q.Put(at, data)
	for i := range n {
		q.SetRefcount(at/q.Cluster+i, 1)
	}
	q.End += n * q.Cluster
	return at
}

// Set32 sets a big-endian field.
func (q *Qcow2) Set32(at int64, v uint32) { binary.BigEndian.PutUint32(q.Forged[at:], v) }

// Set64 sets a big-endian field.
func (q *Qcow2) Set64(at int64, v uint64) { binary.BigEndian.PutUint64(q.Forged[at:], v) }

// SetEntry sets entry i of the L2 table.
func (q *Qcow2) SetEntry(i int64, v uint64) { q.Set64(q.L2+8*i, v) }

// Entry returns entry i of the L2 table.
func (q *Qcow2) Entry(i int64) uint64 { return binary.BigEndian.Uint64(q.Forged[q.L2+8*i:]) }

// SetRefcount sets the refcount of a cluster of the file, of 16 bits.
func (q *Qcow2) SetRefcount(cluster int64, n uint16) {
	binary.BigEndian.PutUint16(q.Forged[q.RefBlock+2*cluster:], n)
}

// SetPacked lets entry i name n bytes of compressed data at a place of the file.
func (q *Qcow2) SetPacked(i, at, n int64) {
	bits := binary.BigEndian.Uint32(q.Forged[Qcow2ClusterBits:])
	sectors := (at+n-1)/512 - at/512
	q.SetEntry(i, Qcow2Compressed|uint64(sectors)<<(62-(bits-8))|uint64(at))
}

// AddExtension puts a header extension behind the header, in front of those that are there.
func (q *Qcow2) AddExtension(kind uint32, data []byte) {
	n := 8 + (int64(len(data))+7)/8*8
	copy(q.Forged[qcow2Header+n:q.Cluster], slices.Clone(q.Forged[qcow2Header:q.Cluster-n]))
	clear(q.Forged[qcow2Header : qcow2Header+n])
	q.Set32(qcow2Header, kind)
	q.Set32(qcow2Header+4, uint32(len(data)))
	q.Put(qcow2Header+8, data)
}

// SetBacking names a backing file, at the end of the first cluster.
func (q *Qcow2) SetBacking(name, format string) {
	if format != "" {
		q.AddExtension(0xe2792aca, []byte(format))
	}
	at := q.Cluster - int64(len(name))
	q.Text(at, name)
	q.Set64(Qcow2Backing, uint64(at))
	q.Set32(Qcow2BackingSize, uint32(len(name)))
}

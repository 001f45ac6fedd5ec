package stack

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// ldmPartition is a record of an extent of a volume.
type ldmPartition struct {
	name           string
	start, sectors uint64 // start from the start of the data
	offset         uint64 // in the volume, or in the column of a striped one
	parent, disk   uint64 // component and disk
	index          uint64 // of the column
}

// ldmComponent is a record of a copy of a volume.
type ldmComponent struct {
	kind   byte
	volume uint64
}

// Kinds of components.
const (
	ldmStriped = 1
	ldmSpanned = 2 // simple ones and the halves of a mirror too
	ldmRAID5   = 3
)

// Types of the records that place a volume, with their revisions. Those of volumes hold names and states.
const (
	ldmIsComponent = 0x32
	ldmIsPartition = 0x33
	ldmIsDisk3     = 0x34
	ldmIsDisk4     = 0x44
	ldmHasIndex    = 0x08 // flag of a partition
)

// ldmFields reads fields of variable length in turn. After a field that passes the end, all are zero.
type ldmFields struct {
	b   []byte
	bad bool
}

func (r *ldmFields) bytes(n int) []byte {
	if n > len(r.b) {
		r.bad, r.b = true, nil
		return make([]byte, n)
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

// counted returns a field that begins with its length.
func (r *ldmFields) counted() []byte { return r.bytes(int(r.bytes(1)[0])) }

func (r *ldmFields) number() uint64 {
	b := r.counted()
	if len(b) > 8 {
		r.bad = true
		return 0
	}
	var n [8]byte
	copy(n[8-len(b):], b)
	return binary.BigEndian.Uint64(n[:])
}

// record decodes a complete record of a disk, a component or an extent, and counts all others.
func (db *ldmDatabase) record(b []byte, at int64) error {
	r := &ldmFields{b: b}
	var h ldmRecord
	if _, err := binary.Decode(r.bytes(binary.Size(h)), binary.BigEndian, &h); err != nil || r.bad {
		return ondisk.Field("ldm record", "length", at, len(b), "a head of 8 bytes or more")
	}
	kind := int(h.Type & 0x0f)
	if kind >= 1 && kind <= len(db.counts) {
		db.counts[kind-1]++
	}
	switch h.Type {
	case ldmIsPartition:
		db.partitions = append(db.partitions, readLDMPartition(r, h.Flags))
	case ldmIsComponent:
		id := r.number()
		db.components[id] = readLDMComponent(r)
	case ldmIsDisk3, ldmIsDisk4:
		id := r.number()
		r.counted() // name
		db.disks[readLDMDiskID(r, h.Type)] = id
	default:
		if (kind == ldmIsComponent&0x0f || kind == ldmIsPartition&0x0f) && db.revision == nil {
			db.revision = ondisk.Field("ldm record", "type", at, fmt.Sprintf("%#02x", h.Type), "revision 3")
		}
	}
	if r.bad {
		return ondisk.Field("ldm record", "type", at, fmt.Sprintf("%#02x", h.Type), "fields that end with it")
	}
	return nil
}

func readLDMPartition(r *ldmFields, flags byte) ldmPartition {
	r.number() // id
	p := ldmPartition{name: strings.ToValidUTF8(string(r.counted()), "?")}
	r.bytes(12)
	p.start = binary.BigEndian.Uint64(r.bytes(8))
	p.offset = binary.BigEndian.Uint64(r.bytes(8))
	p.sectors, p.parent, p.disk = r.number(), r.number(), r.number()
	if flags&ldmHasIndex != 0 {
		p.index = r.number()
	}
	return p
}

func readLDMComponent(r *ldmFields) ldmComponent {
	r.counted() // name
	r.counted() // state
	c := ldmComponent{kind: r.bytes(1)[0]}
	r.bytes(4)
	r.number() // partitions
	r.bytes(16)
	c.volume = r.number()
	return c
}

// readLDMDiskID returns the GUID of a disk as text. Revision 4 stores it in binary.
func readLDMDiskID(r *ldmFields, typ byte) string {
	if typ == ldmIsDisk3 {
		return strings.ToLower(string(r.counted()))
	}
	h := hex.EncodeToString(r.bytes(16))
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// maxLDMExtents bounds the extents that are listed of a disk. Windows advises against more than 32 volumes; a database
// has room for thousands.
const maxLDMExtents = 256

// extents returns the extents of this disk, without those that leave it. An extent that is alone in its component is a
// whole copy.
func (db *ldmDatabase) extents(h *ldmHead) (out []LDMExtent) {
	self, known := db.disks[strings.ToLower(volume.Text(h.DiskID[:]))]
	siblings, copies, sizes := map[uint64]int{}, map[uint64]int{}, map[uint64]uint64{}
	for _, p := range db.partitions {
		siblings[p.parent]++
		sizes[p.parent] += min(p.sectors, math.MaxUint32) // of 256 disks at most
	}
	for _, c := range db.components {
		copies[c.volume]++
	}
	sectors := ondisk.U64(db.disk.Size() / db.sector)
	for _, p := range db.partitions {
		at := h.DataStart + min(p.start, math.MaxInt64)
		if !known || p.disk != self || at > sectors || p.sectors > sectors-at || len(out) == maxLDMExtents {
			continue
		}
		c := db.components[p.parent]
		out = append(out, LDMExtent{
			Name: p.name, Whole: siblings[p.parent] == 1, Mirrored: copies[c.volume] > 1,
			Copy:   ondisk.I64(sizes[p.parent]) * db.sector,
			Begins: p.offset == 0 && p.index == 0 && (c.kind == ldmSpanned || c.kind == ldmStriped),
			Range:  disk.Range{Off: ondisk.I64(at) * db.sector, Len: ondisk.I64(p.sectors) * db.sector},
		})
	}
	return out
}

package volume

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
)

// Records of the database. Only what names and places a volume is kept.
type (
	ldmVolume struct {
		id         uint64
		name, hint string
		raid5      bool
		sectors    uint64
		kind       byte // of the partition, as an MBR has it
		components []*ldmComponent
	}
	ldmComponent struct {
		id, parent uint64
		kind       byte
		parts      []ldmPartition
	}
	ldmPartition struct {
		start, sectors uint64 // start from the start of the data
		parent, disk   uint64
	}
	ldmDisk struct {
		id       uint64
		name     string
		diskGUID string
	}
)

// Types of records, without their revision.
const (
	ldmIsVolume    = 0x51
	ldmIsComponent = 0x32
	ldmIsPartition = 0x33
	ldmIsDisk3     = 0x34
	ldmIsDisk4     = 0x44
)

// Kinds of components.
const (
	ldmStriped = 1
	ldmSpanned = 2
)

// ldmFields reads fields of variable length, one after the other. After the first that passes the end all are zero.
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

func (r *ldmFields) byte() byte { return r.bytes(1)[0] }

// counted is a field that begins with its length.
func (r *ldmFields) counted() []byte { return r.bytes(int(r.byte())) }

func (r *ldmFields) number() uint64 {
	b := r.counted()
	if len(b) > 8 {
		r.bad = true
		return 0
	}
	n := uint64(0)
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

func (r *ldmFields) text() string { return strings.ToValidUTF8(string(r.counted()), "?") }

// record decodes one that is complete; types that place nothing, and those of revisions that no Windows wrote, are left out.
func (db *ldmDatabase) record(b []byte, at int64) error {
	head := ldmFields{b: b}
	var h ldmRecord
	if _, err := binary.Decode(head.bytes(binary.Size(h)), binary.BigEndian, &h); err != nil || head.bad {
		return field("ldm record", "length", at, len(b), "a head of 8 bytes or more")
	}
	r := &ldmFields{b: head.b}
	switch h.Type {
	case ldmIsVolume:
		db.volumes = append(db.volumes, readLDMVolume(r, h.Flags))
	case ldmIsComponent:
		db.components = append(db.components, readLDMComponent(r))
	case ldmIsPartition:
		db.partitions = append(db.partitions, readLDMPartition(r))
	case ldmIsDisk3, ldmIsDisk4:
		db.disks = append(db.disks, readLDMDisk(r, h.Type))
	}
	if r.bad {
		return field("ldm record", "type", at, hexByte(h.Type), "fields that end with it")
	}
	return nil
}

func readLDMVolume(r *ldmFields, flags byte) *ldmVolume {
	v := &ldmVolume{id: r.number(), name: r.text()}
	r.counted() // "gen" or "raid5"
	r.counted()
	r.bytes(14) // state
	v.raid5 = r.byte() == 4
	r.bytes(6)
	r.number() // of components
	r.bytes(16)
	v.sectors = r.number()
	r.bytes(4)
	v.kind = r.byte()
	r.bytes(16) // GUID
	for _, bit := range []byte{0x08, 0x20, 0x80} {
		if flags&bit != 0 {
			r.counted()
		}
	}
	if flags&0x02 != 0 {
		v.hint = r.text()
	}
	return v
}

func readLDMComponent(r *ldmFields) *ldmComponent {
	c := &ldmComponent{id: r.number()}
	r.counted() // name
	r.counted() // state
	c.kind = r.byte()
	r.bytes(4)
	r.number() // of partitions
	r.bytes(16)
	c.parent = r.number()
	return c
}

func readLDMPartition(r *ldmFields) ldmPartition {
	r.number() // id
	r.counted()
	r.bytes(12)
	p := ldmPartition{start: binary.BigEndian.Uint64(r.bytes(8))}
	r.bytes(8) // offset in the volume
	p.sectors, p.parent, p.disk = r.number(), r.number(), r.number()
	return p
}

func readLDMDisk(r *ldmFields, typ byte) ldmDisk {
	d := ldmDisk{id: r.number(), name: r.text()}
	if typ == ldmIsDisk3 {
		d.diskGUID = strings.ToLower(r.text())
		return d
	}
	h := hex.EncodeToString(r.bytes(16))
	d.diskGUID = strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
	return d
}

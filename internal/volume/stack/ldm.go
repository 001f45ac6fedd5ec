package stack

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// LDM has the traits of a partition of a dynamic disk of Windows. Its type in the partition table identifies it.
var LDM = volume.Traits{Kind: volume.LDM, Title: "dynamic disk (LDM)"}

// The database of a dynamic disk is big-endian. Spec for all structures: "LDM Documentation" of the Linux-NTFS project;
// Linux, block/partitions/ldm.h; libldm, src/ldm.c.

// ldmHead is a private header.
type ldmHead struct {
	Magic       [8]byte // "PRIVHEAD"
	Sum         uint32  // of the other bytes of the sector; seen on disks of Windows 2003 R2
	Major       uint16
	Minor       uint16
	_           [4]uint64
	DiskID      [64]byte  // a GUID as text
	_           [171]byte // host and disk group
	DataStart   uint64    // sectors of the disk, as all below
	DataSize    uint64
	ConfigStart uint64
	ConfigSize  uint64
}

// ldmTOC has the places of the records in the database.
type ldmTOC struct {
	Magic   [8]byte // "TOCBLOCK"
	_       [28]byte
	Bitmaps [2]struct {
		Name        [8]byte // "config", "log"
		_           uint16
		Start, Size uint64 // sectors of the database
		_           uint64
	}
}

// ldmVMDB is the head of the records.
type ldmVMDB struct {
	Magic       [4]byte // "VMDB"
	_           uint32
	RecordSize  uint32 // bytes
	FirstRecord uint32 // bytes from here
	State       uint16
	_           [2]uint16 // version
	_           [95]byte  // disk group
	Committed   uint64    // number of the last transaction
	Pending     uint64    // the same when none is open
	Counts      [4]uint32 // of committed records: volumes, components, partitions, disks
}

// ldmBlock is the head of a block of records. A record that does not fit into one goes on in others.
type ldmBlock struct {
	Magic    [4]byte // "VBLK"
	_        uint32
	Record   uint32
	Fragment uint16
	Total    uint16
}

// ldmRecord begins a record.
type ldmRecord struct {
	_     [2]byte
	Flags uint8
	Type  uint8 // revision in the upper half
	Size  uint32
}

const (
	// maxLDMConfig bounds the database, in bytes: Windows makes it 1 MiB.
	maxLDMConfig = 4 << 20
	minLDMBlock  = 64
	maxLDMBlock  = 4096
)

// ldmDatabase is a database in memory.
type ldmDatabase struct {
	disk        disk.Disk
	b           []byte
	at          int64 // of b on the disk
	sector      int64
	first, size int64 // of the blocks, in b

	vmdb       ldmVMDB
	vmdbAt     int64 // on the disk
	partitions []ldmPartition
	components map[uint64]ldmComponent
	disks      map[string]uint64 // GUID to number
	counts     [4]uint32         // of records, as in the VMDB
	revision   error             // the first record of a revision that is not known
}

// ldmTOCs are the places of the table of contents and its copies, in sectors. Negative ones count from the end.
var ldmTOCs = []int64{1, 2, -3, -2}

// findRecords follows the tables of contents to the head of the records.
func (db *ldmDatabase) findRecords() error {
	for _, n := range ldmTOCs {
		at := n * db.sector
		if n < 0 {
			at += int64(len(db.b))
		}
		var toc ldmTOC
		if at < 0 || !db.decode(at, &toc) || string(toc.Magic[:]) != "TOCBLOCK" {
			continue
		}
		for _, m := range toc.Bitmaps {
			if volume.Text(m.Name[:]) == "config" {
				return db.readVMDB(m.Start, at+46)
			}
		}
	}
	return ondisk.Field("ldm table of contents", "magic", db.at+db.sector, "none", "TOCBLOCK with the place of config")
}

// readVMDB reads the head of the records at sector start of the database. said is the place of the field with that
// sector.
func (db *ldmDatabase) readVMDB(start uint64, said int64) error {
	v := &db.vmdb
	sectors := int64(len(db.b)) / db.sector
	if start >= ondisk.U64(sectors) {
		return ondisk.Field("ldm table of contents", "config start", db.at+said, start,
			fmt.Sprintf("less than %d", sectors))
	}
	at := ondisk.I64(start) * db.sector
	switch {
	case !db.decode(at, v) || string(v.Magic[:]) != "VMDB":
		return ondisk.Field("ldm vmdb", "magic", db.at+at, v.Magic[:], "VMDB")
	case v.RecordSize < minLDMBlock || v.RecordSize > maxLDMBlock:
		return ondisk.Field("ldm vmdb", "size of a block", db.at+at+8, v.RecordSize,
			fmt.Sprintf("%d to %d", minLDMBlock, maxLDMBlock))
	case int64(v.FirstRecord) > int64(len(db.b))-at:
		return ondisk.Field("ldm vmdb", "first block", db.at+at+12, v.FirstRecord,
			fmt.Sprintf("at most %d", int64(len(db.b))-at))
	}
	db.vmdbAt, db.first, db.size = db.at+at, at+int64(v.FirstRecord), int64(v.RecordSize)
	return nil
}

// decode fills v from an offset of the database. It returns false if v would leave the database.
func (db *ldmDatabase) decode(at int64, v any) bool {
	n := int64(binary.Size(v))
	if at > int64(len(db.b))-n {
		return false
	}
	_, err := binary.Decode(db.b[at:at+n], binary.BigEndian, v)
	return err == nil
}

// ldmFragments are the fragments of one record.
type ldmFragments struct {
	at     int64 // of the first one that was met, on the disk
	total  uint16
	pieces map[uint16][]byte
}

// readBlocks reads the blocks up to the first that is not one. The end of the database bounds the walk, not a count of
// blocks.
func (db *ldmDatabase) readBlocks() error {
	open := map[uint32]*ldmFragments{}
	for at := db.first; at+db.size <= int64(len(db.b)); at += db.size {
		var h ldmBlock
		if !db.decode(at, &h) || string(h.Magic[:]) != "VBLK" {
			break
		}
		body := db.b[at+int64(binary.Size(h)) : at+db.size]
		if h.Total > 1 {
			if h.Fragment >= h.Total {
				return ondisk.Field("ldm block", "fragment", db.at+at+12, h.Fragment,
					fmt.Sprintf("less than %d", h.Total))
			}
			if body = h.join(open, body, db.at+at); body == nil {
				continue
			}
		}
		if err := db.record(body, db.at+at); err != nil {
			return err
		}
	}
	if len(open) == 0 {
		return nil
	}
	first := slices.MinFunc(slices.Collect(maps.Values(open)),
		func(a, b *ldmFragments) int { return cmp.Compare(a.at, b.at) })
	return ondisk.Field("ldm block", "fragments of the record", first.at+14, len(first.pieces), first.total)
}

// join collects the fragments of a record, and returns the record when it is complete. It keeps no more than was read.
func (h *ldmBlock) join(open map[uint32]*ldmFragments, body []byte, at int64) []byte {
	f, ok := open[h.Record]
	if !ok {
		f = &ldmFragments{at: at, total: h.Total, pieces: map[uint16][]byte{}}
		open[h.Record] = f
	}
	f.pieces[h.Fragment] = body
	if len(f.pieces) < int(f.total) {
		return nil
	}
	delete(open, h.Record)
	var whole []byte
	for i := range f.total {
		whole = append(whole, f.pieces[i]...)
	}
	return whole
}

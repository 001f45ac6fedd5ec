package vhdxforge

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// LogID is the GUID of the log of a forged disk.
const LogID = "0badcafe-1234-4567-89ab-cdef01234567"

// Change is the effect of a descriptor of the log: 4 KiB of data, or zeros if there are none.
type Change struct {
	Off  int64
	Data []byte // 4 KiB
	Zero int64  // bytes
}

// Entry is an entry of the log. Spec: 2.3.1.
type Entry struct {
	Sequence      uint64
	Tail          int64 // from the start of the log
	Flushed, Last int64 // 0 for the size of the file
	GUID          string
	Changes       []Change
}

// Bytes returns the entry in its encoding in the log.
func (e Entry) Bytes() forge.Bytes {
	data := 0
	for _, c := range e.Changes {
		if c.Data != nil {
			data++
		}
	}
	sectors := (len(e.Changes) + 2 + 127) / 128
	b := make(forge.Bytes, (sectors+data)*vhdxSector)
	b.Text(0, "loge")
	b.U32(8, uint32(len(b)))
	b.U32(12, uint32(e.Tail))
	b.U64(16, e.Sequence)
	b.U32(24, uint32(len(e.Changes)))
	b.Put(32, GUID(e.GUID))
	b.U64(48, uint64(e.Flushed))
	b.U64(56, uint64(e.Last))
	at := int64(sectors) * vhdxSector
	for i, c := range e.Changes {
		d := 64 + 32*int64(i)
		b.U64(d+16, uint64(c.Off))
		b.U64(d+24, e.Sequence)
		if c.Data == nil {
			b.Text(d, "zero")
			b.U64(d+8, uint64(c.Zero))
			continue
		}
		b.Text(d, "desc")
		b.Put(d+4, c.Data[vhdxSector-4:])
		b.Put(d+8, c.Data[:8])
		b.Text(at, "data")
		b.U32(at+4, uint32(e.Sequence>>32))
		b.Put(at+8, c.Data[8:vhdxSector-4])
		b.U32(at+vhdxSector-4, uint32(e.Sequence))
		at += vhdxSector
	}
	SealAt(b, 0, int64(len(b)))
	return b
}

// Dirty puts entries into the log, from an offset on, and marks the log for replay. Entries without a GUID get that of
// the log; their tail is the offset of the first one. It returns the offsets of the entries.
func (v *File) Dirty(from int64, entries ...Entry) []int64 {
	size := v.LogMiB * vhdxMiB
	var places []int64
	at := from
	for _, e := range entries {
		e.Tail = from
		if e.GUID == "" {
			e.GUID = LogID
		}
		if e.Flushed == 0 {
			e.Flushed = int64(len(v.Bytes))
		}
		if e.Last == 0 {
			e.Last = int64(len(v.Bytes))
		}
		places = append(places, at)
		at = v.PutLog(at, e.Bytes()) % size
	}
	for _, h := range []int64{Header1, Header2} {
		v.Put(h+vhdxLogGUID, GUID(LogID))
	}
	v.Seal()
	return places
}

// PutLog writes bytes at an offset of the ring, and returns the offset after them.
func (v *File) PutLog(at int64, b []byte) int64 {
	size := v.LogMiB * vhdxMiB
	for i := range b {
		v.Bytes[v.Log+(at+int64(i))%size] = b[i]
	}
	return at + int64(len(b))
}

// Sector returns the 4 KiB of the file around an offset, with a little-endian number of 8 bytes set there: the log's
// write of a BAT entry.
func (v *File) Sector(at int64, value uint64) Change {
	start := at / vhdxSector * vhdxSector
	data := make([]byte, vhdxSector)
	copy(data, v.Bytes[start:])
	binary.LittleEndian.PutUint64(data[at-start:], value)
	return Change{Off: start, Data: data}
}

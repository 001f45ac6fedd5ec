// Package ldmforge forges groups of dynamic disks.
package ldmforge

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places in the database of a dynamic disk. Spec: Linux-NTFS, "LDM Documentation"; Linux, block/partitions/ldm.h.
const (
	Head        = 6 * 512 // of a disk with an MBR
	ConfigStart = 299     // in the private header
	ConfigSize  = 307
	TOC         = 1 * 512 // in the database
	TOCStart    = 46
	VMDB        = 17 * 512
	State       = 16 // in the head of the records
	Counts      = 133
	Sum         = 8 // in the private header
	Records     = 4
	BlockSize   = 8
	FirstBlock  = 12
	Blocks      = VMDB + 512
	Block       = 128
	Total       = 14
	Body        = 24 // behind the head of its record
	ldmSectors  = 2048
)

// GroupID is the GUID of the disk group.
const GroupID = "99999999-8888-7777-6666-555555555555"

// DiskID returns the GUID of a disk of the group.
func DiskID(disk int) string {
	return fmt.Sprintf("11111111-2222-3333-4444-5555555555%02x", 0x55+disk)
}

// Piece is an extent of a volume, in sectors of the space for volumes of a disk.
type Piece struct {
	Disk           int
	Start, Sectors int64
}

// Volume is a volume of a disk group.
type Volume struct {
	Name   string
	Kind   byte // of its copies
	Copies [][]Piece
}

// Kinds of the copies of a volume.
const (
	Striped = 1
	Spanned = 2
	RAID5   = 3
)

// Put makes a disk with an MBR a dynamic one with the simple volume "Volume1", in place of the sectors from lba on.
// The database is the last MiB. It returns the byte offset of that.
func Put(f forge.Bytes, lba, sectors int64) int64 {
	PutGroup([]forge.Bytes{f}, lba, sectors, Volume{"Volume1", Spanned, [][]Piece{{{Sectors: sectors}}}})
	return int64(len(f)) - ldmSectors*512
}

// PutGroup makes disks with an MBR a group of dynamic ones. The sectors from lba on are the space for volumes.
func PutGroup(disks []forge.Bytes, lba, sectors int64, volumes ...Volume) {
	for i, f := range disks {
		total := int64(len(f)) / 512
		db := (total - ldmSectors) * 512
		PutDatabase(f, db, len(disks), volumes...)
		head := PrivateHead(DiskID(i), lba, sectors, total-ldmSectors, ldmSectors)
		for _, at := range []int64{Head, db + 1856*512, db + 2047*512} {
			f.Put(at, head)
		}
	}
}

// PrivateHead returns a private header with its sum.
func PrivateHead(disk string, places ...int64) forge.Bytes {
	head := make(forge.Bytes, 512)
	head.Text(0, "PRIVHEAD")
	head.Put(12, []byte{0, 2, 0, 12})
	head.Text(48, disk)
	head.Text(112, "1b77da20-c717-11d0-a5be-00a0c91db73c")
	head.Text(176, GroupID)
	head.Text(240, "ForgedDg0")
	for i, n := range places {
		head.BE64(283+8*int64(i), uint64(n))
	}
	sum := uint32(0)
	for _, b := range head {
		sum += uint32(b)
	}
	head.BE32(Sum, sum)
	return head
}

// PutDatabase writes the database of a group at a byte offset, without its private headers.
func PutDatabase(f forge.Bytes, at int64, disks int, volumes ...Volume) {
	toc := make(forge.Bytes, 512)
	toc.Text(0, "TOCBLOCK")
	toc.Text(36, "config")
	toc.BE64(TOCStart, VMDB/512)
	toc.BE64(54, 1480)
	toc.Text(70, "log")
	toc.BE64(80, 1497)
	toc.BE64(88, 224)
	for _, sector := range []int64{1, 2, 2045, 2046} {
		f.Put(at+sector*512, toc)
	}
	r := &ldmRecords{f: f[at+VMDB:], next: 4}
	v := r.f
	v.Text(0, "VMDB")
	v.BE32(BlockSize, Block)
	v.BE32(FirstBlock, Blocks-VMDB)
	v.Put(State, []byte{0, 1, 0, 4, 0, 10})
	v.Text(22, "ForgedDg0")
	v.Text(53, GroupID)
	r.add(0x35, 0, r.id(), counted("ForgedDg0"), counted(GroupID), zeros(12))
	var ids []string
	for i := range disks {
		ids = append(ids, string(r.id()))
		r.add(0x34, 0, []byte(ids[i]), counted(fmt.Sprintf("Disk%d", i+1)), counted(DiskID(i)), counted(""), zeros(12))
	}
	for _, x := range volumes {
		r.volume(x, ids)
	}
	for r.next%4 != 0 { // Linux reads whole sectors
		b := r.block()
		b.Text(0, "VBLK")
		b.BE32(4, uint32(r.next))
		r.next++
	}
	v.BE32(Records, uint32(r.next))
	for i, n := range r.counts {
		v.BE32(Counts+4*int64(i), n)
	}
}

// ldmRecords writes records one behind the other.
type ldmRecords struct {
	f      forge.Bytes // from the head of the records on
	next   int64       // block
	last   byte        // id
	counts [4]uint32   // volumes, components, partitions, disks
}

func (r *ldmRecords) id() []byte {
	r.last++
	return counted(string(rune(r.last)))
}

// volume writes the records of a volume: for each copy its pieces and itself, and the volume last.
func (r *ldmRecords) volume(x Volume, disks []string) {
	volume, total := r.id(), int64(0)
	for n, pieces := range x.Copies {
		id, off := r.id(), int64(0)
		for i, p := range pieces {
			fields := [][]byte{
				r.id(), counted(fmt.Sprintf("Disk%d-%02d", p.Disk+1, r.last)), zeros(4 + 8), be64(p.Start), zeros(8),
				append([]byte{8}, be64(p.Sectors)...), id, []byte(disks[p.Disk]),
			}
			if x.Kind == Spanned {
				fields[4] = be64(off)
			}
			flags := byte(0)
			if i > 0 {
				flags, fields = 8, append(fields, counted(string(rune(i))))
			}
			if off += p.Sectors; x.Name == "Volume1" && len(pieces) == 1 {
				fields[1] = counted("Disk1-01")
			}
			r.add(0x33, flags, fields...)
		}
		if total = off; x.Kind == RAID5 {
			total -= pieces[0].Sectors
		}
		flags, tail := byte(0), zeros(1)
		if x.Kind != Spanned {
			flags, tail = 0x10, []byte{0, 1, 128, 1, byte(len(pieces))}
		}
		r.add(0x32, flags, id, counted(fmt.Sprintf("%s-%02d", x.Name, n+1)), counted("ACTIVE"), []byte{x.Kind},
			zeros(4), counted(string(rune(len(pieces)))), zeros(16), volume, tail)
	}
	kind, number := "gen", byte(3)
	if x.Kind == RAID5 {
		kind, number = "raid5", 4
	}
	r.add(0x51, 2, volume, counted(x.Name), counted(kind), counted(""),
		[]byte("ACTIVE\x00\x00\x00\x00\x00\x00\x00\x00"), []byte{number, 1, 1, 0, 0, 0, 0},
		counted(string(rune(len(x.Copies)))), zeros(16), append([]byte{8}, be64(total)...), zeros(4), []byte{7},
		[]byte("guid of a volume"), counted("E:"))
}

func (r *ldmRecords) block() forge.Bytes { return r.f[512+(r.next-4)*Block:][:Block] }

// add writes a record of a type into the next block. The first four blocks stand in the sector of the head, and are
// numbered all the same.
func (r *ldmRecords) add(kind, flags byte, fields ...[]byte) {
	b := r.block()
	b.Text(0, "VBLK")
	b.BE32(4, uint32(r.next))
	b.BE32(8, uint32(r.next))
	b.Put(Total, []byte{0, 1})
	b.U8(18, flags)
	b.U8(19, kind)
	at := int64(Body)
	for _, x := range fields {
		b.Put(at, x)
		at += int64(len(x))
	}
	b.BE32(20, uint32(at-Body))
	if n := int(kind & 15); n <= len(r.counts) {
		r.counts[n-1]++
	}
	r.next++
}

func zeros(n int) []byte { return make([]byte, n) }

func be64(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// counted returns a field that begins with its length.
func counted(s string) []byte { return append([]byte{byte(len(s))}, s...) }

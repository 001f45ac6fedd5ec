// Package liloforge installs LILO as its installer does: boot sector, map, and the lists of sectors in it.
//
// Spec: LILO 24, src/common.h, src/map.c, src/bsect.c, src/boot.c, src/geometry.c.
package liloforge

import (
	"encoding/binary"
	"regexp"
	"strconv"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Ways to count, as the flags of an address.
const (
	LBA32    = 0x60
	Linear   = 0x40
	Geometry = 0x00
	RAID     = 0x10

	sector   = 512
	addrLen  = 5
	perPage  = 101 // addresses in a sector of them
	stamp    = 0x4d2f1e03
	firstBIO = 0x80
)

// Image is a kernel with its initial RAM disk. Hole means a sector that no block of the file holds.
type Image struct {
	Name           string
	Kernel, Initrd []int64 // LBAs
	InitrdLen      int64   // bytes
	Setup          int     // sectors after its first one that LILO reads one by one
	Options        string
	Flags          uint16
	Alias          bool // an entry with the addresses of the one before it
}

// Flags of an entry: a kernel, and one that is loaded above 1 MiB and has an initial RAM disk.
const (
	Kernel = 16
	Modern = Kernel | 8 | 256
)

// Hole is a sector of a file that reads as zeros and has no place.
const Hole = -1

// Install is an installation.
type Install struct {
	First, Second []byte // the stages; nil: their relevant parts
	Version       uint16 // of the forged ones
	Mode          byte
	Compact       bool
	Drive         byte // 0: the first disk
	Table         int  // sectors of the table of kernels
	Password      int  // bytes
	Message       string
	Images        []Image
	Map           []int64 // LBAs of the file
}

// New returns an installation of LILO 24.2 with 32-bit LBAs, in its usual build.
func New(file []int64, images ...Image) Install {
	return Install{Version: 0x0218, Mode: LBA32, Table: 3, Password: 20, Map: file, Images: images}
}

// writer is the state of writing a map.
type writer struct {
	Install
	f    forge.Bytes
	next int // sector of the file
}

// entry is an address with its sector count.
type entry struct {
	lba   int64
	n     int
	count bool // it has a count, and the upper bits of the one before it
}

// Put installs it, with its first stage in the sector home. It returns how many sectors of the map it has used.
func (i Install) Put(f forge.Bytes, home int64) int {
	w := &writer{Install: i, f: f}
	w.add([]byte{0x6d, 0x6b}) // of a disabled command line
	w.next += w.Table + 1     // the table, and a sector of zeros for holes
	for k := 1; k < w.next; k++ {
		w.put(k, nil)
	}
	second := w.second()
	var list forge.Bytes = make([]byte, sector)
	start := w.next
	for k := 0; k*sector < len(second); k++ {
		list.U32(int64(4*k), uint32(w.Map[w.next]))
		w.add(second[k*sector:])
	}
	list.Text(sector-4, "LILO")
	at := w.add(list)
	var message []byte
	if w.Message != "" {
		var rows []entry
		for k := 0; k < len(w.Message); k += sector {
			rows = append(rows, entry{lba: w.add([]byte(w.Message[k:])), n: 1})
		}
		message = w.section(rows, 0)
	}
	table := w.table()
	w.put(start, w.params(second, w.keys(message), len(w.Message)))
	for k := range w.Table {
		w.put(1+k, table[k*sector:])
	}
	w.first(home, at)
	return w.next
}

// put fills a sector of the file.
func (w *writer) put(k int, b []byte) {
	var full [sector]byte
	copy(full[:], b)
	w.f.Put(w.Map[k]*sector, full[:])
}

// add fills the next sector of the file and returns its LBA.
func (w *writer) add(b []byte) int64 {
	w.put(w.next, b)
	w.next++
	return w.Map[w.next-1]
}

// addr encodes an address.
func (w *writer) addr(e entry) []byte {
	lba := uint32(e.lba)
	drive := w.Drive
	if drive == 0 {
		drive = firstBIO
	}
	b := []byte{byte(lba), byte(lba >> 8), drive | w.Mode, byte(lba >> 16), byte(e.n)}
	switch {
	case e.count && w.Mode&LBA32 == LBA32:
		b[2] &^= Linear // the LINEAR flag means that the count is absent
	case w.Mode&LBA32 == LBA32:
		b[4] = byte(lba >> 24)
	}
	return b
}

func (w *writer) one(lba int64) []byte { return w.addr(entry{lba: lba, n: 1}) }

// section writes a row of addresses and returns that of its first sector. Spec: map_end_section.
func (w *writer) section(rows []entry, apart int) []byte {
	for i := range rows {
		if rows[i].lba == Hole {
			rows[i].lba = w.Map[w.Table+1]
		}
	}
	if w.Compact {
		rows = w.compact(rows, apart)
	}
	start := w.one(w.Map[w.next])
	for len(rows) > 0 {
		var page []byte
		for _, e := range rows[:min(perPage, len(rows))] {
			page = append(page, w.addr(e)...)
		}
		if rows = rows[min(perPage, len(rows)):]; len(rows) > 0 {
			page = append(page, w.one(w.Map[w.next+1])...)
		}
		w.add(page)
	}
	return start
}

// compact joins neighbours after the first ones. Spec: map_compact.
func (w *writer) compact(rows []entry, apart int) []entry {
	const segment, most = 1 << 16, 127
	out := rows[:min(apart, len(rows)):min(apart, len(rows))]
	high, offset := int64(-1), 0
	for k, e := range rows[len(out):] {
		if high == e.lba>>24 || w.Mode == Linear {
			e.count = k > 0
		}
		high = e.lba >> 24
		last := len(out) - 1
		if joins := e.count && k > 0 && (out[last].count || w.Mode == Linear) &&
			out[last].lba+int64(out[last].n) == e.lba &&
			out[last].n < most && offset/segment == k*sector/segment; joins {
			out[last].n++
			continue
		}
		offset = k * sector
		out = append(out, e)
	}
	return out
}

func singles(lbas []int64) (rows []entry) {
	for _, lba := range lbas {
		rows = append(rows, entry{lba: lba, n: 1})
	}
	return rows
}

// table writes the lists of all images and returns the table of them.
func (w *writer) table() forge.Bytes {
	table := make(forge.Bytes, w.Table*sector)
	size := int64(16 + w.Password + 18)
	var start, initrd []byte
	for k, i := range w.Images {
		if !i.Alias {
			rows := singles([]int64{w.add(nil), w.add([]byte(i.Options))}) // no fallback
			start = w.section(append(rows, singles(i.Kernel)...), i.Setup+3)
			initrd = make([]byte, addrLen)
			if i.Initrd != nil {
				initrd = w.section(singles(i.Initrd), 0)
			}
		}
		at := int64(k) * size
		table.Text(at, i.Name)
		at += 16 + int64(w.Password)
		table.U32(at, uint32(i.InitrdLen))
		table.Put(at+4, initrd)
		table.Put(at+9, start)
		table.U16(at+14, i.Flags)
	}
	table.U32(int64(len(table))-4, Sum(table[:len(table)-4]))
	return table
}

// keys writes the sector of keys and parameters and returns its address.
func (w *writer) keys(message []byte) []byte {
	b := make(forge.Bytes, sector)
	for k := range 256 {
		b[k] = byte(k)
	}
	const serial = 256 + 88
	copy(b[serial:serial+4], w.f[0x1b8:]) // signature of the disk
	at := int64(256 + 236 - 4*w.Table)    // of the addresses of the table
	b.Put(at-10, message)
	b.Put(at-5, w.one(w.Map[0]))
	for k := range w.Table {
		b.Put(at+int64(k)*addrLen, w.one(w.Map[1+k]))
	}
	b.U32(sector-8, Sum(b[:sector-8]))
	return w.one(w.add(b))
}

// second returns the second stage.
func (w *writer) second() []byte {
	if w.Second != nil {
		return w.Second
	}
	b := make(forge.Bytes, 12*sector)
	b.Put(0, []byte{0xeb, 0x4e})
	b.Text(6, "LILO")
	b.U16(10, w.Version)
	b.U16(16, 2) // the stage
	b.Text(5*sector, "forged second stage")
	return b
}

// params returns the first sector of the second stage with the installer's fields.
func (w *writer) params(second, keys []byte, message int) []byte {
	b := append(forge.Bytes(nil), second[:sector]...)
	b.U32(12, stamp)
	b.U16(20, 0xffff) // no timeout
	b.U16(24, uint16(message))
	b.Put(26, keys)
	return b
}

// first writes the boot sector. at is the LBA of the list of the second stage.
func (w *writer) first(home, at int64) {
	const codeLen, maxCode = 0x1b4, 0x1b6
	b := make(forge.Bytes, maxCode)
	if w.First != nil {
		copy(b, w.First)
	} else {
		b.Put(0, []byte{0xfa, 0xeb, 0x21, 1}) // cli; jmp; stage
		b.U16(4, codeLen)
		b.Text(6, "LILO")
		b.U16(10, w.Version)
		b.Put(0xa0, []byte{0x8a, 0x76, 0x1f, 0xbe, 0x20, 0, 0xe8})
		b.Put(0xa9, []byte{0x66, 0x81, 0x7f, 0xfc, 'L', 'I', 'L', 'O'})
		b.Put(0xc1, []byte{0xbe, 6, 0, 0x89, 0xf7, 0xb9, 10, 0, 0xb4})
		b.Put(0x188, []byte{0x66, 0xad, 0x66, 9, 0xc0, 0x74, 10, 0x66, 3, 0x46, 0x10, 0xe8})
	}
	b.U32(12, stamp)
	b.U32(24, binary.LittleEndian.Uint32(w.f[0x1b8:])) // of the disk with the map
	a := w.one(at)
	b.U8(30, a[2]&0x8f)
	b.U8(31, a[2]&^0x8f)
	b.U32(32, uint32(at))
	w.f.Put(home*sector, b)
	w.f.U16(home*sector+510, 0xaa55)
}

// Sum is CRC-32/BZIP2, by the shift register that the second stage has. Spec: src/second.S, crc32.
func Sum(b []byte) uint32 {
	sum := uint32(0xffffffff)
	for _, c := range b {
		for bit := 7; bit >= 0; bit-- {
			in := uint32(c>>bit) & 1
			out := sum >> 31
			sum <<= 1
			if in != out {
				sum ^= 0x04c11db7
			}
		}
	}
	return ^sum
}

// blocks matches runs in the output of debugfs: "(0-11):100-111, (IND):112".
var blocks = regexp.MustCompile(`\((\d+)(?:-(\d+))?(?:\[u\])?\):(\d+)`)

// Sectors returns the LBAs of a file from debugfs' "stat" output. The file system begins at sector start.
func Sectors(stat string, start, blockSize, size int64) []int64 {
	out := make([]int64, (size+sector-1)/sector)
	for k := range out {
		out[k] = Hole
	}
	per := blockSize / sector
	for _, m := range blocks.FindAllStringSubmatch(stat, -1) {
		var n [3]int64
		for k := range n {
			n[k], _ = strconv.ParseInt(m[k+1], 10, 64)
		}
		for b := n[0]; b <= max(n[0], n[1]); b++ {
			for k := range per {
				if at := b*per + k; at < int64(len(out)) {
					out[at] = start + (n[2]+b-n[0])*per + k
				}
			}
		}
	}
	return out
}

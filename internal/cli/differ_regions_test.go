package cli

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
)

// region is a stretch of a file that describes the disk: a header, a table, a text.
type region struct {
	name     string
	off, len int64
	order    binary.ByteOrder
	text     bool
}

// regions finds what describes the disk in a file of a valid image, by the specifications. Of a table it takes some
// hundred bytes.
func regions(b []byte) []region {
	r := &regionFinder{b: b}
	switch {
	case bytes.HasPrefix(b, []byte("KDMV")):
		r.vmdk()
	case bytes.HasPrefix(b, []byte("QFI\xfb")):
		r.qcow2()
	case bytes.HasPrefix(b, []byte("vhdxfile")):
		r.vhdx()
	case bytes.HasPrefix(b, []byte("# Disk")):
		r.found = []region{{name: "descriptor", len: int64(len(b)), text: true}}
	default:
		r.guest()
		r.vhd()
	}
	return r.found
}

// regionFinder collects regions of a file. Numbers outside the file are zero.
type regionFinder struct {
	b     []byte
	found []region
}

func (r *regionFinder) at(off, n int64) []byte {
	out := make([]byte, n)
	if off >= 0 && off < int64(len(r.b)) {
		copy(out, r.b[off:])
	}
	return out
}

func (r *regionFinder) le32(off int64) int64 { return int64(binary.LittleEndian.Uint32(r.at(off, 4))) }

func (r *regionFinder) le64(off int64) int64 { return int64(binary.LittleEndian.Uint64(r.at(off, 8))) }
func (r *regionFinder) be32(off int64) int64 { return int64(binary.BigEndian.Uint32(r.at(off, 4))) }
func (r *regionFinder) be64(off int64) int64 { return int64(binary.BigEndian.Uint64(r.at(off, 8))) }

// most bounds the tables of one kind, and the bytes of one.
const (
	mostTables = 8
	mostBytes  = 512
)

func (r *regionFinder) add(name string, off, n int64, order binary.ByteOrder) {
	n = min(n, mostBytes, int64(len(r.b))-off)
	if off >= 0 && n >= 8 {
		r.found = append(r.found, region{name: name, off: off, len: n, order: order})
	}
}

// vmdk: "Virtual Disk Format 1.1", Hosted Sparse Extents and Stream-Optimized.
func (r *regionFinder) vmdk() {
	le := binary.LittleEndian
	header := int64(0)
	if r.le64(56) == -1 { // at the end
		header = int64(len(r.b)) - 1024
		r.add("footer", header, 79, le)
		r.add("end-of-stream", int64(len(r.b))-512, 16, le)
	}
	r.add("header", 0, 79, le)
	if at, n := r.le64(28)*512, r.le64(36)*512; n > 0 {
		text := bytes.TrimRight(r.at(at, n), "\x00")
		r.found = append(r.found, region{name: "embedded descriptor", off: at, len: int64(len(text)), text: true})
	}
	grain, entries := r.le64(header+20)*512, r.le32(header+44)
	if grain <= 0 || entries <= 0 {
		return
	}
	tables := min(mostTables, (r.le64(header+12)*512+grain*entries-1)/(grain*entries))
	for _, field := range []int64{48, 56} { // redundant, primary
		dir := r.le64(header+field) * 512
		r.add("grain directory", dir, 4*tables, le)
		for i := range tables {
			table := r.le32(dir+4*i) * 512
			r.add("grain table", table, 4*entries, le)
			if first := r.le32(table) * 512; first > 0 && header > 0 {
				r.add("grain marker", first, 32, le)
			}
		}
	}
}

// qcow2: docs/interop/qcow2.txt of QEMU.
func (r *regionFinder) qcow2() {
	be := binary.BigEndian
	cluster := int64(1) << min(r.be32(20), 21)
	r.add("header", 0, 112, be)
	r.add("header extensions", 104, 100, be)
	l1 := r.be64(40)
	r.add("L1 table", l1, 8*r.be32(36), be)
	for i := range min(mostTables, r.be32(36)) {
		if l2 := r.be64(l1+8*i) & (1<<62 - 1); l2 > 0 {
			r.add("L2 table", l2, cluster, be)
		}
	}
	refcounts := r.be64(48)
	r.add("refcount table", refcounts, 64, be)
	r.add("refcount block", r.be64(refcounts), cluster, be)
}

// vhd: "Virtual Hard Disk Image Format Specification" 1.0.
func (r *regionFinder) vhd() {
	be := binary.BigEndian
	footer := int64(len(r.b)) - 512
	if footer < 0 || !bytes.HasPrefix(r.b[footer:], []byte("conectix")) {
		return
	}
	r.add("footer", footer, 86, be)
	if !bytes.HasPrefix(r.b, []byte("conectix")) {
		return
	}
	// what lies at 0 is no table
	r.found = slices.DeleteFunc(r.found, func(x region) bool { return x.name != "footer" })
	r.add("copy of the footer", 0, 86, be)
	r.add("dynamic header", 512, 64, be)
	bat := r.be64(512 + 16)
	r.add("BAT", bat, 4*r.be32(512+28), be)
	for i := range min(mostTables, r.be32(512+28)) {
		if block := r.be32(bat + 4*i); block != 0xffffffff {
			r.add("sector bitmap", block*512, 512, be)
		}
	}
}

// vhdx: [MS-VHDX].
func (r *regionFinder) vhdx() {
	le := binary.LittleEndian
	const kib = 1024
	r.add("file identifier", 0, 16, le)
	for i := range int64(2) {
		r.add(fmt.Sprint("header ", i+1), (64+64*i)*kib, 80, le)
		r.add(fmt.Sprint("region table ", i+1), (192+64*i)*kib, 16+2*32, le)
	}
	r.add("log", r.le64(64*kib+72), 128, le)
	for i := range int64(2) {
		at := 192*kib + 16 + 32*i
		where := r.le64(at + 16)
		if r.le32(at) == 0x2dc27766 {
			r.add("BAT", where, r.le32(at+24), le)
			continue
		}
		r.add("metadata table", where, 32+5*32, le)
		for k := range int64(5) {
			item := where + 32 + 32*k
			r.add("metadata item", where+r.le32(item+16), max(8, r.le32(item+20)), le)
		}
	}
}

// guest: what the disk itself says, of a file that holds it as it is.
func (r *regionFinder) guest() {
	le := binary.LittleEndian
	r.add("MBR", 440, 72, le)
	for i := range int64(4) {
		entry := 446 + 16*i
		start := r.le32(entry+8) * 512
		switch r.at(entry+4, 1)[0] {
		case 0, 0xee:
		case 0x05, 0x0f, 0x85:
			r.chain(start)
		default:
			r.add("boot sector", start, 96, le)
		}
	}
	if !bytes.Equal(r.at(512, 8), []byte("EFI PART")) {
		return
	}
	backup := r.le64(512+32) * 512
	for _, header := range []int64{512, backup} {
		r.add("GPT header", header, 92, le)
		r.add("GPT entries", r.le64(header+72)*512, mostBytes, le)
	}
}

func (r *regionFinder) chain(box int64) {
	at := box
	for range mostTables {
		r.add("extended boot record", at+440, 72, binary.LittleEndian)
		next := r.le32(at + 446 + 16 + 8)
		if next == 0 {
			return
		}
		at = box + next*512
	}
}

// repair makes the checksums of a file right again.
func repair(b []byte) {
	r := &regionFinder{b: b}
	n := int64(len(b))
	switch {
	case bytes.HasPrefix(b, []byte("vhdxfile")):
		castagnoli := crc32.MakeTable(crc32.Castagnoli)
		for i := range int64(2) {
			r.sum((64+64*i)<<10, 4<<10, 4, func(p []byte) uint32 { return crc32.Checksum(p, castagnoli) },
				binary.LittleEndian)
			r.sum((192+64*i)<<10, 64<<10, 4, func(p []byte) uint32 { return crc32.Checksum(p, castagnoli) },
				binary.LittleEndian)
		}
	case bytes.Equal(r.at(n-512, 8), []byte("conectix")) || bytes.HasPrefix(b, []byte("conectix")):
		r.sum(n-512, 512, 64, vhdSum, binary.BigEndian)
		if bytes.HasPrefix(b, []byte("conectix")) {
			r.sum(0, 512, 64, vhdSum, binary.BigEndian)
			r.sum(512, 1024, 36, vhdSum, binary.BigEndian)
		}
	case bytes.Equal(r.at(512, 8), []byte("EFI PART")):
		for _, header := range []int64{512, r.le64(512+32) * 512} {
			if !bytes.Equal(r.at(header, 8), []byte("EFI PART")) || header+92 > n {
				continue
			}
			array := r.at(r.le64(header+72)*512, min(1<<20, max(0, r.le32(header+80)*r.le32(header+84))))
			binary.LittleEndian.PutUint32(b[header+88:], crc32.ChecksumIEEE(array))
			r.sum(header, min(512, r.le32(header+12)), 16, crc32.ChecksumIEEE, binary.LittleEndian)
		}
	}
}

// sum writes the checksum of the n bytes at off into the field at off+field, which counts as zero.
func (r *regionFinder) sum(off, n, field int64, of func([]byte) uint32, order binary.ByteOrder) {
	if off < 0 || n < field+4 || off+n > int64(len(r.b)) {
		return
	}
	p := r.b[off : off+n]
	clear(p[field : field+4])
	order.PutUint32(p[field:], of(p))
}

// vhdSum is the one's complement of the sum of the bytes.
func vhdSum(p []byte) uint32 {
	sum := uint32(0)
	for _, x := range p {
		sum += uint32(x)
	}
	return ^sum
}

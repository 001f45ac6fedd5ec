package cli

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/volume"
)

// acceptedRow is a legitimate difference, with its reason.
type acceptedRow struct {
	kind   string
	when   func(m *mutant, d difference) bool
	reason string
}

// acceptedBy returns the index of the row that accepts a difference, or -1.
func acceptedBy(m *mutant, d difference) int {
	return slices.IndexFunc(accepted, func(a acceptedRow) bool { return a.kind == d.kind && a.when(m, d) })
}

// accepted lists differences that stay. A row names its field and format, never a seed.
var accepted = []acceptedRow{
	{
		inScan, func(m *mutant, d difference) bool { return m.damaged && d.state == "judged" },
		"a scan does not walk over all tables of a container that holds an aligned disk",
	},
	{
		inScan, func(_ *mutant, d difference) bool { return d.state == "orphan" && d.inspect.Error != nil },
		"an extent of a VMDK whose descriptor is missing: an error to who asks for its disk, a row of its own in a " +
			"folder",
	},
	{
		inScan, func(_ *mutant, d difference) bool {
			return d.state == "judged" && d.inspect.Error != nil && d.planned == d.inspect.Error.code()
		},
		"the table of a disk is sound and off the boundary, and what a plan has to read is not: both report it, scan " +
			"with " +
			"a verdict",
	},
	{
		inPlan, func(_ *mutant, d difference) bool {
			return d.inspect.has(image.CodeMisnamed) && d.other.has(image.CodeMisnamed) &&
				d.inspect.Error.code() == d.other.Error.code()
		},
		"a file that has lost its header: --format raw would overrule that, so plan refuses (4); inspect has no " +
			"verdict (1)",
	},
	{
		inPlan, func(_ *mutant, d difference) bool { return d.inspect.has("unreadable-data") },
		"inspect reads the data of a small image, which plan does not",
	},
	{
		inScan, func(_ *mutant, d difference) bool { return d.state == "judged" && d.inspect.has("unreadable-data") },
		"inspect reads the data of a small image, which scan does not",
	},
	{
		inPlan, func(_ *mutant, d difference) bool {
			return d.other.Error != nil && slices.ContainsFunc(d.other.Refusals, func(c coded) bool {
				return c.Code == "volume" && strings.Contains(d.inspect.Error.message(), c.Text)
			})
		},
		"plan refuses for a malformed volume and for more, and names the other reason first",
	},
	{
		inPlan, func(_ *mutant, d difference) bool {
			return (d.other.Error == nil || len(d.other.Refusals) > 0) && d.inspect.onlyVolumes(d.other)
		},
		"a malformed volume is an error of inspect; plan does not look at what stays where it is",
	},
	{
		inScan, func(_ *mutant, d difference) bool {
			return d.state == "failed" && d.inspect.Error == nil && d.inspect.has("unknown-content")
		},
		"a damaged container with unknown content: scan counts it as failed, inspect shows it, and both end with 1",
	},
	{
		inTable, func(_ *mutant, d difference) bool {
			return d.want.Label == "dos" && d.got.Label == "" && d.inspect.has("unknown-content") &&
				!slices.ContainsFunc(d.want.Partitions, func(s differSlot) bool {
					return s.Start*512 < d.inspect.Image.Size
				})
		},
		"an MBR whose entries all begin behind the end of the disk: unknown content (1)",
	},
	{
		inTable, func(_ *mutant, d difference) bool {
			return d.want.Label == "dos" && len(d.want.Partitions) == 0 && d.got.Label == ""
		},
		"to libfdisk any sector 0 with the signature 0xaa55 is a table, and trueup wants an entry",
	},
	{
		inTable, func(_ *mutant, d difference) bool {
			named := slices.DeleteFunc(slices.Clone(d.want.Partitions),
				func(s differSlot) bool { return s.Type == "0" })
			return len(named) < len(d.want.Partitions) && slices.EqualFunc(named, d.got.Partitions,
				func(a, b differSlot) bool {
					// its number includes those of type 0
					return a.Start == b.Start && a.Size == b.Size && a.Type == b.Type
				})
		},
		"an entry of type 0 with a place: a partition to Linux, unused to Windows; a move is refused for it",
	},
	{
		inTable, func(_ *mutant, d difference) bool {
			known := func(a differSlot) bool {
				return slices.ContainsFunc(d.got.Partitions, func(b differSlot) bool {
					return a.Start == b.Start && a.Size == b.Size && a.Type == b.Type
				})
			}
			return d.inspect.has("ebr-entries") &&
				!slices.ContainsFunc(d.want.Partitions, func(a differSlot) bool { return !known(a) })
		},
		"a boot record with two data entries: Linux reads both, libfdisk one; a move is refused for it",
	},
	{
		inTable, func(_ *mutant, d difference) bool {
			return d.got.Label == "gpt" && d.want.Label != "gpt" &&
				(d.inspect.has("gpt-no-mbr") || d.inspect.has("gpt-shield"))
		},
		"a GPT without its protective MBR: libfdisk and Linux want one, gdisk reads it all the same, and trueup warns",
	},
	{
		inTable, func(m *mutant, d difference) bool {
			first, last := binary.LittleEndian.Uint64(m.field(512+40)), binary.LittleEndian.Uint64(m.field(512+48))
			entries := binary.LittleEndian.Uint64(m.field(512 + 72))
			return d.got.Label == "gpt" && entries <= last && entries+128*128/512 > first
		},
		"entries of a GPT within the space of partitions: libfdisk takes them, trueup the backup",
	},
	{
		inTable, func(m *mutant, d difference) bool {
			return d.got.Label == "gpt" && binary.LittleEndian.Uint32(m.field(512+84))%128 != 0
		},
		"entries of a GPT of another size than 128 times a power of two: libfdisk takes them, trueup the backup",
	},
	{
		inTable, func(m *mutant, d difference) bool {
			return d.got.Label == "gpt" && binary.LittleEndian.Uint64(m.field(512+72)) >= 1<<55
		},
		"libfdisk counts the place of the entries of a GPT in bytes modulo 2^64; trueup takes the backup then",
	},
	{
		inTable, func(m *mutant, d difference) bool { return d.want.Label == "dos" && m.halfLinked() },
		"a link without a type or sectors ends a chain for Linux, libfdisk follows it; a move is refused for it",
	},
	{
		inSize, func(m *mutant, d difference) bool {
			return d.inspect.Image.Format == "vmdk" && regexp.MustCompile(`\n[ \r]*\nRW `).Match(m.read(1<<16))
		},
		"qemu-img counts an extent twice that stands behind an empty line of a descriptor: its sscanf skips that line",
	},
	{
		inSize, func(m *mutant, d difference) bool {
			b := m.read(1 << 30)
			f := b[max(0, len(b)-512):]
			return d.inspect.Image.Format == "vhd" && len(f) == 512 &&
				strings.HasSuffix(d.text, fmt.Sprintf(", %d for qemu-img",
					int64(binary.BigEndian.Uint16(f[56:]))*int64(f[58])*int64(f[59])*512))
		},
		"qemu-img takes the size of a VHD from its geometry unless it knows the creator; the field of the " +
			"size is right",
	},
	{
		qemuSays, func(m *mutant, d difference) bool {
			b := m.read(1 << 20)
			return d.inspect.Image.Format == "vhdx" && !soundRegions(b, 192<<10) && soundRegions(b, 256<<10)
		},
		"qemu-img reads the first region table of a VHDX only; [MS-VHDX] 2.2.3 has a second one for such a case",
	},
	{
		qemuSays, func(_ *mutant, d difference) bool {
			return strings.HasSuffix(d.text, "Snapshot table offset invalid") && d.inspect.Error == nil
		},
		"qemu-img judges the place of the table of a qcow2 that has no snapshot",
	},
	{
		qemuSays, func(_ *mutant, d difference) bool {
			return strings.HasSuffix(d.text, "does not contain a reference count table") &&
				d.inspect.has("qcow2-refcounts")
		},
		"a qcow2 without refcounts can be read, and not be written: a warning",
	},
	{
		qemuSays, func(_ *mutant, d difference) bool {
			return strings.HasSuffix(d.text, "data-file-raw requires a data file")
		},
		"an autoclear bit of a qcow2 that says something of a data file which is not there",
	},
	{
		qemuSays, func(_ *mutant, d difference) bool { return strings.HasSuffix(d.text, "Header extension too large") },
		"the length of the end of the header extensions of a qcow2, which has no data",
	},
	{
		qemuSays, func(_ *mutant, d difference) bool {
			return strings.Contains(d.text, "free_data_block_offset points after the end of file")
		},
		"the last block of a VHD that is cut behind the end of the disk: qemu-img wants all of it",
	},
	{
		qemuSays, func(_ *mutant, d difference) bool { return d.inspect.has("no-parent-cid") },
		"a VMDK without parentCID is no snapshot for all that its descriptor says: a warning",
	},
	{
		qemuSays, func(m *mutant, d difference) bool {
			b := m.read(1 << 30)
			if d.inspect.Image.Format != "vmdk" || len(b) < 1024 ||
				!strings.Contains(d.text, "File truncated, expecting at least") {
				return false
			}
			return binary.LittleEndian.Uint64(b[64:]) > uint64(len(b)/512) ||
				binary.LittleEndian.Uint64(b[len(b)-1024+64:]) > uint64(len(b)/512)
		},
		"the overhead of a VMDK, which says where the first grain may lie and which no reader needs; to qemu-img a " +
			"least " +
			"size",
	},
	{
		inBytes, func(_ *mutant, d difference) bool {
			return d.inspect.Image.Format == "vhd" && strings.Contains(d.text, " is 0x0, not ") &&
				d.inspect.has("vhd-hidden-data")
		},
		"a sector of a dynamic VHD whose bit is clear is zero by the specification; qemu-img reads no bitmaps",
	},
}

// onlyVolumes reports whether all errors of inspect are volumes in partitions that stay, or refusals of the plan.
func (a *jsonAnswer) onlyVolumes(plan *jsonAnswer) bool {
	return a.Error != nil && !slices.ContainsFunc(a.Findings, func(f coded) bool {
		stays := strings.HasPrefix(f.Subject, "partition ")
		for _, m := range plan.Moves {
			stays = stays && f.Subject != fmt.Sprint("partition ", m.Partition)
		}
		refused := slices.ContainsFunc(plan.Refusals, func(r coded) bool { return r.Code == f.Code })
		return f.Severity == "error" && !refused && (f.Code != "volume" && f.Code != volume.CodeSize || !stays)
	})
}

// has reports whether a finding or a refusal has a code.
func (a *jsonAnswer) has(code string) bool {
	return slices.ContainsFunc(slices.Concat(a.Findings, a.Refusals), func(c coded) bool { return c.Code == code })
}

// read returns the beginning of the opened file.
func (m *mutant) read(n int) []byte {
	b, err := os.ReadFile(m.path)
	if err != nil {
		return nil
	}
	return b[:min(n, len(b))]
}

// field is the eight bytes at an offset.
func (m *mutant) field(at int) []byte { return append(m.read(at+8), make([]byte, at+8)...)[at:][:8] }

// halfLinked reports whether an extended boot record in a raw file has a link with a start but without a type or
// sectors.
func (m *mutant) halfLinked() bool {
	b := m.read(32 << 20)
	return slices.ContainsFunc(regions(b), func(r region) bool {
		if r.name != "extended boot record" || r.len < 72 {
			return false
		}
		link := b[r.off+6+16:][:16]
		start, sectors := binary.LittleEndian.Uint32(link[8:]), binary.LittleEndian.Uint32(link[12:])
		return start != 0 && (link[4] == 0 || sectors == 0)
	})
}

// soundRegions reports whether a region table of a VHDX is valid.
func soundRegions(b []byte, at int) bool {
	if at+64<<10 > len(b) {
		return false
	}
	t := bytes.Clone(b[at : at+64<<10])
	sum := binary.LittleEndian.Uint32(t[4:])
	clear(t[4:8])
	return bytes.HasPrefix(t, []byte("regi")) && sum == crc32.Checksum(t, crc32.MakeTable(crc32.Castagnoli))
}

// region is a stretch of a file that describes the disk: a header, a table, a text.
type region struct {
	name     string
	off, len int64
	order    binary.ByteOrder
	text     bool
}

// regions returns the metadata regions of a file of a valid image, according to the specifications. Of a table it
// returns some hundred bytes.
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

// most limits the tables of one kind, and the bytes of one.
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
	// there is no table at 0
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

// guest adds the structures of the disk itself, in a file that holds it byte for byte.
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

// repair recomputes the checksums of a file.
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

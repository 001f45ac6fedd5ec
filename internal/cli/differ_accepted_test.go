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

// acceptedRow is a difference that is right, and why.
type acceptedRow struct {
	kind   string
	when   func(m *mutant, d difference) bool
	reason string
}

// acceptedBy returns the index of the row that accepts a difference, -1 for none.
func acceptedBy(m *mutant, d difference) int {
	return slices.IndexFunc(accepted, func(a acceptedRow) bool { return a.kind == d.kind && a.when(m, d) })
}

// accepted are the differences that stay. A row names the field and the format that it is about, never a seed.
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
					// its number counts those of type 0
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

// onlyVolumes reports whether the errors of inspect are volumes in partitions that stay, or refusals of the plan.
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

// read is what the file that is opened begins with.
func (m *mutant) read(n int) []byte {
	b, err := os.ReadFile(m.path)
	if err != nil {
		return nil
	}
	return b[:min(n, len(b))]
}

// field is the eight bytes at an offset.
func (m *mutant) field(at int) []byte { return append(m.read(at+8), make([]byte, at+8)...)[at:][:8] }

// halfLinked reports whether a boot record in a raw file has a link that names a place and lacks a type or sectors.
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

// soundRegions reports whether a region table of a VHDX is one.
func soundRegions(b []byte, at int) bool {
	if at+64<<10 > len(b) {
		return false
	}
	t := bytes.Clone(b[at : at+64<<10])
	sum := binary.LittleEndian.Uint32(t[4:])
	clear(t[4:8])
	return bytes.HasPrefix(t, []byte("regi")) && sum == crc32.Checksum(t, crc32.MakeTable(crc32.Castagnoli))
}

//go:build linux || windows

package hostile

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// The headers of the GPT of forgedGPT, and their fields.
const (
	gptPrimary  = 1 * 512
	gptBackup   = (Sectors - 1) * 512
	gptArray    = 32 // sectors
	gptUsable   = 2 + gptArray
	gptLastLBA  = Sectors - 2 - gptArray
	gptEntryLen = 128
)

// gptArrays are the byte offsets of the entries of both copies.
var gptArrays = []int64{2 * 512, (Sectors - 1 - gptArray) * 512}

// forgedGPT has a GPT with one misaligned partition, with changes. Checksums are right.
func forgedGPT(change func(disk forge.Bytes)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := tableforge.NewGPT(512, Sectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: "data"})
		change(disk)
		return writeForged("disk.raw", disk)(t, dir)
	}
}

// gptHeaders changes the headers at the given positions, and updates their checksums.
func gptHeaders(change func(header forge.Bytes), at ...int64) Writer {
	return forgedGPT(func(disk forge.Bytes) {
		for _, off := range at {
			change(disk[off:])
			tableforge.SealGPT(disk, off, 512)
		}
	})
}

// BrokenHeader is a change that makes a header of a GPT invalid.
type BrokenHeader struct {
	Name  string
	field string // message about the field
	at    int64  // its byte offset in the header
	image func(at ...int64) Writer
}

// Primary returns a disk with the change in the primary copy.
func (b BrokenHeader) Primary() Row {
	return odd("T51, T52 primary, "+b.Name, "", b.image(gptPrimary), b.field, "the backup is used",
		fmt.Sprintf("gpt header at %#x", gptPrimary+b.at))
}

// Backup returns a disk with the change in the backup.
func (b BrokenHeader) Backup() Row {
	return odd("T51, T52 backup, "+b.Name, "", b.image(gptBackup), b.field,
		fmt.Sprintf("gpt header at %#x", gptBackup+b.at))
}

// BrokenHeaders returns a change for each rule of a header.
func BrokenHeaders() (out []BrokenHeader) {
	add := func(name, field string, at int64, change func(h forge.Bytes)) {
		out = append(out, BrokenHeader{name, field, at, func(places ...int64) Writer {
			return gptHeaders(change, places...)
		}})
	}
	u32 := func(name string, at int64, values ...uint32) {
		for _, v := range values {
			text := fmt.Sprintf("%s %d", name, v)
			add(text, text, at, func(h forge.Bytes) { h.U32(at, v) })
		}
	}
	u64 := func(name string, at int64, field string, values ...uint64) {
		for _, v := range values {
			add(fmt.Sprintf("%s %d", name, v), field, at, func(h forge.Bytes) { h.U64(at, v) })
		}
	}
	u32("number of entries", tableforge.GPTNumEntries, 0, 16_385, 1<<32-1)
	u32("entry size", tableforge.GPTEntrySize, 0, 16, 64, 127, 129, 192, 384, 8192, 1<<28, 1<<32-1)
	u32("header size", tableforge.GPTHeaderSize, 0, 91, 513, 1<<32-1)
	u64("entries LBA", tableforge.GPTEntriesLBA, "entries LBA", 0, 1, Sectors, 1<<55, 1<<63, 1<<64-1)
	// In 32 bits, these sixteen entries have a size of zero.
	add("16 entries of 2^28 bytes", "entry size 268435456", tableforge.GPTEntrySize, func(h forge.Bytes) {
		h.U32(tableforge.GPTNumEntries, 16)
		h.U32(tableforge.GPTEntrySize, 1<<28)
	})
	u64("my LBA", tableforge.GPTMyLBA, "my LBA", 0, 2, Sectors, 1<<64-1)
	u64("first usable LBA", tableforge.GPTFirstUsable, "usable LBAs", gptLastLBA+1, 1<<64-1)
	for _, last := range []uint64{0, gptUsable - 1, Sectors, 1<<64 - 1} {
		add(fmt.Sprintf("last usable LBA %d", last), fmt.Sprintf(`usable LBAs "%d to %d"`, gptUsable, last),
			tableforge.GPTFirstUsable, func(h forge.Bytes) { h.U64(tableforge.GPTLastUsable, last) })
	}
	unsealed := func(name, field string, change func(h forge.Bytes)) {
		out = append(out, BrokenHeader{name, field, tableforge.GPTHeaderCRC, func(at ...int64) Writer {
			return forgedGPT(func(disk forge.Bytes) {
				for _, off := range at {
					change(disk[off:])
				}
			})
		}})
	}
	unsealed("sum of the header", "header crc32 0x12345678",
		func(h forge.Bytes) { h.U32(tableforge.GPTHeaderCRC, 0x12345678) })
	unsealed("a byte of the header", "header crc32", func(h forge.Bytes) { h.U8(tableforge.GPTMyLBA+7, 1) })
	return out
}

// brokenGPTs have no valid copy, or two that differ.
func brokenGPTs() (out []Row) {
	for _, b := range BrokenHeaders() {
		out = append(out, unread("T51, T52 "+b.Name, "format", b.image(gptPrimary, gptBackup), b.field,
			fmt.Sprintf("gpt header at %#x", gptPrimary+b.at)))
	}
	overlapping := forgedGPT(func(disk forge.Bytes) {
		disk[gptPrimary:].U64(tableforge.GPTEntriesLBA, 3) // to LBA 34, the first usable one
		tableforge.SealGPT(disk, gptPrimary, 512)
		disk[gptBackup:].U64(tableforge.GPTEntriesLBA, gptLastLBA)
		tableforge.SealGPT(disk, gptBackup, 512)
	})
	sums := forgedGPT(func(disk forge.Bytes) {
		for _, at := range gptArrays {
			disk.U8(at+60, 'x') // the name of the partition
		}
	})
	other := forgedGPT(func(disk forge.Bytes) {
		disk.U8(gptArrays[1]+60, 'x')
		tableforge.SealGPT(disk, gptBackup, 512)
	})
	return append(out,
		unread("T51 arrays in the usable space", "format", overlapping, "gpt header at 0x248", "entries LBA 3",
			"first usable LBA 34"),
		unread("T52 sums of both arrays", "format", sums, "gpt header at 0x258", "entries crc32"),
		broken("T52 two valid copies that differ", "format", other, "backup table", "another valid table",
			"the same as the primary"))
}

// OneGoodGPT returns disks with a GPT that has one valid copy.
func OneGoodGPT() (out []Row) {
	for _, b := range BrokenHeaders() {
		out = append(out, b.Primary(), b.Backup())
	}
	for _, lba := range []uint64{0, 1, 2, Sectors, 1 << 63} {
		alt := func(h forge.Bytes) { h.U64(tableforge.GPTAltLBA, lba) }
		out = append(out, odd(fmt.Sprintf("T52 alternate LBA %d in the primary", lba), "", gptHeaders(alt, gptPrimary),
			fmt.Sprintf("name LBA %d and LBA 1", lba)))
		if lba != 1 {
			out = append(out, odd(fmt.Sprintf("T52 alternate LBA %d in the backup", lba), "",
				gptHeaders(alt, gptBackup), fmt.Sprintf("LBA 4095 and LBA %d", lba)))
		}
	}
	return append(out,
		odd("T52 primary, no magic", "", forgedGPT(func(disk forge.Bytes) { disk.U8(gptPrimary, 0) }),
			"no header at 0x200"),
		odd("T52 backup, no magic", "", forgedGPT(func(disk forge.Bytes) { disk.U8(gptBackup, 0) }),
			"no header in the last sector (at 0x1ffe00)"))
}

// gptEntries changes the arrays of both copies.
func gptEntries(change func(array forge.Bytes)) Writer {
	return forgedGPT(func(disk forge.Bytes) {
		for _, at := range gptArrays {
			change(disk[at:])
		}
		tableforge.SealGPT(disk, gptPrimary, 512)
		tableforge.SealGPT(disk, gptBackup, 512)
	})
}

// gptPlace returns entry i of an array with a unique GUID.
func gptPlace(array forge.Bytes, i int64, first, last uint64) {
	at := i * gptEntryLen
	copy(array[at:at+gptEntryLen], array[:gptEntryLen])
	array.U16(at+30, uint16(i)+1)
	array.U64(at+32, first)
	array.U64(at+40, last)
}

// brokenGPTEntries have an invalid second entry: the rest of the table is reported.
func brokenGPTEntries() []Row {
	row := func(name string, field int64, change func(array forge.Bytes), says ...string) Row {
		where := fmt.Sprintf("gpt entry at %#x", gptArrays[0]+gptEntryLen+field)
		return broken("T53 "+name, "format", gptEntries(change), append(says, where)...)
	}
	place := func(name string, first, last uint64, want string) Row {
		return row(name, 32, func(a forge.Bytes) { gptPlace(a, 1, first, last) },
			fmt.Sprintf(`LBAs "%d to %d"`, first, last), want)
	}
	apart := "want a place apart from partition"
	return []Row{
		place("start above the end", 1200, 1199, "want a start that is not above the end"),
		place("start above the end by all bits", 1<<64-1, 0, "want"),
		place("end that wraps as bytes", 1200, 1<<55+1200, "want"),
		place("largest end", 1200, 1<<64-1, "want"),
		place("start in the table", gptUsable-1, 62, "want within 34 to 4062"),
		place("end in the backup", 2000, gptLastLBA+1, "want within 34 to 4062"),
		place("end beyond the disk", 2000, Sectors, "want within"),
		place("overlap of one sector", 1062, 1100, apart+" 1"),
		place("one inside the other", 100, 200, apart+" 1"),
		place("twice the same place", 63, 1062, apart),
		row("one GUID twice", 16, func(a forge.Bytes) {
			gptPlace(a, 1, 1100, 1199)
			a.U16(gptEntryLen+30, 0)
		}, "partition GUID", "want another one than that of partition 1"),
		row("128 entries of the same sector", 32, func(a forge.Bytes) {
			for i := range int64(128) {
				gptPlace(a, i, 2000, 2000)
			}
		}, `LBAs "2000 to 2000"`, apart),
	}
}

// OddGPTs returns disks with a GPT that is unusual but valid.
func OddGPTs() []Row {
	both := func(change func(h forge.Bytes)) Writer { return gptHeaders(change, gptPrimary, gptBackup) }
	return []Row{
		odd("T51 entries of 4 KiB", "", both(func(h forge.Bytes) {
			h.U32(tableforge.GPTNumEntries, 4)
			h.U32(tableforge.GPTEntrySize, 4096)
		})),
		odd("T52 header of a whole sector", "", both(func(h forge.Bytes) { h.U32(tableforge.GPTHeaderSize, 512) })),
		odd("T53 128 entries of one sector", "", gptEntries(func(a forge.Bytes) {
			for i := range int64(128) {
				gptPlace(a, i, 2001+uint64(i), 2001+uint64(i))
			}
		})),
		odd("T54 enlarged", "", func(t testing.TB, dir string) string {
			t.Helper()
			path := forgedGPT(func(forge.Bytes) {})(t, dir)
			require.NoError(t, os.Truncate(path, (Sectors+16384)*512))
			return path
		}, "the backup GPT is at LBA 4095, not in the last sector (LBA 20479)"),
		odd("T53 name of 36 unpaired surrogates", "", gptEntries(func(a forge.Bytes) {
			a.Text(56, strings.Repeat("\x00\xd8", 36))
		})),
	}
}

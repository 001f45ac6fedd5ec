package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// The headers of the GPT of forgedGPT, and what they say.
const (
	gptPrimary  = 1 * 512
	gptBackup   = (xpSectors - 1) * 512
	gptArray    = 32 // sectors
	gptUsable   = 2 + gptArray
	gptLastLBA  = xpSectors - 2 - gptArray
	gptEntryLen = 128
)

// gptArrays are the byte offsets of the entries of both copies.
var gptArrays = []int64{2 * 512, (xpSectors - 1 - gptArray) * 512}

// forgedGPT has a GPT of one partition that lies badly, but for what change does to it. Sums are right.
func forgedGPT(change func(disk forge.Bytes)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := tableforge.NewGPT(512, xpSectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: "data"})
		change(disk)
		return writeForged("disk.raw", disk)(t, dir)
	}
}

// gptHeaders changes the headers at the given places, and corrects their sums.
func gptHeaders(change func(header forge.Bytes), at ...int64) func(testing.TB, string) string {
	return forgedGPT(func(disk forge.Bytes) {
		for _, off := range at {
			change(disk[off:])
			tableforge.SealGPT(disk, off, 512)
		}
	})
}

// brokenHeader is a change that makes a header invalid.
type brokenHeader struct {
	name   string
	change func(header forge.Bytes)
	field  string // what is said of the field
	at     int64  // its byte offset in the header
	noSums bool   // the sums are not corrected: one of them is what is wrong
}

func brokenHeaders() []brokenHeader {
	u32 := func(name string, at int64, values ...uint32) (out []brokenHeader) {
		for _, v := range values {
			out = append(out, brokenHeader{
				name: fmt.Sprintf("%s %d", name, v), at: at, field: fmt.Sprintf("%s %d", name, v),
				change: func(h forge.Bytes) { h.U32(at, v) },
			})
		}
		return out
	}
	u64 := func(name string, at int64, says string, values ...uint64) (out []brokenHeader) {
		for _, v := range values {
			out = append(out, brokenHeader{
				name: fmt.Sprintf("%s %d", name, v), at: at, field: says,
				change: func(h forge.Bytes) { h.U64(at, v) },
			})
		}
		return out
	}
	var out []brokenHeader
	out = append(out, u32("number of entries", tableforge.GPTNumEntries, 0, 16_385, 1<<32-1)...)
	out = append(out, u32("entry size", tableforge.GPTEntrySize, 0, 16, 64, 127, 129, 192, 384, 8192, 1<<28,
		1<<32-1)...)
	out = append(out, u32("header size", tableforge.GPTHeaderSize, 0, 91, 513, 1<<32-1)...)
	out = append(out, u64("entries LBA", tableforge.GPTEntriesLBA, "entries LBA",
		0, 1, xpSectors, 1<<55, 1<<63, 1<<64-1)...)
	// In 32 bits these sixteen entries take no bytes.
	out = append(out, brokenHeader{"16 entries of 2^28 bytes", func(h forge.Bytes) {
		h.U32(tableforge.GPTNumEntries, 16)
		h.U32(tableforge.GPTEntrySize, 1<<28)
	}, "entry size 268435456", tableforge.GPTEntrySize, false})
	out = append(out, u64("my LBA", tableforge.GPTMyLBA, "my LBA", 0, 2, xpSectors, 1<<64-1)...)
	out = append(out, u64("first usable LBA", tableforge.GPTFirstUsable, "usable LBAs", gptLastLBA+1, 1<<64-1)...)
	for _, last := range []uint64{0, gptUsable - 1, xpSectors, 1<<64 - 1} {
		out = append(out, brokenHeader{
			name: fmt.Sprintf("last usable LBA %d", last), field: fmt.Sprintf(`usable LBAs "%d to %d"`, gptUsable,
				last), at: tableforge.GPTFirstUsable,
			change: func(h forge.Bytes) { h.U64(tableforge.GPTLastUsable, last) },
		})
	}
	out = append(out,
		brokenHeader{
			"sum of the header", func(h forge.Bytes) { h.U32(tableforge.GPTHeaderCRC, 0x12345678) },
			"header crc32 0x12345678", tableforge.GPTHeaderCRC, true,
		},
		brokenHeader{
			"a byte of the header", func(h forge.Bytes) { h.U8(tableforge.GPTMyLBA+7, 1) }, "header crc32",
			tableforge.GPTHeaderCRC, true,
		},
	)
	return out
}

// image has the change in the copies whose headers stand at the given places.
func (b brokenHeader) image(at ...int64) func(testing.TB, string) string {
	if b.noSums {
		return forgedGPT(func(disk forge.Bytes) {
			for _, off := range at {
				b.change(disk[off:])
			}
		})
	}
	return gptHeaders(b.change, at...)
}

// TestHostileGPTHeaders breaks both headers. Without a valid copy there is no table, and nothing is done.
func TestHostileGPTHeaders(t *testing.T) {
	t.Parallel()
	var rows []hostile
	for _, b := range brokenHeaders() {
		rows = append(rows, hostile{
			name: "T51, T52 " + b.name, code: "format", image: b.image(gptPrimary, gptBackup),
			says: []string{fmt.Sprintf("gpt header at %#x", gptPrimary+b.at), b.field},
		})
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
	rows = append(rows,
		hostile{
			name: "T51 arrays in the usable space", code: "format", image: overlapping,
			says: []string{"gpt header at 0x248", "entries LBA 3", "first usable LBA 34"},
		},
		hostile{name: "T52 sums of both arrays", code: "format", image: sums, says: []string{
			"gpt header at 0x258",
			"entries crc32",
		}},
		hostile{
			name: "T52 two valid copies that differ", code: "format", image: other, report: true,
			says: []string{"backup table", "another valid table", "the same as the primary"},
		})
	runHostile(t, rows)
}

// TestOneGoodGPT breaks one copy: what is wrong with it is reported, the other is used, and with --repair-table the
// copy has two good ones, in which sgdisk finds no fault.
func TestOneGoodGPT(t *testing.T) {
	t.Parallel()
	type row struct {
		image func(testing.TB, string) string
		code  string
		says  []string
	}
	rows := map[string]row{}
	for _, b := range brokenHeaders() {
		rows["primary, "+b.name] = row{
			b.image(gptPrimary), "gpt-primary",
			[]string{fmt.Sprintf("gpt header at %#x", gptPrimary+b.at), b.field, "the backup is used"},
		}
		rows["backup, "+b.name] = row{
			b.image(gptBackup), "gpt-backup",
			[]string{fmt.Sprintf("gpt header at %#x", gptBackup+b.at), b.field},
		}
	}
	for _, lba := range []uint64{0, 1, 2, xpSectors, 1 << 63} {
		alt := func(h forge.Bytes) { h.U64(tableforge.GPTAltLBA, lba) }
		rows[fmt.Sprintf("alternate LBA %d in the primary", lba)] = row{
			gptHeaders(alt, gptPrimary), "gpt-alternate",
			[]string{fmt.Sprintf("name LBA %d and LBA 1", lba)},
		}
		if lba != 1 {
			rows[fmt.Sprintf("alternate LBA %d in the backup", lba)] = row{
				gptHeaders(alt, gptBackup), "gpt-alternate",
				[]string{fmt.Sprintf("LBA 4095 and LBA %d", lba)},
			}
		}
	}
	rows["primary, no magic"] = row{
		forgedGPT(func(disk forge.Bytes) { disk.U8(gptPrimary, 0) }), "gpt-primary",
		[]string{"no header at 0x200"},
	}
	rows["backup, no magic"] = row{
		forgedGPT(func(disk forge.Bytes) { disk.U8(gptBackup, 0) }), "gpt-backup",
		[]string{"no header in the last sector (at 0x1ffe00)"},
	}
	for name, c := range rows {
		t.Run(name, func(t *testing.T) {
			path := c.image(t, t.TempDir())
			found := measure(t, []string{"inspect", "--json", path})[0]
			require.Equal(t, 3, found.code, found.stderr)
			requireFinding(t, found, c.code, c.says)
			if !disktest.Share(name) {
				return
			}
			dest := filepath.Join(t.TempDir(), "dest.raw")
			ends := measure(t, []string{"align", path, dest}, []string{"plan", "--repair-table", "--json", path},
				[]string{"align", "--repair-table", path, dest})
			require.Equal(t, 4, ends[0].code, ends[0].stderr)
			require.Contains(t, ends[0].stderr, "--repair-table")
			require.Equal(t, 0, ends[1].code, ends[1].stderr)
			require.Equal(t, 0, ends[2].code, ends[2].stderr)
			require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
			require.Equal(t, 0, trueup(t, "verify", path, dest).code)
		})
	}
}

// requireFinding wants one finding with a code that says everything.
func requireFinding(t testing.TB, r result, code string, says []string) {
	t.Helper()
	for _, f := range parseFailure(t, r).Findings {
		if f.Code == code && containsAll(f.Text, says) {
			return
		}
	}
	require.Failf(t, "no finding", "%s that says %q\n%s", code, says, r.stdout)
}

// gptEntries changes the arrays of both copies.
func gptEntries(change func(array forge.Bytes)) func(testing.TB, string) string {
	return forgedGPT(func(disk forge.Bytes) {
		for _, at := range gptArrays {
			change(disk[at:])
		}
		tableforge.SealGPT(disk, gptPrimary, 512)
		tableforge.SealGPT(disk, gptBackup, 512)
	})
}

// gptPlace is entry i of an array with a GUID of its own.
func gptPlace(array forge.Bytes, i int64, first, last uint64) {
	at := i * gptEntryLen
	copy(array[at:at+gptEntryLen], array[:gptEntryLen])
	array.U16(at+30, uint16(i)+1)
	array.U64(at+32, first)
	array.U64(at+40, last)
}

// TestHostileGPTEntries breaks entries: the rest of the table is reported, and no copy made.
func TestHostileGPTEntries(t *testing.T) {
	t.Parallel()
	row := func(name string, entry int64, field int64, change func(array forge.Bytes), says ...string) hostile {
		where := fmt.Sprintf("gpt entry at %#x", gptArrays[0]+entry*gptEntryLen+field)
		return hostile{
			name: "T53 " + name, code: "format", report: true, image: gptEntries(change),
			says: append(says, where),
		}
	}
	place := func(i int64, first, last uint64) func(forge.Bytes) {
		return func(a forge.Bytes) { gptPlace(a, i, first, last) }
	}
	runHostile(t, []hostile{
		row("start above the end", 1, 32, place(1, 1200, 1199), `LBAs "1200 to 1199"`,
			"want a start that is not above the end"),
		row("start above the end by all bits", 1, 32, place(1, 1<<64-1, 0), `LBAs "18446744073709551615 to 0"`),
		row("end that wraps as bytes", 1, 32, place(1, 1200, 1<<55+1200), `LBAs "1200 to `),
		row("largest end", 1, 32, place(1, 1200, 1<<64-1), `LBAs "1200 to 18446744073709551615"`),
		row("start in the table", 1, 32, place(1, gptUsable-1, 62), `LBAs "33 to 62"`, "want within 34 to 4062"),
		row("end in the backup", 1, 32, place(1, 2000, gptLastLBA+1), `LBAs "2000 to 4063"`, "want within 34 to 4062"),
		row("end beyond the disk", 1, 32, place(1, 2000, xpSectors), `LBAs "2000 to 4096"`, "want within"),
		row("overlap of one sector", 1, 32, place(1, 1062, 1100), `LBAs "1062 to 1100"`,
			"want a place apart from partition 1"),
		row("one inside the other", 1, 32, place(1, 100, 200), `LBAs "100 to 200"`,
			"want a place apart from partition 1"),
		row("twice the same place", 1, 32, place(1, 63, 1062), `LBAs "63 to 1062"`,
			"want a place apart from partition"),
		row("one GUID twice", 1, 16, func(a forge.Bytes) {
			gptPlace(a, 1, 1100, 1199)
			a.U16(gptEntryLen+30, 0)
		}, "partition GUID", "want another one than that of partition 1"),
		row("128 entries of the same sector", 1, 32, func(a forge.Bytes) {
			for i := range int64(128) {
				gptPlace(a, i, 2000, 2000)
			}
		}, `LBAs "2000 to 2000"`, "want a place apart from partition"),
	})
}

// TestSoundOddGPTs is what looks odd and is allowed: it is copied, and sgdisk finds no fault in the copy.
func TestSoundOddGPTs(t *testing.T) {
	t.Parallel()
	surrogates := func(a forge.Bytes) {
		for i := range int64(36) {
			a.U16(56+2*i, 0xd800)
		}
	}
	for name, c := range map[string]struct {
		image      func(testing.TB, string) string
		partitions int
		says       string // in the report
	}{
		"T51 entries of 4 KiB": {gptHeaders(func(h forge.Bytes) {
			h.U32(tableforge.GPTNumEntries, 4)
			h.U32(tableforge.GPTEntrySize, 4096)
		}, gptPrimary, gptBackup), 1, ""},
		"T52 header of a whole sector": {gptHeaders(func(h forge.Bytes) { h.U32(tableforge.GPTHeaderSize, 512) },
			gptPrimary, gptBackup), 1, ""},
		"T53 128 entries of one sector": {gptEntries(func(a forge.Bytes) {
			for i := range int64(128) {
				gptPlace(a, i, 2001+uint64(i), 2001+uint64(i))
			}
		}), 128, ""},
		"T53 name of 36 unpaired surrogates": {gptEntries(surrogates), 1, strings.Repeat("\ufffd", 36)},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.image(t, t.TempDir())
			dest := filepath.Join(t.TempDir(), "dest.raw")
			ends := measure(t, []string{"inspect", path}, []string{"inspect", "--json", path},
				[]string{"align", path, dest})
			require.Equal(t, 3, ends[0].code, ends[0].stderr)
			requireClean(t, ends[0].stdout, ends[1].stdout)
			require.Contains(t, ends[0].stdout, c.says)
			var report jsonInspect
			unmarshal(t, ends[1], &report)
			require.Len(t, report.Partitions, c.partitions)
			require.Equal(t, 0, ends[2].code, ends[2].stderr)
			require.Equal(t, 0, trueup(t, "verify", path, dest).code)
			if name != "T51 entries of 4 KiB" { // sgdisk reads entries of 128 bytes only
				require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
			}
		})
	}
}

// TestEnlargedGPT enlarges: a disk that has grown by 1 GiB keeps its backup in the middle, and the copy has it at the
// true end. Sectors of another size are the subject of sectors_wrong.txtar.
func TestEnlargedGPT(t *testing.T) {
	t.Parallel()
	path := forgedGPT(func(forge.Bytes) {})(t, t.TempDir())
	require.NoError(t, os.Truncate(path, xpSectors*512+1<<30))
	dest := filepath.Join(t.TempDir(), "dest.raw")
	ends := measure(t, []string{"inspect", "--json", path}, []string{"align", path, dest})
	require.Equal(t, 3, ends[0].code, ends[0].stderr)
	requireFinding(t, ends[0], "gpt-backup", []string{
		"the backup GPT is at LBA 4095, not in the last sector (LBA 2101247)",
	})
	require.Equal(t, 0, ends[1].code, ends[1].stderr)
	require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
	require.Equal(t, 0, trueup(t, "verify", path, dest).code)
}

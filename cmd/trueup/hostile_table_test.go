package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// slot makes the rows below short.
func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

// TestHostileTables is about MBRs and chains of logical partitions. inspect reports what it could read, says what is
// wrong in the report too, and ends with exit 1; a copy is not made.
func TestHostileTables(t *testing.T) {
	t.Parallel()
	runHostile(t, brokenEntries(), refusedTables(), loops(), chainsOutside())
}

func brokenEntries() []hostile {
	table := func(name string, says []string, entries ...tableforge.Slot) hostile {
		return hostile{
			name: "T47 " + name, code: "format", report: true, says: says,
			image: writeForged("disk.raw", tableforge.NewMBR(xpSectors, entries...)),
		}
	}
	beyond := func(end int64) []string {
		return []string{
			"mbr at 0x1c6", fmt.Sprintf("end of partition %q", fmt.Sprintf("byte %d", end)),
			"want at most 2097152, the size of the disk",
		}
	}
	flag := slot(0x83, 63, 100)
	flag.Flag = 0x7f
	return []hostile{
		table("start and size that overflow 32 bits", beyond((0xfffffff0+0x20)*512), slot(0x83, 0xfffffff0, 0x20)),
		table("last sector that an MBR can name", beyond(0x100000000*512), slot(0x83, 0xffffffff, 1)),
		table("largest start and size", beyond((2*0xffffffff)*512), slot(0x83, 0xffffffff, 0xffffffff)),
		table("end beyond the disk", beyond(4097*512), slot(0x83, 63, 4097-63)),
		table("start beyond the disk", beyond(10064*512), slot(0x83, 10000, 64)),
		table("second partition beyond the disk", []string{"mbr at 0x1d6", "end of partition", "want at most"},
			slot(0x83, 63, 100), slot(0x83, 10000, 64)),
		table("overlap", []string{
			"mbr at 0x1d6", "start LBA 162",
			"want a place apart from partition 1 (LBA 63 to 162)",
		}, slot(0x83, 63, 100), slot(0x07, 162, 100)),
		table("overlap, second inside first", []string{"mbr at 0x1d6", "start LBA 70", "want a place apart"},
			slot(0x83, 63, 100), slot(0x07, 70, 10)),
		table("two equal partitions", []string{"mbr at 0x1d6", "start LBA 63", "want a place apart"},
			slot(0x83, 63, 100), slot(0x83, 63, 100)),
		table("start 0", []string{"mbr at 0x1c6", "start LBA 0", "want 1 or more"}, slot(0x83, 0, 100)),
		table("size 0", []string{"mbr at 0x1ca", "sector count 0", "want 1 or more"}, slot(0x83, 63, 0)),
		table("boot flag 0x7F", []string{"mbr at 0x1be", `boot flag 0x7f`, "want 0x00 or 0x80"}, flag),
		table("protective entry without a GPT", []string{
			"mbr at 0x1be", "protective entry (0xEE)",
			"want a GPT header",
		}, slot(0xee, 1, xpSectors-1)),
		{
			name: "T50 two extended partitions", image: twoExtended, code: "format", report: true,
			says: []string{"mbr at 0x1d2", `type 0x05`, "want one extended partition"},
		},
		table("four partitions, one broken", []string{"mbr at 0x1f6", "end of partition", "want at most"},
			slot(0x83, 63, 100), slot(0x83, 200, 100), slot(0x83, 300, 100), slot(0x83, 4000, 100)),
	}
}

// twoExtended is sound but for the second extended partition.
func twoExtended(t testing.TB, dir string) string {
	t.Helper()
	disk := tableforge.NewMBR(xpSectors, slot(0x05, 63, 100), slot(0x05, 200, 100))
	tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), noLink)
	tableforge.PutEBR(disk, 200, slot(0x83, 1, 10), noLink)
	return writeForged("disk.raw", disk)(t, dir)
}

// refusedTables are disks that are sound and cannot be moved safely: exit 4.
func refusedTables() []hostile {
	ldm := writeForged("disk.raw", tableforge.NewMBR(xpSectors, slot(0x42, 63, 1000)))
	hybrid := tableforge.NewGPT(512, xpSectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: "data"})
	tableforge.PutSlot(hybrid, 0, 1, slot(0x07, 63, 1000))
	third := extendedDisk(xpSectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), noLink)
		tableforge.PutSlot(disk, 63, 2, slot(0x83, 20, 10))
	})
	return []hostile{
		{
			name: "T50 third entry of a boot record", image: third, code: "unsupported", inspect: 3, copy: 4,
			report: true, says: []string{"boot record at LBA 63", "second data entry"},
		},
		{
			name: "T47 dynamic disk", image: ldm, code: "unsupported", inspect: 3, copy: 4, report: true,
			says: []string{"0x42", "LDM"},
		},
		{
			name: "T47 hybrid MBR", image: writeForged("disk.raw", hybrid), code: "unsupported", inspect: 3, copy: 4,
			report: true, says: []string{"of a GPT"}, finds: []string{
				"hybrid MBR", "slot 1", "slot 2",
				"lies over it",
			},
		},
	}
}

// extendedDisk has a primary partition, and an extended one from LBA 63 on, whose records the caller writes.
func extendedDisk(sectors int, records func(disk forge.Bytes)) func(testing.TB, string) string {
	disk := tableforge.NewMBR(sectors, slot(0x05, 63, uint32(sectors)-63))
	records(disk)
	return writeForged("disk.raw", disk)
}

var noLink = tableforge.Slot{}

// loops are chains of logical partitions that come back or do not end.
func loops() []hostile {
	logical := slot(0x83, 1, 1)
	long := func(n int) func(testing.TB, string) string {
		return extendedDisk(63+3*n, func(disk forge.Bytes) {
			for i := range n {
				link := noLink
				if i+1 < n {
					link = slot(0x05, uint32(3*(i+1)), 3)
				}
				tableforge.PutEBR(disk, int64(63+3*i), logical, link)
			}
		})
	}
	self := extendedDisk(xpSectors, func(disk forge.Bytes) { tableforge.PutEBR(disk, 63, logical, slot(0x05, 0, 100)) })
	emptySelf := extendedDisk(xpSectors,
		func(disk forge.Bytes) { tableforge.PutEBR(disk, 63, noLink, slot(0x05, 0, 100)) })
	two := extendedDisk(xpSectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, logical, slot(0x05, 100, 100))
		tableforge.PutEBR(disk, 163, logical, slot(0x05, 0, 100))
	})
	later := extendedDisk(xpSectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, logical, slot(0x05, 100, 100))
		tableforge.PutEBR(disk, 163, logical, slot(0x05, 200, 100))
		tableforge.PutEBR(disk, 263, logical, slot(0x05, 100, 100))
	})
	// The field that is wrong is the start in the second entry of the last record.
	back := func(lba, from int) []string {
		return []string{fmt.Sprintf("ebr at %#x", from*512+462+8), fmt.Sprintf("the chain returns to LBA %d", lba)}
	}
	loop := func(name string, image func(testing.TB, string) string, says []string) hostile {
		return hostile{name: name, image: image, code: "format", report: true, says: says}
	}
	limit := []string{"ebr at 0x", "more than 256 logical partitions"}
	return []hostile{
		loop("T48 record that links to itself", self, back(63, 63)),
		loop("T48 empty record that links to itself", emptySelf, back(63, 63)),
		loop("T49 cycle of two records", two, back(63, 163)),
		loop("T49 chain that runs into a cycle", later, back(163, 263)),
		{name: "T49 257 records", image: long(257), code: "limit", report: true, says: limit},
		{name: "T49 20,000 records", image: long(20_000), code: "limit", report: true, says: limit},
	}
}

// chainsOutside are chains that leave their extended partition.
func chainsOutside() []hostile {
	chain := func(name string, says []string, records ...tableforge.Slot) hostile {
		return hostile{
			name: "T50 " + name, code: "format", report: true, says: append(says, "ebr at 0x7f"),
			image: extendedDisk(xpSectors, func(disk forge.Bytes) {
				lba := int64(63)
				for i := 0; i < len(records); i += 2 {
					tableforge.PutEBR(disk, lba, records[i], records[i+1])
					lba = 63 + int64(records[i+1].Start)
				}
			}),
		}
	}
	inside := "want LBA 63 to 4095, inside the extended partition"
	behind := "want a place behind its record and inside the extended partition"
	unsigned := extendedDisk(xpSectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), slot(0x05, 100, 100))
	})
	twoLinks := extendedDisk(xpSectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), slot(0x05, 100, 100))
		tableforge.PutSlot(disk, 63, 2, slot(0x0f, 200, 100))
		tableforge.PutEBR(disk, 163, slot(0x83, 1, 10), noLink)
	})
	broken := func(name string, image func(testing.TB, string) string, says ...string) hostile {
		return hostile{name: "T50 " + name, image: image, code: "format", report: true, says: append(says, "ebr at 0x")}
	}
	return []hostile{
		chain("link beyond the container", []string{`link "LBA 4096"`, inside}, slot(0x83, 1, 10),
			slot(0x05, 4096-63, 100)),
		// In 32 bits this is LBA 62, in front of the container.
		chain("link that wraps to a place before the container", []string{`link "LBA 4294967358"`, inside},
			slot(0x83, 1, 10), slot(0x05, 0xffffffff, 100)),
		chain("link into the logical partition before",
			[]string{`link "LBA 70"`, "want a place outside of the logical partition"}, slot(0x83, 1, 10),
			slot(0x05, 7, 100)),
		chain("logical partition over its own record", []string{"start LBA 0", behind}, slot(0x83, 0, 10), noLink),
		chain("logical partition beyond the container", []string{"start LBA 1", behind}, slot(0x83, 1, 4033), noLink),
		chain("logical partition that wraps", []string{"start LBA 4294967295", behind}, slot(0x83, 0xffffffff, 2),
			noLink),
		broken("record without a signature", unsigned, `signature 0x0000`, "want 0xaa55"),
		broken("two links in one record", twoLinks, `entry "a second link"`, "want one link at most"),
	}
}

// TestForgedTablesAreValid makes sure that the cases above differ from a good disk in nothing but what they change.
func TestForgedTablesAreValid(t *testing.T) {
	t.Parallel()
	two := extendedDisk(xpSectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), slot(0x05, 100, 100))
		tableforge.PutEBR(disk, 163, slot(0x83, 1, 10), noLink)
	})
	gpt := tableforge.NewGPT(512, xpSectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: "data"})
	for name, c := range map[string]struct {
		image      func(testing.TB, string) string
		partitions int
	}{
		"primary": {writeForged("disk.raw", xpDisk()), 1}, "logical": {two, 3}, "gpt": {
			writeForged("disk.raw", gpt),
			1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.image(t, t.TempDir())
			require.Empty(t, disktest.Run(t, "sfdisk", "--quiet", "--verify", path))
			var report jsonInspect
			r := measure(t, []string{"inspect", "--json", path})[0]
			require.Equal(t, 3, r.code, r.stderr)
			unmarshal(t, r, &report)
			require.Len(t, report.Partitions, c.partitions)
		})
	}
}

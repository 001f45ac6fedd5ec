//go:build linux || windows

package hostile

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// Tables returns disks with a broken table, or one that prevents moves.
func Tables() []Row {
	return slices.Concat(brokenEntries(), refusedTables(), loops(), chainsOutside(), brokenGPTs(), brokenGPTEntries(),
		brokenDisklabels(), brokenVTOCs())
}

// slot shortens the rows below.
func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

func brokenEntries() []Row {
	table := func(name string, says []string, entries ...tableforge.Slot) Row {
		return broken("T47 "+name, "format", writeForged("disk.raw", tableforge.NewMBR(Sectors, entries...)), says...)
	}
	beyond := func(end int64) []string {
		return []string{
			"mbr at 0x1c6", fmt.Sprintf("end of partition %q", fmt.Sprintf("byte %d", end)),
			"want at most 2097152, the size of the disk",
		}
	}
	flag := slot(0x83, 63, 100)
	flag.Flag = 0x7f
	return []Row{
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
		}, slot(0xee, 1, Sectors-1)),
		broken("T50 two extended partitions", "format", twoExtended, "mbr at 0x1d2", `type 0x05`,
			"want one extended partition"),
		table("four partitions, one broken", []string{"mbr at 0x1f6", "end of partition", "want at most"},
			slot(0x83, 63, 100), slot(0x83, 200, 100), slot(0x83, 300, 100), slot(0x83, 4000, 100)),
	}
}

// twoExtended is sound except for the second extended partition.
func twoExtended(t testing.TB, dir string) string {
	t.Helper()
	disk := tableforge.NewMBR(Sectors, slot(0x05, 63, 100), slot(0x05, 200, 100))
	tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), noLink)
	tableforge.PutEBR(disk, 200, slot(0x83, 1, 10), noLink)
	return writeForged("disk.raw", disk)(t, dir)
}

// refusedTables are sound disks that cannot be moved safely: exit code 4.
func refusedTables() []Row {
	ldm := writeForged("disk.raw", tableforge.NewMBR(Sectors, slot(0x42, 63, 1000)))
	hybrid := tableforge.NewGPT(512, Sectors, 128, tableforge.GPTEntry{First: 63, Last: 1062, Name: "data"})
	tableforge.PutSlot(hybrid, 0, 1, slot(0x07, 63, 1000))
	third := extendedDisk(Sectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), noLink)
		tableforge.PutSlot(disk, 63, 2, slot(0x83, 20, 10))
	})
	return []Row{
		kept("T50 third entry of a boot record", "unsupported", third, "boot record at LBA 63", "second data entry"),
		kept("T47 dynamic disk", "unsupported", ldm, "0x42", "LDM"),
		{
			Name: "T47 hybrid MBR", Write: writeForged("disk.raw", hybrid), Code: "unsupported", End: Kept,
			Says: []string{"of a GPT"}, Finds: []string{"hybrid MBR", "slot 1", "slot 2", "lies over it"},
		},
	}
}

// extendedDisk has a primary partition, and an extended one at LBA 63, whose records the caller writes.
func extendedDisk(sectors int, records func(disk forge.Bytes)) Writer {
	disk := tableforge.NewMBR(sectors, slot(0x05, 63, uint32(sectors)-63))
	records(disk)
	return writeForged("disk.raw", disk)
}

var noLink = tableforge.Slot{}

// loops are chains of logical partitions that loop or do not end.
func loops() []Row {
	logical := slot(0x83, 1, 1)
	long := func(n int) Writer {
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
	self := extendedDisk(Sectors, func(disk forge.Bytes) { tableforge.PutEBR(disk, 63, logical, slot(0x05, 0, 100)) })
	emptySelf := extendedDisk(Sectors,
		func(disk forge.Bytes) { tableforge.PutEBR(disk, 63, noLink, slot(0x05, 0, 100)) })
	two := extendedDisk(Sectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, logical, slot(0x05, 100, 100))
		tableforge.PutEBR(disk, 163, logical, slot(0x05, 0, 100))
	})
	later := extendedDisk(Sectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, logical, slot(0x05, 100, 100))
		tableforge.PutEBR(disk, 163, logical, slot(0x05, 200, 100))
		tableforge.PutEBR(disk, 263, logical, slot(0x05, 100, 100))
	})
	// The wrong field is the start in the second entry of the last record.
	back := func(lba, from int) []string {
		return []string{fmt.Sprintf("ebr at %#x", from*512+462+8), fmt.Sprintf("the chain returns to LBA %d", lba)}
	}
	loop := func(name string, image Writer, says []string) Row {
		return broken(name, "format", image, says...)
	}
	limit := []string{"ebr at 0x", "more than 256 logical partitions"}
	return []Row{
		loop("T48 record that links to itself", self, back(63, 63)),
		loop("T48 empty record that links to itself", emptySelf, back(63, 63)),
		loop("T49 cycle of two records", two, back(63, 163)),
		loop("T49 chain that runs into a cycle", later, back(163, 263)),
		broken("T49 257 records", "limit", long(257), limit...),
		broken("T49 20,000 records", "limit", long(20_000), limit...),
	}
}

// chainsOutside are chains that leave their extended partition.
func chainsOutside() []Row {
	chain := func(name string, says []string, records ...tableforge.Slot) Row {
		return broken("T50 "+name, "format", extendedDisk(Sectors, func(disk forge.Bytes) {
			lba := int64(63)
			for i := 0; i < len(records); i += 2 {
				tableforge.PutEBR(disk, lba, records[i], records[i+1])
				lba = 63 + int64(records[i+1].Start)
			}
		}), append(says, "ebr at 0x7f")...)
	}
	inside := "want LBA 63 to 4095, inside the extended partition"
	behind := "want a place behind its record and inside the extended partition"
	unsigned := extendedDisk(Sectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), slot(0x05, 100, 100))
	})
	twoLinks := extendedDisk(Sectors, func(disk forge.Bytes) {
		tableforge.PutEBR(disk, 63, slot(0x83, 1, 10), slot(0x05, 100, 100))
		tableforge.PutSlot(disk, 63, 2, slot(0x0f, 200, 100))
		tableforge.PutEBR(disk, 163, slot(0x83, 1, 10), noLink)
	})
	row := func(name string, image Writer, says ...string) Row {
		return broken("T50 "+name, "format", image, append(says, "ebr at 0x")...)
	}
	return []Row{
		chain("link beyond the container", []string{`link "LBA 4096"`, inside}, slot(0x83, 1, 10),
			slot(0x05, 4096-63, 100)),
		// In 32 bits this is LBA 62, before the container.
		chain("link that wraps to a place before the container", []string{`link "LBA 4294967358"`, inside},
			slot(0x83, 1, 10), slot(0x05, 0xffffffff, 100)),
		chain("link into the logical partition before",
			[]string{`link "LBA 70"`, "want a place outside of the logical partition"}, slot(0x83, 1, 10),
			slot(0x05, 7, 100)),
		chain("logical partition over its own record", []string{"start LBA 0", behind}, slot(0x83, 0, 10), noLink),
		chain("logical partition beyond the container", []string{"start LBA 1", behind}, slot(0x83, 1, 4033), noLink),
		chain("logical partition that wraps", []string{"start LBA 4294967295", behind}, slot(0x83, 0xffffffff, 2),
			noLink),
		row("record without a signature", unsigned, `signature 0x0000`, "want 0xaa55"),
		row("two links in one record", twoLinks, `entry "a second link"`, "want one link at most"),
	}
}

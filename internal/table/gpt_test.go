package table_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// textOf formats a table.
func textOf(d disk.Disk) (string, error) {
	l, err := table.Read(d)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintln(l.Scheme, l.GUID, l.Signature, l.Damaged(), l.Blocked(), l.OnlyBackup(), l.Rest())
	text += fmt.Sprintln(l.Remnant())
	for _, p := range l.Partitions {
		text += fmt.Sprintln(p.Number, p.Kind, p.Range, p.TypeID(), p.Name, p.Active)
	}
	for _, i := range l.Issues {
		text += fmt.Sprintln(i.Code, i.Text)
	}
	return text, nil
}

// A header with one wrong field and right checksums is malformed, and the error names the field. Spec: UEFI 2.10,
// 5.3.2.
func TestFieldsOfAGPT(t *testing.T) {
	const sectors, primary, backup = 4096, 512, 4095 * 512
	for name, c := range map[string]struct {
		at    int64
		value uint64
		wide  bool
		field string
	}{
		"a header that is too short":        {tableforge.GPTHeaderSize, 91, false, "header size"},
		"one that is longer than a sector":  {tableforge.GPTHeaderSize, 513, false, "header size"},
		"another place":                     {tableforge.GPTMyLBA, 7, true, "my LBA"},
		"no entries":                        {tableforge.GPTNumEntries, 0, false, "number of entries"},
		"too many":                          {tableforge.GPTNumEntries, 16385, false, "number of entries"},
		"too small":                         {tableforge.GPTEntrySize, 64, false, "entry size"},
		"too large":                         {tableforge.GPTEntrySize, 8192, false, "entry size"},
		"of an odd size":                    {tableforge.GPTEntrySize, 192, false, "entry size"},
		"no usable space":                   {tableforge.GPTFirstUsable, 4063, true, "usable LBAs"},
		"space behind the end":              {tableforge.GPTLastUsable, sectors, true, "usable LBAs"},
		"entries in the header":             {tableforge.GPTEntriesLBA, 1, true, "entries LBA"},
		"entries behind the end":            {tableforge.GPTEntriesLBA, sectors, true, "entries LBA"},
		"entries that reach behind the end": {tableforge.GPTEntriesLBA, sectors - 31, true, "entries LBA"},
		"entries among the partitions":      {tableforge.GPTEntriesLBA, 1000, true, "entries LBA"},
	} {
		f := tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 4000})
		for _, at := range []int64{primary, backup} {
			if c.wide {
				f.U64(at+c.at, c.value)
			} else {
				f.U32(at+c.at, uint32(c.value))
			}
			tableforge.SealGPT(f, at, 512)
		}
		_, err := table.Read(disktest.ShortDisk(f, int64(len(f))))
		var malformed *ondisk.FormatError
		require.ErrorAs(t, err, &malformed, name)
		require.Equal(t, c.field, malformed.Field, name)
	}
}

// The backup alone must be on its own side of the disk; a wrong checksum makes a copy invalid; without both there is no
// table.
func TestCopiesOfAGPT(t *testing.T) {
	const sectors, primary, backup = 4096, 512, 4095 * 512
	whole := func() forge.Bytes {
		return tableforge.NewGPT(512, sectors, 128, tableforge.GPTEntry{First: 2048, Last: 4000})
	}
	read := func(f forge.Bytes) (*table.Table, error) { return table.Read(disktest.ShortDisk(f, int64(len(f)))) }
	for name, c := range map[string]struct {
		change func(f forge.Bytes)
		field  string // of the error; empty: no table
	}{
		"a backup with its entries in front": {func(f forge.Bytes) {
			f.U64(backup+tableforge.GPTEntriesLBA, 2)
			tableforge.SealGPT(f, backup, 512)
		}, "entries LBA"},
		"a backup with entries behind its header": {func(f forge.Bytes) {
			f.U64(backup+tableforge.GPTEntriesLBA, 4064)
			tableforge.SealGPT(f, backup, 512)
		}, "entries LBA"},
		"a backup within its space for partitions": {func(f forge.Bytes) {
			f.U64(backup+tableforge.GPTLastUsable, 4095)
			tableforge.SealGPT(f, backup, 512)
		}, "entries LBA"},
		"a backup whose sum is wrong": {
			func(f forge.Bytes) { f.U32(backup+tableforge.GPTHeaderCRC, 1) },
			"header crc32",
		},
		"a backup whose entries have another sum": {
			func(f forge.Bytes) { f.U8((4095-32)*512+32, 9) },
			"entries crc32",
		},
		"no magic number in either of the two":      {func(f forge.Bytes) { clear(f[backup : backup+8]) }, ""},
		"nothing but the protective entry is there": {func(f forge.Bytes) { clear(f[512:]) }, ""},
	} {
		f := whole()
		clear(f[primary : primary+8])
		c.change(f)
		_, err := read(f)
		if c.field == "" {
			got, err := read(f)
			require.NoError(t, err, name)
			require.Equal(t, table.MBR, got.Scheme)
			require.NotEmpty(t, got.Issues)
			clear(f[:512])
			_, err = read(f)
			require.ErrorIs(t, err, ondisk.ErrNoMatch, name)
			continue
		}
		var malformed *ondisk.FormatError
		require.ErrorAs(t, err, &malformed, name)
		require.Equal(t, c.field, malformed.Field, name)
	}
	got, err := read(whole())
	require.NoError(t, err)
	require.Empty(t, got.Issues)
	require.False(t, got.Damaged())
	for _, at := range []int64{primary, backup} {
		f := whole()
		f.U32(at+tableforge.GPTHeaderCRC, 1)
		got, err := read(f)
		require.NoError(t, err)
		require.Len(t, got.Issues, 1)
		require.True(t, got.Damaged())
	}
	f := whole()
	clear(f[primary : primary+8])
	got, err = read(f)
	require.NoError(t, err)
	require.Contains(t, got.Issues[0].Text, "no header at 0x200")

	for _, size := range []int64{0, 511} {
		_, err := table.Read(disktest.ShortDisk(nil, size))
		require.ErrorIs(t, err, ondisk.ErrNoMatch)
	}
}

// An unreadable sector is not an absent table: the error surfaces, or the other copy is used, with a report.
func TestBadSectorsOfTables(t *testing.T) {
	mbr := tableforge.NewMBR(4096, slot(7, 63, 1000), slot(5, 1100, 2000))
	tableforge.PutEBR(mbr, 1100, slot(7, 63, 900), slot(5, 1000, 900))
	tableforge.PutEBR(mbr, 2100, slot(7, 63, 800), tableforge.Slot{})
	gpt := tableforge.NewGPT(512, 4096, 128, tableforge.GPTEntry{First: 2048, Last: 4000})
	backup := tableforge.NewGPT(512, 4096, 128, tableforge.GPTEntry{First: 2048, Last: 4000})
	clear(backup[512:1024])
	bare := slices.Concat(make(forge.Bytes, 512), gpt[512:])
	enlarged := slices.Concat(gpt[:4095*512], make([]byte, 1<<20))
	moves := slices.Concat(gpt, make([]byte, 1<<20))
	other := slices.Clone(bare)
	other.U8(446+5, 7)
	remnant := slices.Concat(make(forge.Bytes, 2*512), gpt[2*512:])
	large := slices.Concat(tableforge.NewGPT(4096, 512, 128), mbr[:512])
	two := slices.Concat(gpt[:4096], large[4096:8*4096], gpt[8*4096:])
	for _, f := range []forge.Bytes{mbr, gpt, backup, enlarged, moves, bare, other, remnant, large, two} {
		d := disktest.ShortDisk(f, int64(len(f)))
		disktest.EveryBadSector(t, d, textOf)
		disktest.EveryBadRead(t, d, textOf)
	}
	remains, taken := readTable(t, remnant).Remnant()
	require.True(t, remains && !taken, "the entries are of the GPT")
	// Sector 0 may be empty, or have something other than a protective MBR, which stays.
	for _, f := range []forge.Bytes{bare, other} {
		got := readTable(t, f)
		require.Len(t, got.Issues, 1)
		require.Equal(t, "gpt-no-mbr", got.Issues[0].Code)
	}
}

// hybridOf is a GPT of three partitions with other slots in its MBR.
func hybridOf(slots ...tableforge.Slot) forge.Bytes {
	f := tableforge.NewGPT(512, 20_000, 128, tableforge.GPTEntry{First: 63, Last: 2000},
		tableforge.GPTEntry{First: 2001, Last: 4000}, tableforge.GPTEntry{First: 5000, Last: 6999})
	clear(f[tableforge.MBREntries:tableforge.MBRMagic])
	for i, s := range slots {
		tableforge.PutSlot(f, 0, i, s)
	}
	return f
}

// slot is an entry of an MBR.
func slot(kind byte, start, sectors uint32) tableforge.Slot {
	return tableforge.Slot{Type: kind, Start: start, Sectors: sectors}
}

func readTable(t *testing.T, f forge.Bytes) *table.Table {
	t.Helper()
	got, err := table.Read(disktest.Memory(f))
	require.NoError(t, err)
	return got
}

// A slot that mirrors a partition determines the action of a BIOS. Any slot that neither mirrors nor protects prevents
// a move.
func TestHybridMBR(t *testing.T) {
	active := tableforge.Slot{Flag: 0x80, Type: 0x07, Start: 2001, Sectors: 2000}
	first := slot(0xee, 1, 2000)
	type slots = []tableforge.Slot
	for name, c := range map[string]struct {
		slots slots
		says  string // of each fault, separated by semicolons; empty: they are updated
	}{
		"one mirror":      {slots{first, active}, ""},
		"two mirrors":     {slots{active, slot(0x83, 5000, 2000), first}, ""},
		"an entry behind": {slots{first, active, slot(0xee, 4001, 15_999)}, ""},
		"an entry between": {slots{
			slot(0xee, 1, 62), slot(0x0c, 63, 1938), slot(0xee, 2001, 2999),
			slot(0x83, 5000, 2000),
		}, ""},
		"a size that differs": {
			slots{first, slot(0x07, 2001, 1999)},
			"slot 2 (type 0x07, LBA 2001 to 3999) at 0x1ce: no partition",
		},
		"a start that differs": {
			slots{first, active, slot(0x83, 4999, 2001)},
			"slot 3 (type 0x83, LBA 4999 to 6999)",
		},
		"two partitions as one": {
			slots{slot(0xee, 1, 62), slot(0x83, 63, 3938)},
			"no partition of the GPT has that range",
		},
		"an extended one":   {slots{first, slot(0x0f, 2001, 2000)}, "extended"},
		"twice the same":    {slots{first, active, slot(0x83, 2001, 2000)}, "slot 2 has the range of partition 2, too"},
		"an odd flag":       {slots{first, {Flag: 0x81, Type: 7, Start: 2001, Sectors: 2000}}, "boot flag is 0x81"},
		"an entry over all": {slots{slot(0xee, 1, 19_999), active}, "slot 2 (LBA 2001 to 4000) lies over it"},
		"an entry that cuts a partition": {
			slots{slot(0xee, 1, 1000), active},
			"covers a part of partition 1 (LBA 63 to 2000)",
		},
		"an entry that covers nothing": {slots{first, active, slot(0xee, 4100, 100)}, "covers neither"},
		"an entry that ends behind": {
			slots{first, active, slot(0xee, 4001, 16_000)},
			"it ends behind the disk, whose last LBA is 19999",
		},
		"no entry at LBA 1": {
			slots{active, slot(0xee, 4001, 15_999)}, "no protective entry starts at LBA 1",
		},
		"an entry with the largest count": {slots{slot(0xee, 1, 0xffffffff), active}, "it ends behind the disk"},
		"two entries, one over the other": {
			slots{slot(0xee, 1, 19_999), slot(0xee, 1, 2000)},
			"slot 1 (LBA 1 to 19999) lies over it",
		},
		"two faults": {
			slots{first, slot(0x0f, 2001, 2000), slot(0x83, 9000, 1)}, "slot 2; slot 3",
		},
		"an entry of no size beside others": {slots{first, active, slot(0x83, 9000, 0)}, "slot 3"},
	} {
		t.Run(name, func(t *testing.T) {
			l := readTable(t, hybridOf(c.slots...))
			require.Len(t, l.Partitions, 3)
			var found []ondisk.Issue
			for _, i := range l.Issues {
				if i.Code == "hybrid-mbr" {
					found = append(found, i)
				}
			}
			if c.says == "" {
				require.True(t, l.IsHybrid())
				require.Len(t, found, 1)
				require.Equal(t, ondisk.Note, found[0].Effect)
				return
			}
			require.False(t, l.IsHybrid())
			faults := strings.Split(c.says, "; ")
			require.Len(t, found, len(faults))
			for i, says := range faults {
				require.Equal(t, ondisk.Refuse, found[i].Effect)
				require.True(t, found[i].OnMove)
				require.Contains(t, found[i].Text, says)
			}
		})
	}
	l := readTable(t, hybridOf(first, active, slot(0x83, 5000, 2000)))
	require.Equal(t, []bool{false, true, false}, []bool{
		l.Partitions[0].Active, l.Partitions[1].Active,
		l.Partitions[2].Active,
	})
	require.Equal(t, 2, l.Partitions[1].Slot)
	require.Equal(t, byte(7), l.Partitions[1].Type)
	require.Equal(t, int64(1<<32*512), l.Limit())
	require.Contains(t, l.Issues[len(l.Issues)-1].Text, "slot 2 partition 2, slot 3 partition 3")
}

// Without a protective entry, systems use the MBR, and the GPT after it stays unchanged.
func TestGPTBesideAnMBR(t *testing.T) {
	f := hybridOf(slot(7, 2001, 2000))
	l := readTable(t, f)
	require.Equal(t, table.MBR, l.Scheme)
	require.True(t, l.BesideGPT)
	require.Len(t, l.Issues, 1)
	require.Equal(t, "gpt-unprotected", l.Issues[0].Code)
	require.Contains(t, l.Issues[0].Text, "GPT (partitions: 3)")
	f.U8(512+60, f[512+60]^1) // a header with other checksums, which pmbr reads anyway
	l = readTable(t, f)
	require.True(t, l.BesideGPT)
	require.Empty(t, l.Issues)
	f.U8(512, 'e') // no header
	l = readTable(t, f)
	require.False(t, l.BesideGPT)
	require.Empty(t, l.Issues)
}

// A protective entry inside a partition stays unchanged if a move leaves it nothing to cover.
func TestHybridMBRWithoutRoom(t *testing.T) {
	f := hybridOf(slot(0xee, 2101, 100), slot(7, 2001, 2000))
	tab := readTable(t, f)
	to := table.Places{Size: int64(len(f)), Parts: map[int]disk.Range{}}
	for _, p := range tab.Partitions {
		to.Parts[p.Number] = disk.Range{Off: p.Off + 1985*tab.SectorSize, Len: p.Len}
	}
	for _, x := range tab.Relocate(to, table.Geometry{}) {
		require.GreaterOrEqual(t, x.Off, int64(512), "%+v", x)
	}
}

// If a disk grows or its table is repaired, unknown slots stay unchanged: in a hybrid MBR with another sector size than
// its GPT, all of it, otherwise all but the end of the protective entry.
func TestSlotsThatAreNotUnderstoodStay(t *testing.T) {
	odd := func(f forge.Bytes) forge.Bytes {
		clear(f[tableforge.MBREntries:tableforge.MBRMagic])
		tableforge.PutSlot(f, 0, 0, slot(0x83, 28_681, 7))
		tableforge.PutSlot(f, 0, 1, slot(0xee, 9, uint32(len(f)/512)-9))
		return f
	}
	for _, c := range []struct {
		sector int64
		fields []string
	}{{512, []string{"hybrid MBR: sector count of slot 2, protective"}}, {4096, nil}} {
		f := odd(tableforge.NewGPT(c.sector, 20_000, 128, tableforge.GPTEntry{First: 63, Last: 2000}))
		l := readTable(t, f)
		require.Equal(t, c.sector, l.SectorSize)
		require.NotEmpty(t, l.Hybrid)
		require.False(t, l.IsHybrid())
		require.Empty(t, l.Relocate(table.Places{Mend: true}, table.Geometry{}))
		var fields []string
		for _, p := range l.Relocate(table.Places{Size: int64(len(f)) + 1<<20}, table.Geometry{}) {
			if p.Off < 512 {
				require.Equal(t, []byte(f[p.Off:p.Off+int64(len(p.Old))]), p.Old)
				fields = append(fields, p.Reason)
			}
		}
		require.Equal(t, c.fields, fields)
	}
}

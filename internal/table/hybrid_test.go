package table_test

import (
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

// A slot that mirrors a partition says what a BIOS makes of it. Any slot that does neither that nor protect refuses.
func TestHybridMBR(t *testing.T) {
	active := tableforge.Slot{Flag: 0x80, Type: 0x07, Start: 2001, Sectors: 2000}
	first := slot(0xee, 1, 2000)
	type slots = []tableforge.Slot
	for name, c := range map[string]struct {
		slots slots
		says  string // of each fault, with a semicolon between; empty: they follow
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
	l := readTable(t, hybridOf(first, active))
	require.Equal(t, []bool{false, true, false}, []bool{
		l.Partitions[0].Active, l.Partitions[1].Active,
		l.Partitions[2].Active,
	})
	require.Equal(t, 2, l.Partitions[1].Slot)
	require.Equal(t, byte(7), l.Partitions[1].Type)
	require.Equal(t, int64(1<<32*512), l.Limit())
	require.Contains(t, l.Issues[len(l.Issues)-1].Text, "slot 2 partition 2")
}

// Without a protective entry systems go by the MBR, and the GPT behind it stays as it is.
func TestGPTBesideAnMBR(t *testing.T) {
	f := hybridOf(slot(7, 2001, 2000))
	l := readTable(t, f)
	require.Equal(t, table.MBR, l.Scheme)
	require.True(t, l.BesideGPT)
	require.Len(t, l.Issues, 1)
	require.Equal(t, "gpt-unprotected", l.Issues[0].Code)
	require.Contains(t, l.Issues[0].Text, "GPT (partitions: 3)")
	f.U8(512+60, f[512+60]^1) // a header of other sums, which pmbr reads all the same
	l = readTable(t, f)
	require.True(t, l.BesideGPT)
	require.Empty(t, l.Issues)
	f.U8(512, 'e') // no header
	l = readTable(t, f)
	require.False(t, l.BesideGPT)
	require.Empty(t, l.Issues)
}

// A protective entry inside of a partition refuses. It stays where a move leaves nothing for it.
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

// Where a disk grows or its table is mended, slots that are not understood stay as they are: of a hybrid MBR that
// counts other sectors than its GPT, all of it, and else all but the end of the protective entry.
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

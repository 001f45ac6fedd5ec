package table_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// textOf is what a table says.
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

// A header with one field wrong, and right sums, is malformed, and the error names the field. Spec: UEFI 2.10, 5.3.2.
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

// The backup alone is held to its own side of the disk; a sum that is wrong makes a copy invalid; without both there is
// no table.
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

// A sector that cannot be read is no table that is absent: the error surfaces, or the other copy is used, and the table
// says so.
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
	// Sector 0 may hold nothing, or something else than a protective MBR, which stays.
	for _, f := range []forge.Bytes{bare, other} {
		got := readTable(t, f)
		require.Len(t, got.Issues, 1)
		require.Equal(t, "gpt-no-mbr", got.Issues[0].Code)
	}
}

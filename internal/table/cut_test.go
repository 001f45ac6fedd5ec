package table

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// A disk that was cut short says so first, and its table is read as far as it is there.
func TestCutShort(t *testing.T) {
	const sectors, left = 8000, 4000
	mbr := tableforge.NewMBR(sectors, slot(0x83, 63, 2000), slot(0x83, 3000, 5000))
	gpt := func(sector int64) forge.Bytes {
		return tableforge.NewGPT(sector, sectors, 128, tableforge.GPTEntry{First: 63, Last: 2000, Name: "first"},
			tableforge.GPTEntry{First: 3000, Last: 7900, Name: "last"})
	}
	for name, tc := range map[string]struct {
		disk   forge.Bytes
		sector int64
	}{"MBR": {mbr, 512}, "GPT": {gpt(512), 512}, "GPT of 4096": {gpt(4096), 4096}} {
		t.Run(name, func(t *testing.T) {
			whole := readTable(t, tc.disk)
			require.Empty(t, whole.Issues)
			cut := readTable(t, tc.disk[:left*tc.sector])
			require.Len(t, cut.Partitions, 2)
			for i, p := range cut.Partitions {
				require.Equal(t, whole.Partitions[i].Range, p.Range)
			}
			require.Len(t, cut.Issues, 2)
			require.Equal(t, "cut-short", cut.Issues[0].Code)
			require.Equal(t, ondisk.Broken, cut.Issues[0].Effect)
			require.ErrorIs(t, cut.Issues[0].Err, ondisk.ErrFormat)
			require.Contains(t, cut.Issues[0].Text, fmt.Sprintf("has %d of the %d bytes", left*tc.sector,
				sectors*tc.sector))
			require.Equal(t, 2, cut.Issues[1].Partition)
			require.False(t, cut.Damaged(), "nothing is written over what is left")
		})
	}
	overlap := tableforge.NewMBR(sectors, slot(0x83, 63, 5000), slot(0x83, 3000, 5000))
	damaged := readTable(t, overlap[:left*512])
	require.NotEqual(t, "cut-short", damaged.Issues[0].Code, "what overlaps is no sound table of a longer disk")
}

// Of a chain that leaves a disk that was cut short, what is there is read: sfdisk lists the same partitions.
func TestChainCutShort(t *testing.T) {
	t.Parallel()
	path := disktest.Blank(t, "disk.raw", 64<<20)
	disktest.RunInput(t, "label: dos\nstart=63,size=20000,type=83\nstart=20480,size=100000,type=5\n"+
		"start=22528,size=20000,type=83\nstart=45056,size=20000,type=83\nstart=67584,size=20000,type=83\n", "sfdisk",
		"--quiet", path)
	whole := disktest.ReadFile(t, path)
	for _, tc := range []struct {
		left  int64    // sectors
		parts []int    // numbers of what is listed
		short []string // what ends behind the disk, or leads there
	}{
		{90000, []int{1, 2, 5, 6, 7}, []string{"mbr at 0x1d6"}},
		{70000, []int{1, 2, 5, 6, 7}, []string{"mbr at 0x1d6", `end of partition "byte 44843008"`}},
		{46000, []int{1, 2, 5, 6}, []string{"mbr at 0x1d6", `end of partition "byte 33308672"`, `link "LBA 67583"`}},
		{45055, []int{1, 2, 5}, []string{"mbr at 0x1d6", `link "LBA 45055"`}},
		{20481, []int{1, 2, 5}, []string{"mbr at 0x1d6", `end of partition "byte 21774336"`, `link "LBA 45055"`}},
		{20480, []int{1, 2}, []string{"mbr at 0x1d6"}},
	} {
		t.Run(fmt.Sprint(tc.left), func(t *testing.T) {
			require.NoError(t, os.Truncate(path, tc.left*512))
			got := readTable(t, whole[:tc.left*512])
			dump := disktest.Output(t, "sfdisk", "--dump", path)
			var numbers []int
			for _, p := range got.Partitions {
				require.Regexp(t, fmt.Sprintf(`raw%d : start= *%d, size= *%d,`, p.Number, p.Off/512, p.Len/512), dump)
				numbers = append(numbers, p.Number)
			}
			require.Equal(t, tc.parts, numbers)
			require.Equal(t, len(numbers), strings.Count(dump, "start="))
			require.Equal(t, "cut-short", got.Issues[0].Code)
			require.Contains(t, got.Issues[0].Text, fmt.Sprintf("has %d of the 61685760 bytes", tc.left*512))
			require.Len(t, got.Issues, 1+len(tc.short))
			for i, want := range tc.short {
				require.Contains(t, got.Issues[i+1].Text, want)
			}
		})
	}
}

// The free space at the end of an extended partition holds no data: sfdisk lists all logical partitions inside of the
// image that was cut short there.
func TestCutShortBehindTheLastLogical(t *testing.T) {
	t.Parallel()
	path := disktest.Blank(t, "disk.raw", 64<<20)
	disktest.RunInput(t, "label: dos\nstart=63,size=20000,type=83\nstart=20480,size=100000,type=5\n"+
		"start=22528,size=20000,type=83\nstart=45056,size=20000,type=83\n", "sfdisk", "--quiet", path)
	whole := disktest.ReadFile(t, path)
	const end = 45056 + 20000
	for _, left := range []int64{end - 1, end, end + 1, 120479} {
		require.NoError(t, os.Truncate(path, left*512))
		dump := disktest.Output(t, "sfdisk", "--dump", path)
		require.Regexp(t, `raw6 : start= *45056, size= *20000,`, dump)
		got := readTable(t, whole[:left*512])
		require.Equal(t, "cut-short", got.Issues[0].Code)
		if end <= left {
			require.Contains(t, got.Issues[0].Text, "in the free space at the end of the extended partition")
			require.Contains(t, got.Issues[0].Remedy, "truncate -s 61685760 ")
			require.NotContains(t, got.Issues[0].Remedy, "copy the whole image")
		} else {
			require.Contains(t, got.Issues[0].Text, "the last 512 bytes of the last partition are missing")
		}
	}
}

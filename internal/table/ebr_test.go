package table

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
	"github.com/trueup/trueup/internal/ondisk"
)

// oddChain returns a chain whose records use all four slots, as OS/2 left them. Its places were read by Linux 6.1
// (sys/block/sda) like this too.
func oddChain(third tableforge.Slot) forge.Bytes {
	f := tableforge.NewMBR(32768, slot(0x83, 2048, 1024), slot(0x05, 4096, 20000))
	tableforge.PutEBR(f, 4096, slot(0x83, 2048, 100), slot(0x05, 8192, 4096))
	tableforge.PutSlot(f, 4096, 2, slot(0x83, 4096, 100))
	tableforge.PutSlot(f, 4096, 3, slot(0x83, 6144, 200))
	tableforge.PutEBR(f, 12288, slot(0x83, 1024, 100), slot(0x83, 2048, 100))
	tableforge.PutSlot(f, 12288, 2, slot(0x83, 3072, 100))
	tableforge.PutSlot(f, 12288, 3, slot(0x05, 12288, 3000))
	tableforge.PutEBR(f, 16384, slot(0x83, 1024, 100), slot(0, 0, 0))
	tableforge.PutSlot(f, 16384, 2, third)
	return f
}

// Linux reads each data entry of a boot record, and ignores those in the third and fourth slot if they do not fit.
// libblkid has the same rules.
func TestRecordsWithManyEntries(t *testing.T) {
	for name, tc := range map[string]struct {
		third tableforge.Slot
		parts int
	}{
		"all fit":                    {slot(0x83, 2048, 100), 10},
		"to the end of its link":     {slot(0x83, 2048, 952), 10},
		"beyond its link":            {slot(0x83, 2048, 953), 9},
		"beyond the extended one":    {slot(0x83, 12288, 100), 9},
		"a start beyond 32 bits":     {slot(0x83, 0xffffffff, 0xffffffff), 9},
		"no sectors":                 {slot(0x83, 2048, 0), 9},
		"alone in its record's slot": {slot(0x83, 1500, 1500), 10},
	} {
		t.Run(name, func(t *testing.T) {
			f := oddChain(tc.third)
			path := filepath.Join(t.TempDir(), "disk.raw")
			f.Write(t, path)
			got := readTable(t, f)
			var lines string
			for _, p := range got.Partitions {
				lines += fmt.Sprintf("%d %d %d\n", p.Number, p.Off/512, p.Len/512)
			}
			require.Len(t, got.Partitions, tc.parts)
			require.Equal(t, disktest.Output(t, "partx", "-rgo", "NR,START,SECTORS", path), lines)
			for _, i := range got.Issues {
				require.Equal(t, "ebr-entries", i.Code)
				require.Equal(t, ondisk.Refuse, i.Effect)
				require.True(t, i.OnMove)
			}
			require.Contains(t, got.Issues[0].Text, "the boot record at LBA 4096 (byte 0x200000)")
		})
	}
}

// Overlapping partitions in one boot record are reported, like those in two.
func TestEntriesOfARecordOverlap(t *testing.T) {
	f := oddChain(slot(0x83, 1050, 100))
	got := readTable(t, f)
	last := got.Issues[len(got.Issues)-1]
	require.Equal(t, ondisk.Broken, last.Effect)
	require.Equal(t, 12, last.Partition)
	require.Contains(t, last.Text, "partition 12")
}

// A record inside a partition of another record is broken, even if the chain returns to it.
func TestRecordInAPartition(t *testing.T) {
	f := tableforge.NewMBR(4096, slot(5, 1100, 2900))
	tableforge.PutEBR(f, 1100, slot(7, 63, 900), slot(5, 1000, 1000))
	tableforge.PutEBR(f, 2100, slot(7, 63, 400), slot(5, 400, 1500))
	tableforge.PutEBR(f, 1500, slot(7, 1100, 100), slot(0, 0, 0))
	got := readTable(t, f)
	require.Len(t, got.Issues, 1)
	require.Contains(t, got.Issues[0].Text, "(the boot record at LBA 1500)")
	require.Equal(t, ondisk.Broken, got.Issues[0].Effect)
}

func TestEndlessChain(t *testing.T) {
	f := tableforge.NewMBR(4096, slot(5, 100, 3900))
	for i := range int64(maxLogical + 1) {
		tableforge.PutEBR(f, 100+4*i, slot(7, 1, 1), slot(5, uint32(4*(i+1)), 4))
	}
	got := readTable(t, f)
	require.Len(t, got.Issues, 1)
	require.ErrorIs(t, got.Issues[0].Err, ondisk.ErrLimit)
	require.Len(t, got.Partitions, 1+maxLogical)
}

// A truncated disk is reported as such first, and the available part of its table is read.
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

// If a chain leaves a truncated disk, its available part is read: sfdisk lists the same partitions.
func TestChainCutShort(t *testing.T) {
	path := disktest.Blank(t, "disk.raw", 64<<20)
	disktest.RunInput(t, "label: dos\nstart=63,size=20000,type=83\nstart=20480,size=100000,type=5\n"+
		"start=22528,size=20000,type=83\nstart=45056,size=20000,type=83\nstart=67584,size=20000,type=83\n", "sfdisk",
		"--quiet", path)
	whole := disktest.ReadFile(t, path)
	for _, tc := range []struct {
		left  int64    // sectors
		parts []int    // numbers of the listed ones
		short []string // partitions or links beyond the end of the disk
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

// The free space at the end of an extended partition holds no data: sfdisk lists all logical partitions in the image
// truncated there.
func TestCutShortBehindTheLastLogical(t *testing.T) {
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
			require.Contains(t, got.Issues[0].Remedy, "copy the whole image")
		}
	}
}

package scan_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

// libraryOf makes a disk with a table of sfdisk, and writes files with file systems to the named partitions.
func libraryOf(t *testing.T, size int64, table string, volumes map[int64]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, size))
	disktest.RunInput(t, table, "sfdisk", "-q", path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	for lba, name := range volumes {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		_, err = f.WriteAt(b, lba*512)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	return path
}

// made makes a file system of 8 MiB, and returns its file.
func made(t *testing.T, tool string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.WriteFile(path, make([]byte, 8<<20), 0o600))
	disktest.Run(t, tool, append(args, path)...)
	return path
}

// clustersOf returns the offset of the clusters of a FAT12 or FAT16. Spec: FAT specification 1.03, "FAT Data
// Structure": after the reserved sectors, the FATs and the root directory.
func clustersOf(t *testing.T, path string) int64 {
	t.Helper()
	b := disktest.ReadFile(t, path)
	u16 := func(at int) int64 { return int64(binary.LittleEndian.Uint16(b[at:])) }
	require.EqualValues(t, 512, u16(11))
	return 512*(u16(14)+int64(b[16])*u16(22)) + 32*u16(17)
}

// There is one decision about gain: verdict, exit code, rank, script, advice, metrics and plan of a disk agree.
func TestOneDecisionAboutGain(t *testing.T) {
	small := made(t, "mkfs.fat", "-F", "16", "-s", "1")
	start := int64(63)
	require.Zero(t, (start*512+clustersOf(t, small))%4096, "its clusters lie on 4 KiB")
	two := made(t, "mkfs.fat", "-F", "12", "-s", "4", "-a")
	odd := int64(9)
	for (odd*512+clustersOf(t, two))%4096 != 2048 {
		odd++
	}
	require.NotZero(t, clustersOf(t, two)%2048, "its clusters of 2 KiB lie on 2 KiB only where it is")
	ext := made(t, "mkfs.ext4", "-q", "-b", "4096")
	const dos = "label: dos\n"
	const half = 8 << 20 / 512

	for _, tc := range []struct {
		name    string
		table   string
		volumes map[int64]string
		verdict align.Verdict
		exit    int
		moves   []int
		gain    align.Gain // of the row; empty: no advice, since there is nothing to do
	}{
		{
			"data on 4 KiB", dos + fmt.Sprintf("%d,%d,6\n", start, half),
			map[int64]string{start: small},
			align.BelowBoundary, 2,
			nil, align.Loss,
		},
		{
			"data on 2 KiB, and on 512 bytes after a move", dos + fmt.Sprintf("%d,%d,1\n", odd, half),
			map[int64]string{odd: two},
			align.Misaligned, 3, nil, align.Loss,
		},
		{
			"ext4 at LBA 63", dos + fmt.Sprintf("63,%d,83\n", half),
			map[int64]string{63: ext},
			align.Misaligned, 3,
			[]int{1},
			align.High,
		},
		{
			"one that gains beside one that loses", dos + fmt.Sprintf("%d,%d,6\n40001,%d,83\n", start, half, half),
			map[int64]string{start: small, 40001: ext},
			align.Misaligned, 3,
			[]int{2},
			align.High,
		},
		{
			// Windows Vista to 8.1 create 128 MiB of Microsoft reserved at LBA 34 of a data disk, and the data at
			// 264192.
			"Microsoft reserved in front of data",
			"label: gpt\nfirst-lba: 34\nstart=34, size=2014, type=E3C9E316-0B5C-4DB8-817D-F92DF00215AE\n" +
				"start=2048, size=16384, type=EBD0A0A2-B9E5-4433-87C0-68B6B72699C7\n",
			map[int64]string{2048: ext},
			align.Aligned, 0, nil, "",
		},
		{
			"BIOS boot in front of data off the boundary",
			"label: gpt\nfirst-lba: 34\nstart=34, size=100, type=21686148-6449-6E6F-744E-656564454649\n" +
				"start=2049, size=16384, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4\n",
			map[int64]string{2049: ext},
			align.Misaligned, 3,
			[]int{2},
			align.High,
		},
		{
			"Microsoft reserved alone", "label: gpt\nfirst-lba: 34\n" +
				"start=34, size=2014, type=E3C9E316-0B5C-4DB8-817D-F92DF00215AE\n",
			nil, align.NothingToJudge, 0, nil, "",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := libraryOf(t, 40<<20, tc.table, tc.volumes)
			inspector := &scan.Inspector{Boundary: align.DefaultBoundary, Storage: align.Generic()}
			i := inspector.Image(scan.Job{Path: path})
			require.Nil(t, i.Error)
			i.Assess(nil)
			results.Rank([]*results.Image{i})
			require.Equal(t, tc.verdict, i.Verdict)
			require.Equal(t, tc.exit, results.Default.Code(i))
			require.Equal(t, tc.exit, i.Verdict.ExitCode())
			require.NoError(t, i.Check())

			gains := len(tc.moves) > 0
			s := results.NewSummary()
			s.Add(i)
			require.Equal(t, gains, s.Fix.Images == 1)
			require.Equal(t, tc.gain == align.Loss, s.Fix.Stays == 1)
			require.Equal(t, gains, i.Priority != nil && i.Priority.Rank == 1 && i.Priority.Command != "")
			require.Equal(t, tc.gain != "", i.Priority != nil)
			var script strings.Builder
			require.NoError(t, results.Script(&script, s, slices.Values([]*results.Image{i})))
			require.Equal(t, gains, strings.Contains(script.String(), "\ncopy 1 align "))
			if tc.gain != "" {
				require.Equal(t, tc.gain, i.Disks[0].Advice.Gain)
				require.Len(t, i.Disks[0].Fix.Moves, len(tc.moves))
			}

			src, err := realign.Open(path, realign.Reading{})
			require.NoError(t, err)
			defer src.Close()
			for _, boundary := range []align.Boundary{{}, align.SmallestBoundary, align.Kept} {
				p, err := src.Plan(realign.Goal{Boundary: boundary})
				require.NoError(t, err)
				var moved []int
				for _, m := range p.Moves {
					moved = append(moved, m.Partition)
				}
				require.Equal(t, tc.moves, moved, "--boundary %d", boundary)
			}
		})
	}
}

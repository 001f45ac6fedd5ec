package align_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

type insideCase struct {
	name          string
	lba, boundary int64
	v             volume.Volume
	code          string // of the finding about the inside, empty if absent
	severity      align.Severity
	says          []string
}

// insideCases returns the offsets of formatters at the time: LVM 192 KiB, mdadm 272 sectors, LUKS1 1032 sectors.
func insideCases() []insideCase {
	const kib = 1024
	return []insideCase{
		{"LVM at 192 KiB is on 64 KiB", 2048, 64 * kib, vol(volume.LVM2, 0, 192*kib), "", "", nil},
		{
			"LVM at 192 KiB is off 1 MiB", 2048, 1024 * kib,
			vol(volume.LVM2, 0, 192*kib),
			"nested-misaligned", align.Info,
			[]string{
				"starts on a multiple of 1 MiB, but the first extent of LVM2 is at byte 1245184, 192 KiB past a " +
					"multiple of 1 MiB", "no move of the partition aligns both", "pvmove",
			},
		},
		{"LVM at 1 MiB", 2048, 1024 * kib, vol(volume.LVM2, 0, 1024*kib), "", "", nil},
		{"RAID at its start", 2048, 64 * kib, vol(volume.MDRaid, 0, 0), "", "", nil},
		{
			"RAID of an old mdadm", 2048, 64 * kib,
			vol(volume.MDRaid, 0, 272*512),
			"nested-misaligned", align.Info,
			[]string{"first chunk of Linux RAID", "8 KiB past a multiple of 64 KiB", "mdadm --create --data-offset"},
		},
		{
			"LUKS1 behind a small header", 2048, 64 * kib,
			vol(volume.LUKS, 0, 1032*512),
			"nested-misaligned", align.Info,
			[]string{"first encrypted sector of LUKS", "4 KiB past a multiple of 64 KiB", "cryptsetup"},
		},
		{
			"LUKS off 4 KiB", 2048, 64 * kib,
			vol(volume.LUKS, 0, 4097*512),
			"nested-misaligned", align.Warning,
			[]string{"512 bytes past a 4 KiB boundary"},
		},
		{
			"LVM that makes up for its partition", 63, 64 * kib,
			vol(volume.LVM2, 0, 192*kib+65*512),
			"nested-aligned", align.Info,
			[]string{
				"starts at LBA 63 (byte 32256), 3584 bytes past a 4 KiB boundary, but the first extent of LVM2 is " +
					"at byte 262144, a multiple of 64 KiB", "would misalign the data", "--partition 3",
			},
		},
		{"ZFS", 2048, 1024 * kib, vol(volume.ZFS, 4096, 4096*kib), "", "", nil},
		{
			"a kind without advice of its own", 2048, 64 * kib,
			vol(volume.VMFS, 0, 17<<20+4096),
			"nested-misaligned", align.Info,
			[]string{"first block of the data of vmfs"},
		},
	}
}

func TestDataInsideAPartition(t *testing.T) {
	const kib = 1024
	for _, tc := range slices.Concat(insideCases(), []insideCase{
		{
			"clusters of 4 KiB on 4 KiB behind a start off it", 63, 64 * kib,
			vol(volume.FAT12, 4*kib, 57344-63*512),
			"", "", nil,
		},
		{"FAT with clusters of its data start", 128, 64 * kib, vol(volume.FAT32, 4096, 8192), "", "", nil},
		{"FAT with clusters of 32 KiB on 4 KiB", 128, 64 * kib, vol(volume.FAT16, 32*kib, 68*kib), "", "", nil},
		{"FAT with clusters of 2 KiB", 128, 64 * kib, vol(volume.FAT16, 2*kib, 9*kib), "", "", nil},
		{
			"exFAT with clusters of 128 KiB", 2048, 64 * kib,
			vol(volume.ExFAT, 128*kib, 68*kib),
			"nested-misaligned", align.Info,
			[]string{"first exfat cluster", "4 KiB past a multiple of 64 KiB", "--boundary-align"},
		},
		{
			"FAT whose clusters stay off wherever it moves", 63, 64 * kib,
			vol(volume.FAT16, 4096, 9*kib),
			"nested-misaligned", align.Warning,
			[]string{"so do its data", "is at byte 41472, 512 bytes past"},
		},
		{"FAT that a move mends", 63, 64 * kib, vol(volume.FAT16, 4096, 8*kib), "", "", nil},
	}) {
		t.Run(tc.name, func(t *testing.T) {
			l := &layout.Layout{Partitions: []boot.Partition{{
				Partition: table.Partition{
					Range: disk.Range{Off: tc.lba * 512, Len: 1 << 30}, Number: 3,
					Kind: table.Primary,
				},
				Volume: &tc.v,
			}}}
			boundary := align.BoundaryOf(tc.boundary)
			found := align.Check(l, align.Goal{Must: boundary, Want: boundary})
			if tc.lba*512%tc.boundary != 0 && tc.code != "nested-aligned" {
				found = found[1:] // of the start
			}
			if tc.code == "" {
				require.Empty(t, found)
				return
			}
			require.Len(t, found, 1)
			require.Equal(t, []any{tc.code, tc.severity, "partition 3"},
				[]any{found[0].Code, found[0].Severity, found[0].Subject})
			for _, s := range tc.says {
				require.Contains(t, found[0].Text+" "+found[0].Remedy, s)
			}
		})
	}
}

// A disk without a table can be a volume as a whole.
func TestDataInsideADisk(t *testing.T) {
	l := &layout.Layout{Volume: new(vol(volume.LVM2, 0, 192<<10))}
	found := align.Check(l, align.Goal{Must: align.Kept, Want: align.Kept})
	require.Len(t, found, 1)
	require.Equal(t, "disk", found[0].Subject)
	require.Contains(t, found[0].Text,
		"is a volume as a whole: the first extent of LVM2 is at byte 196608, 192 KiB past a multiple of 1 MiB")
	require.NotContains(t, found[0].Text, "partition")
}

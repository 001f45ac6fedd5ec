package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// checkSourceReport requires that what inspect says about the source is what sfdisk, the file systems' tools and blkid
// say.
func (c *alignCase) checkSourceReport(t *testing.T) {
	t.Helper()
	report := trueupJSON[jsonInspect](t, 3, "inspect", c.source)
	require.Equal(t, "misaligned", report.Verdict)
	require.Equal(t, jsonImage{
		Path: c.source, Format: c.format.container, Subformat: c.format.subformat,
		SizeBytes: c.disk.sectors * sectorSize, SectorSize: sectorSize,
	}, report.Image)

	table := readSfdisk(t, c.before)
	require.Equal(t, jsonTable{
		Scheme: "mbr", DiskSignature: table.ID, SectorSize: sectorSize, Heads: 255, SectorsPerTrack: 63,
	}, report.Table)
	require.Equal(t, c.disk.wantBoot, report.BootCode.Name)
	require.Equal(t, c.disk.wantCHS, report.BootCode.ReadsCHS)
	require.Equal(t, int64(64<<10), report.BoundaryBytes)
	require.NotEmpty(t, report.Findings)
	for _, f := range report.Findings { // of no more than misalignment: nothing is wrong inside these disks
		require.Contains(t, []string{"info", "warning", "error"}, f.Severity)
		require.NotEmpty(t, f.Text)
		require.NotContains(t, f.Code, "boot_sector", "%s", f.Text)
		require.NotContains(t, f.Code, "overlap", "%s", f.Text)
	}

	require.Len(t, report.Partitions, len(table.Partitions))
	for i, p := range table.Partitions {
		got := report.Partitions[i]
		v, volume := c.disk.volumes[i], got.Volume
		told := toolVolume(t, v.kind, extract(t, c.before, v.start*sectorSize, v.sectors*sectorSize))
		require.Equal(t, v.label, told.Label)
		if v.kind == "ntfs" {
			// ntfsinfo counts whole clusters only, the boot sector counts sectors.
			volume.SizeBytes -= volume.SizeBytes % told.ClusterBytes
		}
		if told.DataOffsetBytes == 0 {
			volume.DataOffsetBytes = 0 // no tool tells where the data of the others begins
		}
		require.Equal(t, told, volume)

		start := p.Start * sectorSize
		got.Volume = jsonVolume{}
		require.Equal(t, jsonPartition{
			Number: i + 1, Kind: "primary", Active: p.Bootable, Type: p.typeByte(),
			StartLBA: p.Start, StartBytes: start, SizeBytes: p.Size * sectorSize,
			AlignmentBytes: start & -start, // the largest power of two that divides it
			Aligned:        map[string]bool{"4K": false, "64K": false, "1M": false, "boundary": false},
		}, got)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// corpusFile returns the path of an image of the corpus in a folder that can be written: with all files of its own
// folder when whole is set, because a descriptor needs its extents.
func corpusFile(t *testing.T, name string, whole bool) string {
	t.Helper()
	if whole {
		return filepath.Join(disktest.CorpusSet(t, filepath.Dir(name)), filepath.Base(name))
	}
	return disktest.Corpus(t, name)
}

// TestCorpusDisks requires that inspect says about each disk what the corpus's own table says about it.
func TestCorpusDisks(t *testing.T) {
	t.Parallel()
	for _, c := range corpusDisks {
		t.Run(c.name, func(t *testing.T) {
			path := corpusFile(t, c.name, c.whole)
			report := trueupJSON[jsonInspect](t, c.exit, "inspect", path)
			require.Equal(t, jsonImage{
				Path: path, Format: c.format, Subformat: c.subformat, SizeBytes: c.size, SectorSize: c.sectorSize(),
			}, report.Image)
			require.Equal(t, c.scheme, report.Table.Scheme)
			require.Equal(t, c.sectorSize(), report.Table.SectorSize)
			if c.id != "" {
				require.Equal(t, c.id, report.Table.DiskSignature)
			}
			require.Nil(t, report.Volume)
			require.Equal(t, c.partitions, corpusPartitions(report.Partitions))
		})
	}
}

// corpusPartitions reduces a report to what the corpus's table holds.
func corpusPartitions(report []jsonPartition) []corpusPartition {
	var got []corpusPartition
	for _, p := range report {
		c := corpusPartition{
			kind: p.Kind, typ: p.Type, active: p.Active, start: p.StartLBA, startBytes: p.StartBytes, size: p.SizeBytes,
			volume: p.Volume.Kind, hidden: p.Volume.HiddenSectors,
		}
		if p.Kind == "gpt" {
			c.typ = "" // a GUID, which the table leaves out
		}
		got = append(got, c)
	}
	return got
}

// TestCorpusVolumes is about images that hold a file system and no partition table. Boot code must not be read as one.
func TestCorpusVolumes(t *testing.T) {
	t.Parallel()
	for _, c := range corpusVolumes {
		t.Run(c.name, func(t *testing.T) {
			path := disktest.Corpus(t, c.name)
			report := trueupJSON[jsonInspect](t, 0, "inspect", path)
			require.Equal(t, "none", report.Table.Scheme)
			require.Empty(t, report.Partitions)
			require.Equal(t, c.size, report.Image.SizeBytes)
			require.NotNil(t, report.Volume)
			require.Equal(t, c.volume, report.Volume.Kind)
			require.Equal(t, c.hidden, report.Volume.HiddenSectors)
			require.Equal(t, c.label, report.Volume.Label)
			require.Equal(t, c.uuid, report.Volume.UUID)
		})
	}
}

// TestCorpusWithoutTable requires that nothing in these disks is taken for a partition.
func TestCorpusWithoutTable(t *testing.T) {
	t.Parallel()
	for name, size := range corpusBare {
		t.Run(name, func(t *testing.T) {
			report := trueupJSON[jsonInspect](t, 0, "inspect", disktest.Corpus(t, name))
			require.Equal(t, "none", report.Table.Scheme)
			require.Empty(t, report.Partitions)
			require.Equal(t, size, report.Image.SizeBytes)
		})
	}
}

// TestCorpusUnixVolumes has blkid judge what the corpus holds of btrfs and XFS.
func TestCorpusUnixVolumes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"discutils/btrfs.vhdx.gz", "discutils/xfs5.vhdx.gz"} {
		t.Run(name, func(t *testing.T) {
			source := disktest.Corpus(t, name)
			raw := filepath.Join(t.TempDir(), "disk.raw")
			disktest.Run(t, "qemu-img", "convert", "-O", "raw", source, raw)
			p := trueupJSON[jsonInspect](t, 0, "inspect", source).Partitions[0]
			tag := func(name string) string {
				out := disktest.Output(t, "blkid", "-p", "-o", "value", "-s", name, "-O", fmt.Sprint(p.StartBytes),
					"-S", fmt.Sprint(p.SizeBytes), raw)
				return strings.TrimSpace(out)
			}
			require.Equal(t, tag("TYPE"), p.Volume.Kind)
			require.Equal(t, tag("UUID"), p.Volume.UUID)
			require.Equal(t, tag("LABEL"), p.Volume.Label)
		})
	}
}

// TestCorpusSplitRaw joins the two halves, as a user does with cat.
func TestCorpusSplitRaw(t *testing.T) {
	t.Parallel()
	joined := filepath.Join(t.TempDir(), "ext2.raw")
	var whole []byte
	for _, half := range []string{"dfvfs/ext2.splitraw.000.xz", "dfvfs/ext2.splitraw.001.xz"} {
		data := disktest.ReadFile(t, disktest.Corpus(t, half))
		whole = append(whole, data...)
	}
	require.NoError(t, os.WriteFile(joined, whole, 0o644))
	report := trueupJSON[jsonInspect](t, 0, "inspect", joined)
	require.Equal(t, "ext2", report.Volume.Kind)
	require.Equal(t, int64(4<<20), report.Volume.SizeBytes)
	require.Equal(t, "ext2_test", report.Volume.Label)
}

// TestCorpusContents copies the VMDKs, which need no move, and requires that the copy reads as the corpus's table says
// the source reads.
func TestCorpusContents(t *testing.T) {
	t.Parallel()
	for _, c := range corpusContents {
		t.Run(c.name, func(t *testing.T) {
			source := corpusFile(t, c.name, c.whole)
			before := hashFolder(t, filepath.Dir(source))
			dest := filepath.Join(t.TempDir(), "copy.vmdk")
			answer := trueupJSON[jsonAlign](t, 0, "align", source, dest)
			require.Zero(t, answer.Moved)
			require.Equal(t, c.sum, sha256Of(t, formatSparse.rawOf(t, dest)))
			require.True(t, trueupJSON[jsonVerify](t, 0, "verify", source, dest).Equal)
			require.Equal(t, before, hashFolder(t, filepath.Dir(source)))
		})
	}
}

// TestCorpusDynamicDisk is about a disk that is understood and must not be moved.
func TestCorpusDynamicDisk(t *testing.T) {
	t.Parallel()
	source := disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz")
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	for _, args := range [][]string{{"plan", source}, {"align", source, dest}} {
		r := trueup(t, args...)
		require.Equal(t, 4, r.code, "trueup %q\n%s%s", args, r.stdout, r.stderr)
		require.Contains(t, r.stdout+r.stderr, "dynamic disk (LDM)")
		require.Contains(t, r.stdout+r.stderr, "Windows 2000 to 2003")
	}
	r := trueup(t, "convert", "--to", "raw,align=1G", source, dest)
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "would grow from 52428800")
	require.Empty(t, folderNames(t, filepath.Dir(dest)))
	require.Zero(t, trueup(t, "convert", source, dest).code)
	require.Equal(t, sha256Of(t, source), sha256Of(t, dest))
	require.True(t, trueupJSON[jsonVerify](t, 0, "verify", source, dest).Equal)
}

// TestAlignedDynamicDisk copies dynamic disks on which nothing is to be moved: one with an aligned partition, and one
// of Windows Server 2008, whose first volume lies on 1 MiB behind LBA 63.
func TestAlignedDynamicDisk(t *testing.T) {
	t.Parallel()
	for _, start := range []uint32{2048, 63} {
		f := tableforge.NewMBR(16384, tableforge.Slot{Type: 0x42, Start: start, Sectors: 12000})
		fsforge.PutNTFS(f, 2048, 4000)
		source, dest := filepath.Join(t.TempDir(), "disk.img"), filepath.Join(t.TempDir(), "copy.img")
		f.Write(t, source)
		part := trueupJSON[jsonInspect](t, 0, "inspect", source).Partitions[0]
		require.Equal(t, "ldm", part.Volume.Kind)
		require.Equal(t, int64(start)*512, part.StartBytes)
		require.Zero(t, trueupJSON[jsonAlign](t, 0, "align", source, dest).Moved)
		require.Equal(t, []byte(f), disktest.ReadFile(t, dest))
		require.True(t, trueupJSON[jsonVerify](t, 0, "verify", source, dest).Equal)
	}
}

// TestCorpusTablesMove realigns tables that other tools made, with logical partitions and of the GPT kind. What sfdisk
// and sgdisk read of the result may differ from what they read of the source in starts only.
func TestCorpusTablesMove(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{
		"dfvfs/mbr.raw.gz": nil, "imagemounter/test.mbr.xz": nil, "mbrman/disk2.img": nil,
		"gptman/disk1.img": {"--boundary", "64K"},
	} {
		t.Run(name, func(t *testing.T) {
			source := disktest.Corpus(t, name)
			dest := filepath.Join(t.TempDir(), "aligned.raw")
			answer := trueupJSON[jsonAlign](t, 0, append([]string{"align", source, dest}, flags...)...)
			require.NotZero(t, answer.Moved)
			require.True(t, trueupJSON[jsonVerify](t, 0, "verify", source, dest).Equal)
			was, is := sfdiskParts(t, source), sfdiskParts(t, dest)
			require.Len(t, is, len(was))
			for i := range is {
				if extendedTypes[is[i].Type] {
					continue // it grows and shrinks with what it holds
				}
				if name == "imagemounter/test.mbr.xz" && i == 0 { // its data would lie worse
					require.Equal(t, was[i], is[i])
					continue
				}
				require.Zero(t, is[i].Start%128, "partition %d", i+1)
				is[i].Start = was[i].Start
				require.Equal(t, was[i], is[i])
			}
			disktest.Run(t, "sfdisk", "--verify", dest)
			if answer.Patches[0].OffsetBytes >= 512 { // a GPT, whose sector 0 stays
				require.Contains(t, disktest.Run(t, "sgdisk", "-v", dest), "No problems found")
			}
		})
	}
}

var extendedTypes = map[string]bool{"5": true, "f": true, "85": true}

// sfdiskPart is a partition as sfdisk prints it, in sectors. Node is left out: it is made of the name of the file.
type sfdiskPart struct {
	Start, Size             int64
	Type, UUID, Name, Attrs string
	Bootable                bool
}

func sfdiskParts(t *testing.T, path string) []sfdiskPart {
	t.Helper()
	var dump struct {
		PartitionTable struct{ Partitions []sfdiskPart } `json:"partitiontable"`
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Run(t, "sfdisk", "--json", path)), &dump))
	return dump.PartitionTable.Partitions
}

// TestCorpusHugeDirectory gives trueup a VMDK header that asks for a huge grain directory; measure holds it to the
// budget of hostile input.
func TestCorpusHugeDirectory(t *testing.T) {
	t.Parallel()
	path := disktest.Corpus(t, "cdi/invalid-qcow-large-memory.img")
	answer := trueupJSON[jsonError](t, 1, "inspect", path)
	require.Contains(t, []string{"format", "limit"}, answer.Error.Code)

	require.Equal(t, 1, measure(t, []string{"inspect", path})[0].code)
}

// TestCorpusExtentAlone opens an extent without the descriptor that says what it is a part of.
func TestCorpusExtentAlone(t *testing.T) {
	t.Parallel()
	path := disktest.Corpus(t, "vmdk-rs/twoGbMaxExtentSparse-s001.vmdk.xz")
	answer := trueupJSON[jsonError](t, 1, "inspect", path)
	require.Contains(t, []string{"format", "unsupported"}, answer.Error.Code)
	require.NotEmpty(t, answer.Error.Message)
}

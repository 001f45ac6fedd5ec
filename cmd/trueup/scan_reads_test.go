package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
)

type scannedPart struct {
	kind  string
	start int64
	size  int64
	typ   string
}

// scannedDisk is an aligned disk that real tools make.
type scannedDisk struct {
	name    string
	sectors int64
	gpt     bool
	parts   []scannedPart
}

var scannedDisks = []scannedDisk{
	{name: "mbr, ntfs", sectors: 256 << 11, parts: []scannedPart{{"ntfs", 2048, 520192, "7"}}},
	{name: "mbr, two volumes", sectors: 300 << 11, parts: []scannedPart{
		{"fat32", 2048, 204800, "c"},
		{"ext4", 206848, 400000, "83"},
	}},
	{name: "gpt, esp and ext4", sectors: 512 << 11, gpt: true, parts: []scannedPart{
		{"fat32", 2048, 131072, "U"},
		{"ext4", 133120, 900000, "L"},
	}},
}

func (d scannedDisk) make(t *testing.T, raw string) {
	t.Helper()
	disktest.MakeBlank(t, raw, d.sectors*sectorSize)
	table := "label: dos\n"
	if d.gpt {
		table = "label: gpt\n"
	}
	for i, p := range d.parts {
		table += fmt.Sprintf("start=%d, size=%d, type=%s\n", p.start, p.size, p.typ)
		part := filepath.Join(t.TempDir(), fmt.Sprint(i))
		madeVolume{kind: p.kind, label: "LABEL", start: p.start, sectors: p.size}.make(t, part)
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=4096", "conv=sparse,notrunc", "oflag=seek_bytes",
			fmt.Sprintf("seek=%d", p.start*sectorSize), "status=none")
	}
	disktest.RunInput(t, table, "sfdisk", "--quiet", "--no-tell-kernel", raw)
}

// scannedFormats are the images that qemu-img makes of a disk, and the most KiB that a scan reads of each: the first
// page, the page at 32 KiB (the mark of a CD) and the end of each file, the header and tables of the format, and of the
// disk its table and the superblocks and labels of its volumes, some of them twice. A VHDX has two region tables of 64
// KiB, a GPT two arrays of 16 KiB, and a compressed grain or cluster is read whole.
var scannedFormats = []struct {
	name     string
	args     []string
	mbr, gpt int64
}{
	{"disk.qcow2", []string{"-O", "qcow2"}, 64, 96},
	{"packed.qcow2", []string{"-c", "-O", "qcow2"}, 64, 112},
	{"sparse.vmdk", []string{"-O", "vmdk", "-o", "subformat=monolithicSparse"}, 64, 104},
	{"stream.vmdk", []string{"-O", "vmdk", "-o", "subformat=streamOptimized"}, 64, 136},
	{"flat.vmdk", []string{"-O", "vmdk", "-o", "subformat=monolithicFlat"}, 40, 76},
	{"dynamic.vhd", []string{"-O", "vpc", "-o", "subformat=dynamic,force_size=on"}, 64, 88},
	{"fixed.vhd", []string{"-O", "vpc", "-o", "subformat=fixed,force_size=on"}, 48, 80},
	{"dynamic.vhdx", []string{"-O", "vhdx", "-o", "subformat=dynamic"}, 224, 256},
	{"disk.raw", []string{"-O", "raw"}, 48, 80},
}

// TestScanReadsLittle requires that a scan reads no part of an aligned image that grows with it.
func TestScanReadsLittle(t *testing.T) {
	t.Parallel()
	for _, d := range scannedDisks {
		t.Run(d.name, func(t *testing.T) {
			raw := filepath.Join(t.TempDir(), "source.raw")
			d.make(t, raw)
			for _, f := range scannedFormats {
				path := filepath.Join(t.TempDir(), f.name)
				disktest.Run(t, "qemu-img", append(append([]string{"convert"}, f.args...), raw, path)...)
				s := scan(t, filepath.Dir(path))
				require.Equal(t, 0, s.code, s.stderr)
				require.Contains(t, s.rows, path)
				require.Equal(t, align.Aligned, s.rows[path].Verdict, s.stdout)
				most := f.mbr
				if d.gpt {
					most = f.gpt
				}
				require.LessOrEqual(t, s.rows[path].Read, most<<10, f.name)
			}
		})
	}
}

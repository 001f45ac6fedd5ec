package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// These tests compare what inspect reports about a container, and no guest sees, with qemu-img: stored bytes, number of
// pieces, and block positions in the file.

type jsonUsage struct {
	Stored     int64  `json:"stored_bytes"`
	Compressed int64  `json:"compressed_bytes"`
	Inherited  int64  `json:"inherited_bytes"`
	NonZero    *int64 `json:"nonzero_bytes"`
	Pieces     int64  `json:"pieces"`
	Unordered  int64  `json:"pieces_out_of_order"`
	InFile     int64  `json:"file_alignment_bytes"`
	Complete   bool   `json:"complete"`
}

// jsonContainer is the part of an inspection about the container.
type jsonContainer struct {
	jsonHead
	Image struct {
		Chain []struct {
			Name string `json:"name"`
		} `json:"chain"`
		Usage *jsonUsage `json:"usage"`
	} `json:"image"`
	Partitions []struct {
		InFile int64 `json:"file_alignment_bytes"`
	} `json:"partitions"`
	Findings []jsonFinding `json:"findings"`
}

// mapEntry is a line of `qemu-img map --output=json`.
type mapEntry struct {
	Start  int64  `json:"start"`
	Length int64  `json:"length"`
	Data   bool   `json:"data"`
	Offset int64  `json:"offset"`
	File   string `json:"filename"`
}

// wantUsage is qemu-img's report on an image: stored bytes, pieces, and nonzero blocks.
func wantUsage(t testing.TB, format, path string) (u jsonUsage) {
	t.Helper()
	flat := strings.TrimSuffix(path, ".vmdk") + "-flat.vmdk"
	of := []string{"-f", format, path}
	if _, err := os.Stat(flat); err == nil {
		of = []string{"-f", "raw", flat} // qemu-img does not search holes in a flat extent
	}
	var entries []mapEntry
	out := disktest.Output(t, "qemu-img", append([]string{"map", "--output=json"}, of...)...)
	require.NoError(t, json.Unmarshal([]byte(out), &entries))
	last, end := "", int64(0)
	for _, e := range entries {
		if !e.Data {
			if e.Offset != 0 {
				end += e.Length // a hole of the file, which counts
			}
			continue
		}
		u.Stored += e.Length
		if u.Pieces == 0 || e.File != last || e.Offset != end {
			u.Pieces++
			if u.Pieces > 1 && e.File == last && e.Offset < end {
				u.Unordered++
			}
		}
		last, end = e.File, e.Offset+e.Length
	}
	raw := filepath.Join(t.TempDir(), "disk.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", path, raw)
	data := disktest.ReadFile(t, raw)
	u.NonZero = new(int64)
	for ; len(data) > 0; data = data[min(4096, len(data)):] {
		if block := data[:min(4096, len(data))]; bytes.Count(block, []byte{0}) < len(block) {
			*u.NonZero += int64(len(block))
		}
	}
	return u
}

// containers lists the tested images of qemu-img.
var containers = []struct {
	format     string
	options    []string
	block      int64 // allocation unit in bytes; 0 if the file system decides
	misaligned bool  // blocks of 4 KiB are off 4 KiB in the file
	blind      bool  // qemu-img map cannot map it
}{
	{format: "raw"},
	{format: "vmdk", options: []string{"-o", "subformat=monolithicFlat"}},
	{format: "vmdk", options: []string{"-o", "subformat=monolithicSparse"}, block: 64 << 10},
	{format: "vmdk", options: []string{"-o", "subformat=twoGbMaxExtentSparse"}, block: 64 << 10},
	{format: "vpc", options: []string{"-o", "subformat=fixed,force_size=on"}},
	{format: "vpc", options: []string{"-o", "subformat=dynamic,force_size=on"}, block: 2 << 20, misaligned: true},
	{format: "vhdx", options: []string{"-o", "block_size=1M"}, block: 1 << 20, blind: true},
	{format: "qcow2", options: []string{"-o", "cluster_size=64k"}, block: 64 << 10},
	{format: "qcow2", options: []string{"-o", "cluster_size=512"}, block: 512, misaligned: true},
}

func TestUsageAgreesWithQemu(t *testing.T) {
	t.Parallel()
	disk := tableforge.NewMBR(64<<11, slot(0x83, 2048, 31<<11), slot(0x83, 32<<11, 32<<11))
	disk.Put(2048*sectorSize, noise("aligned", 300<<10))
	disk.Put(40<<20, noise("aligned too", 4096))
	raw := writeForged("disk.raw", disk)(t, t.TempDir())
	for _, c := range containers {
		t.Run(strings.Join(append(c.options, c.format), " "), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk."+c.format)
			disktest.Run(t, "qemu-img", slices.Concat([]string{"convert", "-f", "raw", "-O", c.format}, c.options,
				[]string{raw, path})...)
			check := func() jsonContainer {
				if c.block > 0 || c.format == "vpc" {
					// All zeros are stored: qemu-img map does not ask for holes of files other than raw disks.
					for _, name := range folderNames(t, filepath.Dir(path)) {
						file := filepath.Join(filepath.Dir(path), name)
						require.NoError(t, os.WriteFile(file, disktest.ReadFile(t, file), 0o644))
					}
				}
				got := trueupJSON[jsonContainer](t, 0, "inspect", path)
				want := wantUsage(t, c.format, path)
				require.NotNil(t, got.Image.Usage)
				require.Equal(t, *want.NonZero, *got.Image.Usage.NonZero)
				want.NonZero, want.InFile, want.Complete = got.Image.Usage.NonZero, got.Image.Usage.InFile, true
				if !c.blind {
					require.Equal(t, want, *got.Image.Usage)
				}
				require.Empty(t, got.Image.Chain)
				return got
			}
			check()

			// Blocks that are written from last to first are in that order in a growing file.
			block := c.block
			if block == 0 {
				block = 4096
			}
			commands := []string{"-f", c.format}
			for i := range int64(8) {
				commands = append(commands, "-c", fmt.Sprintf("write -P %d %d %d", i+1, 62<<20-2*i*block, block))
			}
			disktest.Run(t, "qemu-io", append(commands, path)...)
			got := check()
			if c.block > 0 { // seven backward jumps
				require.GreaterOrEqual(t, got.Image.Usage.Unordered, int64(7))
			}
			for _, p := range got.Partitions {
				require.Equal(t, c.misaligned, p.InFile < 4096, "%d", p.InFile)
			}
			require.Equal(t, c.misaligned, finds(got, "container-misaligned"))
		})
	}
}

func finds(c jsonContainer, code string) bool {
	for _, f := range c.Findings {
		if f.Code == code {
			return true
		}
	}
	return false
}

// TestBrokenTablesHaveNoUsage requires that the report of an image with broken tables has partitions, but no usage.
func TestBrokenTablesHaveNoUsage(t *testing.T) {
	t.Parallel()
	v := vmdkforge.NewSparse(hostile.Disk())
	v.SetGrain(5, v.Grain(4))
	path := filepath.Join(t.TempDir(), "disk.vmdk")
	require.NoError(t, os.WriteFile(path, v.Bytes, 0o600))
	r := trueup(t, "inspect", "--json", path)
	require.Equal(t, 1, r.code)
	var got jsonContainer
	unmarshal(t, r, &got)
	require.Nil(t, got.Image.Usage)
	require.True(t, finds(got, "vmdk-tables"))
	require.Len(t, got.Partitions, 1)
}

type jsonFragmentation struct {
	Fragmentation []struct {
		Partition int    `json:"partition"`
		Volume    string `json:"volume"`
		Kind      string `json:"kind"`
		Error     *struct{ Code, Message string }
	} `json:"fragmentation"`
}

// A contiguous logical volume is counted like a file system, and the others are listed.
func TestFragmentationInLVM(t *testing.T) {
	t.Parallel()
	ext := disktest.Blank(t, "ext.img", 1<<20)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext2", ext)
	path := poolImage(0x8e, 64<<20, func(v forge.Bytes) {
		poolforge.PutLVM(v, poolforge.LVMText, 512)
		v.Put(384*512+8*64<<10, disktest.ReadFile(t, ext))
	})(t, t.TempDir())
	answer := trueupJSON[jsonFragmentation](t, 3, "inspect", "--fragmentation", path)
	require.NotEmpty(t, answer.Fragmentation)
	root := answer.Fragmentation[0]
	require.Equal(t, "root", root.Volume)
	require.Equal(t, "ext2", root.Kind)
	require.Nil(t, root.Error)
	names := map[string]bool{}
	for _, f := range answer.Fragmentation[1:] {
		require.Equal(t, 1, f.Partition)
		require.Equal(t, "unsupported", f.Error.Code)
		names[f.Volume] = true
	}
	require.Len(t, names, len(answer.Fragmentation)-1)
	require.True(t, names["pieces"], "%v", names)
	r := trueup(t, "inspect", "--fragmentation", path)
	require.Contains(t, r.stdout, "Fragmentation of root in partition 1 (ext2):\n")
	require.Contains(t, strings.Join(strings.Fields(r.stdout), " "),
		"Fragmentation of pieces in partition 1: not counted: it is in several "+
			"places, or not only on this disk")
}

// refusalCodes returns the refusal codes in the plan of an image.
func refusalCodes(t testing.TB, image string) []string {
	t.Helper()
	var plan struct {
		Refusals []jsonFinding `json:"refusals"`
	}
	unmarshal(t, trueup(t, "plan", image, "--json"), &plan)
	var codes []string
	for _, f := range plan.Refusals {
		codes = append(codes, f.Code)
	}
	return codes
}

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// The disks here have 64 TiB, or what their format can say, and hold xpDisk at their start. Their tables are as large
// as they can be. Nothing else is stored, so the files are small, or holes.
const giantSize = 64 << 40

const giantBits = 16 // of clusters of qcow2

// giantLink is one image of a chain: its file, and that of its parent, empty for the last.
type giantLink struct{ name, parent string }

// giantImages write a disk into a folder, of which the parent is in place.
var giantImages = map[string]struct {
	ext   string
	size  int64
	write func(t testing.TB, dir string, link giantLink)
	alone bool // has no chains
}{
	"qcow2, clusters of 64 KiB": {"qcow2", giantSize, giantQcow2, false},
	"vhd of 2040 GiB":           {"vhd", 2040 << 30, giantVHD(2040 << 30), false},
	"vhd of 64 TiB":             {"vhd", giantSize, giantVHD(giantSize), true},
	"vhdx, blocks of 1 MiB":     {"vhdx", giantSize, giantVHDX, false},
	"vmdk, monolithicSparse":    {"vmdk", giantSize, giantSparse, false},
	"vmdk, streamOptimized":     {"vmdk", giantSize, giantStream, true},
	"vmdk, 4096 sparse extents": {"vmdk", giantSize, giantSplit(4096, giantSize), true},
	"vmdk, 240 sparse extents":  {"vmdk", 60 << 40, giantSplit(240, 60<<40), false},
	"vmdk, COWD":                {"vmdk", giantSize, giantCOWD, false},
	"vmdk, seSparse":            {"vmdk", giantSize, giantSESparse, false},
	"raw":                       {"raw", 8 << 40, giantRaw, true},
	"vmdk, flat, 4096 extents":  {"vmdk", 8 << 40, giantFlat, true},
}

// TestLargestImages holds inspect to its budget on the largest image of each format, and on one that has sixteen such
// parents.
func TestLargestImages(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(giantImages)) {
		g := giantImages[name]
		for _, links := range []int{1, 17} {
			if g.alone && links > 1 {
				continue
			}
			t.Run(fmt.Sprintf("%s, %d", name, links), func(t *testing.T) {
				dir := t.TempDir()
				link := giantLink{}
				for i := range links {
					link = giantLink{name: fmt.Sprintf("disk%d.%s", i, g.ext), parent: link.name}
					g.write(t, dir, link)
				}
				requireGiant(t, filepath.Join(dir, link.name), g.size)
			})
		}
	}
}

// requireGiant wants the partition at the start of the disk to be found, and that it lies badly.
func requireGiant(t testing.TB, path string, size int64) {
	t.Helper()
	r := measure(t, []string{"inspect", "--json", path})[0]
	require.Equal(t, 3, r.code, "%s%s", r.stdout, r.stderr)
	var report jsonInspect
	unmarshal(t, r, &report)
	require.Equal(t, size, parseFailure(t, r).Image.SizeBytes)
	require.Len(t, report.Partitions, 1)
	require.Equal(t, int64(63*512), report.Partitions[0].StartBytes)
}

// sparsely writes pieces of a file by their places; all else, up to its size, is a hole.
func sparsely(t testing.TB, path string, size int64, pieces map[int64][]byte) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	for at, b := range pieces {
		_, err := f.WriteAt(b, at)
		require.NoError(t, err)
	}
}

// contents are what the link itself stores: the last one of a chain has the disk.
func (l giantLink) contents() []byte {
	if l.parent != "" {
		return make([]byte, hostile.Sectors*512)
	}
	return hostile.Disk()
}

func giantRaw(t testing.TB, dir string, link giantLink) {
	t.Helper()
	sparsely(t, filepath.Join(dir, link.name), 8<<40, map[int64][]byte{0: hostile.Disk()})
}

// giantFlat is a flat file of 8 TiB, of which the descriptor names 4096 parts.
func giantFlat(t testing.TB, dir string, link giantLink) {
	t.Helper()
	giantRaw(t, dir, giantLink{name: "x-flat.vmdk"})
	const sectors = 8 << 40 / 4096 / 512
	var lines []string
	for i := range 4096 {
		lines = append(lines, fmt.Sprintf(`RW %d FLAT "x-flat.vmdk" %d`, sectors, i*sectors))
	}
	writeText(link.name, vmdkforge.Descriptor("twoGbMaxExtentFlat", lines...))(t, dir)
}

// giantQcow2 has an L1 table of 1 MiB.
func giantQcow2(t testing.TB, dir string, link giantLink) {
	t.Helper()
	q := qcow2forge.New(link.contents(), giantBits)
	const entries = giantSize >> (giantBits + giantBits - 3)
	table := make([]byte, 8*entries)
	copy(table, q.Bytes[q.L1:q.L1+8])
	q.SetRefcount(q.L1/q.Cluster, 0)
	q.BE64(qcow2forge.L1, uint64(q.Append(table)))
	q.BE32(qcow2forge.L1Size, entries)
	q.BE64(qcow2forge.Size, giantSize)
	if link.parent != "" {
		q.SetBacking(link.parent, "qcow2")
	}
	q.Write(t, filepath.Join(dir, link.name))
}

// giantVHD has a table of four bytes for each 2 MiB, none of which is zero.
func giantVHD(size int64) func(testing.TB, string, giantLink) {
	return func(t testing.TB, dir string, link giantLink) {
		t.Helper()
		id := byte(1)
		l := vhdforge.Layout{ID: id}
		if link.parent != "" {
			l.Parent = &vhdforge.Parent{ID: id, Name: link.parent, Relative: link.parent}
		}
		v := vhdforge.New(link.contents(), l)
		table := bytes.Repeat([]byte{0xff}, int(4*(size>>21)))
		copy(table, v.Bytes[v.BAT:v.BAT+4])
		v.Head(func(off int64) {
			v.BE64(off+vhdforge.TableOffset, uint64(v.Footer))
			v.BE32(off+vhdforge.MaxEntries, uint32(size>>21))
		})
		v.Foot(func(off int64) { v.BE64(off+vhdforge.CurrentSize, uint64(size)) })
		file := bytes.Join([][]byte{v.Bytes[:v.Footer], table, v.Bytes[v.Footer:]}, nil)
		require.NoError(t, os.WriteFile(filepath.Join(dir, link.name), file, 0o644))
	}
}

// giantVHDX has a BAT of 512 MiB, which is a hole.
func giantVHDX(t testing.TB, dir string, link giantLink) {
	t.Helper()
	l := vhdxforge.Layout{Size: hostile.Sectors * 512}
	if link.parent != "" {
		l.Parent = map[string]string{
			"parent_linkage": "{" + vhdxforge.DataWriteGUID + "}",
			"relative_path":  `.\` + link.parent,
		}
	}
	v := vhdxforge.New(l).Fill(link.contents())
	const blocks = giantSize >> 20
	bat := int64(len(v.Bytes))
	length := int64(8*(blocks+blocks/4096)+1<<20-1) >> 20 << 20
	v.U64(v.Item(vhdxforge.DiskSize), giantSize)
	v.SetRegions(
		vhdxforge.Region{GUID: vhdxforge.RegionBAT, Off: uint64(bat), Len: uint32(length), Required: 1},
		vhdxforge.Region{GUID: vhdxforge.RegionMetadata, Off: uint64(v.Metadata), Len: 1 << 20, Required: 1})
	v.Seal()
	sparsely(t, filepath.Join(dir, link.name), bat+length,
		map[int64][]byte{0: v.Bytes, bat: slices.Clone(v.Bytes[v.BAT : v.BAT+16])})
}

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The disks here have 64 TiB, or what their format can say, and hold xpDisk at their start. Their tables are as large as they
// can be. Nothing else is stored, so the files are small, or holes.
const giantSize = 64 << 40

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

// TestLargestImages holds inspect to its budget on the largest image of each format.
func TestLargestImages(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(giantImages)) {
		g := giantImages[name]
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			g.write(t, dir, giantLink{name: "disk." + g.ext})
			requireGiant(t, filepath.Join(dir, "disk."+g.ext), g.size)
		})
	}
}

// TestLargestChains does so for such an image that has sixteen parents.
func TestLargestChains(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(giantImages)) {
		g := giantImages[name]
		if g.alone {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			link := giantLink{}
			for i := range 17 {
				link = giantLink{name: fmt.Sprintf("link%d.%s", i, g.ext), parent: link.name}
				g.write(t, dir, link)
			}
			requireGiant(t, filepath.Join(dir, link.name), g.size)
		})
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
		return make([]byte, xpSectors*512)
	}
	return xpDisk()
}

func giantRaw(t testing.TB, dir string, link giantLink) {
	t.Helper()
	sparsely(t, filepath.Join(dir, link.name), 8<<40, map[int64][]byte{0: xpDisk()})
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
	writeText(link.name, disktest.VMDKDescriptor("twoGbMaxExtentFlat", lines...))(t, dir)
}

// giantQcow2 has an L1 table of 1 MiB.
func giantQcow2(t testing.TB, dir string, link giantLink) {
	t.Helper()
	q := disktest.ForgeQcow2(link.contents(), qcow2Bits)
	const entries = giantSize >> (qcow2Bits + qcow2Bits - 3)
	table := make([]byte, 8*entries)
	copy(table, q.Forged[q.L1:q.L1+8])
	q.SetRefcount(q.L1/q.Cluster, 0)
	q.Set64(disktest.Qcow2L1, uint64(q.Append(table)))
	q.Set32(disktest.Qcow2L1Size, entries)
	q.Set64(disktest.Qcow2Size, giantSize)
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
		l := disktest.VHDLayout{ID: id}
		if link.parent != "" {
			l.Parent = &disktest.VHDParent{ID: id, Name: link.parent, Relative: link.parent}
		}
		v := disktest.ForgeVHD(link.contents(), l)
		table := bytes.Repeat([]byte{0xff}, int(4*(size>>21)))
		copy(table, v.Forged[v.BAT:v.BAT+4])
		v.Head(func(off int64) {
			v.BE64(off+disktest.VHDTableOffset, uint64(v.Footer))
			v.BE32(off+disktest.VHDMaxEntries, uint32(size>>21))
		})
		v.Foot(func(off int64) { v.BE64(off+disktest.VHDCurrentSize, uint64(size)) })
		file := bytes.Join([][]byte{v.Forged[:v.Footer], table, v.Forged[v.Footer:]}, nil)
		require.NoError(t, os.WriteFile(filepath.Join(dir, link.name), file, 0o644))
	}
}

// giantVHDX has a BAT of 512 MiB, which is a hole.
func giantVHDX(t testing.TB, dir string, link giantLink) {
	t.Helper()
	l := disktest.VHDXLayout{Size: xpSectors * 512}
	if link.parent != "" {
		l.Parent = map[string]string{"parent_linkage": "{" + disktest.VHDXDataWriteGUID + "}", "relative_path": `.\` + link.parent}
	}
	v := disktest.ForgeVHDX(l).Fill(link.contents())
	const blocks = giantSize >> 20
	bat := int64(len(v.Forged))
	length := int64(8*(blocks+blocks/4096)+1<<20-1) >> 20 << 20
	v.U64(v.Item(disktest.VHDXDiskSize), giantSize)
	v.SetRegions(
		disktest.VHDXRegion{GUID: disktest.VHDXRegionBAT, Off: uint64(bat), Len: uint32(length), Required: 1},
		disktest.VHDXRegion{GUID: disktest.VHDXRegionMetadata, Off: uint64(v.Metadata), Len: 1 << 20, Required: 1})
	v.Seal()
	sparsely(t, filepath.Join(dir, link.name), bat+length, map[int64][]byte{0: v.Forged, bat: slices.Clone(v.Forged[v.BAT : v.BAT+16])})
}

// vmdkText is the descriptor of a link. All have the CID that a parent must have.
func (l giantLink) vmdkText(createType string, extents ...string) string {
	text := disktest.VMDKDescriptor(createType, extents...)
	if l.parent == "" {
		return text
	}
	return strings.Replace(text, "parentCID=ffffffff", fmt.Sprintf("parentCID=4a5b6c7d\nparentFileNameHint=%q", l.parent), 1)
}

// enlarge gives v a directory behind its end, for a disk of so many sectors, and returns it.
func enlarge(v *disktest.SparseVMDK, sectors int64) []byte {
	gd := make([]byte, (sectors/(128*512)*4+511)/512*512)
	copy(gd, v.Forged[v.GD:v.GD+4])
	v.U32(disktest.VMDKFlags, 1)
	v.U64(disktest.VMDKRGDOffset, 0)
	v.U64(disktest.VMDKCapacity, uint64(sectors))
	v.U64(disktest.VMDKGDOffset, uint64(len(v.Forged)/512))
	return gd
}

// giantSparse has a directory of 8 MiB.
func giantSparse(t testing.TB, dir string, link giantLink) {
	t.Helper()
	v := disktest.ForgeSparseVMDK(link.contents())
	gd := enlarge(v, giantSize/512)
	v.SetDescriptor(link.vmdkText("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "%s"`, giantSize/512, link.name)))
	v.Forged = append(v.Forged, gd...)
	v.Write(t, filepath.Join(dir, link.name))
}

// giantStream has one of 8 MiB too, between the grains and the footer.
func giantStream(t testing.TB, dir string, link giantLink) {
	t.Helper()
	v := disktest.ForgeStreamVMDK(xpDisk(), disktest.StreamLayout{})
	gd := make([]byte, 8<<20)
	copy(gd, v.Forged[v.Directory+512:v.Directory+516])
	foot := slices.Clone(v.Forged[v.Footer+512 : v.Footer+1024])
	v.Forged = v.Forged[:v.Directory]
	v.U64(disktest.VMDKCapacity, giantSize/512)
	text := disktest.VMDKDescriptor("streamOptimized", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, giantSize/512))
	v.Text(512, text)
	binary.LittleEndian.PutUint64(foot[disktest.VMDKCapacity:], giantSize/512)
	binary.LittleEndian.PutUint64(foot[disktest.VMDKGDOffset:], uint64(v.AddMetadata(2, gd)/512+1))
	v.AddMetadata(3, foot)
	v.AddMetadata(0, nil)
	v.Write(t, filepath.Join(dir, link.name))
}

// extents writes the descriptor of a link and its extents: the first holds what the link does, the others are one and the same
// file, by many names.
func (l giantLink) extents(t testing.TB, dir, createType, word string, n int, sectors int64, first, others func(path string)) {
	t.Helper()
	base := strings.TrimSuffix(l.name, ".vmdk")
	var lines []string
	for i := range n {
		name := fmt.Sprintf("%s-%d.vmdk", base, i)
		lines = append(lines, fmt.Sprintf(`RW %d %s "%s"`, sectors, word, name))
		if i == 0 {
			first(filepath.Join(dir, name))
			continue
		}
		others(filepath.Join(dir, name))
	}
	writeText(l.name, l.vmdkText(createType, lines...))(t, dir)
}

// giantSplit has n extents. 4096 are as many as there may be; seventeen times 240 are nearly that.
func giantSplit(n int, size int64) func(testing.TB, string, giantLink) {
	return func(t testing.TB, dir string, link giantLink) {
		t.Helper()
		sectors := size / 512 / int64(n)
		forge := func(disk []byte) disktest.Forged {
			v := disktest.ForgeSparseVMDK(disk)
			gd := enlarge(v, sectors)
			v.SetDescriptor("")
			return append(v.Forged, gd...)
		}
		empty := forge(make([]byte, 512))
		link.extents(t, dir, "twoGbMaxExtentSparse", "SPARSE", n, sectors,
			func(path string) { forge(link.contents()).Write(t, path) },
			func(path string) { sparsely(t, path, int64(len(empty)), map[int64][]byte{0: empty[:1024]}) })
	}
}

// giantCOWD has 64 extents of 1 TiB, each of which has a directory of 2 MiB.
func giantCOWD(t testing.TB, dir string, link giantLink) {
	t.Helper()
	const n = 64
	const sectors = giantSize / 512 / n
	write := func(disk []byte) func(path string) {
		return func(path string) {
			c := disktest.ForgeCOWD(disk, 1, nil)
			behind := c.GD + 512 // where the tables come, and go on behind the longer directory
			shift := uint32(sectors/4096*4-512) / 512
			for at := c.GD; at < c.GD+512+disktest.COWDTable*int64(len(c.Tables)) && at < int64(len(c.Forged)); at += 4 {
				if n := binary.LittleEndian.Uint32(c.Forged[at:]); n != 0 {
					c.U32(at, n+shift)
				}
			}
			c.U32(disktest.COWDNumSectors, sectors)
			c.U32(disktest.COWDNumGDEntries, sectors/4096)
			tail := behind + int64(shift)*512
			end := tail + int64(len(c.Forged)) - behind
			c.U32(disktest.COWDFreeSector, uint32(end/512))
			sparsely(t, path, end, map[int64][]byte{0: c.Forged[:behind], tail: c.Forged[behind:]})
		}
	}
	link.extents(t, dir, "vmfsSparse", "VMFSSPARSE", n, sectors, write(link.contents()), write(make([]byte, 512)))
}

// giantSESparse has a directory of 32 MiB.
func giantSESparse(t testing.TB, dir string, link giantLink) {
	t.Helper()
	link.extents(t, dir, "seSparse", "SESPARSE", 1, giantSize/512, func(path string) {
		s := disktest.ForgeSESparse(link.contents(), 0, nil)
		const directory = giantSize / (16 << 20) * 8
		shift := uint64(s.GD+directory-s.GT) / 512
		s.U64(disktest.SECapacity, giantSize/512)
		s.U64(disktest.SEGrainDirSize, directory/512)
		s.U64(disktest.SEGrainTables, uint64(s.GT)/512+shift)
		s.U64(disktest.SEGrains, uint64(s.Grains)/512+shift)
		tail := int64(len(s.Forged)) - s.GT
		sparsely(t, path, s.GD+directory+tail, map[int64][]byte{0: s.Forged[:s.GD+8], s.GD + directory: s.Forged[s.GT:]})
	}, nil)
}

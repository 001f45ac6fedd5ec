package main

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// vmdkText is the descriptor of a link. All have the CID that a parent must have.
func (l giantLink) vmdkText(createType string, extents ...string) string {
	text := vmdkforge.Descriptor(createType, extents...)
	if l.parent == "" {
		return text
	}
	return strings.Replace(text, "parentCID=ffffffff", fmt.Sprintf("parentCID=4a5b6c7d\nparentFileNameHint=%q",
		l.parent), 1)
}

// enlarge gives v a directory behind its end, for a disk of so many sectors, and returns it.
func enlarge(v *vmdkforge.Sparse, sectors int64) []byte {
	gd := make([]byte, (sectors/(128*512)*4+511)/512*512)
	copy(gd, v.Bytes[v.GD:v.GD+4])
	v.U32(vmdkforge.Flags, 1)
	v.U64(vmdkforge.RGDOffset, 0)
	v.U64(vmdkforge.Capacity, uint64(sectors))
	v.U64(vmdkforge.GDOffset, uint64(len(v.Bytes)/512))
	return gd
}

// giantSparse has a directory of 8 MiB.
func giantSparse(t testing.TB, dir string, link giantLink) {
	t.Helper()
	v := vmdkforge.NewSparse(link.contents())
	gd := enlarge(v, giantSize/512)
	v.SetDescriptor(link.vmdkText("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "%s"`, giantSize/512, link.name)))
	v.Bytes = append(v.Bytes, gd...)
	v.Write(t, filepath.Join(dir, link.name))
}

// giantStream has one of 8 MiB too, between the grains and the footer.
func giantStream(t testing.TB, dir string, link giantLink) {
	t.Helper()
	v := vmdkforge.NewStream(hostile.Disk(), vmdkforge.StreamLayout{})
	gd := make([]byte, 8<<20)
	copy(gd, v.Bytes[v.Directory+512:v.Directory+516])
	foot := slices.Clone(v.Bytes[v.Footer+512 : v.Footer+1024])
	v.Bytes = v.Bytes[:v.Directory]
	v.U64(vmdkforge.Capacity, giantSize/512)
	text := vmdkforge.Descriptor("streamOptimized", fmt.Sprintf(`RW %d SPARSE "%s"`, giantSize/512, link.name))
	v.Text(512, text)
	binary.LittleEndian.PutUint64(foot[vmdkforge.Capacity:], giantSize/512)
	binary.LittleEndian.PutUint64(foot[vmdkforge.GDOffset:], uint64(v.AddMetadata(2, gd)/512+1))
	v.AddMetadata(3, foot)
	v.AddMetadata(0, nil)
	v.Write(t, filepath.Join(dir, link.name))
}

// extents writes the descriptor of a link and its extents: the first holds what the link does, the others are one and
// the same file, by many names.
func (l giantLink) extents(t testing.TB, dir, createType, word string, n int, sectors int64, first,
	others func(path string),
) {
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
		forged := func(disk []byte) forge.Bytes {
			v := vmdkforge.NewSparse(disk)
			gd := enlarge(v, sectors)
			v.SetDescriptor("")
			return append(v.Bytes, gd...)
		}
		empty := forged(make([]byte, 512))
		link.extents(t, dir, "twoGbMaxExtentSparse", "SPARSE", n, sectors,
			func(path string) { forged(link.contents()).Write(t, path) },
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
			c := vmdkforge.NewCOWD(disk, 1, nil)
			behind := c.GD + 512 // where the tables come, and go on behind the longer directory
			shift := uint32(sectors/4096*4-512) / 512
			for at := c.GD; at < c.GD+512+vmdkforge.COWDTable*int64(len(c.Tables)) &&
				at < int64(len(c.Bytes)); at += 4 {
				if n := binary.LittleEndian.Uint32(c.Bytes[at:]); n != 0 {
					c.U32(at, n+shift)
				}
			}
			c.U32(vmdkforge.COWDNumSectors, sectors)
			c.U32(vmdkforge.COWDNumGDEntries, sectors/4096)
			tail := behind + int64(shift)*512
			end := tail + int64(len(c.Bytes)) - behind
			c.U32(vmdkforge.COWDFreeSector, uint32(end/512))
			sparsely(t, path, end, map[int64][]byte{0: c.Bytes[:behind], tail: c.Bytes[behind:]})
		}
	}
	link.extents(t, dir, "vmfsSparse", "VMFSSPARSE", n, sectors, write(link.contents()), write(make([]byte, 512)))
}

// giantSESparse has a directory of 32 MiB.
func giantSESparse(t testing.TB, dir string, link giantLink) {
	t.Helper()
	link.extents(t, dir, "seSparse", "SESPARSE", 1, giantSize/512, func(path string) {
		s := vmdkforge.NewSESparse(link.contents(), 0, nil)
		const directory = giantSize / (16 << 20) * 8
		shift := uint64(s.GD+directory-s.GT) / 512
		s.U64(vmdkforge.SECapacity, giantSize/512)
		s.U64(vmdkforge.SEGrainDirSize, directory/512)
		s.U64(vmdkforge.SEGrainTables, uint64(s.GT)/512+shift)
		s.U64(vmdkforge.SEGrains, uint64(s.Grains)/512+shift)
		tail := int64(len(s.Bytes)) - s.GT
		sparsely(t, path, s.GD+directory+tail, map[int64][]byte{0: s.Bytes[:s.GD+8], s.GD + directory: s.Bytes[s.GT:]})
	}, nil)
}

// giant makes a disk of 64 TiB of v, whose one directory lies at a byte of the file.
func giant(v *vmdkforge.Sparse, gd int) {
	v.U32(vmdkforge.Flags, 1)
	v.U64(vmdkforge.RGDOffset, 0)
	v.U64(vmdkforge.Capacity, giantSize/512)
	v.U64(vmdkforge.GDOffset, uint64(gd/512))
	v.SetDescriptor(vmdkforge.Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, giantSize/512)))
}

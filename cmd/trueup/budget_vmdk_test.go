package main

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/disktest"
)

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

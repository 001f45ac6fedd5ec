package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
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

// giant makes a disk of 64 TiB of v, whose one directory lies at a byte of the file.
func giant(v *vmdkforge.Sparse, gd int) {
	v.U32(vmdkforge.Flags, 1)
	v.U64(vmdkforge.RGDOffset, 0)
	v.U64(vmdkforge.Capacity, giantSize/512)
	v.U64(vmdkforge.GDOffset, uint64(gd/512))
	v.SetDescriptor(vmdkforge.Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, giantSize/512)))
}

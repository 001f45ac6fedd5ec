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
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdforge"
	"github.com/trueup/trueup/internal/disktest/forge/vhdxforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
)

// The disks here have 64 TiB, or the maximum of their format, with xpDisk at the start. Their tables have the maximum
// size. Nothing else is stored, so the files are small or sparse.
const giantSize = 64 << 40

const giantBits = 16 // of clusters of qcow2

// giantLink is an image of a chain: its file and that of its parent, which is empty for the last.
type giantLink struct{ name, parent string }

// giantImages writes a disk into a folder that already has the parent.
var giantImages = map[string]struct {
	ext   string
	size  int64
	alone bool // without chains
	write func(t testing.TB, dir string, link giantLink)
}{
	"qcow2, clusters of 64 KiB": {
		ext: "qcow2", size: giantSize, // an L1 table of 1 MiB
		write: func(t testing.TB, dir string, link giantLink) {
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
		},
	},
	"vhd of 2040 GiB": {ext: "vhd", size: 2040 << 30, write: giantVHD(2040 << 30)},
	"vhd of 64 TiB":   {ext: "vhd", size: giantSize, alone: true, write: giantVHD(giantSize)},
	"vhdx, blocks of 1 MiB": {
		ext: "vhdx", size: giantSize, // a BAT of 512 MiB, which is a hole
		write: func(t testing.TB, dir string, link giantLink) {
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
		},
	},
	"vmdk, monolithicSparse": {
		ext: "vmdk", size: giantSize, // a directory of 8 MiB
		write: func(t testing.TB, dir string, link giantLink) {
			t.Helper()
			v := vmdkforge.NewSparse(link.contents())
			gd := enlarge(v, giantSize/512)
			extent := fmt.Sprintf(`RW %d SPARSE "%s"`, giantSize/512, link.name)
			v.SetDescriptor(link.vmdkText("monolithicSparse", extent))
			v.Bytes = append(v.Bytes, gd...)
			v.Write(t, filepath.Join(dir, link.name))
		},
	},
	"vmdk, streamOptimized": {
		ext: "vmdk", size: giantSize, alone: true, // one of 8 MiB too, between the grains and the footer
		write: func(t testing.TB, dir string, link giantLink) {
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
		},
	},
	"vmdk, 4096 sparse extents": {ext: "vmdk", size: giantSize, alone: true, write: giantSplit(4096, giantSize)},
	"vmdk, 240 sparse extents":  {ext: "vmdk", size: 60 << 40, write: giantSplit(240, 60<<40)},
	"vmdk, COWD": {
		ext: "vmdk", size: giantSize, // 64 extents of 1 TiB, each with a directory of 2 MiB
		write: func(t testing.TB, dir string, link giantLink) {
			t.Helper()
			const n = 64
			const sectors = giantSize / 512 / n
			write := func(disk []byte) func(path string) {
				return func(path string) {
					c := vmdkforge.NewCOWD(disk, 1, nil)
					behind := c.GD + 512 // the tables start here, and continue after the longer directory
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
			first, others := write(link.contents()), write(make([]byte, 512))
			link.extents(t, dir, "vmfsSparse", "VMFSSPARSE", n, sectors, first, others)
		},
	},
	"vmdk, seSparse": {
		ext: "vmdk", size: giantSize, // a directory of 32 MiB
		write: func(t testing.TB, dir string, link giantLink) {
			t.Helper()
			link.extents(t, dir, "seSparse", "SESPARSE", 1, giantSize/512, func(path string) {
				s := vmdkforge.NewSESparse(link.contents(), 0, nil)
				const directory = giantSize / (16 << 20) * 8
				shift := uint64(s.GD+directory-s.GT) / 512
				s.U64(vmdkforge.SECapacity, giantSize/512)
				s.U64(vmdkforge.SEGrainDirSize, directory/512)
				s.U64(vmdkforge.SEGrainTables, uint64(s.GT)/512+shift)
				s.U64(vmdkforge.SEGrains, uint64(s.Grains)/512+shift)
				end := s.GD + directory
				pieces := map[int64][]byte{0: s.Bytes[:s.GD+8], end: s.Bytes[s.GT:]}
				sparsely(t, path, end+int64(len(s.Bytes))-s.GT, pieces)
			}, nil)
		},
	},
	"raw": {ext: "raw", size: 8 << 40, alone: true, write: giantRaw},
	"vmdk, flat, 4096 extents": {
		ext: "vmdk", size: 8 << 40, alone: true, // a file of 8 TiB, of which the descriptor uses 4096 parts
		write: func(t testing.TB, dir string, link giantLink) {
			t.Helper()
			giantRaw(t, dir, giantLink{name: "x-flat.vmdk"})
			const sectors = 8 << 40 / 4096 / 512
			var lines []string
			for i := range 4096 {
				lines = append(lines, fmt.Sprintf(`RW %d FLAT "x-flat.vmdk" %d`, sectors, i*sectors))
			}
			writeText(link.name, vmdkforge.Descriptor("twoGbMaxExtentFlat", lines...))(t, dir)
		},
	},
}

// TestLargestImages limits inspect to its budget on the largest image of each format, with sixteen such parents if the
// format has parents.
func TestLargestImages(t *testing.T) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(giantImages)) {
		g := giantImages[name]
		t.Run(name, func(t *testing.T) {
			dir, link, links := t.TempDir(), giantLink{}, 17
			if g.alone {
				links = 1
			}
			for i := range links {
				link = giantLink{name: fmt.Sprintf("disk%d.%s", i, g.ext), parent: link.name}
				g.write(t, dir, link)
			}

			// The partition at the start of the disk is found and misaligned.
			r := measure(t, []string{"inspect", "--json", filepath.Join(dir, link.name)})[0]
			require.Equal(t, 3, r.code, "%s%s", r.stdout, r.stderr)
			var report jsonInspect
			unmarshal(t, r, &report)
			require.Equal(t, g.size, parseFailure(t, r).Image.SizeBytes)
			require.Len(t, report.Partitions, 1)
			require.Equal(t, int64(63*512), report.Partitions[0].StartBytes)
		})
	}
}

// sparsely writes pieces of a file; the rest, up to its size, is a hole.
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

// contents is the data of the link itself: the last one of a chain has the disk.
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

// maxGPTEntries is the size of the largest supported table.
const maxGPTEntries = 16_384

// giantGPT is a disk with the maximum number of partitions, 4 KiB apart from one LBA on, with names of full length.
// fill fills the 7 sectors of each.
func giantGPT(first uint64, fill func(disk forge.Bytes, lba int64)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		var entries []tableforge.GPTEntry
		for i := range uint64(maxGPTEntries) {
			start := first + 8*i
			entries = append(entries, tableforge.GPTEntry{
				First: start, Last: start + 6,
				Name: strings.Repeat("é", 31) + fmt.Sprintf("%05d", i),
			})
		}
		const array = maxGPTEntries * 128 / 512
		disk := tableforge.NewGPT(512, int64(first)+8*maxGPTEntries+array+1, maxGPTEntries, entries...)
		for _, e := range entries {
			fill(disk, int64(e.First))
		}
		path := filepath.Join(dir, "disk.raw")
		disk.Write(t, path)
		return path
	}
}

// TestLargestGPT requires that inspect and plan stay within the budget on the largest table: with aligned partitions,
// misaligned ones, and valid and broken file systems. make test runs the most expensive of these.
func TestLargestGPT(t *testing.T) {
	t.Parallel()
	empty := func(forge.Bytes, int64) {}
	ext := func(disk forge.Bytes, lba int64) { fsforge.PutExt(disk, lba, 7) }
	fat := func(disk forge.Bytes, lba int64) {
		fsforge.PutFAT16(disk, lba, 7)
		disk.U8(lba*512+fsforge.BootFATs, 5)
	}
	for name, c := range map[string]struct {
		image         func(testing.TB, string) string
		inspect, plan int
		findings      int // at least
	}{
		"aligned":             {giantGPT(8192, empty), 0, 0, 0},
		"misaligned":          {giantGPT(8191, empty), 3, 0, maxGPTEntries},
		"misaligned, ext":     {giantGPT(8191, ext), 1, 1, maxGPTEntries}, // more than are examined
		"misaligned, bad FAT": {giantGPT(8191, fat), 1, 1, maxGPTEntries + 1024},
	} {
		if name != "misaligned, bad FAT" && !disktest.Exhaustive {
			continue
		}
		t.Run(name, func(t *testing.T) {
			path := c.image(t, t.TempDir())
			// One launcher for each run, because it would count the reads of all.
			measured := func(args ...string) result { return measure(t, append(args, "--boundary", "4K", path))[0] }
			inspect, plan := measured("inspect", "--json"), measured("plan", "--json")
			require.Equal(t, c.inspect, inspect.code, inspect.stderr)
			var report jsonInspect
			unmarshal(t, inspect, &report)
			require.Len(t, report.Partitions, maxGPTEntries)
			require.GreaterOrEqual(t, len(report.Findings), c.findings)
			require.Equal(t, c.plan, plan.code, plan.stderr)
			if name == "misaligned" { // the longest texts
				require.Equal(t, c.inspect, measured("inspect").code)
				require.Equal(t, c.plan, measured("plan").code)
			}
		})
	}
}

// vmdkText is the descriptor of a link. All have the CID expected of a parent.
func (l giantLink) vmdkText(createType string, extents ...string) string {
	text := vmdkforge.Descriptor(createType, extents...)
	if l.parent == "" {
		return text
	}
	return strings.Replace(text, "parentCID=ffffffff", fmt.Sprintf("parentCID=4a5b6c7d\nparentFileNameHint=%q",
		l.parent), 1)
}

// enlarge gives v a directory after its end, for a disk of this many sectors, and returns it.
func enlarge(v *vmdkforge.Sparse, sectors int64) []byte {
	gd := make([]byte, (sectors/(128*512)*4+511)/512*512)
	copy(gd, v.Bytes[v.GD:v.GD+4])
	v.U32(vmdkforge.Flags, 1)
	v.U64(vmdkforge.RGDOffset, 0)
	v.U64(vmdkforge.Capacity, uint64(sectors))
	v.U64(vmdkforge.GDOffset, uint64(len(v.Bytes)/512))
	return gd
}

// extents writes the descriptor of a link and its extents: the first has the data of the link, the others are the same
// file under many names.
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

// giantSplit has n extents: 4096 is the maximum, and seventeen times 240 is close to it.
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

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// sparseImage is a valid sparse disk with one thing changed.
func sparseImage(change func(v *vmdkforge.Sparse)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		v := vmdkforge.NewSparse(xpDisk())
		change(v)
		return writeForged("disk.vmdk", v.Bytes)(t, dir)
	}
}

// sparseOf is sparseImage of a larger disk, which has two grain tables.
func sparseOf2Tables(change func(v *vmdkforge.Sparse)) func(testing.TB, string) string {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := make(forge.Bytes, 33<<20)
		disk.Put(0, xpDisk())
		disk.Text(32<<20, "in the second table")
		v := vmdkforge.NewSparse(disk)
		change(v)
		return writeForged("disk.vmdk", v.Bytes)(t, dir)
	}
}

// TestHostileSparse breaks headers and tables of sparse disks.
func TestHostileSparse(t *testing.T) {
	t.Parallel()
	runHostile(t, grainSizes(), capacities(), directories(), overlaps(), entries(), twoCopies(), damaged())
}

// field64 changes a field of the header and expects the message to name it.
func field64(name string, at int64, v uint64, says ...string) hostile {
	return hostile{
		name: name, code: "format", says: append(says, "vmdk sparse header"),
		image: sparseImage(func(s *vmdkforge.Sparse) { s.U64(at, v) }),
	}
}

func grainSizes() []hostile {
	var out []hostile
	for _, n := range []uint64{0, 3, 4, 129, 4096, 1 << 22, 1<<64 - 1} {
		out = append(out, field64(fmt.Sprintf("T14 grain size %d", n), vmdkforge.GrainSize, n,
			"at 0x14", fmt.Sprintf("grain size %d", n), "want a power of two from 8 to 2048"))
	}
	for _, n := range []uint32{0, 1, 511, 1024, 1<<32 - 1} {
		out = append(out, hostile{
			name: fmt.Sprintf("T15 numGTEsPerGT %d", n), code: "format",
			image: sparseImage(func(s *vmdkforge.Sparse) { s.U32(vmdkforge.NumGTEs, n) }),
			says:  []string{"vmdk sparse header at 0x2c", fmt.Sprintf("numGTEsPerGT %d", n), "want 512"},
		})
	}
	return out
}

// capacities are the refused ones.
func capacities() []hostile {
	want := "want 1 to 18014398509481983 sectors"
	tooBig := []string{"at 0x30", "redundant grain directory offset 21", "bytes fit into the file of"}
	grain1 := func(s *vmdkforge.Sparse) {
		s.U64(vmdkforge.Capacity, 1<<25)
		s.U64(vmdkforge.GrainSize, 1)
		s.U32(vmdkforge.NumGTEs, 1)
	}
	other := []string{"vmdk descriptor line 9", "4096 sectors", "capacity in the header is 4097"}
	return []hostile{
		field64("T16 capacity 2^64-1", vmdkforge.Capacity, 1<<64-1, "at 0xc", "capacity 18446744073709551615", want),
		field64("T16 capacity 2^63", vmdkforge.Capacity, 1<<63, "at 0xc", "capacity 9223372036854775808", want),
		field64("T16 capacity of 2^63 bytes", vmdkforge.Capacity, 1<<54, "at 0xc", "capacity 18014398509481984", want),
		// The directory of 64 TiB has 8 MiB, which the file does not have.
		field64("T16 64 TiB in a small file", vmdkforge.Capacity, 1<<37, append(tooBig, "8388608 bytes")...),
		{
			name:  "T16 capacity other than the extent's",
			image: sparseImage(func(s *vmdkforge.Sparse) { s.U64(vmdkforge.Capacity, 4097) }), code: "format",
			says: other,
		},
		{
			name: "T17 directory of 128 MiB", image: sparseImage(grain1), code: "format",
			says: []string{"at 0x14", "grain size 1", "want"},
		},
		field64("T17 directory beyond the file", vmdkforge.Capacity, 1<<50, append(tooBig, "68719476736 bytes")...),
	}
}

func directories() []hostile {
	const gd, rgd = vmdkforge.GDOffset, vmdkforge.RGDOffset
	fits := "want a sector from which 4 bytes fit into the file"
	return []hostile{
		field64("T18 gdOffset 0", gd, 0, "at 0x38", "grain directory offset 0", fits),
		field64("T18 gdOffset 1", gd, 1, "at 0x38", "grain directory offset 1",
			"want a place apart from the descriptor"),
		field64("T18 gdOffset inside the descriptor", gd, 20, "at 0x38", "grain directory offset 20",
			"want a place apart from the descriptor"),
		field64("T18 gdOffset 2^40", gd, 1<<40, "at 0x38", "grain directory offset 1099511627776", fits),
		field64("T18 gdOffset that wraps", gd, 1<<55, "at 0x38", "grain directory offset 36028797018963968", fits),
		field64("T18 gdOffset equal to rgdOffset", gd, 21, "at 0x38", "grain directory offset 21",
			"want a place apart from the redundant"),
		field64("T18 rgdOffset 2^40", rgd, 1<<40, "at 0x30", "redundant grain directory offset 1099511627776", fits),
		field64("T18 rgdOffset inside the descriptor", rgd, 2, "at 0x30", "redundant grain directory offset 2",
			"want a place apart from the descriptor"),
		field64("T18 descriptorOffset beyond the file", vmdkforge.DescriptorOffset, 1<<40, "at 0x1c",
			"descriptor offset 1099511627776", "bytes fit into the file"),
		{
			// All ones are the mark of a file of compressed grains, which this is not.
			name: "T18 gdOffset 2^64-1", image: sparseImage(func(v *vmdkforge.Sparse) { v.U64(gd, 1<<64-1) }),
			code: "format",
			says: []string{"at 0x38", "only a file of compressed grains"},
		},
	}
}

// overlaps are places used twice: inspect reports all of them, a copy fails.
func overlaps() []hostile {
	secondTable := func(at func(v *vmdkforge.Sparse) int64) func(v *vmdkforge.Sparse) {
		return func(v *vmdkforge.Sparse) { v.U32(v.GD+4, uint32(at(v)/512)) }
	}
	table0 := secondTable(func(v *vmdkforge.Sparse) int64 { return v.GT })
	nearTable0 := secondTable(func(v *vmdkforge.Sparse) int64 { return v.GT + 512 })
	inDirectory := secondTable(func(v *vmdkforge.Sparse) int64 { return v.GD })
	grain := func(i int64, sector func(v *vmdkforge.Sparse) uint32) func(testing.TB, string) string {
		return sparseImage(func(v *vmdkforge.Sparse) { v.SetGrain(i, sector(v)) })
	}
	broken := func(name string, image func(testing.TB, string) string, says ...string) hostile {
		return hostile{name: "T19 " + name, image: image, code: "format", report: true, says: says}
	}
	return []hostile{
		broken("two directory entries to one table", sparseOf2Tables(table0), "1 grain tables at a place in use",
			"grain directory entry 1 names sector"),
		broken("two tables that overlap", sparseOf2Tables(nearTable0), "1 grain tables at a place in use",
			"grain directory entry 1 names sector"),
		broken("table inside the directory", sparseOf2Tables(inDirectory),
			"1 grain tables outside of the file or inside the directory", "vmdk grain directory at 0x3c04",
			"entry 30, want 0, or the sector"),
		broken("table beyond the file", sparseOf2Tables(secondTable(func(*vmdkforge.Sparse) int64 { return 1 << 40 })),
			"1 grain tables outside of the file or inside the directory", "vmdk grain directory at 0x3c04",
			"entry 2147483648, want 0, or the sector"),
		broken("two grains at one place", grain(5, func(v *vmdkforge.Sparse) uint32 { return v.Grain(4) }),
			"1 grains at a place in use"),
		broken("two grains that overlap", grain(5, func(v *vmdkforge.Sparse) uint32 { return v.Grain(4) + 8 }),
			"1 grains at a place in use"),
		{
			name: "T19 two million entries to one table", image: manyEntries, code: "format", report: true,
			says: []string{"2097151 grain tables at a place in use"},
		},
	}
}

// manyEntries is a disk of 64 TiB whose directory, 8 MiB long, names one and the same table, full of entries, all over:
// 2^30 grains to look at for a program that does not see it.
func manyEntries(t testing.TB, dir string) string {
	t.Helper()
	v := vmdkforge.NewSparse(xpDisk())
	giant(v, len(v.Bytes))
	for i := range int64(512) {
		v.U32(v.GT+4*i, v.Grain(16))
	}
	v.U32(v.GT, v.Grain(1))
	gd := make([]byte, 8<<20)
	for i := range len(gd) / 4 {
		binary.LittleEndian.PutUint32(gd[4*i:], uint32(v.GT/512))
	}
	v.Bytes = append(v.Bytes, gd...)
	return writeForged("disk.vmdk", v.Bytes)(t, dir)
}

// giant makes a disk of 64 TiB of v, whose one directory lies at a byte of the file.
func giant(v *vmdkforge.Sparse, gd int) {
	v.U32(vmdkforge.Flags, 1)
	v.U64(vmdkforge.RGDOffset, 0)
	v.U64(vmdkforge.Capacity, 1<<37)
	v.U64(vmdkforge.GDOffset, uint64(gd/512))
	v.SetDescriptor(vmdkforge.Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, int64(1)<<37)))
}

// entries are damaged single entries. Damage where sector 0 lies leaves nothing to report.
func entries() []hostile {
	set := func(i int64, sector uint32) func(testing.TB, string) string {
		return sparseImage(func(v *vmdkforge.Sparse) { v.SetGrain(i, sector) })
	}
	cut := sparseImage(func(v *vmdkforge.Sparse) { v.Bytes = v.Bytes[:len(v.Bytes)-512] })
	firstTable := sparseImage(func(v *vmdkforge.Sparse) { v.U32(v.GD, uint32(v.GD/512)) })
	outside := []string{"1 grains outside of the file's data area", "vmdk grain table at 0x"}
	return []hostile{
		{
			name: "T19 grain below overHead", image: set(5, 20), code: "format", report: true,
			says: append(outside, "entry 20, want 0, or at least 128"),
		},
		{
			name: "T19 grain past the end", image: set(5, 0xffffff), code: "format", report: true,
			says: append(outside, "entry 16777215, want"),
		},
		{
			name: "T19 last grain cut short", image: cut, code: "format", report: true,
			says: append(outside, "want a grain of 65536 bytes that ends inside the file"),
		},
		{
			name: "T19 grain of sector 0 past the end", image: set(0, 0xffffffff), code: "format",
			says: []string{"vmdk grain table at 0x3600", "entry 4294967295, want"},
		},
		{
			name: "T19 first table inside the directory", image: firstTable, code: "format",
			says: []string{"vmdk grain directory at 0x3400", "entry 26, want"},
		},
	}
}

// twoCopies are directories that differ. inspect only says so; a copy would have to choose, and leaves that to the
// user.
func twoCopies() []hostile {
	refused := func(name string, change func(v *vmdkforge.Sparse), says ...string) hostile {
		return hostile{
			name: "T20 " + name, image: sparseImage(change), code: "format", inspect: 3, copy: 4, report: true,
			says: append(says, "redundant grain tables disagree", "1 places"),
		}
	}
	return []hostile{
		refused("one entry of the second copy differs", func(v *vmdkforge.Sparse) { v.U32(v.RGT+4*9, v.Grain(8)) },
			"copy of table 0 at 0x2c00"),
		refused("second directory lacks a table", func(v *vmdkforge.Sparse) { v.U32(v.RGD, 0) },
			"redundant directory entry 0 is 0"),
		refused("second directory leads out of the file", func(v *vmdkforge.Sparse) { v.U32(v.RGD, 1<<31) },
			"redundant directory entry 0 is 2147483648"),
	}
}

// damaged are marks of an image that was not closed.
func damaged() []hostile {
	unclean := sparseImage(func(v *vmdkforge.Sparse) { v.U8(vmdkforge.UncleanShutdown, 1) })
	var out []hostile
	for _, line := range []string{"\n \n\n", "\r\n \r", "\n \r\r", "\x00\x00\x00\x00"} {
		out = append(out, hostile{
			name:  fmt.Sprintf("T21 damaged by a transfer in text mode: % x", line),
			image: sparseImage(func(v *vmdkforge.Sparse) { v.Text(vmdkforge.NewLine, line) }),
			code:  "format", says: []string{
				"vmdk sparse header at 0x49", fmt.Sprintf("newline test % x", line),
				"want 0a 20 0d 0a", "text mode",
			},
		})
	}
	return append(out, hostile{
		name: "T21 not closed cleanly", image: unclean, code: "busy", inspect: 3, copy: 4, report: true,
		says: []string{"uncleanShutdown at 0x48 is 1"},
	})
}

// TestForgedSparseIsValid makes sure that the cases above differ from a good image in nothing but what they change.
func TestForgedSparseIsValid(t *testing.T) {
	t.Parallel()
	for name, image := range map[string]func(testing.TB, string) string{
		"one table": sparseImage(func(*vmdkforge.Sparse) {}), "two tables": sparseOf2Tables(func(*vmdkforge.Sparse) {}),
	} {
		t.Run(name, func(t *testing.T) {
			path := image(t, t.TempDir())
			require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vmdk", path), "No errors were found")
			out := filepath.Join(t.TempDir(), "out.vmdk")
			ends := measure(t, []string{"inspect", path}, []string{"align", path, out})
			require.Equal(t, 3, ends[0].code, ends[0].stderr)
			require.Equal(t, 0, ends[1].code, ends[1].stderr)
			require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vmdk", out), "No errors were found")
		})
	}
}

// TestOddCapacities is about capacities that are legal, and cost no memory.
func TestOddCapacities(t *testing.T) {
	t.Parallel()
	small := func(sectors int) func(testing.TB, string) string {
		return writeForged("disk.vmdk", vmdkforge.NewSparse(noise("odd", sectors*512)).Bytes)
	}
	qemuMade := func(t testing.TB, dir string) string {
		t.Helper()
		path := filepath.Join(dir, "disk.vmdk")
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", path, "63T")
		return path
	}
	for name, c := range map[string]struct {
		image   func(testing.TB, string) string
		sectors int64
	}{
		"capacity 1":                          {small(1), 1},
		"capacity that is no whole grain":     {small(129), 129},
		"64 TiB, directory is a hole":         {emptyGiant, 1 << 37},
		"63 TiB of qemu-img, with its tables": {qemuMade, 63 << 31},
	} {
		t.Run(name, func(t *testing.T) {
			r := measure(t, []string{"inspect", "--json", "--allow-unknown", c.image(t, t.TempDir())})[0]
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, c.sectors*512, parseFailure(t, r).Image.SizeBytes)
		})
	}
}

// emptyGiant is a disk of 64 TiB without any data, in a file of 140 KiB and a hole.
func emptyGiant(t testing.TB, dir string) string {
	t.Helper()
	v := vmdkforge.NewSparse(make([]byte, 512))
	giant(v, len(v.Bytes))
	path := writeForged("disk.vmdk", v.Bytes)(t, dir)
	require.NoError(t, os.Truncate(path, int64(len(v.Bytes))+8<<20))
	return path
}
